"""The format `hub`: a dataset of the Hugging Face hub, or a local folder that `datasets` can load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mixfluence.data.pairs import Per, RecordReader, records_of
from mixfluence.data.rows import RowSet, convert_once
from mixfluence.data.source import SourceSection
from mixfluence.errors import DataError
from mixfluence.schema import WholeNumber

if TYPE_CHECKING:
    from datasets import Dataset


class HubSource(SourceSection):
    """A dataset of the Hugging Face hub; `columns`, `per` and `negatives` are as for pairs.

    `revision` is a branch, tag or commit; without one, the newest that can be reached. `split` may be a part such as
    `train[:1000]`. Code in the repository is never run.
    """

    format: Literal["hub"] = "hub"
    id: str
    split: str
    revision: str | None = None
    config: str | None = None
    columns: dict[str, str | list[str]] | None = None
    per: Per = "pair"
    negatives: WholeNumber | None = None

    def read_rows(self) -> RowSet:
        """Return the rows of the split, converted once per downloaded file: a new revision is a new file."""
        dataset = self._load()
        options = self.model_dump(include={"format", "split", "columns", "per", "negatives"})
        files = [Path(file["filename"]) for file in dataset.cache_files]
        reader = RecordReader(self.id, self.columns, per=self.per, negatives=self.negatives)
        return convert_once(files, options, lambda notes: reader.read([records_of(self.id, dataset)], notes))

    def _load(self) -> Dataset:
        from datasets import load_dataset  # here, because recipes import the formats without data

        try:
            # Not in memory, because convert_once recognises the dataset by its files.
            return load_dataset(
                self.id, name=self.config, revision=self.revision, split=self.split, keep_in_memory=False
            )
        except Exception as error:  # the hub client, its transport and every file parser have their own classes
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            raise DataError(
                f"{self.id}: could not be loaded ({reason}); connect this machine to the hub, "
                "or download the files elsewhere and read them with the format pairs"
            ) from error

"""Base classes of the data formats: the recipe keys that all of them share, and how a source is read."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from pydantic import ValidationInfo, field_validator

from mixfluence.data.retrieval import RetrievalSet, retrieval_from_rows
from mixfluence.data.rows import RowSet
from mixfluence.schema import Count, PathLike, Section

LOCATION_KEYS = {"path", "id", "config", "library", "language", "split"}


class PublishedSection(Section):
    """Published counts of a dataset: compared with what is read, and used by `plan` where the data is missing."""

    rows: Count | None = None
    queries: Count | None = None
    judgements: Count | None = None
    passages: Count | None = None


class SourceSection(Section):
    """A data source. A format is a subclass with a literal `format` and a line in `formats.FORMATS`.

    Prompts are prepended to every text, in training and in testing; without one the model's own is used.
    Counts that differ from `published` are reported as warnings.
    """

    query_prompt: str | None = None
    passage_prompt: str | None = None
    published: PublishedSection | None = None

    @property
    def location(self) -> str:
        """The source as messages name it: its path or id, language and split."""
        return " ".join(map(str, self.model_dump(include=LOCATION_KEYS, exclude_none=True).values()))

    @property
    def on_disk(self) -> bool:
        """Whether reading it can be tried on this machine."""
        return True

    @abstractmethod
    def read_rows(self) -> RowSet:
        """Return the training rows. `formats.read_rows` also compares them with the published counts."""

    def read_task(self, name: str) -> RetrievalSet:
        """Return a retrieval task; unless the format has a corpus, all passages of the rows are the corpus."""
        return retrieval_from_rows(name, self.read_rows())


class FileSource(SourceSection):
    """A source on this machine."""

    path: PathLike

    @property
    def on_disk(self) -> bool:
        """Whether the path exists."""
        return self.path.exists()

    @field_validator("path")
    @classmethod
    def _exists(cls, path: Path, info: ValidationInfo) -> Path:
        if (info.context or {}).get("files_may_be_missing"):
            return path
        try:
            found = path.exists()
        except OSError as error:  # name too long, or no permission
            raise ValueError(f"cannot be accessed ({error.strerror})") from error
        if not found:
            raise ValueError(f"no such file or folder: {path.absolute()}")
        return path

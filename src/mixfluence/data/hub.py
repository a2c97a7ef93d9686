"""Reads a dataset of the Hugging Face hub, or a local folder that `datasets` can load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset

from mixfluence.data.columns import ColumnMap, Per, RecordReader, records_of
from mixfluence.data.rows import Row, RowSet, convert_once
from mixfluence.errors import DataError


def read_hub(
    dataset_id: str,
    revision: str | None,
    config: str | None,
    split: str,
    columns: ColumnMap | None = None,
    *,
    per: Per = "pair",
    negatives: int | None = None,
) -> RowSet:
    """Return the rows of one split of a hub dataset: for files on this machine prefer `read_pairs`.

    `datasets` keeps what it downloads as Arrow files, in a folder named after the commit, and the rows
    are converted once per such file: a new revision is a new file, so the rows are never stale. Code of
    a repository is never run.

    Args:
        dataset_id: Such as `sentence-transformers/natural-questions`.
        revision: A branch, tag or commit; None is the newest that can be reached.
        config: Which configuration, where the dataset has several.
        split: A split, or a part of one such as `train[:1000]`.
        columns: As for `read_pairs`.
        per: As for `read_pairs`.
        negatives: As for `read_pairs`.

    Raises:
        DataError: If the dataset cannot be loaded or its columns do not make rows.
    """
    dataset = _load(dataset_id, revision, config, split)
    options: dict[str, Any] = {"format": "hub", "split": split, "columns": columns and dict(columns)}
    options |= {"per": per, "negatives": negatives}
    files = [Path(file["filename"]) for file in dataset.cache_files]
    reader = RecordReader(dataset_id, columns, per=per, negatives=negatives)
    return convert_once(files, options, lambda notes: _rows(dataset_id, dataset, reader, notes))


def _load(dataset_id: str, revision: str | None, config: str | None, split: str) -> Dataset:
    try:
        # In memory it would have no files, by which convert_once knows it again.
        return load_dataset(dataset_id, name=config, revision=revision, split=split, keep_in_memory=False)
    except Exception as error:  # the hub client, its transport and every file parser raise their own kinds
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise DataError(
            f"{dataset_id}: could not be loaded ({reason}); this machine must reach the hub, "
            "or download the files elsewhere and read them with the format pairs"
        ) from error


def _rows(name: str, dataset: Dataset, reader: RecordReader, notes: list[str]) -> Iterator[Row]:
    yield from reader.rows(records_of(name, dataset))
    reader.report(notes)

"""The format `mldr`: long documents in 13 languages, in `mldr-v1.0-<language>/` with a file per split and the corpus.

The judgements of dev and test are in `qrels/qrels.mldr-v1.0-<language>-<split>.tsv`. mteb's Parquet copy,
`MultiLongDocRetrieval`, is read as well; it contains tasks but no training rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from mixfluence.data.beir import find_beir_files, make_task, read_grades, read_task_files
from mixfluence.data.files import MAX_DROPPED_SHARE, Dropped, find_file, kind, read_objects, text_field
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.rows import Row, RowSet, convert_once
from mixfluence.data.source import FileSource
from mixfluence.errors import DataError


class MldrSource(FileSource):
    """One language of MLDR: rows for training and dev, and tasks with the language's whole corpus.

    `path` contains `mldr-v1.0-<language>` and `qrels`, or mteb's `<language>-corpus`, `-queries` and `-qrels`. A row
    has a query's first positive and all its negatives.
    """

    format: Literal["mldr"] = "mldr"
    language: str
    split: Literal["train", "dev", "test"]

    def read_rows(self) -> RowSet:
        """Return the rows of the split, one per query."""
        file = find_file(self._folder(), f"{self.split}.jsonl")
        return convert_once([file], {"format": "mldr"}, lambda notes: _rows(file, notes))

    def read_task(self, name: str) -> RetrievalSet:
        """Return the split as a task with the language's whole corpus."""
        if (self.path / f"{self.language}-corpus").is_dir():
            return read_task_files(find_beir_files(self.path, self.split, prefix=f"{self.language}-"), name)
        folder = self._folder()
        qrels = find_file(self.path / "qrels", f"qrels.mldr-v1.0-{self.language}-{self.split}.tsv")
        queries = _texts(find_file(folder, f"{self.split}.jsonl"), "query_id", "query")
        passages = _texts(find_file(folder, "corpus.jsonl"), "docid", "text")
        return make_task(name, qrels, read_grades([qrels]), queries, passages)

    def _folder(self) -> Path:
        folder = self.path / f"mldr-v1.0-{self.language}"
        if not folder.is_dir():
            raise DataError(f"{self.path}: expected a folder {folder.name} in it, found none")
        return folder


def _rows(file: Path, notes: list[str]) -> Iterator[Row]:
    dropped = Dropped(str(file), "queries without text or without a positive")
    for where, record in read_objects(file):
        dropped.total += 1
        query = text_field(record, "query", where).strip()
        positives, negatives = (_passages(record, f"{side}_passages", where) for side in ("positive", "negative"))
        if query and positives:
            yield Row(query, positives[0], negatives)
        else:
            dropped.add(where)
    dropped.report(notes, limit=MAX_DROPPED_SHARE)


def _passages(record: dict[str, Any], column: str, where: str) -> list[str]:
    """Return the texts of a list of passages, without empty ones; no value is an empty list."""
    passages = record.get(column) or []
    if not isinstance(passages, list) or not all(isinstance(passage, dict) for passage in passages):
        raise DataError(
            f"{where}: found {kind(passages)} as '{column}', expected a list of objects with docid and text"
        )
    return [text for passage in passages if (text := text_field(passage, "text", where).strip())]


def _texts(file: Path, id: str, text: str) -> dict[str, str]:
    return {
        text_field(record, id, where).strip(): text_field(record, text, where).strip()
        for where, record in read_objects(file)
    }

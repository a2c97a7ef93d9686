"""The format `mldr`: long documents in 13 languages, the benchmark of BGE-M3.

A language is a folder `mldr-v1.0-<language>/` with a file per split and the corpus. Judgements of dev and test are in
`qrels/qrels.mldr-v1.0-<language>-<split>.tsv`. mteb's Parquet copy, `MultiLongDocRetrieval`, is read as well; it
contains tasks but no training rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from mixfluence.data.beir import Collection, find_beir_files, read_collection, read_grades, read_texts
from mixfluence.data.pairs import RecordReader
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.rows import RowSet, convert_once
from mixfluence.data.source import FileSource, Record, find_file, read_objects, text_field
from mixfluence.errors import DataError
from mixfluence.schema import short


class MldrSource(FileSource):
    """One language of MLDR: rows for training and dev, and tasks with the language's whole corpus.

    `path` contains `mldr-v1.0-<language>` and `qrels`, or mteb's `<language>-corpus`, `-queries` and `-qrels`.
    """

    format: Literal["mldr"] = "mldr"
    language: str
    split: Literal["train", "dev", "test"]

    def read_rows(self) -> RowSet:
        file = find_file(self._folder, f"{self.split}.jsonl")
        reader = RecordReader(str(file), per="query")
        return convert_once([file], {"format": "mldr"}, lambda facts: reader.read([_records(file)], facts))

    def read_task(self, name: str, rows: RowSet | None = None) -> RetrievalSet:
        if (self.path / f"{self.language}-corpus").is_dir():
            return read_collection(find_beir_files(self.path, self.split, prefix=f"{self.language}-")).task(name)
        qrels = find_file(self.path / "qrels", f"qrels.mldr-v1.0-{self.language}-{self.split}.tsv")
        files = [find_file(self._folder, f"{stem}.jsonl") for stem in (self.split, "corpus")]
        queries = read_texts(files[:1], id_column="query_id", text_column="query")
        passages = read_texts(files[1:], id_column="docid")
        return Collection(qrels, read_grades([qrels]), queries, passages).task(name)

    @property
    def _folder(self) -> Path:
        return self.path / f"mldr-v1.0-{self.language}"


def _records(file: Path) -> Iterator[Record]:
    for where, record in read_objects(file):
        query = text_field(record, "query", where).strip()
        positives, negatives = (_passages(record, f"{side}_passages", where) for side in ("positive", "negative"))
        yield where, {"query": query, "pos": positives, "neg": negatives}


def _passages(record: dict[str, Any], column: str, where: str) -> list[str]:
    """Return the texts of a list of passages, without empty ones; no value is an empty list."""
    passages = record.get(column) or []
    if not isinstance(passages, list) or not all(isinstance(passage, dict) for passage in passages):
        raise DataError(f"{where}: found {short(passages)} as '{column}', expected a list of objects with a text")
    return [text for passage in passages if (text := text_field(passage, "text", where).strip())]

"""Reads MLDR, long documents in 13 languages: `mldr-v1.0-<language>/` with a file per split and one for the corpus.

The judgements of dev and test are in `qrels/qrels.mldr-v1.0-<language>-<split>.tsv`, TREC's four columns or three. The
Parquet twin in mteb, `MultiLongDocRetrieval`, is read as well; it has tasks to measure on and no training rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mixfluence.data.beir import make_task, read_grades, read_task_files
from mixfluence.data.beir_files import find_beir_files
from mixfluence.data.files import MAX_DROPPED_SHARE, Dropped, find_file, kind, read_records
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.rows import Row, RowSet, convert_once
from mixfluence.errors import DataError


def read_mldr_rows(folder: Path, language: str, split: str) -> RowSet:
    """Return the rows of one split, one per query: its first positive and all its negatives, if it has any.

    For a task to measure on prefer `read_mldr_retrieval`.

    Args:
        folder: Holds `mldr-v1.0-<language>`.
        language: A code such as `en`.
        split: `train`, `dev` or `test`.

    Raises:
        DataError: If the file is missing or malformed.
    """
    file = find_file(_language_folder(folder, language), f"{split}.jsonl")
    return convert_once([file], {"format": "mldr"}, lambda notes: _rows(file, notes))


def read_mldr_retrieval(folder: Path, language: str, split: str, name: str) -> RetrievalSet:
    """Return one split as a task with the language's whole corpus: for training rows prefer `read_mldr_rows`.

    Args:
        folder: Holds `mldr-v1.0-<language>` and `qrels`, or mteb's `<language>-corpus`, `-queries` and `-qrels`.
        language: A code such as `en`.
        split: `dev` or `test`.
        name: How tables call it.
    """
    if (folder / f"{language}-corpus").is_dir():
        return read_task_files(find_beir_files(folder, split, prefix=f"{language}-"), name)
    files = _language_folder(folder, language)
    qrels = find_file(folder / "qrels", f"qrels.mldr-v1.0-{language}-{split}.tsv")
    queries = _texts(find_file(files, f"{split}.jsonl"), "query_id", "query")
    return make_task(name, qrels, read_grades([qrels]), queries, _texts(find_file(files, "corpus.jsonl"), "docid"))


def _language_folder(folder: Path, language: str) -> Path:
    found = folder / f"mldr-v1.0-{language}"
    if not found.is_dir():
        raise DataError(f"{folder}: expected a folder {found.name} in it, found none")
    return found


def _rows(file: Path, notes: list[str]) -> Iterator[Row]:
    dropped = Dropped(str(file), "queries without text or without a positive")
    for where, record in _objects(file):
        dropped.total += 1
        query = _text(record, "query", where)
        positives, negatives = (_passages(record, f"{side}_passages", where) for side in ("positive", "negative"))
        if query and positives:
            yield Row(query, positives[0], negatives)
        else:
            dropped.add(where)
    dropped.report(notes, limit=MAX_DROPPED_SHARE)


def _passages(record: dict[str, Any], column: str, where: str) -> list[str]:
    """Return the passages of a list that have text; no list is an empty one."""
    passages = record.get(column) or []
    if not isinstance(passages, list) or not all(isinstance(passage, dict) for passage in passages):
        raise DataError(
            f"{where}: found {kind(passages)} as '{column}', expected a list of objects with docid and text"
        )
    return [text for passage in passages if (text := _text(passage, "text", where))]


def _texts(file: Path, id: str, text: str = "text") -> dict[str, str]:
    return {_text(record, id, where): _text(record, text, where) for where, record in _objects(file)}


def _objects(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for where, record in read_records(file):
        if not isinstance(record, dict):
            raise DataError(f"{where}: found {kind(record)}, expected an object")
        yield where, record


def _text(record: dict[str, Any], column: str, where: str) -> str:
    value = record.get(column)
    if not isinstance(value, str):
        raise DataError(f"{where}: found {kind(value)} as '{column}', expected text")
    return value.strip()

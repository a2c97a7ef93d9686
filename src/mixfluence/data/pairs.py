"""Reads pairs, triplets and longer tuples from `.jsonl`, `.csv`, `.tsv` (each also `.gz`) and `.parquet`."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mixfluence.data.columns import ColumnMap, Per, RecordReader
from mixfluence.data.files import LONGEST_LINE, read_lines, read_records
from mixfluence.data.rows import Row, RowSet, convert_once
from mixfluence.errors import DataError

EXTENSIONS = (".jsonl", ".csv", ".tsv", ".jsonl.gz", ".csv.gz", ".tsv.gz", ".parquet")

# Where a record was found, for messages, and its value.
Record = tuple[str, Any]


def read_pairs(
    path: Path, columns: ColumnMap | None = None, *, per: Per = "pair", negatives: int | None = None
) -> RowSet:
    """Return the rows of one file or of every file in a folder, in the order of their names.

    Each format gives lists or objects, whose meaning `mixfluence.data.columns` describes. Tables need a
    header; quotes group text in `.csv` and are ordinary characters in `.tsv`. For queries, passages and
    judgements in files of their own prefer `read_beir_rows`; for a dataset of the hub, `read_hub`.

    Args:
        path: A file, or a folder that holds nothing else (hidden files are ignored).
        columns: Which column is `anchor`, `positive`, `negatives` (one list-valued column or several) and
            `scores` (a list, one number per passage, positives first). None goes by the shape of the records.
        per: "pair" gives one row for each positive that a record lists, "query" one per record, with the first.
        negatives: Most hard negatives a row may keep, the first ones; None keeps all.

    Raises:
        DataError: If a file is missing, damaged or malformed, or too many rows lack a text.
    """
    files = _find_files(path)
    options = {"format": "pairs", "columns": columns and dict(columns), "per": per, "negatives": negatives}
    reader = RecordReader(str(path), columns, per=per, negatives=negatives)
    return convert_once(files, options, lambda notes: _rows(reader, files, notes))


def _find_files(path: Path) -> list[Path]:
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    files = sorted(f for f in path.iterdir() if f.name[0] != ".") if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path}: an empty folder, expected files ending in {', '.join(EXTENSIONS)}")
    for file in files:
        if not file.is_file() or not file.name.endswith(EXTENSIONS):
            raise DataError(f"{file}: expected a file ending in {', '.join(EXTENSIONS)}")
    return files


def _rows(reader: RecordReader, files: list[Path], notes: list[str]) -> Iterator[Row]:
    for file in files:
        yield from reader.rows(_records(file))
    reader.report(notes)


def _records(path: Path) -> Iterator[Record]:
    match path.name.removesuffix(".gz").rpartition(".")[2]:
        case "csv":
            return _table_records(path, delimiter=",", quoting=csv.QUOTE_MINIMAL)
        case "tsv":
            return _table_records(path, delimiter="\t", quoting=csv.QUOTE_NONE)
        case _:
            return read_records(path)


def _table_records(path: Path, **dialect: Any) -> Iterator[Record]:
    reader = csv.reader((f"{text}\n" for _, text in read_lines(path)), strict=True, **dialect)
    try:
        with _long_fields():
            header = next(reader, [])
            if not header or len(set(header)) < len(header):
                raise DataError(f"{path}:1: found the header {header}, expected column names, each once")
            for values in reader:
                if values:  # else a blank line
                    yield (
                        f"{path}:{reader.line_num}",
                        _table_record(header, values, f"{path}:{reader.line_num}"),
                    )
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not a valid table ({error})") from error


def _table_record(header: list[str], values: list[str], where: str) -> dict[str, str | None]:
    if len(values) != len(header):
        raise DataError(f"{where}: found {len(values)} columns, expected {len(header)} as in the header")
    return {name: value or None for name, value in zip(header, values, strict=True)}


@contextmanager
def _long_fields() -> Iterator[None]:
    """Lift the csv module's limit of 131,072 characters a field, which long documents pass."""
    before = csv.field_size_limit(LONGEST_LINE)
    try:
        yield
    finally:
        csv.field_size_limit(before)

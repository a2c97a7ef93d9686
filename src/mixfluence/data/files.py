"""Reading data files: lines, JSON lines, tables and Parquet, with errors that name the file and the line."""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mixfluence.errors import DataError

# Published datasets have a few unknown ids and empty texts; more of them means the wrong file or column.
MAX_DROPPED_SHARE = 0.05
EXAMPLES_SHOWN = 5
RECORDS_PER_READ = 1_000
# A record has a few long documents at most; a file without line ends would fill the memory.
LONGEST_LINE = 2**26
BYTE_ORDER_MARK = "\ufeff"
SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
KINDS = {type(None): "no value", bool: "true or false", int: "a number", float: "a number", str: "text"}
KINDS |= {list: "a list", dict: "an object"}
# A record's place in its file, for messages, and its value.
Record = tuple[str, Any]


@dataclass
class Dropped:
    """Counts what a reader leaves out and keeps a few examples.

    Args:
        source: The file or dataset, as named in messages.
        what: What is left out, in the plural.
        total: How many there were, kept ones included.
    """

    source: str
    what: str
    total: int = 0
    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, example: str) -> None:
        """Count one that is left out."""
        self.count += 1
        if len(self.examples) < EXAMPLES_SHOWN:
            self.examples.append(example)

    def report(self, notes: list[str], limit: float = 1.0) -> None:
        """Append a note if anything was left out; raise a `DataError` if its share exceeds `limit`."""
        if not self.count:
            return
        amount, examples = f"{self.count} of {self.total} {self.what}", ", ".join(self.examples)
        share = self.count / self.total
        if share > limit:
            raise DataError(
                f"{self.source}: found {amount} ({share:.1%}), such as {examples}; expected at most {limit:.0%}"
            )
        notes.append(f"{self.source}: left out {amount}, such as {examples}")


def find_file(folder: Path, name: str) -> Path:
    """Return the file `name` of a folder, or its `.gz` form if only that exists."""
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    raise DataError(f"{folder}: expected {name} or {name}.gz in it, found neither")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and text of every line of a UTF-8 file, gzipped if its name ends in `.gz`.

    A byte order mark and Windows line ends are removed. For JSON lines and tables prefer `read_records`.
    """
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(LONGEST_LINE + 1), b""), start=1):
                if len(line) > LONGEST_LINE:
                    raise DataError(f"{path}:{number}: the line is longer than {LONGEST_LINE:,} bytes")
                yield number, _decode(line, f"{path}:{number}", first=number == 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged or truncated after line {number} ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: expected a readable file ({error.strerror or error})") from error


def read_records(path: Path) -> Iterator[Record]:
    """Yield every record with its place: of Parquet, `.csv` and `.tsv` by the file's name, else of JSON lines.

    Tables need a header. Quotes group text in `.csv` and are ordinary characters in `.tsv`.
    """
    match path.name.removesuffix(".gz").rpartition(".")[2]:
        case "parquet":
            return _read_parquet(path)
        case "csv":
            return _read_table(path, delimiter=",", quoting=csv.QUOTE_MINIMAL)
        case "tsv":
            return _read_table(path, delimiter="\t", quoting=csv.QUOTE_NONE)
        case _:
            return _read_jsonl(path)


def read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every record with its place; all must be objects."""
    for where, record in read_records(path):
        if not isinstance(record, dict):
            raise DataError(f"{where}: found {kind(record)}, expected an object")
        yield where, record


def text_field(record: dict[str, Any], name: str, where: str) -> str:
    """Return a field that must be text."""
    value = record.get(name)
    if not isinstance(value, str):
        raise DataError(f"{where}: found {kind(value)} as '{name}', expected text")
    return value


def kind(value: Any) -> str:
    """Return the type of a value from a file, as named in messages."""
    return KINDS.get(type(value), type(value).__name__)


def _decode(line: bytes, where: str, first: bool) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"byte 0x{line[error.start]:02x} at position {error.start + 1}"
        raise DataError(f"{where}: not valid UTF-8 ({found}: {error.reason})") from error
    text = text.removesuffix("\n").removesuffix("\r")
    return text.removeprefix(BYTE_ORDER_MARK) if first else text


def _read_jsonl(path: Path) -> Iterator[Record]:
    for number, text in read_lines(path):
        if text and not text.isspace():
            yield f"{path}:{number}", _parse_json(text, f"{path}:{number}")


def _parse_json(text: str, where: str) -> Any:
    try:
        value = json.loads(text)
        if SURROGATE_ESCAPE.search(text):
            # JSON can escape half a surrogate pair, which UTF-8 cannot encode and Arrow rejects later.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not valid JSON (column {error.colno}: {error.msg})") from error
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: not valid JSON (a \\u escape is half a character)") from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{where}: not valid JSON ({error})") from error
    return value


def _read_parquet(path: Path) -> Iterator[Record]:
    import pyarrow as pa  # here, because recipes import the formats without data
    import pyarrow.parquet as pq

    row = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(RECORDS_PER_READ):
                for record in batch.to_pylist():
                    row += 1
                    yield f"{path}: row {row}", record
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: not a valid Parquet file after row {row} ({reason})") from error


def _read_table(path: Path, **dialect: Any) -> Iterator[Record]:
    reader = csv.reader((f"{text}\n" for _, text in read_lines(path)), strict=True, **dialect)
    try:
        with _long_fields():
            header = next(reader, [])
            if not header or len(set(header)) < len(header):
                raise DataError(f"{path}:1: found the header {header}, expected distinct column names")
            for values in filter(None, reader):  # blank lines are empty lists
                where = f"{path}:{reader.line_num}"
                if len(values) != len(header):
                    raise DataError(f"{where}: found {len(values)} columns, expected {len(header)} as in the header")
                yield where, {name: value or None for name, value in zip(header, values, strict=True)}
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not a valid table ({error})") from error


@contextmanager
def _long_fields() -> Iterator[None]:
    """Raise the csv module's limit of 131,072 characters a field, which long documents exceed."""
    before = csv.field_size_limit(LONGEST_LINE)
    try:
        yield
    finally:
        csv.field_size_limit(before)

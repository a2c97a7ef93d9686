"""The low level every reader of data files shares: lines, JSON lines, Parquet, and what may be left out.

Whatever is wrong with a file becomes one `DataError` that names the file and the line.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mixfluence.errors import DataError

# Real sets hold a few stray ids and empty texts; more of them means the wrong file or column.
MAX_DROPPED_SHARE = 0.05
EXAMPLES_SHOWN = 5
RECORDS_PER_READ = 1_000
# A record has a few long documents at most; a line without end, as in a gzip bomb, would fill the memory.
LONGEST_LINE = 2**26
BYTE_ORDER_MARK = "\ufeff"
SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
KINDS = {type(None): "no value", bool: "true or false", int: "a number", float: "a number", str: "text"}
KINDS |= {list: "a list", dict: "an object"}


@dataclass
class Dropped:
    """Counts what a reader leaves out and keeps the first few of them to show.

    Args:
        source: The file or dataset, as messages call it.
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
        """Append a remark if anything was left out; refuse the data if it was a larger share than `limit`."""
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
    """Return the file `name` of a folder or, where there is none, its `.gz` form."""
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    raise DataError(f"{folder}: expected {name} or {name}.gz in it, found neither")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and text of every line of a UTF-8 file, gzipped if its name ends in `.gz`.

    A byte order mark and Windows line ends are removed. For JSON lines prefer `read_jsonl`.
    """
    number = 0
    try:
        with _open(path) as stream:
            for number, line in enumerate(iter(lambda: stream.readline(LONGEST_LINE + 1), b""), start=1):
                if len(line) > LONGEST_LINE:
                    raise DataError(f"{path}:{number}: the line is longer than {LONGEST_LINE:,} bytes")
                yield number, _decode(line, f"{path}:{number}", first=number == 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged or truncated after line {number} ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: expected a readable file ({error.strerror or error})") from error


def read_jsonl(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of every line of a JSON lines file, skipping blank lines."""
    for number, text in read_lines(path):
        if text and not text.isspace():
            yield number, _parse_json(text, f"{path}:{number}")


def read_parquet(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number and content of every row of a Parquet file."""
    row = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(RECORDS_PER_READ):
                for record in batch.to_pylist():
                    row += 1
                    yield row, record
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: not a valid Parquet file after row {row} ({reason})") from error


def read_records(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield every record of a Parquet file or, whatever its name, of JSON lines, each after its place for messages."""
    if path.suffix == ".parquet":
        return ((f"{path}: row {row}", record) for row, record in read_parquet(path))
    return ((f"{path}:{number}", record) for number, record in read_jsonl(path))


def kind(value: Any) -> str:
    """Return how messages call the type of a value that came from a file."""
    return KINDS.get(type(value), type(value).__name__)


def _open(path: Path) -> BufferedReader | gzip.GzipFile:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _decode(line: bytes, where: str, first: bool) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"byte 0x{line[error.start]:02x} at position {error.start + 1}"
        raise DataError(f"{where}: not valid UTF-8 ({found}: {error.reason})") from error
    text = text.removesuffix("\n").removesuffix("\r")
    return text.removeprefix(BYTE_ORDER_MARK) if first else text


def _parse_json(text: str, where: str) -> Any:
    try:
        value = json.loads(text)
        if SURROGATE_ESCAPE.search(text):
            # JSON can spell half of a character, which no UTF-8 file can hold and Arrow refuses later.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not valid JSON (column {error.colno}: {error.msg})") from error
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: not valid JSON (a \\u escape that is half a character)") from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{where}: not valid JSON ({error})") from error
    return value

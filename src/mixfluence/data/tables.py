"""Delimited tables (csv, tsv): options of their dialect, and detection of what is not given."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from mixfluence.data.columns import is_known, names
from mixfluence.errors import DataError

SAMPLE_LINES = 100
DELIMITERS = (",", ";", "\t", "|")


class Dialect(NamedTuple):
    """How a table is written; None is detected."""

    delimiter: str | None = None
    quoting: bool | None = None
    encoding: str | None = None
    header: bool | None = None


def read_table(
    path: Path, lines: Iterator[str], default: str, dialect: Dialect, notes: list[str]
) -> Iterator[tuple[str, Any]]:
    """Yield every record of a table with its place: an object, or a list if there is no header.

    A delimiter other than the default, and quotes in a table that is not separated by commas, are noted.
    """
    csv.field_size_limit(2**31 - 1)  # long documents exceed the default
    sample = list(islice(lines, SAMPLE_LINES))
    delimiter, quoting = _detect(sample, default, dialect)
    if (delimiter, quoting) not in {(default, default == ","), dialect[:2]}:
        quotes = "quotes that group text" if quoting else "literal quotes"
        notes.append(f"{path}: read with the delimiter {delimiter!r} and {quotes}")
    reader = _reader(chain(sample, lines), delimiter, quoting)
    try:
        first: list[str] = next(reader, [])
        if dialect.header is not False:
            _check_header(path, first, certain=dialect.header is True)
        for values in chain([first] if dialect.header is False else [], reader):
            where = f"{path}:{reader.line_num}"
            if len(values) != len(first) and values:  # blank lines are empty lists
                raise DataError(f"{where}: found {len(values)} columns, expected {len(first)} as in the first line")
            cells = [value or None for value in values]
            if values:
                yield where, cells if dialect.header is False else dict(zip(first, cells, strict=True))
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not a valid table ({error})") from error


def _check_header(path: Path, header: list[str], *, certain: bool) -> None:
    if not header or len(set(header)) < len(header):
        raise DataError(f"{path}:1: found the header {header}, expected distinct column names")
    if not certain and not any(map(is_known, header)):
        hint = "write header: true if they are names of columns, or header: false if they are a row"
        raise DataError(f"{path}:1: found {names(header)}, expected names such as query and passage; {hint}")


def _detect(sample: list[str], default: str, dialect: Dialect) -> tuple[str, bool]:
    delimiters = [dialect.delimiter] if dialect.delimiter else [default, *(d for d in DELIMITERS if d != default)]
    for delimiter in delimiters:
        # In tables with tabs a quote is text, unless some cell is quoted as a whole.
        cells = chain.from_iterable(_columns(sample, delimiter, quoting=False))
        quoted = default != "," and any(cell[:1] == cell[-1:] == '"' and len(cell) > 1 for cell in cells)
        likely = (True,) if default == "," else (True, False) if quoted else (False,)
        for quoting in likely if dialect.quoting is None else (dialect.quoting,):
            rows = _columns(sample, delimiter, quoting)
            if rows and len(rows[0]) > 1 and all(len(row) == len(rows[0]) for row in rows):
                return delimiter, quoting
    return delimiters[0], default == "," if dialect.quoting is None else dialect.quoting


def _columns(sample: list[str], delimiter: str, quoting: bool) -> list[list[str]]:
    """Return the rows of a sample, none if it is not in this dialect; its last row may be cut off."""
    reader = _reader(iter(sample), delimiter, quoting)
    rows: list[list[str]] = []
    try:
        rows += filter(None, reader)
    except csv.Error:
        if reader.line_num < len(sample) or len(sample) < SAMPLE_LINES:
            return []
    return rows


def _reader(lines: Iterator[str], delimiter: str, quoting: bool) -> Any:
    options: Any = {"delimiter": delimiter, "quoting": csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE}
    return csv.reader((f"{line}\n" for line in lines), strict=True, **options)

"""Tables and their columns: how a file is delimited, and which column is the anchor, the positive, a negative.

Roles are given as `columns` or recognised by name, never by position. Columns of ids are never text. An ambiguous
table is an error that lists its columns and shows what to write.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from mixfluence.errors import DataError

ColumnMap = Mapping[str, str | list[str]]

# The first name of each list wins; of the others there may be only one.
ANCHORS = ("anchor", "query", "question", "sentence1", "text1", "premise")
POSITIVES = ("positive", "pos", "passage", "answer", "document", "response", "sentence2", "text2", "hypothesis")
NEGATIVE = re.compile(r"(hard_)?neg(ative)?s?_?\d*|n_?\d+")
ID = re.compile(r"(.*[_-])?(ids?|idx|index|uuid)|(doc|query|q|p)id")
LABELS = ("label", "labels", "score", "similarity")
SCORES = ("pos_scores", "neg_scores")
# Lines from which the dialect of a table is detected.
SAMPLE_LINES = 100
DELIMITERS = (",", ";", "\t", "|")


class Roles(NamedTuple):
    """The columns of an object by role; teacher scores of positives and of negatives may have a column each."""

    anchor: str
    positive: str
    negatives: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()

    def columns(self) -> list[str]:
        return [self.anchor, self.positive, *self.negatives, *self.scores]


def mapped_roles(columns: ColumnMap) -> Roles:
    """Return the roles that a user has given."""
    if not {"anchor", "positive"} <= columns.keys() <= set(Roles._fields):
        raise DataError(f"columns: found {names(columns)}, expected anchor, positive, optionally negatives, scores")
    named = {role: [given] if isinstance(given, str) else given for role, given in columns.items()}
    for role, given in named.items():
        if role != "negatives" and len(given) != 1:
            raise DataError(f"columns: found {len(given)} columns for {role}, expected one")
    negatives, scores = named.get("negatives", ()), named.get("scores", ())
    return Roles(named["anchor"][0], named["positive"][0], tuple(negatives), tuple(scores))


def find_roles(record: Mapping[str, Any], where: str, option: str) -> Roles:
    """Return the roles of a record's columns; `option` is where a user gives them, with `{}` for the mapping."""
    scores: tuple[str, ...]
    lowered = {column.strip().lower(): column for column in record}
    negatives = [column for name, column in lowered.items() if NEGATIVE.fullmatch(name)]
    ids = [column for name, column in lowered.items() if ID.fullmatch(name)]
    labels = [column for name, column in lowered.items() if name in LABELS]
    scores = SCORES if any(name in record for name in SCORES) else ()
    if not scores and isinstance(record.get("scores"), list):
        scores = ("scores",)
    known = {*negatives, *ids, *labels, *SCORES, "scores"}
    texts = [column for column, value in record.items() if column not in known and _may_be_text(value)]
    anchors, positives = (_first_or_all(lowered, choices) for choices in (ANCHORS, POSITIVES))
    if not anchors and "context" in lowered and "response" in lowered:
        anchors = [lowered["context"]]
    others = [column for column in texts if column not in {*anchors, *positives}]
    if len(others) == 1 and len(anchors) + len(positives) == 1:
        anchors, positives = anchors or others, positives or others
    example = json.dumps(dict(zip(("anchor", "positive"), [*texts, "...", "..."], strict=False)), ensure_ascii=False)
    if len(anchors) != 1 or len(positives) != 1:
        unclear = f"cannot tell which of the columns {names(record)} are the anchor and the positive"
        raise DataError(f"{where}: {unclear}; write {option.format(example)}")
    if labels:
        example = json.dumps({"anchor": anchors[0], "positive": positives[0]}, ensure_ascii=False)
        found = f"found the column '{labels[0]}', but every row is trained as a positive pair"
        raise DataError(f"{where}: {found}; keep only rows that are, and write {option.format(example)}")
    return Roles(anchors[0], positives[0], tuple(negatives), scores)


def is_known(column: str) -> bool:
    """Return whether a text is a usual name of a column."""
    name = column.strip().lower()
    usual = {*ANCHORS, *POSITIVES, *LABELS, *SCORES, "scores", "context", "title", "text", "body", "q", "a", "p"}
    return name in usual or bool(NEGATIVE.fullmatch(name) or ID.fullmatch(name))


def names(columns: Iterable[str]) -> str:
    """Format names of columns for a message."""
    return ", ".join(f"'{column}'" for column in columns) or "none"


def _first_or_all(columns: Mapping[str, str], choices: tuple[str, ...]) -> list[str]:
    found = [columns[name] for name in choices if name in columns]
    return found[:1] if choices[0] in columns else found


def _may_be_text(value: Any) -> bool:
    return value is None or isinstance(value, str) or (isinstance(value, list) and _may_be_text((value or [""])[0]))


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
            if not values:  # a blank line
                continue
            if len(values) != len(first):
                raise DataError(f"{where}: found {len(values)} columns, expected {len(first)} as in the first line")
            cells = [value or None for value in values]
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

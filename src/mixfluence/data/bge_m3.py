"""Reads BGE-M3's training data: a tree of `<source>/<name>_len-<from>-<to>.jsonl`, plain or gzipped.

A line is `{"query", "pos": [...], "neg": [...]}`, perhaps with `pos_scores` and `neg_scores`, and makes one row, with
its first positive. The files of one language are one dataset, so that sources are drawn in proportion to their size.
Rows of one source and length are a part of it, because they make the batches that waste no padding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from mixfluence.data.columns import RecordReader
from mixfluence.data.files import read_records
from mixfluence.data.published import difference
from mixfluence.data.rows import Row, RowSet, convert_once, join
from mixfluence.errors import DataError

PUBLISHED = Path(__file__).with_suffix(".yaml")
FILE = re.compile(r"(?P<name>.+)_len-(?P<start>\d+)-(?P<end>\d+|inf)\.jsonl(\.gz)?")
# Rows looked at to tell whether a teacher scored a part: all of a file are, or none.
ROWS_LOOKED_AT = 100


class Source(NamedTuple):
    """What was published of a source: its language, its lines, and whether a teacher scored them."""

    language: str
    lines: int
    scored: bool


class Part(NamedTuple):
    """Lines of one source whose longest text has at least `start` tokens; ordered as they are read."""

    source: str
    start: int
    end: str

    def __str__(self) -> str:
        return f"{self.source} {self.start}-{self.end}"


@cache
def published_sources() -> dict[str, Source]:
    """Return every source of BGE-M3 as it was published."""
    return {name: Source(**facts) for name, facts in yaml.safe_load(PUBLISHED.read_text(encoding="utf-8")).items()}


def read_bge_m3(folder: Path, language: str) -> RowSet:
    """Return the rows of one language, in parts of one source and length each.

    What differs from the published lines is noted. For the dev and test sets of MLDR prefer `read_mldr_rows`.

    Args:
        folder: The unpacked archive, or a folder that holds it.
        language: A code such as `en`.

    Raises:
        DataError: If there is nothing of this language, or a file is malformed.
    """
    wanted = {name: source for name, source in published_sources().items() if source.language == language}
    if not wanted:
        known = sorted({source.language for source in published_sources().values()})
        raise DataError(f"{folder}: BGE-M3 has no language '{language}', it has {', '.join(known)}")
    files, unknown = _find_files(folder)
    parts = {part: _read(files[part]) for part in sorted(files) if part.source in wanted}
    if not parts:
        raise DataError(f"{folder}: expected files *_len-*.jsonl of {', '.join(wanted)} in it, found none")
    rows = join({str(part): rows for part, rows in parts.items()})
    notes = [note for name, source in wanted.items() for note in _compare(name, source, parts)]
    if unknown and {part.source for part in parts} != wanted.keys():
        notes.append(f"{folder}: {len(unknown)} files are of no known source, such as {unknown[0]}")
    return RowSet(rows.rows, rows.fingerprint, (*rows.notes, *notes), rows.parts)


def _find_files(folder: Path) -> tuple[dict[Part, list[Path]], list[Path]]:
    """Return the files of every part, and those whose path names no known source."""
    files: dict[Part, list[Path]] = {}
    unknown = []
    for path in sorted(folder.rglob("*_len-*.jsonl*")):
        match = FILE.fullmatch(path.name)
        source = _source_of(path.relative_to(folder).with_name(match["name"])) if match else None
        if match and source:
            files.setdefault(Part(source, int(match["start"]), match["end"]), []).append(path)
        else:
            unknown.append(path)
    return files, unknown


def _source_of(path: Path) -> str | None:
    """Return the source whose name stands in a path."""
    names = f"/{path.as_posix()}/".casefold()
    return next((source for source in published_sources() if f"/{source}/".casefold() in names), None)


def _read(files: list[Path]) -> RowSet:
    options = {"format": "bge_m3"}
    return convert_once(files, options, lambda notes: _rows(files, notes))


def _rows(files: list[Path], notes: list[str]) -> Iterator[Row]:
    for file in files:
        reader = RecordReader(str(file), None, per="query")
        yield from reader.rows(read_records(file))
        reader.report(notes)


def _compare(name: str, source: Source, parts: Mapping[Part, RowSet]) -> Iterator[str]:
    own = [rows for part, rows in parts.items() if part.source == name]
    yield from difference(name, "rows", sum(map(len, own)), source.lines)
    scored = sum(any(rows.rows[:ROWS_LOOKED_AT]["scores"]) for rows in own)
    if scored and not source.scored:
        yield f"{name}: has teacher scores, though it was published without them"
    elif source.scored and scored < len(own):
        missing = f"{len(own) - scored} of its {len(own)} parts have no teacher scores"
        yield f"{name}: {missing}, though it was published with them"

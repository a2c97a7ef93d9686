"""The format `bge_m3`: the training data of BGE-M3.

The data is a tree of `<source>/<name>_len-<from>-<to>.jsonl`, plain or gzipped. A line has a query, positives
(`pos`), negatives (`neg`) and perhaps teacher scores, and makes one row with its first positive. All files of a
language are one dataset, so that sources are drawn in proportion to size. Rows of one source and length are a part of
it, because batches of them need little padding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import yaml

from mixfluence.data.pairs import RecordReader
from mixfluence.data.rows import Row, RowSet, convert_once, count_difference, join
from mixfluence.data.source import FileSource, read_records
from mixfluence.errors import DataError

PUBLISHED = Path(__file__).with_suffix(".yaml")
FILE = re.compile(r"(?P<name>.+)_len-(?P<start>\d+)-(?P<end>\d+|inf)\.jsonl(\.gz)?")
# Rows read to tell whether a file has teacher scores: all its rows have them, or none.
ROWS_CHECKED = 100


class PublishedSource(NamedTuple):
    """A source as published; if scored, it has teacher scores."""

    language: str
    lines: int
    scored: bool


class LengthGroup(NamedTuple):
    """Lines of one source whose longest text has at least `start` tokens; sorted in reading order."""

    source: str
    start: int
    end: str

    def __str__(self) -> str:
        return f"{self.source} {self.start}-{self.end}"


class BgeM3Source(FileSource):
    """One language of BGE-M3's training data, all its sources together.

    `path` is the unpacked archive or a folder that contains it. Differences from the published data are noted. For
    MLDR's dev and test sets use the format mldr.
    """

    format: Literal["bge_m3"] = "bge_m3"
    language: str

    def read_rows(self) -> RowSet:
        published = published_sources()
        wanted = {name: source for name, source in published.items() if source.language == self.language}
        if not wanted:
            known = ", ".join(sorted({source.language for source in published.values()}))
            raise DataError(f"{self.path}: BGE-M3 has no language '{self.language}', expected one of {known}")
        files, unknown = _find_files(self.path)
        groups = {group: _read(files[group]) for group in sorted(files) if group.source in wanted}
        if not groups:
            raise DataError(f"{self.path}: expected files *_len-*.jsonl of {', '.join(wanted)} in it, found none")
        rows = join({str(group): rows for group, rows in groups.items()})
        notes = [note for name, source in wanted.items() for note in _differences(name, source, groups)]
        if unknown and {group.source for group in groups} != wanted.keys():
            notes.append(f"{self.path}: {len(unknown)} files have an unknown source, such as {unknown[0]}")
        return replace(rows, notes=(*rows.notes, *notes))


@cache
def published_sources() -> dict[str, PublishedSource]:
    """Return every source of BGE-M3 as published."""
    facts = yaml.safe_load(PUBLISHED.read_text(encoding="utf-8"))
    return {name: PublishedSource(**source) for name, source in facts.items()}


def _find_files(folder: Path) -> tuple[dict[LengthGroup, list[Path]], list[Path]]:
    """Return the files of every source and length, and those whose path names no known source."""
    files: dict[LengthGroup, list[Path]] = {}
    unknown = []
    for path in sorted(folder.rglob("*_len-*.jsonl*")):
        match = FILE.fullmatch(path.name)
        source = _source_of(path.relative_to(folder).with_name(match["name"])) if match else None
        if match and source:
            files.setdefault(LengthGroup(source, int(match["start"]), match["end"]), []).append(path)
        else:
            unknown.append(path)
    return files, unknown


def _source_of(path: Path) -> str | None:
    """Return the source whose name is part of the path."""
    names = f"/{path.as_posix()}/".casefold()
    return next((source for source in published_sources() if f"/{source}/".casefold() in names), None)


def _read(files: list[Path]) -> RowSet:
    def rows(notes: list[str]) -> Iterator[Row]:
        for file in files:
            yield from RecordReader(str(file), per="query").read([read_records(file)], notes)

    return convert_once(files, {"format": "bge_m3"}, rows)


def _differences(name: str, source: PublishedSource, groups: Mapping[LengthGroup, RowSet]) -> Iterator[str]:
    own = [rows for group, rows in groups.items() if group.source == name]
    yield from count_difference(name, "rows", sum(map(len, own)), source.lines)
    scored = sum(any(rows.rows[:ROWS_CHECKED]["scores"]) for rows in own)
    if scored and not source.scored:
        yield f"{name}: has teacher scores, but was published without them"
    elif source.scored and scored < len(own):
        missing = f"{len(own) - scored} of its {len(own)} parts have no teacher scores"
        yield f"{name}: {missing}, but it was published with them"

"""The format `bge_m3`: the training data of BGE-M3.

The data is a tree of `<source>/<name>_len-<from>-<to>.jsonl`, plain or gzipped. A line has a query, positives
(`pos`), negatives (`neg`) and perhaps teacher scores, and makes one row with its first positive. All files of a
language are one dataset. Rows of one source and length are a part of it, because batches of them need little padding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import yaml

from mixfluence.data.pairs import RecordReader
from mixfluence.data.rows import RowSet, convert_once, count_difference, join
from mixfluence.data.source import FileSource, read_records
from mixfluence.errors import DataError

PUBLISHED = Path(__file__).with_suffix(".yaml")
FILE = re.compile(r"(?P<name>.+)_len-(?P<start>\d+)-(?P<end>\d+|inf)\.jsonl(\.gz)?")
# Rows read to tell whether a file has teacher scores: all its rows have them, or none.
ROWS_CHECKED = 100
# A source, and the range of lengths in tokens of a group of its files.
LengthGroup = tuple[str, int, str]


class PublishedSource(NamedTuple):
    """A source as published; if scored, it has teacher scores."""

    language: str
    lines: int
    scored: bool


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
        groups = {group: _read(files) for group, files in _find_files(self.path, wanted).items()}
        if not groups:
            raise DataError(f"{self.path}: expected files *_len-*.jsonl of {', '.join(wanted)} in it, found none")
        rows = join({f"{source} {start}-{end}": part for (source, start, end), part in groups.items()})
        notes: list[str] = []
        for name, source in wanted.items():
            own = [part for group, part in groups.items() if group[0] == name]
            notes += count_difference(name, "rows", sum(map(len, own)), source.lines)
            unscored = sum(not any(part.rows[:ROWS_CHECKED]["scores"]) for part in own)
            if source.scored and unscored:
                notes.append(f"{name}: {unscored} of its {len(own)} parts lack the published teacher scores")
        return replace(rows, notes=(*rows.notes, *notes))


@cache
def published_sources() -> dict[str, PublishedSource]:
    """Return every source of BGE-M3 as published."""
    facts = yaml.safe_load(PUBLISHED.read_text(encoding="utf-8"))
    return {name: PublishedSource(**source) for name, source in facts.items()}


def _find_files(folder: Path, wanted: Iterable[str]) -> dict[LengthGroup, list[Path]]:
    """Return the files of every source and length in reading order; the source's name is part of the path."""
    files: dict[LengthGroup, list[Path]] = {}
    for path in sorted(folder.rglob("*_len-*.jsonl*")):
        if match := FILE.fullmatch(path.name):
            names = f"/{path.relative_to(folder).with_name(match['name']).as_posix()}/".casefold()
            if source := next((source for source in wanted if f"/{source}/".casefold() in names), None):
                files.setdefault((source, int(match["start"]), match["end"]), []).append(path)
    return dict(sorted(files.items()))


def _read(files: list[Path]) -> RowSet:
    reader = RecordReader(str(files[0]), per="query")
    return convert_once(files, {"format": "bge_m3"}, lambda facts: reader.read(map(read_records, files), facts))

"""The formats `bge_m3` and `mldr`: the training data of BGE-M3 and its long-document benchmark.

BGE-M3's data is a tree of `<source>/<name>_len-<from>-<to>.jsonl`, plain or gzipped. A line has a query, positives
(`pos`), negatives (`neg`) and perhaps teacher scores, and makes one row with its first positive. All files of a
language are one dataset, so that sources are drawn in proportion to size. Rows of one source and length are a part of
it, because batches of them need little padding.

MLDR has long documents in 13 languages, in `mldr-v1.0-<language>/` with a file per split and the corpus. Judgements of
dev and test are in `qrels/qrels.mldr-v1.0-<language>-<split>.tsv`. mteb's Parquet copy, `MultiLongDocRetrieval`, is
read as well; it contains tasks but no training rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from mixfluence.data.beir import find_beir_files, make_task, read_grades, read_task_files, read_texts
from mixfluence.data.pairs import RecordReader
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.rows import Row, RowSet, convert_once, count_difference, join
from mixfluence.data.source import FileSource, Record, find_file, read_objects, read_records, text_field
from mixfluence.errors import DataError
from mixfluence.schema import short

PUBLISHED = Path(__file__).with_suffix(".yaml")
FILE = re.compile(r"(?P<name>.+)_len-(?P<start>\d+)-(?P<end>\d+|inf)\.jsonl(\.gz)?")
# Rows read to tell whether a file has teacher scores: all its rows have them, or none.
ROWS_CHECKED = 100


class PublishedSource(NamedTuple):
    """A source as published: its language, its lines, and whether it has teacher scores."""

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
        """Return the rows of the language, with a part for each source and length."""
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


class MldrSource(FileSource):
    """One language of MLDR: rows for training and dev, and tasks with the language's whole corpus.

    `path` contains `mldr-v1.0-<language>` and `qrels`, or mteb's `<language>-corpus`, `-queries` and `-qrels`. A row
    has a query's first positive and all its negatives.
    """

    format: Literal["mldr"] = "mldr"
    language: str
    split: Literal["train", "dev", "test"]

    def read_rows(self) -> RowSet:
        """Return the rows of the split, one per query."""
        file = find_file(self._folder, f"{self.split}.jsonl")
        reader = RecordReader(str(file), per="query")
        return convert_once([file], {"format": "mldr"}, lambda notes: reader.read([_mldr_records(file)], notes))

    def read_task(self, name: str) -> RetrievalSet:
        """Return the split as a task with the language's whole corpus."""
        if (self.path / f"{self.language}-corpus").is_dir():
            return read_task_files(find_beir_files(self.path, self.split, prefix=f"{self.language}-"), name)
        qrels = find_file(self.path / "qrels", f"qrels.mldr-v1.0-{self.language}-{self.split}.tsv")
        files = [find_file(self._folder, f"{stem}.jsonl") for stem in (self.split, "corpus")]
        queries = read_texts(files[:1], id_column="query_id", text_column="query")
        return make_task(name, qrels, read_grades([qrels]), queries, read_texts(files[1:], id_column="docid"))

    @property
    def _folder(self) -> Path:
        return self.path / f"mldr-v1.0-{self.language}"


def _mldr_records(file: Path) -> Iterator[Record]:
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

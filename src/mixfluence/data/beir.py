"""The format `beir`: queries, a corpus and judgements in separate files, in each of the layouts they are published in.

- BEIR's archives: `corpus.jsonl`, `queries.jsonl` and `qrels/<split>.tsv`, each possibly with `.gz`;
- the hub's `BeIR/<name>` beside a second repository with the judgements, `BeIR/<name>-qrels`;
- mteb's copies: folders `corpus`, `queries` and `qrels` (or `default`, or `data`) of Parquet files or JSON lines, by
  split and possibly sharded. Several languages in one repository have a prefix, such as `ar-corpus`.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mixfluence.data.retrieval import LARGEST_GRADE, RetrievalSet
from mixfluence.data.rows import Row, RowSet, convert_once
from mixfluence.data.source import MAX_DROPPED_SHARE, FileSource, note_dropped, read_lines, read_objects, text_field
from mixfluence.errors import DataError
from mixfluence.schema import short

TABLE_FILE = re.compile(r"(?P<name>.+)\.(tsv|jsonl|parquet)(\.gz)?")
# train-00000-of-00003 is the first of three shards of train; the hub's own conversion has train/0000.
SHARD = re.compile(r"-\d+-of-\d+$")
# Names of the last column, by which a header is recognised.
HEADER = re.compile(r"score|rel(evan(ce|t))?|label|grade|judge?ments?", re.IGNORECASE)
# (query id, passage id) -> grade, in file order; grades below zero count as zero.
Grades = dict[tuple[str, str], int]


class BeirSource(FileSource):
    """A folder in BEIR's layout.

    `per` makes one training row per query, with its highest-graded positive (the first of equals), or one per (query,
    positive) pair. Queries and positives without text are left out with a note; a task has the whole corpus.
    """

    format: Literal["beir"] = "beir"
    split: str
    per: Literal["query", "pair"] = "query"

    def read_rows(self) -> RowSet:
        files = find_beir_files(self.path, self.split)
        return self._convert(files, lambda: read_collection(files, judged_only=True))

    def read_task(self, name: str, rows: RowSet | None = None) -> RetrievalSet:
        return read_collection(find_beir_files(self.path, self.split)).task(name)

    def read_both(self, name: str) -> tuple[RowSet, RetrievalSet]:
        files = find_beir_files(self.path, self.split)
        collection = read_collection(files)
        return self._convert(files, lambda: collection), collection.task(name)

    def _convert(self, files: BeirFiles, read: Callable[[], Collection]) -> RowSet:
        options = {"format": "beir", "per": self.per}
        return convert_once([*chain(*files)], options, lambda facts: _rows(files, read(), self.per, facts.notes))


class BeirFiles(NamedTuple):
    """The files of one split; sharded tables have several, in order."""

    corpus: list[Path]
    queries: list[Path]
    qrels: list[Path]


class Collection(NamedTuple):
    """Judgements and where they are, for messages, with id -> text of judged queries and of passages."""

    place: object
    grades: Grades
    queries: dict[str, str]
    passages: dict[str, str]

    def task(self, name: str) -> RetrievalSet:
        """Return a task with all passages."""
        notes: list[str] = []
        known = self._known(notes)
        judged: dict[str, dict[str, int]] = {query: {} for query, _ in self.grades if query in self.queries}
        for (query, passage), grade in known.items():
            judged[query][passage] = grade
        return RetrievalSet(
            name,
            query_ids=list(judged),
            queries=[self.queries[query] for query in judged],
            doc_ids=list(self.passages),
            docs=list(self.passages.values()),
            qrels=judged,
            notes=tuple(f"{name}: {note}" for note in notes),
        )

    def rows(self, per: str, notes: list[str]) -> Iterable[Row]:
        """Return a row for each positive, or with `per="query"` for the best of each query, without empty texts."""
        known = self._known(notes)
        positives = [
            (query, passage)
            for (query, passage), grade in known.items()
            if grade > 0 and self.queries[query] and self.passages[passage]
        ]
        if per == "query":
            best: dict[str, tuple[str, str]] = {}
            for pair in positives:
                if pair[0] not in best or known[pair] > known[best[pair[0]]]:
                    best[pair[0]] = pair
            positives = list(best.values())
        return (Row(self.queries[query], self.passages[passage]) for query, passage in positives)

    def _known(self, notes: list[str]) -> Grades:
        """Return the judgements whose query and passage exist; a few others are noted, many are an error."""
        known: Grades = {}
        unknown: list[str] = []
        for (query, passage), grade in self.grades.items():
            if query in self.queries and passage in self.passages:
                known[query, passage] = grade
            else:
                unknown.append(f"passage '{passage}'" if query in self.queries else f"query '{query}'")
        what = "judgements of an unknown query or passage"
        note_dropped(notes, self.place, what, unknown, len(self.grades), limit=MAX_DROPPED_SHARE)
        return known


def find_beir_files(folder: Path, split: str, prefix: str = "") -> BeirFiles:
    """Return the files of one split of the judgements, with the prefix of mteb's folders of several sets.

    If queries or corpus have splits too, those of the same split are taken, or else their only one.
    """
    found = []
    for table in (f"{prefix}corpus", f"{prefix}queries"):
        plain = [file for end in ("", ".gz") if (file := folder / f"{table}.jsonl{end}").is_file()]
        splits = {split: plain[:1]} if plain else _splits(folder / table)
        if split not in splits and len(splits) != 1:
            names = ", ".join(sorted(splits)) or "none"
            raise DataError(f"{folder}: expected {table}.jsonl or a folder {table} with one split, found: {names}")
        found.append(splits.get(split) or next(iter(splits.values())))
    places = [folder / place for place in (f"{prefix}qrels", "default", "data", f"../{folder.name}-qrels")]
    qrels = {name: files for place in reversed(places) for name, files in _splits(place).items()}
    if split not in qrels:
        raise DataError(f"{places[0]}: no split '{split}' ({split}.tsv), found: {', '.join(sorted(qrels)) or 'none'}")
    return BeirFiles(found[0], found[1], qrels[split])


def _splits(folder: Path) -> dict[str, list[Path]]:
    """Return the files of a folder by split: all shards in Parquet, else one file, plain rather than gzipped."""
    splits: dict[str, list[Path]] = {}
    for file in sorted(folder.rglob("*")):
        if (match := TABLE_FILE.fullmatch(file.name)) and file.is_file():
            name = SHARD.sub("", match["name"])
            splits.setdefault(file.parent.name if name.isdecimal() else name, []).append(file)
    return {
        name: [file for file in files if file.suffix == ".parquet"] or [min(files, key=lambda file: len(file.name))]
        for name, files in splits.items()
    }


def read_collection(files: BeirFiles, *, judged_only: bool = False) -> Collection:
    """Read the files, with the whole corpus or with judged passages only."""
    grades = read_grades(files.qrels)
    queries = read_texts(files.queries, {query for query, _ in grades})
    wanted = {passage for _, passage in grades} if judged_only else None
    return Collection(files.qrels[0], grades, queries, read_texts(files.corpus, wanted, titled=True))


def _rows(files: BeirFiles, collection: Collection, per: str, notes: list[str]) -> Iterable[Row]:
    rows = collection.rows(per, notes)
    judged = {passage for _, passage in collection.grades}
    passages = {id: text for id, text in collection.passages.items() if id in judged}
    queries = collection.queries
    for (file, *_), what, texts in (files.queries, "queries", queries), (files.corpus, "judged passages", passages):
        empty = [f"'{id}'" for id, text in texts.items() if not text]
        note_dropped(notes, file, f"{what} without text", empty, len(texts))
    return rows


def read_grades(files: Sequence[Path]) -> Grades:
    """Read tables of three columns or TREC's four, JSON lines or Parquet; of duplicate judgements the last counts."""
    grades: Grades = {}
    for file in files:
        table = file.name.endswith((".tsv", ".tsv.gz"))
        for number, (where, query, passage, score) in enumerate((_table_lines if table else _record_lines)(file)):
            try:
                grade = float(score)
            except (TypeError, ValueError, OverflowError):
                grade = math.nan
            if grade.is_integer():
                if abs(grade) > LARGEST_GRADE:
                    raise DataError(f"{where}: found the grade {score}, expected at most {LARGEST_GRADE}")
                grades[query, passage] = max(0, int(grade))
            elif number or not table or not HEADER.fullmatch(score.strip()):
                raise DataError(f"{where}: found the score {score!r}, expected a whole number")
    return grades


def _table_lines(path: Path) -> Iterator[tuple[str, str, str, str]]:
    for where, line in read_lines(path):
        try:
            # Ids that contain a quote are themselves quoted in published files.
            columns = next(csv.reader([line], delimiter="\t")) if "\t" in line else line.split()
        except csv.Error as error:
            raise DataError(f"{where}: not a line of tab-separated columns ({error})") from error
        if len(columns) not in (3, 4):  # TREC's second of four columns is unused
            raise DataError(f"{where}: found {len(columns)} columns, expected query id, passage id and score")
        yield where, columns[0], columns[-2], columns[-1]


def _record_lines(path: Path) -> Iterator[tuple[str, str, str, Any]]:
    for where, record in read_objects(path):
        yield where, _id(record, where, "query-id"), _id(record, where, "corpus-id"), record.get("score")


def read_texts(
    files: Sequence[Path],
    wanted: Container[str] | None = None,
    *,
    id_column: str = "_id",
    text_column: str = "text",
    titled: bool = False,
) -> dict[str, str]:
    """Return id -> text, of the wanted ids or of all; titles are prepended."""
    texts: dict[str, str] = {}
    kind: type | None = None
    for where, record in (found for file in files for found in read_objects(file)):
        column = id_column if id_column in record or "id" not in record else "id"
        id = _id(record, where, column)
        kind = kind or type(record[column])
        if not isinstance(record[column], kind):
            raise DataError(f"{where}: found the id {record[column]!r}, expected {kind.__name__} as before")
        if wanted is not None and id not in wanted:
            continue
        title = text_field(record, "title", where) if titled and record.get("title") is not None else ""
        text = f"{title} {text_field(record, text_column, where)}".strip()
        if texts.setdefault(id, text) != text:
            raise DataError(f"{where}: the id '{id}' already exists with another text")
    return texts


def _id(record: dict[str, Any], where: str, column: str) -> str:
    id = record.get(column)
    if isinstance(id, bool) or not isinstance(id, str | int):
        raise DataError(f"{where}: found {short(id)} as '{column}', expected text or a whole number")
    return str(id)

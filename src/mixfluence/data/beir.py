"""The format `beir`: queries, a corpus and judgements in separate files, in each of the layouts they are published in.

- BEIR's archives: `corpus.jsonl`, `queries.jsonl` and `qrels/<split>.tsv`, each possibly with `.gz`;
- the hub's `BeIR/<name>` beside a second repository with the judgements, `BeIR/<name>-qrels`;
- mteb's copies: folders `corpus`, `queries` and `qrels` (or `default`, or `data`) of Parquet files or JSON lines, by
  split and possibly sharded. Several languages in one repository have a prefix, such as `ar-corpus`.

Some published sets have judgements of queries or passages that do not exist. They are left out and reported; if their
share exceeds `MAX_DROPPED_SHARE`, the folder is rejected.
"""

from __future__ import annotations

import csv
import logging
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mixfluence.data.files import MAX_DROPPED_SHARE, Dropped, kind, read_lines, read_objects, text_field
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.rows import Row, RowSet, convert_once
from mixfluence.data.source import FileSource
from mixfluence.errors import DataError

logger = logging.getLogger(__name__)

TABLES = (".parquet", ".jsonl", ".jsonl.gz")
JUDGEMENTS = (".tsv", ".tsv.gz", *TABLES)
# train-00000-of-00003 is the first of three shards of train; the hub's own conversion has train/0000.
SHARD = re.compile(r"-\d+-of-\d+$")
LARGEST_GRADE = 2**31 - 1  # trec_eval's limit
# (query id, passage id) -> grade, in file order.
Grades = dict[tuple[str, str], int]


class BeirSource(FileSource):
    """A folder in BEIR's layout.

    `per` makes one training row per query, with its highest-graded positive (the first of equals), or one per (query,
    positive) pair. Positives have a grade above zero. Queries and positives without text are left out with a note. A
    task has the whole corpus, with empty passages and grades of zero, and queries in the order of judgements.
    """

    format: Literal["beir"] = "beir"
    split: str
    per: Literal["query", "pair"] = "query"

    def read_rows(self) -> RowSet:
        """Return the training rows of the split, in the order of its judgements."""
        files = find_beir_files(self.path, self.split)
        options = {"format": "beir", "per": self.per}
        paths = [*files.corpus, *files.queries, *files.qrels]
        return convert_once(paths, options, lambda notes: _rows(files, self.per, notes))

    def read_task(self, name: str) -> RetrievalSet:
        """Return the split as a task with the whole corpus."""
        return read_task_files(find_beir_files(self.path, self.split), name)


class BeirFiles(NamedTuple):
    """The files of one split; sharded tables have several, in order."""

    corpus: list[Path]
    queries: list[Path]
    qrels: list[Path]


def find_beir_files(folder: Path, split: str, prefix: str = "") -> BeirFiles:
    """Return the files of one split.

    Args:
        folder: Contains the tables.
        split: The split of the judgements. If queries or corpus have splits too: this one, or else their only one.
        prefix: Prefix of mteb's folders in a repository of several sets.

    Raises:
        DataError: If a table or the split is missing.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    corpus, queries = (_find_texts(folder, f"{prefix}{table}", split) for table in ("corpus", "queries"))
    return BeirFiles(corpus, queries, _find_judgements(folder, split, prefix))


def _find_texts(folder: Path, table: str, split: str) -> list[Path]:
    for file in (folder / f"{table}.jsonl", folder / f"{table}.jsonl.gz"):
        if file.is_file():
            return [file]
    splits = _splits(folder / table, TABLES)
    if split in splits:
        return splits[split]
    if len(splits) != 1:
        found = f"found the splits {', '.join(sorted(splits))}" if splits else "found neither"
        raise DataError(f"{folder}: expected {table}.jsonl or {table}.jsonl.gz, or a folder {table} in it, {found}")
    return next(iter(splits.values()))


def _find_judgements(folder: Path, split: str, prefix: str) -> list[Path]:
    places = [folder / f"{prefix}qrels", folder / "default", folder / "data", folder.with_name(f"{folder.name}-qrels")]
    found: set[str] = set()
    for place in places:
        splits = _splits(place, JUDGEMENTS)
        if split in splits:
            return splits[split]
        found |= splits.keys()
    names = ", ".join(sorted(found)) or "none"
    raise DataError(f"{places[0]}: no split '{split}' ({split}.tsv), found: {names}")


def _splits(folder: Path, endings: tuple[str, ...]) -> dict[str, list[Path]]:
    """Return the files of a folder by split: all shards in Parquet, else one file, plain rather than gzipped."""
    splits: dict[str, list[Path]] = {}
    for file in sorted(folder.rglob("*")):
        ending = next((ending for ending in endings if file.name.endswith(ending)), None)
        if ending and file.is_file():
            name = SHARD.sub("", file.name.removesuffix(ending))
            splits.setdefault(file.parent.name if name.isdecimal() else name, []).append(file)
    return {
        name: [file for file in files if file.suffix == ".parquet"] or [min(files, key=lambda file: len(file.name))]
        for name, files in splits.items()
    }


def read_task_files(files: BeirFiles, name: str) -> RetrievalSet:
    """Return the task that these files contain."""
    grades = read_grades(files.qrels)
    queries = _read_texts(files.queries, {query for query, _ in grades})
    return make_task(name, files.qrels[0], grades, queries, _read_texts(files.corpus, titled=True))


def make_task(
    name: str, qrels: Path, grades: Grades, queries: dict[str, str], passages: dict[str, str]
) -> RetrievalSet:
    """Join texts (id -> text) and judgements into a task; judgements of missing texts are left out and logged."""
    notes: list[str] = []
    known = _drop_unknown(grades, queries, passages, qrels, notes)
    named = tuple(f"{name}: {note}" for note in notes)
    for note in named:
        logger.warning("%s", note)
    judged: dict[str, dict[str, int]] = {query: {} for query, _ in grades if query in queries}
    for (query, passage), grade in known.items():
        judged[query][passage] = grade
    texts = [queries[query] for query in judged]
    return RetrievalSet(name, list(judged), texts, list(passages), list(passages.values()), judged, notes=named)


def _rows(files: BeirFiles, per: str, notes: list[str]) -> Iterator[Row]:
    grades = read_grades(files.qrels)
    queries = _read_texts(files.queries, {query for query, _ in grades})
    passages = _read_texts(files.corpus, {passage for _, passage in grades}, titled=True)
    grades = _drop_unknown(grades, queries, passages, files.qrels[0], notes)
    _note_empty(files.queries[0], "queries without text", queries, notes)
    _note_empty(files.corpus[0], "judged passages without text", passages, notes)
    positives = {
        (query, passage): grade
        for (query, passage), grade in grades.items()
        if grade > 0 and queries[query] and passages[passage]
    }
    for query, passage in positives if per == "pair" else _best(positives):
        yield Row(queries[query], passages[passage])


def _best(positives: Grades) -> Iterator[tuple[str, str]]:
    best: dict[str, str] = {}
    for (query, passage), grade in positives.items():
        if query not in best or grade > positives[query, best[query]]:
            best[query] = passage
    yield from best.items()


def _drop_unknown(
    grades: Grades, queries: Collection[str], passages: Collection[str], qrels: Path, notes: list[str]
) -> Grades:
    dropped = Dropped(str(qrels), "judgements of an unknown query or passage", len(grades))
    known: Grades = {}
    for (query, passage), grade in grades.items():
        if query not in queries:
            dropped.add(f"query '{query}'")
        elif passage not in passages:
            dropped.add(f"passage '{passage}'")
        else:
            known[query, passage] = grade
    dropped.report(notes, limit=MAX_DROPPED_SHARE)
    return known


def _note_empty(path: Path, what: str, texts: dict[str, str], notes: list[str]) -> None:
    dropped = Dropped(str(path), what, len(texts))
    for id, text in texts.items():
        if not text:
            dropped.add(f"'{id}'")
    dropped.report(notes)


def read_grades(files: Sequence[Path]) -> Grades:
    """Read tables of three columns or TREC's four, JSON lines or Parquet; of duplicate judgements the last counts."""
    grades: Grades = {}
    for file in files:
        lines = _table_lines if file.name.endswith((".tsv", ".tsv.gz")) else _record_lines
        first = True
        for where, query, passage, score in lines(file):
            grade = _grade(score)
            if grade is not None:
                grades[query, passage] = grade
            elif not (first and lines is _table_lines):  # a header is a first line without a grade
                raise DataError(f"{where}: found the score {score!r}, expected a whole number")
            first = False
    return grades


def _table_lines(path: Path) -> Iterator[tuple[str, str, str, str]]:
    for number, line in read_lines(path):
        if not line or line.isspace():
            continue
        where = f"{path}:{number}"
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


def _grade(score: Any) -> int | None:
    try:
        value = float(score)
    except (TypeError, ValueError, OverflowError):
        return None
    return int(value) if value.is_integer() and abs(value) <= LARGEST_GRADE else None


def _read_texts(
    files: Sequence[Path], wanted: Collection[str] | None = None, *, titled: bool = False
) -> dict[str, str]:
    texts: dict[str, str] = {}
    for where, record in (found for file in files for found in read_objects(file)):
        id = _id(record, where, "_id" if "_id" in record or "id" not in record else "id")
        if wanted is not None and id not in wanted:
            continue
        title = text_field(record, "title", where) if titled and record.get("title") is not None else ""
        text = f"{title} {text_field(record, 'text', where)}".strip()
        if texts.setdefault(id, text) != text:
            raise DataError(f"{where}: the id '{id}' already exists with another text")
    return texts


def _id(record: dict[str, Any], where: str, column: str) -> str:
    id = record.get(column)
    if isinstance(id, bool) or not isinstance(id, str | int):
        raise DataError(f"{where}: found {kind(id)} as '{column}', expected text or a whole number")
    return str(id)

"""Reads queries, a corpus and judgements from files of their own, as BEIR, the hub and mteb publish them.

`mixfluence.data.beir_files` says which layouts there are; a record means the same in all of them.

Judgements of queries or passages that the other two files lack are left out and reported, because
some published sets have them; above `MAX_DROPPED_SHARE` the folder is refused.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from mixfluence.data.beir_files import BeirFiles, find_beir_files
from mixfluence.data.files import MAX_DROPPED_SHARE, Dropped, kind, read_lines, read_records
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.rows import Row, RowSet, convert_once
from mixfluence.errors import DataError

logger = logging.getLogger(__name__)

LARGEST_GRADE = 2**31 - 1  # what trec_eval can count with
# (query id, passage id) -> grade, in the order of the file.
Grades = dict[tuple[str, str], int]


def read_beir_rows(folder: Path, split: str, per: Literal["pair", "query"] = "query") -> RowSet:
    """Return the training rows of one split: for a task to measure on, prefer `read_beir_retrieval`.

    Only grades above zero make a positive. Queries and positives without text are left out with a note.

    Args:
        folder: Holds the corpus, the queries and the judgements.
        split: Which judgements.
        per: "query" gives one row per query, with its highest-graded positive (the first of equals);
            "pair" gives one row per query and positive. Both keep the order of the judgements.

    Raises:
        DataError: If a file is missing or malformed, or too many judgements name unknown ids.
    """
    files = find_beir_files(folder, split)
    options = {"format": "beir", "per": per}
    return convert_once([*files.corpus, *files.queries, *files.qrels], options, lambda notes: _rows(files, per, notes))


def read_beir_retrieval(folder: Path, split: str, name: str) -> RetrievalSet:
    """Return one split as a task with the whole corpus: for training rows, prefer `read_beir_rows`.

    Queries come in the order of the judgements, grades of zero included. Passages without text stay.
    Judgements that are left out are logged as warnings.
    """
    return read_task_files(find_beir_files(folder, split), name)


def read_task_files(files: BeirFiles, name: str) -> RetrievalSet:
    """Return the task that these files make."""
    grades = read_grades(files.qrels)
    queries = _read_texts(files.queries, _query_text, {query for query, _ in grades})
    return make_task(name, files.qrels[0], grades, queries, _read_texts(files.corpus, _passage_text))


def make_task(
    name: str, qrels: Path, grades: Grades, queries: dict[str, str], passages: dict[str, str]
) -> RetrievalSet:
    """Join texts and judgements to a task; judgements of texts that are not there are left out and noted.

    Args:
        name: How tables call it.
        qrels: Where the judgements are from, for messages.
        grades: The judgements.
        queries: Id -> text.
        passages: Id -> text.
    """
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
    queries = _read_texts(files.queries, _query_text, {query for query, _ in grades})
    passages = _read_texts(files.corpus, _passage_text, {passage for _, passage in grades})
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
    """Read judgements from tables of three columns or TREC's four, JSON lines or Parquet; of duplicates the last."""
    grades: Grades = {}
    for file in files:
        lines = _table_grades if file.name.endswith((".tsv", ".tsv.gz")) else _record_grades
        grades.update(lines(file))
    return grades


def _table_grades(path: Path) -> Iterator[tuple[tuple[str, str], int]]:
    first = True
    for number, line in read_lines(path):
        if not line or line.isspace():
            continue
        query, passage, score = _columns(line, f"{path}:{number}")
        grade = _whole(score)
        if grade is not None:
            yield (query, passage), grade
        elif not first:  # a first line without a grade is the header
            raise DataError(f"{path}:{number}: found the score '{score}', expected a whole number")
        first = False


def _record_grades(path: Path) -> Iterator[tuple[tuple[str, str], int]]:
    for where, record in read_records(path):
        if not isinstance(record, dict):
            raise DataError(f"{where}: found {kind(record)}, expected an object with query-id, corpus-id and score")
        grade = _whole(record.get("score"))
        if grade is None:
            raise DataError(f"{where}: found the score {record.get('score')!r}, expected a whole number")
        yield (_id(record, where, "query-id"), _id(record, where, "corpus-id")), grade


def _columns(line: str, where: str) -> tuple[str, str, str]:
    """Split a line of three columns, or of TREC's four, whose second says nothing."""
    try:
        # Ids that hold a quote are themselves quoted in published files.
        columns = next(csv.reader([line], delimiter="\t")) if "\t" in line else line.split()
    except csv.Error as error:
        raise DataError(f"{where}: not a line of tab-separated columns ({error})") from error
    if len(columns) not in (3, 4):
        raise DataError(f"{where}: found {len(columns)} columns, expected query id, passage id and score")
    return columns[0], columns[-2], columns[-1]


def _whole(score: Any) -> int | None:
    try:
        value = float(score)
    except (TypeError, ValueError, OverflowError):
        return None
    return int(value) if value.is_integer() and abs(value) <= LARGEST_GRADE else None


def _read_texts(
    files: Sequence[Path], text_of: Callable[[dict[str, Any], str], str], wanted: Collection[str] | None = None
) -> dict[str, str]:
    texts: dict[str, str] = {}
    for where, record in (found for file in files for found in read_records(file)):
        if not isinstance(record, dict):
            raise DataError(f"{where}: found {kind(record)}, expected an object with '_id' and 'text'")
        id = _id(record, where, "_id" if "_id" in record or "id" not in record else "id")
        if wanted is not None and id not in wanted:
            continue
        text = text_of(record, where)
        if texts.setdefault(id, text) != text:
            raise DataError(f"{where}: the id '{id}' came before with another text, expected each id once")
    return texts


def _id(record: dict[str, Any], where: str, column: str) -> str:
    id = record.get(column)
    if isinstance(id, bool) or not isinstance(id, str | int):
        raise DataError(f"{where}: found {kind(id)} as '{column}', expected text or a whole number")
    return str(id)


def _query_text(record: dict[str, Any], where: str) -> str:
    return _field(record, "text", where).strip()


def _passage_text(record: dict[str, Any], where: str) -> str:
    title = "" if record.get("title") is None else _field(record, "title", where)
    return f"{title} {_field(record, 'text', where)}".strip()


def _field(record: dict[str, Any], name: str, where: str) -> str:
    value = record.get(name)
    if not isinstance(value, str):
        raise DataError(f"{where}: found {kind(value)} as '{name}', expected text")
    return value

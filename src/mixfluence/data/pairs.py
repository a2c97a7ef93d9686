"""The formats `pairs` and `hub`, and the conversion of records (lists and objects of any file) to rows.

Without a column map the shape of a record determines what its texts mean:

- `["anchor", "positive", "negative", ...]`, with or without negatives;
- `{"set": [...]}` or `{"texts": [...]}`, texts of one meaning: each is paired with the next;
- any other object by the names of its columns, see `columns.py`. Columns without a role are ignored with a note.

A positive column of lists gives one row per element, or one row per record with `per="query"`.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator

from mixfluence.data.columns import ColumnMap, Dialect, Roles, find_roles, mapped_roles, names
from mixfluence.data.mining import MiningSection
from mixfluence.data.rows import ROWS_PER_BATCH, Facts, Row, RowSet, convert_once
from mixfluence.data.source import (
    MAX_DROPPED_SHARE,
    TRAINING_KEYS,
    FileSource,
    Record,
    SourceSection,
    note_dropped,
    read_records,
)
from mixfluence.errors import DataError, first_line
from mixfluence.schema import WholeNumber, short

if TYPE_CHECKING:
    from datasets import Dataset

Per = Literal["query", "pair"]
# Reads files of records, and adds notes to its argument.
ReadFiles = Callable[[list[str]], Iterable[Iterable[Record]]]

EXTENSIONS = (".jsonl", ".json", ".csv", ".tsv", ".jsonl.gz", ".json.gz", ".csv.gz", ".tsv.gz", ".parquet")
SET_COLUMNS = ("set", "texts")
LARGEST_SCORE = 3.4e38  # rows store scores as 32-bit floats


class RecordsSource(SourceSection):
    """Records with columns.

    `columns` maps the roles `anchor`, `positive`, `negatives` (one column of lists, or several columns) and `scores`
    (a list with one number per passage, positives first) to columns. Without it, columns are recognised by their
    names. `per` makes one row per positive or per record. As a number, `negatives` is the maximum number of hard
    negatives that a row keeps.
    """

    columns: dict[str, str | list[str]] | None = None
    per: Per = "pair"
    negatives: WholeNumber | MiningSection | None = None  # type: ignore[assignment] # wider than in other formats

    def _convert(self, name: str, files: list[Path], read: ReadFiles) -> RowSet:
        most = self.negatives if isinstance(self.negatives, int) else None
        options = self.model_dump(exclude={"path", "published", "query_prompt", "passage_prompt", *TRAINING_KEYS})
        options["negatives"] = most
        reader = RecordReader(name, self.columns, per=self.per, negatives=most)
        return convert_once(files, options, lambda facts: reader.read(read(facts.notes), facts))


class PairsSource(RecordsSource, FileSource):
    """Pairs, triplets or lists in a jsonl, json, csv, tsv or parquet file, or in a folder of such files.

    The dialect of csv and tsv files is detected, and noted if it is unusual, unless it is given: `delimiter`,
    `quoting` (whether quotes group text), `encoding` (UTF-8 if None) and `header` (whether the first line names the
    columns; without names the order is anchor, positive, negatives).
    """

    format: Literal["pairs"] = "pairs"
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    quoting: bool | None = None
    encoding: str | None = None
    header: bool | None = None

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, encoding: str | None) -> str | None:
        try:
            codecs.lookup(encoding or "utf-8")
        except LookupError as error:
            raise ValueError(f"expected an encoding such as utf-8 or latin-1, found {encoding!r}") from error
        return encoding

    def read_rows(self) -> RowSet:
        files = _find_files(self.path)
        # A user who names columns has seen them in the header.
        header = True if self.columns and self.header is None else self.header
        dialect = Dialect(self.delimiter, self.quoting, self.encoding, header)
        return self._convert(
            str(self.path), files, lambda notes: (read_records(file, dialect, notes) for file in files)
        )


class HubSource(RecordsSource):
    """A dataset of the Hugging Face hub, or a local folder that `datasets` can load.

    `revision` is a branch, tag or commit; without one, the newest that can be reached. `split` may be a part such as
    `train[:1000]`. Code in the repository is never run.
    """

    format: Literal["hub"] = "hub"
    id: str
    split: str
    revision: str | None = None
    config: str | None = None

    def read_rows(self) -> RowSet:
        dataset = self._load()
        # Converted once per downloaded file: a new revision is a new file.
        files = [Path(file["filename"]) for file in dataset.cache_files]
        return self._convert(self.id, files, lambda notes: [records_of(self.id, dataset)])

    def _load(self) -> Dataset:
        from datasets import load_dataset  # here, because recipes import the formats without data

        try:
            # Not in memory, because convert_once recognises the dataset by its files.
            return load_dataset(
                self.id, name=self.config, revision=self.revision, split=self.split, keep_in_memory=False
            )
        except Exception as error:  # the hub client, its transport and every file parser have their own classes
            raise DataError(
                f"{self.id}: could not be loaded ({first_line(error)}); connect this machine to the hub, "
                "or download the files elsewhere and read them with the format pairs"
            ) from error


def _find_files(path: Path) -> list[Path]:
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    files = sorted(f for f in path.iterdir() if f.name[0] != ".") if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path}: the folder is empty, expected files ending in {', '.join(EXTENSIONS)}")
    for file in files:
        if not file.is_file() or not file.name.endswith(EXTENSIONS):
            raise DataError(f"{file}: expected a file ending in {', '.join(EXTENSIONS)}")
    return files


class RecordReader:
    """Converts the records of one dataset to rows; for the options see `RecordsSource`."""

    def __init__(
        self,
        source: str,
        columns: ColumnMap | None = None,
        *,
        per: Per = "pair",
        negatives: int | None = None,
        option: str = "columns: {}",
    ) -> None:
        self._source = source
        self._per = per
        self._negatives = negatives
        self._option = option
        self._mapped = None if columns is None else mapped_roles(columns)
        # Roles of the columns of one file, by its set of columns; the first object determines them.
        self._found: dict[frozenset[str], Roles] = {}
        self._ignored: set[str] = set()
        # Where the rows and negatives are that were left out.
        self._empty_rows: list[str] = []
        self._empty_negatives: list[str] = []

    def read(self, files: Iterable[Iterable[Record]], facts: Facts) -> Iterator[Row]:
        """Yield the rows of several files, and note the roles of columns and what was left out."""
        rows = negatives = 0
        for records in files:
            self._found.clear()
            for where, record in records:
                for row in self._record_rows(record, where):
                    rows += 1
                    if row.anchor.strip() and row.positive.strip():
                        negatives += len(row.negatives)
                        yield self._with_chosen_negatives(row, where)
                    else:
                        self._empty_rows.append(where)
            for roles in self._found.values():
                facts.add_columns(roles._asdict())
        notes = facts.notes
        empty = "rows without text for the anchor or the positive"
        note_dropped(notes, self._source, empty, self._empty_rows, rows, MAX_DROPPED_SHARE)
        note_dropped(notes, self._source, "negatives without text", self._empty_negatives, negatives)
        if self._ignored:
            notes.append(f"{self._source}: ignored the columns {names(sorted(self._ignored))}")

    def _record_rows(self, record: Any, where: str) -> list[Row]:
        if isinstance(record, list) and self._mapped is None:
            if len(record) < 2:
                raise DataError(f"{where}: found a list of {len(record)}, expected at least an anchor and a positive")
            anchor, positive, *negatives = (_text(value, where, "the list") for value in record)
            return [Row(anchor, positive, negatives)]
        if not isinstance(record, dict):
            expected = "a list of texts or an object" if self._mapped is None else "an object with named columns"
            raise DataError(f"{where}: found {short(record)}, expected {expected}")
        for name in SET_COLUMNS if self._mapped is None else ():
            if isinstance(record.get(name), list) or record.keys() == {name}:
                self._ignored.update(record.keys() - {name})
                # Fewer than two texts make an empty row, which is counted as left out.
                return [Row(*texts) for texts in pairwise(_texts(record, name, where))] or [Row("", "")]
        rows = _object_rows(record, self._roles(record, where), where)
        if self._per == "pair":
            return rows
        return [next((row for row in rows if row.positive.strip()), rows[0])]

    def _roles(self, record: dict[str, Any], where: str) -> Roles:
        key = frozenset(record)
        if key not in self._found:
            if self._mapped is None:
                roles = find_roles(record, where, self._option)
                self._ignored.update(key - set(roles.columns()))
            else:
                roles = self._mapped
                if missing := [column for column in roles.columns() if column not in record]:
                    raise DataError(f"{where}: no column '{missing[0]}', found {names(record)}")
            first = next(iter(self._found.values()), roles)
            if roles[:2] != first[:2]:
                expected = f"{names(first[:2])} as in the first object"
                raise DataError(f"{where}: found the columns {names(record)}, expected {expected}")
            self._found[key] = roles
        return self._found[key]

    def _with_chosen_negatives(self, row: Row, where: str) -> Row:
        kept = [i for i, negative in enumerate(row.negatives) if negative.strip()]
        self._empty_negatives += [where] * (len(row.negatives) - len(kept))
        kept = kept[: self._negatives]
        scores = [row.scores[0], *(row.scores[i + 1] for i in kept)] if row.scores else ()
        return Row(row.anchor, row.positive, [row.negatives[i] for i in kept], scores)


def records_of(name: str, dataset: Dataset) -> Iterator[Record]:
    """Yield the records of a `datasets.Dataset` with their places."""
    tables = dataset.with_format("arrow").iter(ROWS_PER_BATCH)
    for row, record in enumerate(chain.from_iterable(table.to_pylist() for table in tables), 1):
        yield f"{name}: row {row}", record


def _object_rows(record: dict[str, Any], roles: Roles, where: str) -> list[Row]:
    anchor = _text(record[roles.anchor], where, f"column '{roles.anchor}'")
    positives = _texts(record, roles.positive, where)
    negatives = [text for column in roles.negatives for text in _texts(record, column, where)]
    scores = _scores(record, roles, len(positives), len(negatives), where)
    if not positives:
        return [Row(anchor, "")]  # counted as left out
    shared = scores[len(positives) :]
    return [
        Row(anchor, positive, negatives, [scores[i], *shared] if scores else ())
        for i, positive in enumerate(positives)
    ]


def _scores(record: dict[str, Any], roles: Roles, positives: int, negatives: int, where: str) -> list[float]:
    lists = [record.get(column) for column in roles.scores]
    if all(values is None for values in lists):
        return []
    lengths = [positives, negatives] if len(lists) == 2 else [positives + negatives]
    for column, values, length in zip(roles.scores, lists, lengths, strict=True):
        found = values or []
        if not isinstance(found, list) or len(found) != length:
            amount = f"{len(found)} scores" if isinstance(found, list) else short(found)
            raise DataError(f"{where}: found {amount} in column '{column}', expected {length}, one per passage")
    scores = [value for values in lists for value in values or []]
    for value in scores:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST_SCORE:
            raise DataError(f"{where}: found {short(value)} as a score, expected a finite number")
    return [float(value) for value in scores]


def _texts(record: dict[str, Any], column: str, where: str) -> list[str]:
    """Return the texts of a column with one text or a list; no value is an empty list."""
    value = record.get(column)
    if value is None:
        return []
    values = value if isinstance(value, list) else [value]
    return [_text(element, where, f"column '{column}'") for element in values]


def _text(value: Any, where: str, place: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{where}: found {short(value)} in {place}, expected text")
    return value

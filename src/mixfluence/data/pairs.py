"""The formats `pairs` and `hub`, and the conversion of records (lists and objects of any file) to rows.

Without a column map the shape of a record determines what its texts mean:

- `["anchor", "positive", "negative", ...]`, with or without negatives;
- `{"set": [...]}` or `{"texts": [...]}`, texts of one meaning: each is paired with the next;
- `{"query", "pos", "neg"}` with one or many positives, optionally with `pos_scores` and `neg_scores`;
- `{"context", "response"}`;
- any other object by position, as in sentence-transformers: the first column is the anchor, the second the positive,
  the others are negatives, and columns named like labels or scores are ignored.

A positive column of lists gives one row per element, or one row per record with `per="query"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mixfluence.data.rows import ROWS_PER_BATCH, Row, RowSet, convert_once
from mixfluence.data.source import MAX_DROPPED_SHARE, FileSource, Record, SourceSection, note_dropped, read_records
from mixfluence.errors import DataError
from mixfluence.schema import WholeNumber, short

if TYPE_CHECKING:
    from datasets import Dataset

ColumnMap = Mapping[str, str | list[str]]
Per = Literal["query", "pair"]

EXTENSIONS = (".jsonl", ".csv", ".tsv", ".jsonl.gz", ".csv.gz", ".tsv.gz", ".parquet")
SET_COLUMNS = ("set", "texts")
LABEL_COLUMNS = frozenset({"label", "labels", "score", "scores"})
LARGEST_SCORE = 3.4e38  # rows store scores as 32-bit floats


class RecordsSource(SourceSection):
    """Records with columns.

    `columns` maps the roles `anchor`, `positive`, `negatives` (one column of lists, or several columns) and `scores`
    (a list with one number per passage, positives first) to columns. `per` makes one row per positive or per record,
    `negatives` is the maximum number of hard negatives that a row keeps.
    """

    columns: dict[str, str | list[str]] | None = None
    per: Per = "pair"
    negatives: WholeNumber | None = None

    def _convert(self, name: str, files: list[Path], records: Iterable[Iterable[Record]]) -> RowSet:
        options = self.model_dump(include={"format", "split", "columns", "per", "negatives"})
        reader = RecordReader(name, self.columns, per=self.per, negatives=self.negatives)
        return convert_once(files, options, lambda notes: reader.read(records, notes))


class PairsSource(RecordsSource, FileSource):
    """Pairs, triplets or lists in a jsonl, csv, tsv or parquet file, or in a folder of such files."""

    format: Literal["pairs"] = "pairs"

    def read_rows(self) -> RowSet:
        files = _find_files(self.path)
        return self._convert(str(self.path), files, map(read_records, files))


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
        return self._convert(self.id, files, [records_of(self.id, dataset)])

    def _load(self) -> Dataset:
        from datasets import load_dataset  # here, because recipes import the formats without data

        try:
            # Not in memory, because convert_once recognises the dataset by its files.
            return load_dataset(
                self.id, name=self.config, revision=self.revision, split=self.split, keep_in_memory=False
            )
        except Exception as error:  # the hub client, its transport and every file parser have their own classes
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            raise DataError(
                f"{self.id}: could not be loaded ({reason}); connect this machine to the hub, "
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


class Roles(NamedTuple):
    """The columns of an object by role; scores of positives and of negatives may have a column each."""

    anchor: str
    positive: str
    negatives: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()

    def columns(self) -> list[str]:
        return [self.anchor, self.positive, *self.negatives, *self.scores]


class RecordReader:
    """Converts the records of one dataset to rows; for the options see `RecordsSource`."""

    def __init__(
        self, source: str, columns: ColumnMap | None = None, *, per: Per = "pair", negatives: int | None = None
    ) -> None:
        self._source = source
        self._per = per
        self._negatives = negatives
        self._mapped = None if columns is None else _mapped_roles(columns)
        self._positional: Roles | None = None
        self._ignored: set[str] = set()
        # Places of what is left out.
        self._empty_rows: list[str] = []
        self._empty_negatives: list[str] = []

    def read(self, files: Iterable[Iterable[Record]], notes: list[str]) -> Iterator[Row]:
        """Yield the rows of several files, then append notes on what was left out."""
        rows = negatives = 0
        for records in files:
            self._positional = None
            for where, record in records:
                for row in self._record_rows(record, where):
                    rows += 1
                    if row.anchor.strip() and row.positive.strip():
                        negatives += len(row.negatives)
                        yield self._with_chosen_negatives(row, where)
                    else:
                        self._empty_rows.append(where)
        empty = "rows without text for the anchor or the positive"
        note_dropped(notes, self._source, empty, self._empty_rows, rows, MAX_DROPPED_SHARE)
        note_dropped(notes, self._source, "negatives without text", self._empty_negatives, negatives)
        if self._ignored:
            notes.append(f"{self._source}: ignored the columns {_names(sorted(self._ignored))}")

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
        if self._mapped is not None:
            if missing := [column for column in self._mapped.columns() if column not in record]:
                raise DataError(f"{where}: no column '{missing[0]}', found {_names(record)}")
            return self._mapped
        roles = _known_roles(record) or self._roles_by_position(record, where)
        self._ignored.update(record.keys() - roles.columns())
        return roles

    def _roles_by_position(self, record: dict[str, Any], where: str) -> Roles:
        columns = [name for name in record if name not in LABEL_COLUMNS]
        if self._positional is None:
            if len(columns) < 2:
                raise DataError(f"{where}: found the columns {_names(record)}, expected an anchor and a positive")
            self._positional = Roles(columns[0], columns[1], tuple(columns[2:]))
        # Fixed by the first object, because later ones may have the same columns in another order.
        expected = self._positional.columns()
        if sorted(columns) != sorted(expected):
            raise DataError(
                f"{where}: found the columns {_names(columns)}, expected {_names(expected)} as in the first object"
            )
        return self._positional

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


def _mapped_roles(columns: ColumnMap) -> Roles:
    if not {"anchor", "positive"} <= columns.keys() <= {"anchor", "positive", "negatives", "scores"}:
        raise DataError(f"columns: found {_names(columns)}, expected anchor, positive, optionally negatives, scores")
    named = {role: [names] if isinstance(names, str) else names for role, names in columns.items()}
    for role, names in named.items():
        if role != "negatives" and len(names) != 1:
            raise DataError(f"columns: found {len(names)} columns for {role}, expected one")
    negatives, scores = named.get("negatives", ()), named.get("scores", ())
    return Roles(named["anchor"][0], named["positive"][0], tuple(negatives), tuple(scores))


def _known_roles(record: dict[str, Any]) -> Roles | None:
    if "query" in record and "pos" in record:
        scores = ("pos_scores", "neg_scores") if "pos_scores" in record or "neg_scores" in record else ()
        return Roles("query", "pos", ("neg",), scores)
    if "context" in record and "response" in record:
        return Roles("context", "response")
    return None


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


def _names(columns: Iterable[str]) -> str:
    return ", ".join(f"'{column}'" for column in columns) or "none"

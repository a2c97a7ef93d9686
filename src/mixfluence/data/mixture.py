"""The training datasets by name, and the removal of rows whose anchor is a test query."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
import xxhash
from datasets import Dataset, DatasetDict

from mixfluence.data.columns import ColumnMap
from mixfluence.data.pairs import RecordReader, records_of
from mixfluence.data.rows import ROWS_PER_BATCH, Row, RowSet, convert_once, fingerprint
from mixfluence.data.source import EXAMPLES_SHOWN, MAX_DROPPED_SHARE
from mixfluence.display import counted
from mixfluence.errors import DataError

logger = logging.getLogger(__name__)


class Mixture(dict[str, RowSet]):
    """Ordered name -> rows. All vectors (weights, influences, counts) are in this order.

    Args:
        datasets: Rows of this package's formats, or any `datasets.Dataset`. Its columns are recognised by their names:
            anchor, query, question ...; positive, passage, answer, document ...; negative, negative_1 ...
        columns: For datasets with other names, which columns they are:
            `{"faq": {"anchor": "title", "positive": "body", "negatives": ["other"]}}`.
        kind: What messages call a dataset before its name, such as "dev set".
    """

    def __init__(
        self, datasets: Mapping[str, RowSet | Dataset], columns: Mapping[str, ColumnMap] | None = None, kind: str = ""
    ) -> None:
        super().__init__()
        for name, dataset in datasets.items():
            if not isinstance(name, str) or not name.strip():
                raise DataError(f"a dataset needs a name, found {name!r}")
            self[name] = _row_set(name, dataset, (columns or {}).get(name), f"{kind} {name}".lstrip())
        if not self:
            raise DataError("a mixture needs at least one dataset")

    @property
    def sizes(self) -> dict[str, int]:
        """Rows of each dataset."""
        return {name: len(dataset) for name, dataset in self.items()}

    @property
    def fingerprints(self) -> dict[str, str]:
        """A hash of each dataset's content, by which a resumed run checks that nothing has changed."""
        return {name: dataset.fingerprint for name, dataset in self.items()}


def _row_set(name: str, dataset: RowSet | Dataset, columns: ColumnMap | None, place: str) -> RowSet:
    """Return a dataset as rows, converting it if it has other columns; `place` is what messages call it."""
    if len(dataset) == 0:
        raise DataError(f"{place}: the dataset is empty")
    if isinstance(dataset, RowSet):
        return dataset
    content = fingerprint(dataset)
    if dataset.column_names == list(Row._fields) and not columns:
        for column in Row._fields:
            if missing := sum(value is None for value in dataset[column]):
                raise DataError(f"{place}: {missing} of {len(dataset)} rows have no value in the column {column!r}")
        return RowSet(dataset, content)
    # The place is part of the key because it occurs in the notes that are stored with the rows.
    options = {"name": place, "content": content, "columns": columns}
    reader = RecordReader(place, columns, option=f'columns={{{{"{name}": {{}}}}}}')
    rows = convert_once([], options, lambda facts: reader.read([records_of(place, dataset)], facts))
    for note in rows.notes:
        logger.warning("%s", note)
    return rows


class Overlap(NamedTuple):
    """Rows of one training dataset whose anchor is a test query, up to case and spacing."""

    dataset: str
    rows: tuple[int, ...]
    anchors: tuple[str, ...]

    def __str__(self) -> str:
        shown = "; ".join(map(repr, self.anchors[:EXAMPLES_SHOWN]))
        return f"{self.dataset}: the anchor of {counted(len(self.rows), 'training row')} is a test query ({shown})"


def without_overlap(
    mixture: Mixture, test_queries: Mapping[str, Iterable[str]], rule: Literal["drop", "refuse"]
) -> tuple[Mixture, list[Overlap]]:
    """Return the mixture without rows whose anchor is a query of a test set, and what was removed.

    With the rule `refuse` such rows raise a `DataError`.
    """
    forbidden = {_normalised(query) for queries in test_queries.values() for query in queries}
    kept, overlaps = dict(mixture), []
    for name, dataset in mixture.items() if forbidden else ():
        found = {row: anchor for row, anchor in enumerate(_anchors(dataset)) if _normalised(anchor) in forbidden}
        if not found:
            continue
        rows = list(found)
        overlaps.append(Overlap(name, tuple(rows), tuple(found.values())))
        if len(rows) == len(dataset) and rule == "drop":
            raise DataError(f"{name}: no rows left, every anchor is a test query")
        dropped = xxhash.xxh3_64_hexdigest(np.array(rows, np.int64).tobytes())
        keep = np.delete(np.arange(len(dataset)), rows).tolist()
        kept[name] = dataset.take(keep, f"{dataset.fingerprint}-without-{dropped}")
    if overlaps and rule == "refuse":
        raise DataError("\n".join(map(str, overlaps)))
    return Mixture(kept), overlaps


def repeated_queries(mixture: Mixture, dev: Mapping[str, RowSet]) -> Iterator[str]:
    """Yield a sentence for each training set that has more than a few of the queries of a dev set."""
    queries = {name: set(map(_normalised, _anchors(rows))) for name, rows in dev.items()}
    wanted = set().union(*queries.values())
    for dataset, rows in mixture.items() if wanted else ():
        shared = wanted.intersection(map(_normalised, _anchors(rows)))
        for name, own in queries.items():
            if (both := len(own & shared)) > MAX_DROPPED_SHARE * len(own):
                found = f"{both:,} of its {len(own):,} queries are also in the training set {dataset}"
                yield f"dev set {name}: {found}, so it does not show what helps with new ones"


def _anchors(rows: RowSet) -> Iterator[str]:
    # Reading batches is several times as fast as reading the column row by row.
    batches = rows.rows.select_columns("anchor").iter(ROWS_PER_BATCH)
    return chain.from_iterable(batch["anchor"] for batch in batches)


def _normalised(text: str) -> str:
    return " ".join(text.lower().split())


def text_columns(datasets: Mapping[str, RowSet]) -> DatasetDict:
    """Return datasets as sentence-transformers expects them, for its model card and evaluation loss."""
    return DatasetDict({name: rows.rows.select_columns(["anchor", "positive"]) for name, rows in datasets.items()})

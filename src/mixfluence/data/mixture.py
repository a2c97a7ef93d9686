"""The training datasets by name, and the removal of rows whose anchor is a test query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import numpy as np
import xxhash
from datasets import Dataset

from mixfluence.data.pairs import RecordReader, records_of
from mixfluence.data.rows import Row, RowSet, convert_once, fingerprint
from mixfluence.data.source import EXAMPLES_SHOWN
from mixfluence.errors import DataError


class Mixture(dict[str, RowSet]):
    """Ordered name -> rows. All vectors (weights, influences, counts) are in this order.

    Args:
        datasets: Rows of this package's formats, or any `datasets.Dataset`: its first column is the anchor, its
            second the positive, further ones negatives, as in sentence-transformers.
    """

    def __init__(self, datasets: Mapping[str, RowSet | Dataset] | Iterable[tuple[str, RowSet | Dataset]]) -> None:
        super().__init__()
        for name, dataset in datasets.items() if isinstance(datasets, Mapping) else datasets:
            if not isinstance(name, str) or not name.strip():
                raise DataError(f"a dataset needs a name, found {name!r}")
            if name in self:
                raise DataError(f"two datasets are named {name!r}")
            self[name] = _row_set(name, dataset)
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


def _row_set(name: str, dataset: RowSet | Dataset) -> RowSet:
    """Return a dataset as rows, converting it if it has other columns."""
    if len(dataset) == 0:
        raise DataError(f"{name}: the dataset is empty")
    if isinstance(dataset, RowSet):
        return dataset
    content = fingerprint(dataset)
    if dataset.column_names == list(Row._fields):
        for column in Row._fields:
            if missing := sum(value is None for value in dataset[column]):
                raise DataError(f"{name}: {missing} of {len(dataset)} rows have no value in the column {column!r}")
        return RowSet(dataset, content)
    # The name is part of the key because it occurs in the notes that are stored with the rows.
    options = {"name": name, "content": content}
    return convert_once([], options, lambda notes: RecordReader(name).read([records_of(name, dataset)], notes))


class Overlap(NamedTuple):
    """Rows of one training dataset whose anchor is a test query, up to case and spacing."""

    dataset: str
    rows: tuple[int, ...]
    anchors: tuple[str, ...]

    def __str__(self) -> str:
        shown = "; ".join(map(repr, self.anchors[:EXAMPLES_SHOWN]))
        return f"{self.dataset}: {len(self.rows)} training rows have a test query as anchor ({shown})"


def without_overlap(
    mixture: Mixture, test_queries: Mapping[str, Iterable[str]], rule: Literal["drop", "refuse"]
) -> tuple[Mixture, list[Overlap]]:
    """Return the mixture without rows whose anchor is a query of a test set, and what was removed.

    With the rule `refuse` such rows raise a `DataError`.
    """
    forbidden = {_normalised(query) for queries in test_queries.values() for query in queries}
    kept, overlaps = dict(mixture), []
    for name, dataset in mixture.items() if forbidden else ():
        anchors = dataset.rows["anchor"]
        rows = [row for row, anchor in enumerate(anchors) if _normalised(anchor) in forbidden]
        if not rows:
            continue
        overlaps.append(Overlap(name, tuple(rows), tuple(anchors[row] for row in rows)))
        if len(rows) == len(dataset) and rule == "drop":
            raise DataError(f"{name}: no rows left, every anchor is a test query")
        dropped = xxhash.xxh3_64_hexdigest(np.array(rows, np.int64).tobytes())
        keep = np.delete(np.arange(len(dataset)), rows).tolist()
        kept[name] = dataset.take(keep, f"{dataset.fingerprint}-without-{dropped}")
    if overlaps and rule == "refuse":
        raise DataError("\n".join(map(str, overlaps)))
    return Mixture(kept), overlaps


def _normalised(text: str) -> str:
    return " ".join(text.lower().split())

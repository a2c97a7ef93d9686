"""The pool: named datasets in a fixed order, checked before anything is trained on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from datasets import Dataset

from mixfluence.data.columns import RecordReader, records_of
from mixfluence.data.rows import SCHEMA, Row, RowSet, convert_content, fingerprint
from mixfluence.errors import DataError


class Mixture(Mapping[str, RowSet]):
    """Ordered name -> rows. Every later vector (weights, influences, counts) is in this order.

    Args:
        datasets: Rows as the readers of this package give them, or any `datasets.Dataset`: its first column
            is the anchor, its second the positive, further ones negatives, as in sentence-transformers.

    Raises:
        DataError: If there is no dataset, or one is empty, has a bad name or a name that another has.
    """

    def __init__(self, datasets: Mapping[str, RowSet | Dataset] | Iterable[tuple[str, RowSet | Dataset]]) -> None:
        pairs = datasets.items() if isinstance(datasets, Mapping) else datasets
        self._datasets: dict[str, RowSet] = {}
        for name, dataset in pairs:
            if not isinstance(name, str) or not name.strip():
                raise DataError(f"a dataset needs a name, found {name!r}")
            if name in self._datasets:
                raise DataError(f"two datasets are called {name!r}")
            self._datasets[name] = as_row_set(name, dataset)
        if not self._datasets:
            raise DataError("a mixture needs at least one dataset")

    def __getitem__(self, name: str) -> RowSet:
        return self._datasets[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._datasets)

    def __len__(self) -> int:
        return len(self._datasets)

    @property
    def sizes(self) -> dict[str, int]:
        """Rows of each dataset."""
        return {name: len(dataset) for name, dataset in self.items()}

    @property
    def fingerprints(self) -> dict[str, str]:
        """A hash of each dataset's content, by which a resumed run knows that nothing has changed."""
        return {name: dataset.fingerprint for name, dataset in self.items()}


def as_row_set(name: str, dataset: RowSet | Dataset) -> RowSet:
    """Return a dataset in the one row shape, converting it if it has other columns."""
    if len(dataset) == 0:
        raise DataError(f"{name}: the dataset is empty")
    if isinstance(dataset, RowSet):
        return dataset
    content = fingerprint(dataset)
    if dataset.column_names == SCHEMA.names:
        _refuse_missing_values(name, dataset)
        return RowSet(dataset, content)

    def read(notes: list[str]) -> Iterator[Row]:
        reader = RecordReader(name, None)
        yield from reader.rows(records_of(name, dataset))
        reader.report(notes)

    # The name is part of the key because the reader's remarks, kept with the rows, call the dataset by it.
    return convert_content(f"{name} {content}", read)


def _refuse_missing_values(name: str, dataset: Dataset) -> None:
    for column in SCHEMA.names:
        if missing := sum(value is None for value in dataset[column]):
            raise DataError(f"{name}: {missing} of {len(dataset)} rows have no value in the column {column!r}")

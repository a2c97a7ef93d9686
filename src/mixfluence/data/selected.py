"""Rows cut from tokenised datasets: nothing is tokenised or copied again, rows are looked up by their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixfluence.data.tokens import Column, Positions, TokenisedRows, TokenTable

Places = NDArray[np.integer[Any]]


class SelectedRows(TokenisedRows):
    """Some rows of one or several datasets, read like a dataset of their own.

    Args:
        pieces: Datasets tokenised alike, each with the numbers of its rows, in the order the rows have here.
    """

    def __init__(self, pieces: Sequence[tuple[TokenisedRows, Positions]]) -> None:
        self._pieces = pieces
        wholes = [whole for whole, _ in pieces]
        firsts = _firsts(wholes)
        self._rows = np.concatenate([first + places for first, (_, places) in zip(firsts, pieces, strict=True)])
        self.queries = _join_tables([whole.queries for whole in wholes])
        self.documents = _join_tables([whole.documents for whole in wholes])
        queries, documents = _firsts([whole.queries for whole in wholes]), _firsts([w.documents for w in wholes])
        self.anchors = _join([whole.anchors for whole in wholes], queries)[self._rows]
        self._passages = _join([whole._passages for whole in wholes], documents)
        self._anchor_keys = _join([whole._anchor_keys for whole in wholes])
        self._passage_keys = _join([whole._passage_keys for whole in wholes])
        # Where the passages of a dataset end, those of the next begin.
        starts = [*(whole._starts[:-1] for whole in wholes[:-1]), wholes[-1]._starts]
        self._starts = _join(starts, _firsts([whole._passages for whole in wholes]))
        begins, ends = self._starts[self._rows], self._starts[self._rows + 1]
        self.distinct_positives = len(np.unique(self._passage_keys[begins]))
        self.least_negatives = int((ends - begins).min()) - 1
        self.most_negatives = int((ends - begins).max()) - 1
        scores = _join([_no_scores(whole) if whole._scores is None else whole._scores for whole in wholes])
        columns = range(int((ends - begins).max()) if any(whole.has_scores for whole in wholes) else 0)
        self.has_scores = any(np.isfinite(scores[np.minimum(begins + i, ends - 1)]).any() for i in columns)
        self._scores = scores if self.has_scores else None

    def __reduce__(self) -> tuple[type[TokenisedRows], tuple[Any, ...]]:
        return SelectedRows, (self._pieces,)

    def candidates(self, rows: Positions, negatives: int) -> tuple[Places, NDArray[np.float32]]:
        """Return each row's positive and negatives with their scores, as a dataset of its own would."""
        return super().candidates(self._rows[rows], negatives)

    def text_keys(self, rows: Positions, negatives: int) -> NDArray[np.uint64]:
        """Return one key per text of each row, as a dataset of its own would."""
        return super().text_keys(self._rows[rows], negatives)


class JoinedTable(TokenTable):
    """Several tables read as one."""

    def __init__(self, tables: Sequence[TokenTable]) -> None:
        self.layout = tables[0].layout
        self._tables = tables
        self._firsts = _firsts(tables)

    def __len__(self) -> int:
        return sum(map(len, self._tables))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text."""
        return np.concatenate([table.lengths for table in self._tables])

    def token_ids(self, positions: Places) -> list[NDArray[np.int32]]:
        """Return the token ids of the texts at these positions."""
        found = [np.empty(0, np.int32)] * len(positions)
        for number, chosen, own in _by_owner(positions, self._firsts):
            for place, ids in zip(np.flatnonzero(chosen).tolist(), self._tables[number].token_ids(own), strict=True):
                found[place] = ids
        return found


class JoinedColumn:
    """Several columns read as one; what is read from each is raised by its shift."""

    def __init__(self, columns: Sequence[Column], shifts: Positions | None) -> None:
        self._columns = columns
        self._firsts = _firsts(columns)
        self._shifts = shifts

    def __len__(self) -> int:
        return sum(map(len, self._columns))

    def __getitem__(self, places: Places) -> NDArray[Any]:
        dtype = self._columns[0][:0].dtype if self._shifts is None else self._shifts.dtype
        found = np.empty(places.shape, dtype)
        for number, chosen, own in _by_owner(places, self._firsts):
            found[chosen] = self._columns[number][own]
            if self._shifts is not None:
                found[chosen] += self._shifts[number]
        return found


def _join_tables(tables: Sequence[TokenTable]) -> TokenTable:
    return tables[0] if len(tables) == 1 else JoinedTable(tables)


def _join(columns: Sequence[Column], shifts: Positions | None = None) -> Column:
    return columns[0] if len(columns) == 1 else JoinedColumn(columns, shifts)


def _firsts(columns: Sequence[Any]) -> Positions:
    """Return the place of each column's first number when they are read as one."""
    return np.cumsum([0, *map(len, columns)])[:-1]


def _by_owner(places: Places, firsts: Positions) -> Iterator[tuple[int, NDArray[np.bool_], Places]]:
    """Yield the columns that places fall into: number, which places these are, and where they are in it."""
    owners = np.searchsorted(firsts, places, side="right") - 1
    for number in np.unique(owners).tolist():
        chosen = owners == number
        yield number, chosen, places[chosen] - firsts[number]


def _no_scores(rows: TokenisedRows) -> NDArray[np.float32]:
    """Return a score that is not a number for every passage, in the memory of one."""
    return np.broadcast_to(np.float32(np.nan), len(rows._passages))

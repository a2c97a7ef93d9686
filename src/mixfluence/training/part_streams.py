"""A dataset of several parts, such as sources and lengths, cut into batches of one part each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mixfluence.training.streams import LOOKAHEAD, Batch, Rows, RowStream, StreamState, rows_to_read


class PartStream(RowStream):
    """A dataset as an endless sequence of batches, each of rows that belong together.

    Rows are read in the random order of the whole dataset and wait until one part has enough for a batch, so that
    parts come up in proportion to their rows. Use `RowStream` for a dataset that is all of one kind.

    Args:
        size: As for `RowStream`.
        text_keys: As for `RowStream`.
        key: As for `RowStream`.
        parts: Rows of each part, in the order of the rows.
        least: Parts with fewer rows are joined with the one after them.
    """

    def __init__(
        self,
        size: int,
        text_keys: Callable[[Rows], NDArray[np.uint64]],
        key: int,
        parts: Sequence[int],
        least: int,
    ) -> None:
        super().__init__(size, text_keys, key)
        self._ends = _ends(parts, least)

    def _take_plainly(self, count: int) -> Rows | None:
        return None

    def _take_carefully(self, count: int) -> Rows:
        position, waiting = self.state
        rows = np.array(waiting, np.int64)
        patience = 2 * len(self._ends) * count + min(self.size, LOOKAHEAD)
        while True:
            chosen = self._choose(rows, count)
            if len(chosen) == count or len(rows) >= patience:
                break
            more = rows_to_read(count, 0)
            rows = np.concatenate([rows, self._shuffled(position, more)])
            position += more
        self.state = StreamState(position, tuple(np.delete(rows, chosen).tolist()))
        return rows[chosen]

    def _choose(self, rows: Rows, count: int) -> list[int]:
        """Return the places of a batch: of the first part that fills one, or else of the part that comes nearest."""
        best: list[int] = []
        owners = np.searchsorted(self._ends, rows, side="right")
        numbers = np.bincount(owners, minlength=1)
        for part in np.argsort(-numbers, kind="stable"):
            if numbers[part] <= len(best) or len(best) == count:
                break
            places = np.flatnonzero(owners == part)
            batch = Batch(count)
            batch.add(places, self._text_keys(rows[places]))
            best = max(best, batch.rows, key=len)
        return best


def _ends(parts: Sequence[int], least: int) -> NDArray[np.int64]:
    """Return where each part ends, after parts that are too small have been joined with those after them."""
    ends: list[int] = []
    start = end = 0
    for size in parts:
        end += size
        if end - start >= least:
            ends.append(end)
            start = end
    # What is left at the end is too small by itself.
    return np.array([*ends[:-1], end], np.int64)

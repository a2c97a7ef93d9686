"""One dataset, read over and over in random order and cut into batches without false negatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mixfluence.training.permutation import mix, permuted

Rows = NDArray[np.int64]
# Rows that may wait for a later batch: all of a small dataset, yet few enough to keep in a checkpoint.
LOOKAHEAD = 4_096
# Rows shuffled at a time, if an epoch has as many: the arithmetic of a few costs as much as that of a thousand.
BLOCK = 8_192


class StreamState(NamedTuple):
    """How far a dataset has been read: rows taken from the endless shuffle, and rows put off."""

    position: int = 0
    waiting: tuple[int, ...] = ()


class RowStream:
    """A dataset as an endless sequence of batches in which no text answers two queries.

    A row whose anchor or positive stands in the batch already, or that would bring another row's anchor or
    positive as a negative, waits for a later batch. When too many wait, the batch stays short.

    Args:
        size: Number of rows.
        text_keys: Returns, for rows, one key per text: anchor, positive, then negatives.
        key: Names the random order.
    """

    def __init__(self, size: int, text_keys: Callable[[Rows], NDArray[np.uint64]], key: int) -> None:
        self.size = size
        self.state = StreamState()
        self._text_keys = text_keys
        self._key = key
        self._block_start = 0
        self._block = np.empty(0, np.int64)
        self._entangled: NDArray[np.bool_] | None = None

    def take(self, count: int, multiple: int = 1) -> Rows:
        """Return `count` rows that may stand in one batch, or as many as can be found.

        Args:
            count: Rows wanted.
            multiple: Cut a short batch to a multiple of this (unless it is shorter than one).
        """
        rows = self._take_plainly(count)
        if rows is None:
            rows = self._take_carefully(count)
        if surplus := len(rows) % multiple if len(rows) >= multiple else 0:
            position, waiting = self.state
            self.state = StreamState(position, (*rows[len(rows) - surplus :].tolist(), *waiting))
            rows = rows[: len(rows) - surplus]
        return rows

    def _take_plainly(self, count: int) -> Rows | None:
        """Return the next rows if all of them may stand in one batch, as is the rule; None if they may not."""
        position, waiting = self.state
        wanted = max(count - len(waiting), 0)
        rows = np.concatenate([np.array(waiting, np.int64), self._shuffled(position, wanted)])
        doubtful = bool(waiting) or self._entangled_in_block(position, count) > 1
        if doubtful and entangled(self._text_keys(rows[:count])).any():
            return None
        self.state = StreamState(position + wanted, tuple(rows[count:].tolist()))
        return rows[:count]

    def _take_carefully(self, count: int) -> Rows:
        """Return rows that may stand in one batch, and put off those that may not."""
        batch = Batch(count)
        position, waiting = self.state
        rest = batch.add(np.array(waiting, np.int64), self._text_keys(np.array(waiting, np.int64)))
        patience = max(4 * count, min(self.size, LOOKAHEAD))
        while not batch.full and len(batch.postponed) < patience:
            wanted = rows_to_read(count, len(batch.rows))
            candidates = self._shuffled(position, wanted)
            # Rows that were not looked at are read again, not kept waiting.
            position += wanted - len(batch.add(candidates, self._text_keys(candidates)))
        self.state = StreamState(position, (*batch.postponed, *rest))
        return np.array(batch.rows, np.int64)

    def _shuffled(self, start: int, count: int) -> Rows:
        first = start - self._block_start
        if first < 0 or first + count > len(self._block):
            self._block_start, first = start, 0
            self._block = self._shuffle(start, max(count, min(BLOCK, self.size)))
            self._entangled = None
        return self._block[first : first + count]

    def _entangled_in_block(self, start: int, count: int) -> int:
        """Return how many of these rows may not stand beside some other row of their block."""
        if self._entangled is None:
            self._entangled = entangled(self._text_keys(self._block))
        first = start - self._block_start
        return int(np.count_nonzero(self._entangled[first : first + count]))

    def _shuffle(self, start: int, count: int) -> Rows:
        epochs, places = np.divmod(np.arange(start, start + count, dtype=np.int64), self.size)
        return np.concatenate(
            [
                permuted(places[epochs == epoch], self.size, mix(self._key, epoch))
                for epoch in range(int(epochs[0]), int(epochs[-1]) + 1)
            ]
        )


def rows_to_read(count: int, found: int) -> int:
    """Return how many more rows to look at: those that are missing, and not too few at a time."""
    return max(count - found, count // 4, 8)


def entangled(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which rows share a text with another, or with themselves, that is an anchor or a positive of either."""
    answers = np.sort(keys[:, :2], axis=None)
    shared = answers[1:][answers[1:] == answers[:-1]]
    if keys.shape[1] > 2:
        shared = np.concatenate([shared, np.intersect1d(keys[:, 2:], answers)])
    return np.asarray(np.isin(keys, shared).any(axis=1)) if len(shared) else np.zeros(len(keys), bool)


def share(rows: Rows, rank: int, world: int) -> Rows:
    """Return a process's part of the rows of a batch."""
    # Fewer rows than processes: every process needs one, so some hold the same row.
    return (rows if len(rows) >= world else np.resize(rows, world))[rank::world]


class Batch:
    """Rows accepted so far, and the texts that decide whether the next one fits."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.rows: list[int] = []
        self.postponed: list[int] = []
        self._texts: set[int] = set()
        self._answers: set[int] = set()

    @property
    def full(self) -> bool:
        """Whether no row is wanted any more."""
        return len(self.rows) == self.count

    def add(self, candidates: Rows, keys: NDArray[np.uint64]) -> list[int]:
        """Accept or postpone candidates until the batch is full; return those not looked at."""
        rows: list[int] = candidates.tolist()
        for place, (anchor, positive, *negatives) in enumerate(keys.tolist()):
            if self.full:
                return rows[place:]
            if anchor in self._texts or positive in self._texts or not self._answers.isdisjoint(negatives):
                self.postponed.append(rows[place])
            else:
                self.rows.append(rows[place])
                self._texts.update((anchor, positive, *negatives))
                self._answers.update((anchor, positive))
        return []

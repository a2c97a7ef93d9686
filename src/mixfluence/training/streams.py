"""One dataset as an endless, shuffled sequence of batches without false negatives.

Shuffles are computed, not stored: storing one of 100 million rows takes a gigabyte and delays the first batch and
every resume. A Feistel network is a bijection for any round function, so the row at position k of a shuffled epoch
can be computed alone, and the state of a shuffle is one integer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
TextKeys = Callable[[Rows], NDArray[np.uint64]]
# Rows that are read in vain for one batch: all of a small dataset.
LOOKAHEAD = 4_096
# Rows that may wait, in batches: every waiting row is tried for every batch.
MOST_WAITING = 8
# Rows shuffled at once: shuffling a few takes as long as shuffling a thousand.
BLOCK = 8_192
FEISTEL_ROUNDS = 6
_MASK = (1 << 64) - 1


def mix(*values: int) -> int:
    """Hash integers to 64 bits with the finaliser of splitmix64, applied in a chain."""
    state = 0
    for value in values:
        state = (state ^ (value & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def uniform(*values: int) -> float:
    """Return a pseudo-random number in [0, 1) determined by these integers."""
    return (mix(*values) >> 11) / (1 << 53)


def permuted(positions: Rows, size: int, key: int) -> Rows:
    """Return the rows at these positions of the permutation of `range(size)` with this key."""
    # A grid barely larger than the range, so that few positions fall outside.
    height = math.isqrt(max(size, 1) - 1) + 1
    width = -(-size // height)
    keys = [np.uint64(mix(key, number)) for number in range(FEISTEL_ROUNDS)]
    rows = _shuffle(positions.astype(np.uint64), height, width, keys)
    # Positions outside the range are shuffled again until they fall inside (cycle walking).
    while len(outside := np.flatnonzero(rows >= size)):
        rows[outside] = _shuffle(rows[outside], height, width, keys)
    return rows.astype(np.int64)


def _shuffle(values: NDArray[np.uint64], height: int, width: int, keys: list[np.uint64]) -> NDArray[np.uint64]:
    """Shift every column of a grid by a hash of its index, then every row, in turns."""
    sides = np.uint64(height), np.uint64(width)
    places = list(np.divmod(values, sides[1]))
    for number, key in enumerate(keys):
        moved, other = number % 2, 1 - number % 2
        scrambled = (places[other] ^ key) * np.uint64(0xBF58476D1CE4E5B9)
        scrambled = (scrambled ^ scrambled >> np.uint64(29)) * np.uint64(0x94D049BB133111EB)
        places[moved] = (places[moved] + (scrambled >> np.uint64(32))) % sides[moved]
    return np.asarray(places[0] * sides[1] + places[1])


class StreamState(NamedTuple):
    """Rows read from the endless shuffle, and rows postponed to a later batch."""

    position: int = 0
    waiting: tuple[int, ...] = ()


def restore(streams: Sequence[RowStream], states: Sequence[Sequence[Any]]) -> None:
    """Set the states of streams to those of a checkpoint."""
    for stream, (position, waiting) in zip(streams, states, strict=True):
        stream.state = StreamState(position, tuple(waiting))


class RowStream:
    """A dataset as an endless sequence of batches in which no text answers two queries.

    A row conflicts with a batch if its anchor or positive is already in it, or if one of its negatives is another
    row's anchor or positive. Conflicting rows wait for a later batch. A row that still waits when its turn comes again
    loses that turn, so the rows of a text that answers too many queries are drawn less often than others; otherwise
    they would pile up, until no batch has other rows. `text_keys` returns, for rows, one key per text: anchor,
    positive, then negatives.
    """

    def __init__(self, size: int, text_keys: TextKeys, key: int) -> None:
        self.size = size
        self.state = StreamState()
        self._text_keys = text_keys
        self._key = key
        self._block_start = 0
        self._block = np.empty(0, np.int64)

    def take(self, count: int, multiple: int = 1) -> Rows:
        """Return `count` rows without conflicts, or as many as can be found, cut to a multiple of `multiple`."""
        rows = self._take(count)
        if surplus := len(rows) % multiple if len(rows) >= multiple else 0:
            position, waiting = self.state
            self.state = StreamState(position, _each_once((*rows[len(rows) - surplus :].tolist(), *waiting)))
            rows = rows[: len(rows) - surplus]
        return rows

    def _take(self, count: int) -> Rows:
        # Commonly none of the next rows conflict.
        position, waiting = self.state
        wanted = max(count - len(waiting), 0)
        rows = np.concatenate([np.array(waiting, np.int64), self._shuffled(position, wanted)])
        if _any_conflict(self._text_keys(rows[:count])):
            return self._take_carefully(count)
        self.state = StreamState(position + wanted, tuple(rows[count:].tolist()))
        return rows[:count]

    def _take_carefully(self, count: int) -> Rows:
        """Accept rows one by one, and postpone those that conflict."""
        batch = Batch(count)
        position, waiting = self.state
        rest = batch.add(np.array(waiting, np.int64), self._text_keys(np.array(waiting, np.int64)))
        patience = len(batch.postponed) + max(4 * count, min(self.size, LOOKAHEAD))
        while len(batch.rows) < count and len(batch.postponed) < patience:
            wanted = _rows_to_read(count, len(batch.rows))
            candidates = self._shuffled(position, wanted)
            # Rows left over when the batch is full are read again later instead of waiting.
            position += wanted - len(batch.add(candidates, self._text_keys(candidates)))
        self.state = StreamState(position, _each_once((*batch.postponed, *rest))[: MOST_WAITING * count])
        return np.array(batch.rows, np.int64)

    def _shuffled(self, start: int, count: int) -> Rows:
        first = start - self._block_start
        if first < 0 or first + count > len(self._block):
            self._block_start, first = start, 0
            self._block = self._shuffle(start, max(count, min(BLOCK, self.size)))
        return self._block[first : first + count]

    def _shuffle(self, start: int, count: int) -> Rows:
        epochs, places = np.divmod(np.arange(start, start + count, dtype=np.int64), self.size)
        return np.concatenate(
            [permuted(places[epochs == epoch], self.size, mix(self._key, int(epoch))) for epoch in np.unique(epochs)]
        )


class PartStream(RowStream):
    """A stream whose batches hold rows of one part of the dataset, such as one source and text length.

    Rows are read in the shuffled order of the whole dataset and wait until the largest part of them fills a batch, so
    that parts are drawn in proportion to their size. Contiguous parts of less than `least` rows are joined.
    """

    def __init__(self, size: int, text_keys: TextKeys, key: int, parts: Sequence[int], least: int) -> None:
        super().__init__(size, text_keys, key)
        ends = [0]
        for end in np.cumsum(parts).tolist():
            if end - ends[-1] >= least:
                ends.append(end)
        self._ends = np.array([*ends[1:-1], sum(parts)], np.int64)

    def _take(self, count: int) -> Rows:
        position, waiting = self.state
        rows = np.array(waiting, np.int64)
        patience = 2 * len(self._ends) * count + min(self.size, LOOKAHEAD)
        while True:
            owners = np.searchsorted(self._ends, rows, side="right")
            places = np.flatnonzero(owners == np.bincount(owners, minlength=1).argmax())
            batch = Batch(count)
            batch.add(places, self._text_keys(rows[places]))
            if len(batch.rows) == count or len(rows) >= patience:
                break
            more = _rows_to_read(count, 0)
            rows = np.concatenate([rows, self._shuffled(position, more)])
            position += more
        # The rows of a part that cannot fill a batch lose their turn, or it would stay the largest for ever.
        used = batch.rows if len(batch.rows) == count else places
        self.state = StreamState(position, tuple(np.delete(rows, used).tolist()))
        return rows[batch.rows]


class Batch:
    """Up to `count` rows without conflicts, and the rows that were postponed."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.rows: list[int] = []
        self.postponed: list[int] = []
        self._texts: set[int] = set()
        self._answers: set[int] = set()

    def add(self, candidates: Rows, keys: NDArray[np.uint64]) -> list[int]:
        """Accept or postpone candidates until the batch has `count` rows; return the rest."""
        rows: list[int] = candidates.tolist()
        for place, (anchor, positive, *negatives) in enumerate(keys.tolist()):
            if len(self.rows) == self.count:
                return rows[place:]
            if anchor in self._texts or positive in self._texts or not self._answers.isdisjoint(negatives):
                self.postponed.append(rows[place])
            else:
                self.rows.append(rows[place])
                self._texts.update((anchor, positive, *negatives))
                self._answers.update((anchor, positive))
        return []


def shard(rows: Rows, rank: int, world: int) -> Rows:
    """Return the rows of a batch that one process trains on."""
    # With fewer rows than processes, some processes get the same row: each needs one.
    return (rows if len(rows) >= world else np.resize(rows, world))[rank::world]


def _each_once(rows: tuple[int, ...]) -> tuple[int, ...]:
    """Return the rows in their order, those that occur again left out."""
    return tuple(dict.fromkeys(rows))


def _any_conflict(keys: NDArray[np.uint64]) -> bool:
    """Return whether a text occurs twice, at least once as an anchor or a positive."""
    answers = np.sort(keys[:, :2], axis=None)
    found = (answers[1:] == answers[:-1]).any()
    # `isin` sorts the answers again even if there are no negatives to look for.
    return bool(found or (keys.shape[1] > 2 and np.isin(keys[:, 2:], answers).any()))


def _rows_to_read(count: int, found: int) -> int:
    return max(count - found, count // 4, 8)

"""Batches of one part.

- Every batch is full and of one part, unless parts are too small; those are joined with the next.
- Over an epoch every row comes about once, so that parts are drawn in proportion to their rows.
- A stream goes on from its state as if it had not been stopped.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from mixfluence.training.part_streams import PartStream
from mixfluence.training.streams import Rows, StreamState


def apart(rows: Rows) -> NDArray[np.uint64]:
    """Every row has texts of its own."""
    return np.stack([2 * rows, 2 * rows + 1], axis=1).astype(np.uint64)


def stream(parts: list[int], least: int = 8) -> PartStream:
    return PartStream(sum(parts), apart, key=7, parts=parts, least=least)


def owners(rows: Rows, parts: list[int]) -> set[int]:
    return set(np.searchsorted(np.cumsum(parts), rows, side="right").tolist())


def test_a_batch_is_of_one_part_and_full() -> None:
    parts = [500, 40, 300, 160]
    own = stream(parts)
    batches = [own.take(8) for _ in range(500)]
    assert all(len(batch) == 8 and len(owners(batch, parts)) == 1 for batch in batches)
    counts = np.bincount([next(iter(owners(batch, parts))) for batch in batches])
    assert counts / counts.sum() == pytest.approx(np.array(parts) / sum(parts), abs=0.01)


def test_every_row_comes_once_an_epoch() -> None:
    parts = [500, 40, 300, 160]
    own = stream(parts)
    seen = np.bincount(np.concatenate([own.take(8) for _ in range(4 * 125)]), minlength=1000)
    assert seen.min() >= 3
    assert seen.max() <= 5


def test_small_parts_are_joined_with_the_next() -> None:
    parts = [3, 2, 50, 4]
    own = stream(parts)
    joined = [owners(own.take(8), parts) for _ in range(50)]
    assert set.union(*joined) == {0, 1, 2, 3}


def test_conflicting_rows_wait() -> None:
    parts = [20, 20]

    def same_positive(rows: Rows) -> NDArray[np.uint64]:
        return np.stack([1000 + rows, rows // 2], axis=1).astype(np.uint64)

    own = PartStream(40, same_positive, key=1, parts=parts, least=8)
    for _ in range(40):
        batch = own.take(8)
        assert len(set((batch // 2).tolist())) == len(batch) == 8
        assert len(owners(batch, parts)) == 1


def test_a_stream_goes_on_from_its_state() -> None:
    parts = [60, 30]
    first, second = stream(parts), stream(parts)
    for _ in range(9):
        first.take(8)
    second.state = StreamState(first.state.position, tuple(first.state.waiting))
    for _ in range(20):
        assert first.take(8).tolist() == second.take(8).tolist()


def test_a_part_with_too_few_answers_gives_short_batches() -> None:
    own = PartStream(20, lambda rows: np.stack([rows + 5, rows * 0], axis=1).astype(np.uint64), 1, [10, 10], 4)
    assert len(own.take(4)) == 1

"""A dataset as an endless sequence of batches without false negatives.

- Without conflicts every row comes exactly once per epoch, each epoch in another order.
- Whatever the conflicts, no row comes more often than once per epoch, and none waits twice.
- Batches stay full for any number of epochs, and all other rows come in each, if a text answers too many queries.
- No batch holds two rows of which one's texts would make the other's answer a negative.
- The row that has waited longest comes next, and how many wait is bounded even for a hopeless dataset.
- A dataset with fewer answers than rows asked for gives shorter batches; short batches are cut to a multiple.
- The state is all there is: put back, it gives the same rows again.
- The quick path for rows without conflict returns the same rows as the careful one.
- Every batch is full and of one part, unless parts are too small; those are joined with the next.
- Over an epoch every row comes about once, so that parts are drawn in proportion to their rows.
- A stream goes on from its state as if it had not been stopped.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mixfluence.training.streams import MOST_WAITING, PartStream, Rows, RowStream, StreamState

pytestmark = pytest.mark.slow

Keys = NDArray[np.uint64]


def stream_of(keys: Keys, key: int = 0) -> RowStream:
    return RowStream(len(keys), lambda rows: keys[rows], key)


def distinct_rows(size: int) -> Keys:
    return np.arange(2 * size, dtype=np.uint64).reshape(size, 2)


@st.composite
def quarrelsome_rows(draw: st.DrawFn) -> Keys:
    """Rows of an anchor, a positive and up to two negatives, over few texts."""
    size, width = draw(st.integers(1, 25)), draw(st.integers(2, 4))
    texts = st.lists(st.integers(0, draw(st.integers(1, 40))), min_size=width, max_size=width)
    return np.array(draw(st.lists(texts, min_size=size, max_size=size)), np.uint64)


def assert_no_false_negative(batch: list[list[int]]) -> None:
    for (anchor, positive, *_), other in permutations(batch, 2):
        assert anchor not in other, "another row has this query, as its query, answer or negative"
        assert positive not in other, "another row has this answer, as its query, answer or negative"


def test_every_row_comes_once_per_epoch_and_epochs_differ() -> None:
    stream = stream_of(distinct_rows(60))
    epochs = [[row for _ in range(5) for row in stream.take(12).tolist()] for _ in range(4)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(60))] * 4
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_another_key_gives_another_order() -> None:
    assert stream_of(distinct_rows(60), 1).take(12).tolist() != stream_of(distinct_rows(60), 2).take(12).tolist()


@settings(max_examples=200)
@given(quarrelsome_rows(), st.integers(1, 9), st.integers(1, 3), st.integers(0, 99))
def test_batches_are_clean_and_no_row_is_doubled(keys: Keys, count: int, multiple: int, key: int) -> None:
    stream, given_rows = stream_of(keys, key), Counter[int]()
    for _ in range(12):
        oldest = stream.state.waiting[:1]
        rows = stream.take(count * multiple, multiple).tolist()
        assert 0 < len(rows) <= count * multiple
        assert len(rows) % multiple == 0 or len(rows) < multiple
        assert set(oldest) <= set(rows)
        assert_no_false_negative(keys[rows].tolist())
        given_rows.update(rows)
    position, waiting = stream.state
    assert len(set(waiting)) == len(waiting)
    assert max((given_rows + Counter(waiting)).values()) <= math.ceil(position / len(keys))


@pytest.mark.parametrize(("parts", "least"), [([], 50), ([150, 350], 45)], ids=["whole", "in parts"])
def test_batches_stay_full_if_one_text_answers_many_queries(parts: list[int], least: int) -> None:
    size, popular, count = 500, 40, 50
    keys = distinct_rows(size)
    keys[:popular, 1] = 10**6
    order = size, lambda rows: keys[rows], 3
    stream = PartStream(*order, parts, least=count) if parts else RowStream(*order)
    batches = [stream.take(count) for _ in range(900)]
    assert min(map(len, batches)) >= least
    times = np.bincount(np.concatenate(batches), minlength=size)
    epochs = stream.state.position / size
    assert epochs > 90
    assert times[popular:] == pytest.approx(epochs, abs=3)
    assert 0 < times[:popular].min() < times[:popular].max() < epochs / 2


def test_a_popular_answer_of_a_large_dataset_does_not_crowd_out_the_others() -> None:
    size, count = 60_000, 32
    keys = distinct_rows(size)
    keys[: size // 2, 1] = 10**6
    stream = stream_of(keys)
    sizes = [len(stream.take(count)) for _ in range(1_200)]
    assert min(sizes) == count
    assert len(stream.state.waiting) <= MOST_WAITING * count


@given(quarrelsome_rows(), st.integers(1, 8), st.integers(0, 5))
def test_a_state_put_back_gives_the_same_rows(keys: Keys, count: int, before: int) -> None:
    stream = stream_of(keys)
    for _ in range(before):
        stream.take(count)
    state = stream.state
    first = [stream.take(count).tolist() for _ in range(4)]
    other = stream_of(keys)
    other.state = state
    assert [other.take(count).tolist() for _ in range(4)] == first


def test_a_dataset_with_few_answers_gives_as_many_rows_as_answers() -> None:
    keys = np.array([[100 + row, row % 3] for row in range(30)], np.uint64)
    stream = stream_of(keys)
    assert {len(stream.take(8)) for _ in range(50)} == {3}


def test_a_dataset_with_few_queries_gives_as_many_rows_as_queries() -> None:
    # As DBpedia's dev set has them: 67 queries, 1,405 pairs.
    keys = np.array([[row % 67, 100 + row] for row in range(1405)], np.uint64)
    stream = stream_of(keys)
    for _ in range(30):
        assert sorted(keys[stream.take(256)][:, 0]) == list(range(67))


def test_one_row_is_a_dataset() -> None:
    stream = stream_of(distinct_rows(1))
    assert [stream.take(4).tolist() for _ in range(50)] == [[0]] * 50
    assert len(stream.state.waiting) < 50


@pytest.mark.parametrize("share", [0.99, 1.0], ids=["one answer for 99% of the rows", "one question for all"])
def test_how_many_rows_wait_is_bounded(share: float) -> None:
    size, count = 6_000, 16
    keys = distinct_rows(size)
    column = 1 if share < 1 else 0
    keys[: int(size * share), column] = 10**6
    stream = stream_of(keys)
    for _ in range(150):
        rows = stream.take(count)
        assert len(rows) >= 1
        assert_no_false_negative(keys[rows].tolist())
        assert len(stream.state.waiting) <= MOST_WAITING * count


@st.composite
def rarely_quarrelsome_rows(draw: st.DrawFn) -> Keys:
    """Rows with so many texts that most batches have no conflict and some do."""
    size, width, seed = draw(st.integers(1, 40)), draw(st.integers(2, 4)), draw(st.integers(0, 2**32))
    return np.random.default_rng(seed).integers(0, 40 * size, (size, width)).astype(np.uint64)


@settings(max_examples=200)
@given(quarrelsome_rows() | rarely_quarrelsome_rows(), st.integers(1, 9), st.integers(1, 3))
def test_the_quick_path_equals_the_careful_one(keys: Keys, count: int, multiple: int) -> None:
    class Careful(RowStream):
        def _take(self, count: int) -> Rows:
            return self._take_carefully(count)

    quick, careful = (kind(len(keys), lambda rows: keys[rows], 3) for kind in (RowStream, Careful))
    for _ in range(12):
        assert quick.take(count, multiple).tolist() == careful.take(count, multiple).tolist()
        assert quick.state == careful.state


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

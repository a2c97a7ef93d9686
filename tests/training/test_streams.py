"""A dataset as an endless sequence of batches without false negatives.

- Without conflicts every row comes exactly once per epoch, each epoch in another order.
- Whatever the conflicts, no row is lost or doubled: rows given plus rows waiting are whole epochs and a part.
- No batch holds two rows of which one's texts would make the other's answer a negative.
- The row that has waited longest comes next, and how many wait is bounded even for a hopeless dataset.
- A dataset with fewer answers than rows asked for gives shorter batches; short batches are cut to a multiple.
- The state is all there is: put back, it gives the same rows again.
- The quick way for rows without conflict gives what looking at them one by one gives.
"""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mixfluence.training.streams import LOOKAHEAD, RowStream

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
def test_batches_are_clean_and_no_row_is_lost_or_doubled(keys: Keys, count: int, multiple: int, key: int) -> None:
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
    told = given_rows + Counter(waiting)
    assert told.total() == position
    assert {told[row] for row in range(len(keys))} <= {position // len(keys), position // len(keys) + 1}


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
        assert len(stream.state.waiting) <= LOOKAHEAD + 2 * count


@st.composite
def rarely_quarrelsome_rows(draw: st.DrawFn) -> Keys:
    """Rows with so many texts that most batches have no conflict and some do."""
    size, width, seed = draw(st.integers(1, 40)), draw(st.integers(2, 4)), draw(st.integers(0, 2**32))
    return np.random.default_rng(seed).integers(0, 40 * size, (size, width)).astype(np.uint64)


@settings(max_examples=200)
@given(quarrelsome_rows() | rarely_quarrelsome_rows(), st.integers(1, 9), st.integers(1, 3))
def test_the_quick_way_is_the_careful_one(keys: Keys, count: int, multiple: int) -> None:
    class Careful(RowStream):
        def _take_plainly(self, count: int) -> None:
            return None

    quick, careful = (kind(len(keys), lambda rows: keys[rows], 3) for kind in (RowStream, Careful))
    for _ in range(12):
        assert quick.take(count, multiple).tolist() == careful.take(count, multiple).tolist()
        assert quick.state == careful.state

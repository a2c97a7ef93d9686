"""Row sets with parts, joined and selected from, and dev sets split in halves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixfluence.data.retrieval import guiding_half, retrieval_from_rows, selecting_half
from mixfluence.data.rows import Row, RowSet, join
from mixfluence.errors import DataError
from tests.conftest import row_set


def numbered(start: int, count: int) -> RowSet:
    return row_set(*(Row(f"q{number}", f"p{number}") for number in range(start, start + count)))


def test_joined_sets_keep_their_rows_notes_and_names() -> None:
    first, second = numbered(0, 2), numbered(2, 3)
    noted = RowSet(second.rows, second.fingerprint, ("a note",))
    both = join({"first": first, "second": noted})
    assert list(both.rows["anchor"]) == ["q0", "q1", "q2", "q3", "q4"]
    assert dict(both.parts) == {"first": 2, "second": 3}
    assert both.notes == ("a note",)
    assert both.fingerprint == join({"first": first, "second": second}).fingerprint
    assert both.fingerprint != join({"second": second, "first": first}).fingerprint


@pytest.mark.slow
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_parts_count_the_rows_that_are_taken(sizes: list[int], data: st.DataObject) -> None:
    starts = np.cumsum([0, *sizes])
    whole = join({f"part {i}": numbered(int(starts[i]), size) for i, size in enumerate(sizes)})
    places = sorted(data.draw(st.sets(st.integers(0, len(whole) - 1), min_size=1)))
    taken = whole.take(places, "x")
    owners = [f"part {np.searchsorted(starts, place, side='right') - 1}" for place in places]
    assert dict(taken.parts) == {name: owners.count(name) for name in dict.fromkeys(owners)}
    assert list(taken.rows["anchor"]) == [f"q{place}" for place in places]


def test_samples_are_evenly_spaced_and_small_sets_are_whole() -> None:
    rows = numbered(0, 100)
    sample = rows.sample(30)
    assert list(sample.rows["anchor"]) == list(rows.rows["anchor"])[::4]
    assert sample.fingerprint != rows.fingerprint
    assert rows.sample(100) is rows


@pytest.mark.parametrize("parts", [{}, {"a": 20, "b": 20}])
def test_halves_of_a_set_keep_its_parts(parts: dict[str, int]) -> None:
    rows = numbered(0, 40)
    half = guiding_half("dev", RowSet(rows.rows, rows.fingerprint, (), parts))
    assert list(half.parts) == list(parts)
    assert sum(half.parts.values()) == (len(half) if parts else 0)


def test_the_half_of_a_query_depends_on_its_text_alone() -> None:
    dev = numbered(0, 12)
    guiding = ["q0", "q2", "q3", "q7", "q9", "q10", "q11"]
    selecting = ["q1", "q4", "q5", "q6", "q8"]
    assert list(guiding_half("dev", dev).rows["anchor"]) == guiding
    assert selecting_half(retrieval_from_rows("dev", dev)).queries == selecting
    assert list(guiding_half("dev", numbered(2, 2)).rows["anchor"]) == ["q2", "q3"]


def test_a_dev_set_without_a_second_half_is_an_error() -> None:
    with pytest.raises(DataError, match="small: "):
        guiding_half("small", numbered(4, 3))
    with pytest.raises(DataError, match="small: too small to be split in two halves"):
        selecting_half(retrieval_from_rows("small", numbered(2, 2)))

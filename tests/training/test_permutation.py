"""Random orders that are computed, not stored.

- A key names a permutation of every size, and any part of it can be asked for alone.
- Another key gives another order, and over keys every row is as likely at every position.
- `uniform` stays in [0, 1), depends on each of its arguments and is spread evenly.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mixfluence.training.streams import mix, permuted, uniform

keys = st.integers(0, 2**64 - 1)


def chi_square(counts: NDArray[np.int64]) -> float:
    """Return the statistic over the degrees of freedom: about 1 for counts that are uniform."""
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum() / (counts.size - 1))


@given(st.integers(0, 5_000), keys)
def test_every_row_has_exactly_one_position(size: int, key: int) -> None:
    assert np.sort(permuted(np.arange(size), size, key)).tolist() == list(range(size))


@given(st.integers(2, 10**15), keys, st.data())
def test_a_part_of_a_large_order_is_found_alone(size: int, key: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20, unique=True))
    rows = permuted(np.array(places), size, key)
    assert ((rows >= 0) & (rows < size)).all()
    assert len(set(rows.tolist())) == len(places)
    assert permuted(np.array(places[-1:]), size, key)[0] == rows[-1]


@given(st.integers(50, 1_000), keys, keys)
def test_keys_name_different_orders(size: int, key: int, other: int) -> None:
    orders = [permuted(np.arange(size), size, name).tolist() for name in (key, other)]
    assert (orders[0] == orders[1]) == (key == other)
    assert orders[0] != list(range(size))


def test_rows_are_as_likely_at_every_position_and_beside_every_other() -> None:
    size, orders = 8, 4_000
    positions = np.zeros((size, size), np.int64)
    neighbours = np.zeros((size, size), np.int64)
    for key in range(orders):
        rows = permuted(np.arange(size), size, mix(7, key))
        positions[np.arange(size), rows] += 1
        neighbours[rows[0], rows[1]] += 1
    assert chi_square(positions) < 1.6
    assert chi_square(neighbours[~np.eye(size, dtype=bool)]) < 1.6
    assert np.diag(neighbours).sum() == 0


@given(st.lists(st.integers(-(2**63), 2**64 - 1), min_size=1, max_size=4))
def test_uniform_stays_in_its_interval_and_repeats_itself(values: list[int]) -> None:
    assert 0 <= uniform(*values) < 1
    assert uniform(*values) == uniform(*values)


def test_uniform_is_even_over_draws_and_seeds_and_draws_are_unrelated() -> None:
    draws = np.array([uniform(3, number) for number in range(20_000)])
    seeds = np.array([uniform(seed, 3) for seed in range(20_000)])
    for numbers in (draws, seeds):
        assert chi_square(np.histogram(numbers, 50, (0, 1))[0]) < 1.7
        pairs = np.histogram2d(numbers[:-1], numbers[1:], 10, ((0, 1), (0, 1)))[0]
        assert chi_square(pairs.astype(np.int64)) < 1.6
    assert abs(np.corrcoef(draws, seeds)[0, 1]) < 0.03

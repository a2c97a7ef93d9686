"""Influences of a round, from metric values to one number per dataset.

- The mean over targets equals values computed by hand, on the CPU and on a device.
- The standard error is that of the distance from the mean of all datasets, over queries, and equals a bootstrap.
  Variance between queries that all datasets share cancels out; for a single query the error is 0.
- Improvements are positive, whether the metric is to be maximised or minimised.
- A probe with values that are not finite is listed as failed and ignored; without a finite base all have failed.
- A round without probes has no influences.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mixfluence.influence import Influences
from mixfluence.influence.influences import Array, combined_gain, gather


def round_of(base: list[float], *gains: Array) -> Influences:
    targets = [f"t{number}" for number in range(len(gains))]
    return Influences(np.arange(len(gains[0])), np.array([], np.int64), targets, np.array(base), list(gains))


@pytest.fixture
def two_targets() -> Influences:
    """Three datasets on two targets with bases 4 and -0.5: means 1, 2, 3 and 0.5, -0.5, 0."""
    large = np.array([[0.0, 2.0], [2.0, 2.0], [3.0, 3.0]])
    small = np.array([[0.5, 0.5, 0.5], [-1.0, -0.5, 0.0], [1.0, 0.0, -1.0]])
    return round_of([4.0, -0.5], large, small)


def gathered(
    probed: list[int], targets: list[str], before: list[Array], after: list[list[Array]], sign: int
) -> Influences:
    first, *others = ([torch.from_numpy(values) for values in side] for side in (before, *after))
    return gather(probed, targets, first, others, sign)


def noisy(datasets: int, queries: int, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    return rng.normal(0, 5, queries) + rng.normal(0, [[1.0]] * datasets, (datasets, queries)) * rng.gamma(
        2, 1, queries
    )


def test_influence_on_each_target_is_the_mean_over_its_queries(two_targets: Influences) -> None:
    assert two_targets.on_targets() == pytest.approx(np.array([[1, 0.5], [2, -0.5], [3, 0]]))


def test_the_mean_over_targets_is_what_one_computes_by_hand(two_targets: Influences) -> None:
    assert two_targets.combine()[0] == pytest.approx([0.75, 0.75, 1.5])


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("base", [(4.0, 0.001, -0.5), (0.0, 0.0, 0.0)], ids=["unequal", "solved"])
def test_influences_computed_on_the_device_are_the_same(sign: int, base: tuple[float, ...]) -> None:
    before = [np.full(queries, value) for value, queries in zip(base, (5, 7, 3), strict=True)]
    after = [values + noisy(1, len(values), seed)[0] for seed, values in enumerate(before)]
    expected = gathered([0], ["a", "b", "c"], before, [after], sign).combine()[0]
    looks = [[torch.from_numpy(values) for values in side] for side in (before, after)]
    assert combined_gain(looks[0], looks[1], sign).item() == pytest.approx(expected[0])


def test_errors_are_what_one_computes_by_hand(two_targets: Influences) -> None:
    # Distances from the mean row (5/3, 7/3) of the first target: each row's two values differ by this much.
    large = np.abs([2 - 2 / 3, 0 - 2 / 3, 0 - 2 / 3]) / math.sqrt(2) / math.sqrt(2)
    # From (1/6, 0, -1/6) of the second: three values in equal steps of 1/6, 1/2 + 1/6 and -1 + 1/6.
    small = np.array([1 / 6, 2 / 3, 5 / 6]) / math.sqrt(3)
    assert two_targets.combine()[1] == pytest.approx(np.sqrt(large**2 + small**2) / 2)


def test_the_spread_is_that_of_the_combined_influences(two_targets: Influences) -> None:
    assert two_targets.spread() == pytest.approx(np.std([0.75, 0.75, 1.5]))
    assert round_of([1.0], np.ones((1, 3))).spread() == 0


def test_errors_are_those_of_a_bootstrap_over_queries() -> None:
    gains = [noisy(4, 80, seed=1), noisy(4, 50, seed=2)]
    errors = round_of([1.0, 1.0], *gains).combine()[1]
    rng = np.random.default_rng(3)
    found = []
    for _ in range(4000):
        drawn = [gain[:, rng.integers(0, gain.shape[1], gain.shape[1])] for gain in gains]
        influences = np.mean([gain.mean(axis=1) for gain in drawn], axis=0)
        found.append(influences - influences.mean())
    assert errors == pytest.approx(np.std(found, axis=0), rel=0.06)


def test_what_a_query_is_like_for_all_datasets_does_not_count_as_error() -> None:
    gains = noisy(5, 40)
    plain = round_of([2.0], gains).combine()
    common = round_of([2.0], gains + np.random.default_rng(9).normal(0, 100, 40)).combine()
    assert common[1] == pytest.approx(plain[1])
    assert common[0] - common[0].mean() == pytest.approx(plain[0] - plain[0].mean())


def test_a_single_query_or_dataset_tells_nothing_of_the_error() -> None:
    values, errors = round_of([2.0], np.array([[1.0], [2.0]])).combine()
    assert values == pytest.approx([1, 2])
    assert errors.tolist() == [0, 0]
    assert round_of([2.0], np.array([[1.0, 2.0]])).combine()[1].tolist() == [0]


@pytest.mark.parametrize(("sign", "expected"), [(1, [[0.5, -1.0]]), (-1, [[-0.5, 1.0]])])
def test_better_is_positive_whichever_way_the_metric_points(sign: int, expected: list[list[float]]) -> None:
    influences = gathered([4], ["dev"], [np.array([1.0, 3.0])], [[np.array([1.5, 2.0])]], sign)
    assert influences.gains[0].tolist() == expected
    assert influences.base.tolist() == [2.0]
    assert influences.probed.tolist() == [4]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("target", [0, 1])
def test_a_proxy_that_is_not_a_number_leaves_no_trace(bad: float, target: int) -> None:
    before = [np.array([1.0, 2.0]), np.array([3.0, 4.0, 5.0])]
    good = [[before[0] - 0.1, before[1] - 0.2], [before[0] - 0.3, before[1] - 0.4]]
    broken = [before[0].copy(), before[1].copy()]
    broken[target][1] = bad
    influences = gathered([6, 2, 9], ["a", "b"], before, [good[0], broken, good[1]], -1)
    assert influences.probed.tolist() == [6, 9]
    assert influences.failed.tolist() == [2]
    alone = gathered([6, 9], ["a", "b"], before, good, -1)
    for one, other in zip(influences.gains, alone.gains, strict=True):
        assert one.tolist() == other.tolist()
    assert influences.base.tolist() == alone.base.tolist() == [1.5, 4.0]


def test_without_a_base_there_is_nothing_to_compare_with() -> None:
    before: list[NDArray[np.float64]] = [np.array([1.0, math.nan]), np.array([1.0, 1.0])]
    fine = [np.ones(2), np.ones(2)]
    influences = gathered([3, 1], ["a", "b"], before, [fine, fine], 1)
    assert influences.probed.tolist() == []
    assert influences.failed.tolist() == [3, 1]
    assert [gain.shape for gain in influences.gains] == [(0, 2), (0, 2)]
    assert influences.spread() == 0


def test_a_round_that_probed_nothing_says_nothing() -> None:
    influences = gathered([], ["a", "b"], [np.array([1.0, 2.0]), np.array([3.0])], [], -1)
    assert influences.probed.tolist() == influences.failed.tolist() == []
    assert influences.base.tolist() == [1.5, 3.0]
    assert [gain.shape for gain in influences.gains] == [(0, 2), (0, 1)]
    assert influences.on_targets().shape == (0, 2)
    assert influences.spread() == 0

"""Significance tests.

- The t-test equals scipy's: paired for one set; Welch's for two sets, which tests the same hypothesis.
- The randomisation test converges to scipy's exact one, is never 0 and has the nominal false positive rate.
- Bootstrap intervals have the nominal coverage and equal scipy's.
- Equal scores are no difference, and the order of the two systems does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mixfluence.evaluation import significance
from mixfluence.evaluation.significance import Vector, bootstrap_interval, holm, randomisation_test, t_test


def scores(seed: int, count: int, shift: float = 0.0) -> Vector:
    """Differences as in retrieval: half of the queries do not change at all."""
    generator = np.random.default_rng(seed)
    return np.where(generator.random(count) < 0.5, 0.0, generator.normal(shift, 0.3, count))


@pytest.mark.parametrize("shift", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("count", [2, 7, 400])
def test_t_test_of_one_set_is_scipys(count: int, shift: float) -> None:
    generator = np.random.default_rng(count)
    first, second = generator.random(count) + shift, generator.random(count)
    assert t_test([first - second]) == pytest.approx(stats.ttest_rel(first, second).pvalue, rel=1e-9)


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.5])
def test_t_test_of_two_sets_is_welchs(shift: float) -> None:
    # The mean of two means is 0 if and only if one is the negative of the other.
    few, many = scores(1, 9, shift), scores(2, 300, shift)
    expected = stats.ttest_ind(few, -many, equal_var=False).pvalue
    assert t_test([few, many]) == pytest.approx(expected, rel=1e-9)


def test_sets_count_alike_however_many_queries_they_have() -> None:
    few, many = scores(3, 20) + 0.2, scores(4, 2000) - 0.2
    assert significance.average_difference([few, many]) == pytest.approx((few.mean() + many.mean()) / 2)
    for test in (t_test, randomisation_test):
        assert test([few, many]) > 0.05
        assert test([np.concatenate([few, many])]) < 0.01


def test_randomisation_test_tends_to_the_exact_one() -> None:
    values = scores(5, 12, 0.2)
    exact = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=True
    ).pvalue
    assert 0.01 < exact < 0.5
    assert randomisation_test([values], rounds=40_000) == pytest.approx(exact, abs=0.01)


def test_randomisation_test_is_never_zero_and_repeats_itself() -> None:
    # Swaps of one sign only have probability 2 ** -199, so that no round reaches the observed difference.
    assert randomisation_test([np.ones(200)], rounds=99) == 1 / 100
    assert randomisation_test([np.ones(200)]) == 1 / 10_001, "10,000 rounds by default, as reports say"
    values = scores(6, 50, 0.1)
    assert randomisation_test([values], seed=1) == randomisation_test([values], seed=1)
    assert randomisation_test([values], seed=1) != randomisation_test([values], seed=2)


@pytest.mark.parametrize("sets", [(40,), (15, 60)])
@pytest.mark.parametrize("test", [t_test, lambda sets: randomisation_test(sets, rounds=199)])
def test_about_5_in_100_are_false_alarms(test: Callable[[Sequence[Vector]], float], sets: tuple[int, ...]) -> None:
    experiments = 1000
    alarms = sum(
        test([scores(1000 * number + place, count) for place, count in enumerate(sets)]) < 0.05
        for number in range(experiments)
    )
    # Within three standard errors of 5 in 100.
    assert abs(alarms / experiments - 0.05) < 3 * (0.05 * 0.95 / experiments) ** 0.5


def test_a_block_at_a_time_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [scores(7, 30, 0.1), scores(8, 10)]
    whole = randomisation_test(values), bootstrap_interval(values)
    monkeypatch.setattr(significance, "_BLOCK", 1000)
    assert randomisation_test(values) == whole[0]
    # The sets are resampled one after the other, so that blocks do not change the order of draws.
    assert bootstrap_interval(values) == whole[1]


def test_bootstrap_intervals_hold_the_truth_as_often_as_they_say() -> None:
    held = 0
    for number in range(400):
        few, many = scores(2 * number, 40, 0.2), scores(2 * number + 1, 90, 0.4)
        low, high = bootstrap_interval([few, many], rounds=400)
        held += low <= (0.1 + 0.2) / 2 <= high
    assert 0.91 <= held / 400 <= 0.98


def test_bootstrap_interval_is_scipys() -> None:
    values = scores(9, 80, 0.2)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=20_000, rng=1).confidence_interval
    assert bootstrap_interval([values]) == pytest.approx(tuple(theirs), abs=0.004)


@pytest.mark.parametrize("sets", [(1,), (5,), (5, 8)])
def test_equal_scores_are_no_difference(sets: tuple[int, ...]) -> None:
    same = [np.zeros(count) for count in sets]
    assert (t_test(same), randomisation_test(same)) == (1.0, 1.0)
    assert bootstrap_interval(same) == (0.0, 0.0)


def test_one_query_proves_nothing_and_a_constant_gain_much() -> None:
    assert t_test([np.array([0.9])]) == randomisation_test([np.array([0.9])]) == 1.0
    assert t_test([np.array([0.9]), scores(1, 50)]) == 1.0
    assert t_test([np.full(30, 0.25)]) == 0.0


def test_the_order_of_two_systems_does_not_matter() -> None:
    values = [scores(10, 30, 0.1), scores(11, 12, 0.3)]
    swapped = [-difference for difference in values]
    assert t_test(values) == t_test(swapped)
    assert randomisation_test(values) == randomisation_test(swapped)


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.9: four, three, two and one times; the third may not fall below the second.
    assert holm([0.02, 0.9, 0.01, 0.03]) == pytest.approx([0.06, 0.9, 0.04, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert (holm([0.04]), holm([])) == ([0.04], [])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_only_raises_and_keeps_the_order(p_values: list[float]) -> None:
    corrected = holm(p_values)
    assert all(p <= c <= 1 for p, c in zip(p_values, corrected, strict=True))
    assert all(corrected[i] <= corrected[j] for i, p in enumerate(p_values) for j, q in enumerate(p_values) if p < q)
    smallest = p_values.index(min(p_values))
    assert corrected[smallest] == min(1.0, len(p_values) * p_values[smallest])

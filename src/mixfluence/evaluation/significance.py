"""Whether a difference between two systems is more than the luck of the queries.

Every test here takes the differences of per-query scores, one array per test set. Given several sets it is about the
average over sets, in which each counts alike whatever its number of queries, as in the tables of papers. Given one
it is the usual paired test.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

Vector = NDArray[np.float64]
ROUNDS = 10_000
# Numbers held at a time by the tests that draw.
_BLOCK = 4_000_000


def average_difference(differences: Sequence[Vector]) -> float:
    """Return the mean over sets of their mean differences."""
    return float(np.mean([np.mean(values) for values in differences]))


def t_test(differences: Sequence[Vector]) -> float:
    """Return the two-sided p-value of a paired t-test.

    One set gives `scipy.stats.ttest_rel`. Over several, the variances of their means add up and the degrees of
    freedom are those of Welch and Satterthwaite. Quick, and the same at every call; where scores are few and far from
    normal, `randomisation_test` assumes less. A set of one query says nothing about variance, so that p is 1.
    """
    if min(len(values) for values in differences) < 2:
        return 1.0
    variances = [float(np.var(values, ddof=1)) / len(values) for values in differences]
    variance = sum(variances)
    average = average_difference(differences)
    if variance == 0:
        return 1.0 if average == 0 else 0.0
    # The average is a sum over sets divided by their number, and so is its standard error.
    t = len(differences) * average / variance**0.5
    freedom = variance**2 / sum(v**2 / (len(d) - 1) for v, d in zip(variances, differences, strict=True))
    return float(2 * stdtr(freedom, -abs(t)))


def randomisation_test(differences: Sequence[Vector], *, rounds: int = ROUNDS, seed: int = 0) -> float:
    """Return the two-sided p-value of a paired randomisation test.

    If the systems were alike, either could have had either score of a query. The p-value is how often the average
    difference is as large as the one found when they swap at random, the one found counted in, so that it is never 0.
    Assumes nothing about the scores; for many queries `t_test` says the same at once.

    Args:
        differences: Of per-query scores, one array per test set.
        rounds: Random swaps; the smallest p-value is 1 / (rounds + 1).
        seed: Of the swaps.
    """
    shares = np.concatenate([values / len(values) for values in differences])
    found = abs(shares.sum())
    # Sums that are equal but for the order of their terms count as equal.
    bar = found - 1e-12 * np.abs(shares).sum()
    generator = np.random.default_rng(seed)
    reached = 0
    for block in _blocks(rounds, len(shares)):
        swapped = generator.integers(0, 2, (block, len(shares)), dtype=np.int8)
        reached += int((abs(shares.sum() - 2 * (swapped @ shares)) >= bar).sum())
    return (reached + 1) / (rounds + 1)


def bootstrap_interval(
    differences: Sequence[Vector], *, level: float = 0.95, rounds: int = ROUNDS, seed: int = 0
) -> tuple[float, float]:
    """Return where the average difference would lie with other queries of the same kind, by percentiles.

    It says how large a difference may be; the tests say whether it may be none.

    Args:
        differences: Of per-query scores, one array per test set. Each set is drawn from on its own.
        level: Share of the draws that the interval holds.
        rounds: Draws, with replacement.
        seed: Of the draws.
    """
    generator = np.random.default_rng(seed)
    averages = np.mean([_resampled_means(values, rounds, generator) for values in differences], axis=0)
    low, high = np.quantile(averages, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's method: the chance of any false alarm among them stays below the level."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    scaled = ((len(order) - rank) * p_values[place] for rank, place in enumerate(order))
    corrected = dict(zip(order, accumulate(scaled, max), strict=True))
    return [min(1.0, corrected[place]) for place in range(len(p_values))]


def _resampled_means(values: Vector, rounds: int, generator: np.random.Generator) -> Vector:
    count = len(values)
    draws = (generator.integers(0, count, (block, count)) for block in _blocks(rounds, count))
    return np.concatenate([values[drawn].mean(axis=1) for drawn in draws])


def _blocks(rounds: int, width: int) -> Iterator[int]:
    """Yield numbers of rounds that add up to all and are small enough to be held at a time."""
    size = max(1, _BLOCK // width)
    yield from (min(size, rounds - start) for start in range(0, rounds, size))

"""Significance tests of the difference between two systems, over queries.

All functions take differences of per-query scores, one array per test set. Several sets are tested by the mean over
sets, in which each has the same weight whatever its number of queries, as in the tables of papers. One set gives the
usual paired test.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

Vector = NDArray[np.float64]
# Not `scipy.stats.permutation_test`, which takes 16 times as long, nor its `bootstrap`, which refuses single queries.
ROUNDS = 10_000
# Numbers in memory at a time while resampling.
_BLOCK = 4_000_000


def average_difference(differences: Sequence[Vector]) -> float:
    """Return the mean over sets of their mean differences."""
    return float(np.mean([np.mean(values) for values in differences]))


def t_test(differences: Sequence[Vector]) -> float:
    """Return the two-sided p-value of a paired t-test.

    Equals `scipy.stats.ttest_rel` for one set. For several, the variances of the means add up, with the degrees of
    freedom of Welch and Satterthwaite. For few scores that are far from normal, `randomisation_test` assumes less.
    """
    if min(len(values) for values in differences) < 2:
        return 1.0  # the variance of one query is unknown
    variances = [float(np.var(values, ddof=1)) / len(values) for values in differences]
    variance = sum(variances)
    average = average_difference(differences)
    if variance == 0:
        return 1.0 if average == 0 else 0.0
    # The average is the sum over sets divided by their number, and so is its standard error.
    t = len(differences) * average / variance**0.5
    freedom = variance**2 / sum(v**2 / (len(d) - 1) for v, d in zip(variances, differences, strict=True))
    return float(2 * stdtr(freedom, -abs(t)))


def randomisation_test(differences: Sequence[Vector], *, rounds: int = ROUNDS, seed: int = 0) -> float:
    """Return the two-sided p-value of a paired randomisation test.

    It is the share of random swaps of the two scores of queries whose average difference is at least as large as the
    observed one, which is counted too. Assumes nothing about scores; `t_test` is faster for many queries.
    """
    weighted = np.concatenate([values / len(values) for values in differences])
    observed = abs(weighted.sum())
    # Tolerance for sums that differ only in the order of their terms.
    threshold = observed - 1e-12 * np.abs(weighted).sum()
    generator = np.random.default_rng(seed)
    reached = 0
    for block in _blocks(rounds, len(weighted)):
        swapped = generator.integers(0, 2, (block, len(weighted)), dtype=np.int8)
        reached += int((abs(weighted.sum() - 2 * (swapped @ weighted)) >= threshold).sum())
    return (reached + 1) / (rounds + 1)


def bootstrap_interval(differences: Sequence[Vector], *, rounds: int = ROUNDS) -> tuple[float, float]:
    """Return the 95% percentile bootstrap interval of the average difference; sets are resampled separately."""
    generator = np.random.default_rng(0)
    means = []
    for values in differences:
        draws = (generator.integers(0, len(values), (block, len(values))) for block in _blocks(rounds, len(values)))
        means.append(np.concatenate([values[drawn].mean(axis=1) for drawn in draws]))
    averages = np.mean(means, axis=0)
    low, high = np.quantile(averages, [0.025, 0.975])
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values with Holm's correction, which bounds the probability of any false positive among them."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    scaled = ((len(order) - rank) * p_values[place] for rank, place in enumerate(order))
    corrected = dict(zip(order, accumulate(scaled, max), strict=True))
    return [min(1.0, corrected[place]) for place in range(len(p_values))]


def _blocks(rounds: int, width: int) -> Iterator[int]:
    """Split rounds into blocks that fit in memory."""
    size = max(1, _BLOCK // width)
    yield from (min(size, rounds - start) for start in range(0, rounds, size))

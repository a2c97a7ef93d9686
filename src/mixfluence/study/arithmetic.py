"""The measures that are ours: z-scores of a heat map, and how stable a sampler's trajectories are.

Distances of mixtures are total variation: half the sum of absolute differences, from 0 for equal mixtures to 1 for
mixtures that share no dataset; it is the part of the batches that would have to come from elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from statistics import fmean, pstdev

Mixture = Mapping[str, float]


def z_scores(values: Sequence[float]) -> list[float]:
    """Return by how many standard deviations (of these values, not of a sample) each is above their mean.

    Equal values are all 0.
    """
    mean, spread = fmean(values), pstdev(values)
    return [0.0 if spread == 0 else (value - mean) / spread for value in values]


def mean_mixture(mixtures: Sequence[Mixture]) -> dict[str, float]:
    """Return the mean probability of each dataset of the first mixture; one that another lacks has 0 there."""
    return {name: fmean(mixture.get(name, 0.0) for mixture in mixtures) for name in mixtures[0]}


def distance(first: Mixture, second: Mixture) -> float:
    """Return the total variation between two mixtures."""
    names = first.keys() | second.keys()
    return sum(abs(first.get(name, 0.0) - second.get(name, 0.0)) for name in names) / 2


def wandering(trajectory: Sequence[Mixture]) -> float:
    """Return how much further a trajectory went than it came: its length less the distance of its ends.

    It is 0 for one that never turns back. Prefer `disagreement` to ask whether several end at the same place.
    """
    length = sum(distance(before, after) for before, after in pairwise(trajectory))
    return max(0.0, length - distance(trajectory[0], trajectory[-1]))


def disagreement(mixtures: Sequence[Mixture]) -> float | None:
    """Return the mean distance of every two mixtures, such as where runs from several starts end; None for one.

    It is 0 if all are the same, whatever the start.
    """
    pairs = list(combinations(mixtures, 2))
    return fmean(distance(first, second) for first, second in pairs) if pairs else None


def undominated(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Return for each (cost, quality) whether none is at least as cheap and as good, and better in one of them."""
    return [
        not any(c <= cost and q >= quality and (c, q) != (cost, quality) for c, q in points)
        for cost, quality in points
    ]

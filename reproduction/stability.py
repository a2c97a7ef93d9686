"""Distances of mixtures and the stability of trajectories.

The distance is total variation: half the sum of absolute differences, from 0 for equal mixtures to 1 for mixtures
without a common dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from statistics import fmean

Mixture = Mapping[str, float]


def mean_mixture(mixtures: Sequence[Mixture]) -> dict[str, float]:
    """Return the mean probability of each dataset of the first mixture; a missing dataset counts as 0."""
    return {name: fmean(mixture.get(name, 0.0) for mixture in mixtures) for name in mixtures[0]}


def distance(first: Mixture, second: Mixture) -> float:
    """Return the total variation between two mixtures."""
    names = first.keys() | second.keys()
    return sum(abs(first.get(name, 0.0) - second.get(name, 0.0)) for name in names) / 2


def wandering(trajectory: Sequence[Mixture]) -> float:
    """Return path length minus displacement: 0 for a trajectory that never turns back.

    Prefer `disagreement` to ask whether several trajectories end at the same mixture.
    """
    length = sum(distance(before, after) for before, after in pairwise(trajectory))
    return max(0.0, length - distance(trajectory[0], trajectory[-1]))


def disagreement(mixtures: Sequence[Mixture]) -> float | None:
    """Return the mean distance between every two mixtures, such as final ones; None for a single mixture."""
    pairs = list(combinations(mixtures, 2))
    return fmean(distance(first, second) for first, second in pairs) if pairs else None


def mixture_at(trajectory: Sequence[tuple[int, Mixture]], step: float) -> Mixture:
    """Return the mixture in force at a step."""
    return [mixture for since, mixture in trajectory if since <= step][-1]

"""Numbers become sampling probabilities here: starting distributions, the floor and the epoch cap.

Everything is a pure function of arrays in the order of the mixture's datasets. Logits, not
probabilities, are what later modules keep and move: a temperature of 0.3 gives some datasets 1e-10,
which a probability would round away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mixfluence.errors import RecipeError

Vector = NDArray[np.float64]


class Initial(Protocol):
    """Where sampling starts: one logit per dataset, in the order of `sizes`."""

    def logits(self, sizes: Mapping[str, int]) -> Vector:
        """Return logits whose softmax is the starting distribution."""


@dataclass(frozen=True)
class Temperature:
    """Sample dataset i in proportion to size_i ** (1 / tau).

    `tau=1` is proportional to size, `tau=math.inf` is uniform, and a `tau` below 1 favours large
    datasets more than their size does. Use `Weights` when you already know the shares you want.
    """

    tau: float = 1.0

    def __post_init__(self) -> None:
        if not self.tau > 0:
            raise RecipeError(f"temperature must be above 0 (infinity means uniform), found {self.tau}")

    def logits(self, sizes: Mapping[str, int]) -> Vector:
        """Return log(size) / tau, shifted so that the largest is 0."""
        logits = np.log(np.fromiter(sizes.values(), dtype=np.float64)) / self.tau
        return np.asarray(logits - logits.max())


UNIFORM = Temperature(math.inf)


@dataclass(frozen=True)
class Weights:
    """Sample by given numbers, one per dataset: expert weights, or what an earlier run learned.

    They need not sum to one; a zero means the dataset is never drawn. Use `Temperature` when only
    the sizes should count.
    """

    weights: Mapping[str, float]

    def __post_init__(self) -> None:
        for name, weight in self.weights.items():
            if not (math.isfinite(weight) and weight >= 0):
                raise RecipeError(f"weight of {name!r} must be a number of at least 0, found {weight}")
        if not any(self.weights.values()):
            raise RecipeError("at least one weight must be above 0")

    def logits(self, sizes: Mapping[str, int]) -> Vector:
        """Return the logarithm of each weight, minus infinity for a weight of zero."""
        for name in self.weights:
            if name not in sizes:
                near = get_close_matches(name, sizes, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise RecipeError(f"weight for {name!r}, which is not a training dataset{hint}")
        if missing := [name for name in sizes if name not in self.weights]:
            raise RecipeError(f"no weight for {', '.join(map(repr, missing))}")
        with np.errstate(divide="ignore"):
            return np.log(np.array([self.weights[name] for name in sizes], dtype=np.float64))


def softmax(logits: Vector) -> Vector:
    """Turn logits into probabilities."""
    scaled = np.exp(logits - logits.max())
    return np.asarray(scaled / scaled.sum())


def lift(probabilities: Vector, floor: float) -> Vector:
    """Mix in the uniform distribution just enough that no probability is below `floor`."""
    share = floor * len(probabilities)
    if not 0 <= share <= 1:
        raise RecipeError(
            f"a floor of {floor} for {len(probabilities)} datasets adds up to {share:.3g}: "
            f"it must lie between 0 and {1 / len(probabilities):.3g}"
        )
    return (1 - share) * probabilities + floor


def cap(probabilities: Vector, limits: Vector) -> Vector:
    """Hold every probability at or below its limit, pouring the excess over the others (water-filling).

    The excess goes to the datasets below their limit in proportion to their probability, so their
    ratios stay as they were. When the limits sum to less than one, they are returned rescaled; when they
    leave no share at all, there is nothing to hold and the probabilities are returned.
    """
    capped = np.zeros(len(probabilities), dtype=bool)
    shares = probabilities
    while (over := ~capped & (shares > limits)).any():
        capped |= over
        free = np.where(capped, 0.0, probabilities)
        rest = max(0.0, 1.0 - limits[capped].sum())
        scale = rest / free.sum() if free.any() else 0.0
        shares = np.where(capped, limits, free * scale)
    return np.asarray(shares / shares.sum() if shares.any() else probabilities)

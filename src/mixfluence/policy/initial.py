"""Where sampling starts: by size, or by given weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Protocol

import numpy as np

from mixfluence.errors import RecipeError
from mixfluence.policy.bounds import Vector


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
        sizes_log = np.log(np.fromiter(sizes.values(), dtype=np.float64))
        with np.errstate(over="ignore"):  # minus infinity: at a temperature of almost 0 only the largest is drawn
            return np.asarray((sizes_log - sizes_log.max()) / self.tau)


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

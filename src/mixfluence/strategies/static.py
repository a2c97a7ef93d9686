"""Sampling that never changes: the baseline of every comparison, and often a hard one to beat."""

from __future__ import annotations

from collections.abc import Mapping

from mixfluence.policy import Initial, Temperature, Vector, lift, softmax
from mixfluence.strategies.base import Strategy, refuse_no_epochs


class Static(Strategy):
    """Draw every batch from the same distribution.

    Costs no training step and no memory. Prefer it when the mixture is known to be right, and run it beside
    any adaptive strategy to see whether adapting paid.

    Args:
        init: The distribution: `Temperature` by size, or explicit `Weights`.
        floor: Least probability of any dataset.
        max_epochs: Most passes over any dataset; what a dataset may no longer take goes to the others.
    """

    def __init__(self, init: Initial | None = None, *, floor: float = 0.0, max_epochs: float | None = None) -> None:
        refuse_no_epochs(max_epochs)
        self.init = init or Temperature(1.0)
        self.floor = floor
        self.max_epochs = max_epochs

    def start(self, sizes: Mapping[str, int]) -> None:
        """Fix the distribution from the datasets' sizes."""
        self._weights = lift(softmax(self.init.logits(sizes)), self.floor)

    def weights(self, progress: float = 0.0) -> Vector:
        """Return the distribution fixed by `start`."""
        return self._weights

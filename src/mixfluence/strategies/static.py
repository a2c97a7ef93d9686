"""Static sampling: the baseline of every comparison, and often a hard one to beat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from mixfluence.policy import PROPORTIONAL, InitialField, Vector, lift, softmax
from mixfluence.schema import Share
from mixfluence.strategies.logits import ArmStrategy


class Static(ArmStrategy):
    """Draw every batch from the same distribution.

    Costs no training step and no memory. Prefer it when the mixture is known to be right, and run it beside
    any adaptive strategy to see whether adapting pays.

    Attributes:
        init: The distribution: `Temperature` by size, or explicit `Weights`.
        floor: Least probability of any dataset.
    """

    title = "Static"
    baseline = True
    name: Literal["static"] = "static"
    init: InitialField = PROPORTIONAL
    floor: Share = 0.0

    def start(self, sizes: Mapping[str, int]) -> None:
        self._weights = lift(softmax(self._initial_logits(sizes)), self.floor)

    def weights(self, progress: float = 0.0) -> Vector:
        return self._weights

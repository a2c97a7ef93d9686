"""Cooldown: small datasets are drawn often at first and by their size later."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, get_args

from mixfluence.errors import RecipeError
from mixfluence.policy import Temperature, Vector, lift, softmax
from mixfluence.strategies.base import Strategy, refuse_no_epochs

Shape = Literal["step", "linear"]


class Cooldown(Strategy):
    """Sample in proportion to size ** (1 / tau), with a tau that falls while the model trains.

    Drawing small datasets often helps at first and overfits them later (Li et al., arXiv 2410.04579). Prefer `Static`
    when small datasets are not seen more than a few times anyway, and `InfDDS` when there is a dev set to decide by.

    Costs no training step and no memory.

    Args:
        hot: The temperature at the start; infinity is uniform.
        cold: The temperature at the end, not above `hot`.
        shape: `step` changes at once at `switch`; `linear` lets 1 / tau go evenly from 1 / hot at the start to
            1 / cold at `switch`.
        switch: The part of the run after which `cold` is in force.
        floor: Least probability of any dataset.
        max_epochs: Most passes over any dataset.
    """

    def __init__(
        self,
        hot: float = 5.0,
        cold: float = 1.0,
        *,
        shape: Shape = "step",
        switch: float = 0.5,
        floor: float = 0.0,
        max_epochs: float | None = None,
    ) -> None:
        refuse_no_epochs(max_epochs)
        if not hot >= cold:
            raise RecipeError(f"hot must be at least cold, which is {cold}, found {hot}: a cooldown does not heat up")
        if not 0 < switch <= 1:
            raise RecipeError(f"switch must be above 0 and at most 1, found {switch}")
        if shape not in get_args(Shape):
            raise RecipeError(f"shape must be step or linear, found {shape!r}")
        self.hot, self.cold = Temperature(hot).tau, Temperature(cold).tau
        self.shape = shape
        self.switch = switch
        self.floor = floor
        self.max_epochs = max_epochs

    def start(self, sizes: Mapping[str, int]) -> None:
        """Remember the sizes."""
        self._sizes = dict(sizes)
        self.weights()  # a floor that does not fit is refused before anything is trained

    def temperature(self, progress: float) -> float:
        """Return the temperature after a part of the run."""
        if progress >= self.switch:
            return self.cold
        if self.shape == "step":
            return self.hot
        part = progress / self.switch
        inverse = (1 - part) / self.hot + part / self.cold
        return 1 / inverse if inverse else math.inf

    def weights(self, progress: float = 0.0) -> Vector:
        """Return the distribution of the temperature in force."""
        return lift(softmax(Temperature(self.temperature(progress)).logits(self._sizes)), self.floor)

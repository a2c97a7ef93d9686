"""Cooldown: small datasets are drawn often at first and by their size later."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mixfluence.policy import Temperature, Vector, lift, softmax, temperature_label
from mixfluence.schema import PositiveShare, Share
from mixfluence.strategies.base import Strategy

AboveZero = Annotated[float, Field(gt=0)]


class Cooldown(Strategy):
    """Sample in proportion to size ** (1 / tau), with a tau that falls during training.

    Drawing small datasets often helps at first and overfits them later (Li et al., arXiv 2410.04579). Prefer `Static`
    when small datasets are not seen more than a few times anyway, and `InfDDS` when a dev set can decide.

    Costs no training step and no memory.

    Attributes:
        hot: The temperature at the start; infinity is uniform.
        cold: The temperature at the end, at most `hot`.
        shape: `step` changes at once at `switch`; `linear` interpolates 1 / tau until `switch`.
        switch: The part of the run after which `cold` applies.
        floor: Least probability of any dataset.
    """

    title = "Cooldown"
    name: Literal["cooldown"] = "cooldown"
    hot: AboveZero = 5.0
    cold: AboveZero = 1.0
    shape: Literal["step", "linear"] = "step"
    switch: PositiveShare = 0.5
    floor: Share = 0.0

    @model_validator(mode="after")
    def _cools_down(self) -> Self:
        if not self.hot >= self.cold:
            raise ValueError(f"hot must be at least cold, which is {self.cold}, found {self.hot}")
        return self

    @property
    def start_label(self) -> str:
        return f"τ={temperature_label(self.hot)}→{temperature_label(self.cold)}"

    def start(self, sizes: Mapping[str, int]) -> None:
        self._sizes = dict(sizes)
        self.weights()  # raises an error for an impossible floor

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
        return lift(softmax(Temperature(self.temperature(progress)).logits(self._sizes)), self.floor)

"""Static sampling, the baseline of every comparison, and Cooldown, whose distribution changes by a schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from mixfluence.errors import RecipeError
from mixfluence.policy import (
    PROPORTIONAL,
    InitialField,
    Temperature,
    Vector,
    Weights,
    lift,
    softmax,
    temperature_label,
)
from mixfluence.schema import PositiveShare, Share
from mixfluence.strategies.base import FINAL, Stage, Strategy

if TYPE_CHECKING:
    from mixfluence.recipe import Recipe

AboveZero = Annotated[float, Field(gt=0)]


class Static(Strategy):
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
        self._weights = lift(softmax(self.init.logits(sizes)), self.floor)

    def weights(self, progress: float = 0.0) -> Vector:
        return self._weights


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


def final_stage(steps: int, **options: Any) -> Stage:
    """Return the last stage of a method that looks for a mixture: static sampling of what was found."""
    return Stage(FINAL, steps, lambda found: Static(init=Weights(found), **options))


class EmbeddingStrategy(Strategy):
    """Draws by weights that are found in embeddings of the rows before training; nothing changes during training.

    Attributes:
        encoder: The encoder that gives the vectors, as in `model.name`; the model that is trained if None.
        texts: Which texts of a row are encoded.
    """

    encoder: str | None = None
    texts: Literal["both", "query", "passage"] = "both"

    @property
    def clusters(self) -> bool:
        return True

    def stages(self, recipe: Recipe) -> list[Stage]:
        return [final_stage(recipe.training.steps, max_epochs=self.max_epochs)]

    def start(self, sizes: Mapping[str, int]) -> None:
        reason = "finds its weights before training; use it in a recipe, or Static with given weights"
        raise RecipeError(f"{type(self).__name__}: {reason}")

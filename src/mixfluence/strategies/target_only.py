"""Target-only sampling: the control that shows whether mixing helps at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from mixfluence.errors import RecipeError
from mixfluence.policy import UNIFORM, InitialField, Vector, softmax
from mixfluence.strategies.base import FINAL, Stage, Strategy

if TYPE_CHECKING:
    from mixfluence.recipe import Recipe


class TargetOnly(Strategy):
    """Draw only the training datasets named like a target.

    A control, not a method: a sampler that does not beat it has gained nothing from the other datasets. It exists
    only where a target has training rows of its own; `Static` with explicit weights draws any other part of the pool.

    Costs no training step and no memory.

    Attributes:
        targets: Names of the targets; the dev sets of the recipe if empty. Targets without a training dataset of their
            name are ignored, but at least one must have one.
        init: How the drawn datasets share the probability.
    """

    title = "Target only"
    needs_dev = True
    name: Literal["target-only"] = "target-only"
    targets: list[str] = Field(default_factory=list)
    init: InitialField = UNIFORM

    def stages(self, recipe: Recipe) -> list[Stage]:
        own = self if self.targets else self._with(targets=list(recipe.dev))
        return [Stage(FINAL, recipe.training.steps, lambda found: own)]

    def start(self, sizes: Mapping[str, int]) -> None:
        own = [name for name in sizes if name in self.targets]
        if not own:
            found = f"the targets are {', '.join(self.targets) or 'none'}, the training datasets {', '.join(sizes)}"
            raise RecipeError(f"no target has a training dataset of its own: {found}")
        logits = np.where([name in own for name in sizes], self.init.logits(sizes), -np.inf)
        if not np.isfinite(logits).any():
            raise RecipeError(f"init: gives a weight of 0 to all datasets that may be drawn: {', '.join(own)}")
        self._weights = softmax(logits)

    def weights(self, progress: float = 0.0) -> Vector:
        return self._weights

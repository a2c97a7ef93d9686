"""Static sampling: the baseline of every comparison, and often a hard one to beat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from mixfluence.errors import RecipeError
from mixfluence.policy import PROPORTIONAL, InitialField, Vector, Weights, lift, softmax
from mixfluence.schema import Share
from mixfluence.strategies.base import FINAL, Stage, Strategy
from mixfluence.strategies.logits import ArmStrategy

if TYPE_CHECKING:
    from mixfluence.recipe import Recipe


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

"""Group-DRO: datasets on which a proxy model lags behind a reference model get more weight in its loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mixfluence.policy import PROPORTIONAL, InitialField, Vector, Weights
from mixfluence.schema import Count, Positive
from mixfluence.strategies.base import FINAL, Stage, Strategy
from mixfluence.strategies.static import Static

if TYPE_CHECKING:
    from mixfluence.recipe import Recipe

# No batch multiplies the odds of its dataset by more than e, however large its losses are.
MOST_MOVE = 1.0


class GroupDRO(Strategy):
    """Weights the losses of a proxy model to find a mixture for the final run.

    Batches are drawn uniformly; alpha moves, one weight per dataset, summing to one. A batch of dataset i is scored
    against a reference model, alpha_i follows the score, and the loss of the batch is multiplied by alpha_i times
    the number of datasets, so that the expected loss is sum_i alpha_i loss_i.

    A batch has one dataset, so only its alpha moves, by the number of datasets times as much. A score counts relative
    to the mean of the last scores of all datasets, or a dataset would rise by being drawn more often than others.

    Cost of a proxy step: 5/3 training steps, as both models take a forward pass without dropout. Memory: the
    reference, one parameter size. The reference and the final model are runs of their own.

    Attributes:
        init: The distribution of the reference run.
        reference_steps: Steps of the reference run; as many as the final run if None.
        proxy_steps: Steps of the proxy run; as many as the final run if None.
        rate: How far log alpha moves in a step per unit of score.
        max_epochs: Most passes over any dataset in the final run.
    """

    init: InitialField = PROPORTIONAL
    reference_steps: Count | None = None
    proxy_steps: Count | None = None
    rate: Positive = 0.02

    @abstractmethod
    def score(self, losses: Vector, reference: Vector) -> float:
        """Return how much a batch needs training, by its queries' losses under the proxy and the reference."""

    @abstractmethod
    def outcome(self) -> Vector:
        """Return the mixture that the final model should be trained on."""

    def scale(self, scores: Vector) -> float:
        """Return the number that scores are divided by, given the last score of each dataset."""
        return 1.0

    def _uniform_share(self) -> float:
        """Return the share of the uniform distribution that is mixed into alpha at each step."""
        return 0.0

    @property
    def start_label(self) -> str:
        return f"proxy, {self.init.label}"

    def check(self, recipe: Recipe) -> None:
        """Refuse cached gradients, with which the loss of each query is not known."""
        super().check(recipe)
        if recipe.training.mini_batch_size is not None:
            raise ValueError(f"training.mini_batch_size: the proxy of {self.name} needs every query's loss")

    def stages(self, recipe: Recipe) -> list[Stage]:
        steps = recipe.training.steps
        return [
            Stage("reference", self.reference_steps or steps, lambda found: Static(init=self.init)),
            Stage("proxy", self.proxy_steps or steps, lambda found: self._with(max_epochs=None), against="reference"),
            Stage(FINAL, steps, lambda found: Static(init=Weights(found), max_epochs=self.max_epochs)),
        ]

    def start(self, sizes: Mapping[str, int]) -> None:
        count = len(sizes)
        self._log_alpha = np.full(count, -np.log(count))
        self._scores = np.full(count, np.nan)
        self._sum = np.zeros(count)
        self._steps = 0

    def weights(self, progress: float = 0.0) -> Vector:
        """Return the uniform distribution: alpha weighs losses, not draws."""
        return np.full(len(self._log_alpha), 1 / len(self._log_alpha))

    @property
    def alpha(self) -> Vector:
        """The weight of each dataset in the loss, summing to one."""
        return np.asarray(np.exp(self._log_alpha))

    def weigh(self, dataset: int, losses: Vector, reference: Vector) -> float:
        """Learn from a batch, unless a loss is not finite, and return the factor of its loss."""
        if np.isfinite(losses).all() and np.isfinite(reference).all():
            self._update(dataset, self.score(losses, reference))
        return float(self.alpha[dataset]) * len(self._log_alpha)

    def state_dict(self) -> dict[str, Any]:
        scores = [None if np.isnan(score) else score for score in self._scores.tolist()]
        log_alpha, total = self._log_alpha.tolist(), self._sum.tolist()
        return {"log_alpha": log_alpha, "scores": scores, "sum": total, "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._log_alpha[:] = state["log_alpha"]
        self._scores[:] = [np.nan if score is None else score for score in state["scores"]]
        self._sum[:] = state["sum"]
        self._steps = state["steps"]

    def _update(self, dataset: int, score: float) -> None:
        count = len(self._log_alpha)
        self._scores[dataset] = score
        mean = float(np.nanmean(self._scores))
        # A dataset without a score counts with the mean of the others.
        scale = self.scale(np.where(np.isnan(self._scores), mean, self._scores))
        self._log_alpha[dataset] += np.clip(self.rate * count * (score - mean) / scale, -MOST_MOVE, MOST_MOVE)
        self._log_alpha -= np.logaddexp.reduce(self._log_alpha)
        if smoothing := self._uniform_share():
            kept = np.log1p(-smoothing) + self._log_alpha
            self._log_alpha = np.logaddexp(kept, np.log(smoothing / count))
        self._sum += self.alpha
        self._steps += 1

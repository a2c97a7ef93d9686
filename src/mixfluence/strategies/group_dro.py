"""Group-DRO: the datasets on which a model lags behind a reference get more weight in its loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from mixfluence.errors import RecipeError
from mixfluence.policy import Vector
from mixfluence.strategies.base import Strategy, refuse_not_positive

# No batch multiplies the odds of its dataset by more than e, however bad its losses are.
MOST_MOVE = 1.0


class GroupDRO(Strategy):
    """Weights a proxy model's losses, to find a mixture for the run that follows.

    Batches are drawn uniformly; what moves is alpha, one weight per dataset, all of them summing to one. A batch
    of dataset i is scored against a reference model, alpha_i follows the score, and the loss of the batch counts
    alpha_i times the number of datasets, so that the expected loss is sum_i alpha_i loss_i.

    The published methods see every dataset in every batch; here a batch is of one dataset. So only its alpha moves,
    by the number of datasets times as much. A score counts relative to the mean of the last scores of all datasets:
    that has no effect on what is expected, since alpha is normalised, but without it a dataset would rise by being
    drawn more often than others. Scores of earlier batches serve for nothing else.

    Cost of the proxy: 4/3 training steps per step, the reference being one forward pass. Memory: the reference, one
    parameter size. The reference and the final model are runs of their own.

    Args:
        rate: How far log alpha moves in a step per unit of score.
        smoothing: Share of the uniform distribution in alpha, mixed in at each step.

    Attributes:
        own_negatives_only: Whether losses should compare a query with its row's own passages alone, where rows have
            hard negatives.
    """

    own_negatives_only = False

    def __init__(self, rate: float, smoothing: float) -> None:
        refuse_not_positive(rate=rate)
        if not 0 <= smoothing < 1:
            raise RecipeError(f"smoothing must be at least 0 and below 1, found {smoothing}")
        self.rate = rate
        self.smoothing = smoothing

    @abstractmethod
    def score(self, losses: Vector, reference: Vector) -> float:
        """Return how badly a batch needs training, by its queries' losses under the proxy and the reference."""

    def scale(self, scores: Vector) -> float:
        """Return what scores are divided by before they move log alpha.

        Args:
            scores: The last score of each dataset; the mean of the others for one that has none yet.
        """
        return 1.0

    @abstractmethod
    def outcome(self) -> Vector:
        """Return the mixture that the final model should be trained on."""

    def start(self, sizes: Mapping[str, int]) -> None:
        """Set alpha to uniform."""
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
        """The weight of each dataset in the loss, all of them summing to one."""
        return np.asarray(np.exp(self._log_alpha))

    @property
    def average(self) -> Vector:
        """The mean of alpha over all steps so far."""
        return self._sum / self._steps if self._steps else self.alpha

    def weigh(self, dataset: int, losses: Vector, reference: Vector) -> float:
        """Learn from a batch, and return what its loss is to be multiplied by.

        A batch with a loss that is not finite teaches nothing.

        Args:
            dataset: Which dataset the batch is of.
            losses: Loss of each query under the proxy.
            reference: Loss of each query under the reference, on the same batch with the same negatives.
        """
        if np.isfinite(losses).all() and np.isfinite(reference).all():
            self._update(dataset, self.score(losses, reference))
        return float(self.alpha[dataset]) * len(self._log_alpha)

    def state_dict(self) -> dict[str, Any]:
        """Return alpha, its sum over steps and the last scores."""
        scores = [None if np.isnan(score) else score for score in self._scores.tolist()]
        return {
            "log_alpha": self._log_alpha.tolist(),
            "scores": scores,
            "sum": self._sum.tolist(),
            "steps": self._steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._log_alpha[:] = state["log_alpha"]
        self._scores[:] = [np.nan if score is None else score for score in state["scores"]]
        self._sum[:] = state["sum"]
        self._steps = state["steps"]

    def _update(self, dataset: int, score: float) -> None:
        count = len(self._log_alpha)
        self._scores[dataset] = score
        mean = float(np.nanmean(self._scores))
        scale = self.scale(np.where(np.isnan(self._scores), mean, self._scores))
        self._log_alpha[dataset] += np.clip(self.rate * count * (score - mean) / scale, -MOST_MOVE, MOST_MOVE)
        self._log_alpha -= np.logaddexp.reduce(self._log_alpha)
        if self.smoothing:
            kept = np.log1p(-self.smoothing) + self._log_alpha
            self._log_alpha = np.logaddexp(kept, np.log(self.smoothing / count))
        self._sum += self.alpha
        self._steps += 1

"""Group-DRO, DoReMi and tDRO: datasets on which a proxy model lags behind a reference get more weight in its loss."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np

from mixfluence.policy import PROPORTIONAL, InitialField, Vector
from mixfluence.schema import Count, Fraction, Positive, PositiveShare
from mixfluence.strategies.base import Stage, Strategy
from mixfluence.strategies.static import Static, final_stage

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

    saved = "log_alpha", "scores", "sum", "steps"
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
        proxy = self.model_copy(update={"max_epochs": None})
        return [
            Stage("reference", self.reference_steps or steps, lambda found: Static(init=self.init)),
            Stage("proxy", self.proxy_steps or steps, lambda found: proxy, against="reference"),
            final_stage(steps, max_epochs=self.max_epochs),
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


class DoReMi(GroupDRO):
    """Group-DRO on the excess loss of a proxy over a reference (Xie et al. 2023); see `GroupDRO` for the step.

    The score of a batch is the mean over its queries of max(loss - reference loss, 0), and the mixture is alpha
    averaged over all steps. It needs no dev set: prefer `InfDDS` when there is one like the test set, and `TDRO` when
    the losses of the datasets differ in scale. A reference that has memorised a tiny dataset makes it look hard
    forever, so train it no longer than the proxy.

    Cost with a reference and a proxy as long as the final run: 3 2/3 training steps per step of the final run.
    Memory: 1 parameter size.

    Attributes:
        rate: How far log alpha moves in a step per nat of excess. The published 1 is for language models; with
            InfoNCE, a lead of 0.3 nats at 0.02 makes alpha grow e-fold in 170 steps.
        smoothing: Share of the uniform distribution in alpha.
    """

    title = "DoReMi"
    name: Literal["doremi"] = "doremi"
    smoothing: Fraction = 1e-3

    def score(self, losses: Vector, reference: Vector) -> float:
        """Return the mean excess, clipped at zero for each query."""
        return float(np.maximum(losses - reference, 0.0).mean())

    def outcome(self) -> Vector:
        return self._sum / self._steps if self._steps else self.alpha

    def _uniform_share(self) -> float:
        return self.smoothing


# Below this many nats the reference has solved a query, and a ratio to its loss says nothing. The published bound is
# 1e-4 of the sum over a batch of 512, which is 5 % of the mean.
LEAST_REFERENCE = 0.05


class TDRO(GroupDRO):
    """Group-DRO on the loss of a proxy in proportion to a reference's (Ma et al. 2025); see `GroupDRO` for the step.

    The score of a batch is the mean over its queries of loss / reference loss, by the row's own passages where rows
    have hard negatives. Scores of all datasets are divided by their norm, and the mixture is the last alpha.
    Prefer `DoReMi` when the reference solves most queries: ratios to small losses are noisy.

    Cost with a reference and a proxy as long as the final run: 3 2/3 training steps per step of the final run.
    Memory: 1 parameter size.

    Attributes:
        rate: Length of the step of log alpha.
        keep: Share of the datasets that the final run draws from, uniformly: those with the largest alpha (the
            published choice is 0.7). None draws from all of them by alpha.
    """

    title = "tDRO"
    own_negatives_only = True
    name: Literal["tdro"] = "tdro"
    keep: PositiveShare | None = None

    def score(self, losses: Vector, reference: Vector) -> float:
        """Return the mean ratio; a query that the reference has solved counts with its plain loss."""
        known = np.where(reference < LEAST_REFERENCE, 1.0, reference)
        return float(np.maximum(losses / known, 0.0).mean())

    def scale(self, scores: Vector) -> float:
        return float(np.linalg.norm(scores)) or 1.0

    def outcome(self) -> Vector:
        """Return the last alpha, or the uniform distribution over the best datasets."""
        if self.keep is None:
            return self.alpha
        # Rounded first: 0.29 x 100 is slightly below 29.
        kept = max(1, math.floor(round(self.keep * len(self.alpha), 9)))
        best = np.argsort(-self._log_alpha, kind="stable")[:kept]
        mixture = np.zeros(len(self.alpha))
        mixture[best] = 1 / kept
        return mixture

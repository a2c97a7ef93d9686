"""DoGE: a proxy run finds a mixture by the gradients of datasets and dev sets, for a later run to train on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixfluence.errors import RecipeError
from mixfluence.influence import Alignment, Influences
from mixfluence.policy import UNIFORM, Initial, Vector, softmax
from mixfluence.strategies.base import (
    Strategy,
    at_interval,
    refuse_below,
    refuse_no_epochs,
    refuse_not_positive,
)


class DoGE(Strategy):
    """Domain reweighting with generalisation estimation (Fan, Pagliardini and Jaggi, 2024): the proxy's part.

    A dataset's score is the projection of its gradient on the sum of the dev sets' gradients; scores are added to the
    logarithms of the weights, a mirror step. What counts is `outcome`, the mean of the weights over all updates, as
    the fixed mixture of a final run. Prefer `MultiDDS` when there is no time for two runs.

    As published, a step of the proxy trains on all datasets, their gradients weighted, and updates the weights. Here
    a batch has one dataset, so the weights are those it is drawn by, and one update of `update_every` times the size
    stands for so many.

    Published, a logarithm moves by eta_t / mu x score at every step, with a peak eta of 5e-4 and mu of 0.05. At the
    learning rates of fine-tuning that is nothing, so mu is taken in proportion to the peak: eta_t / mu is then `step`
    x the learning rate in parts of its peak, whatever that is. 5e-4 / 0.05 would be a step of 0.01; it is larger here,
    because contrastive gradients of different datasets are nearly orthogonal (cosines of 0.03 to 0.07 on MiniLM).

    Cost per update: one gradient of every dataset and one of every dev set, each about a training step. With M
    datasets and N dev sets the proxy takes 1 + (M + N) / `update_every` times a plain run, and the final run comes on
    top. Memory: 1 parameter size.

    Args:
        init: Where the weights start; uniform if None. A dataset of weight zero stays out.
        update_every: Steps between updates.
        step: Change of a logarithm per training step and unit of score, at the peak of the learning rate.
        clip: Greatest score that counts; below zero all count as zero.
        smoothing: Share of the weights that is spread evenly at every update, so that no dataset is lost.
        alignment: How gradients are compared. `Alignment(score="projection", preconditioned=True)` scores the step
            that AdamW would take in place of the gradient.
        max_epochs: Most passes over any dataset.
    """

    inner_steps = 1

    def __init__(
        self,
        init: Initial | None = None,
        *,
        update_every: int = 10,
        step: float = 0.1,
        clip: float = 5.0,
        smoothing: float = 1e-3,
        alignment: Alignment | None = None,
        max_epochs: float | None = None,
    ) -> None:
        refuse_below(update_every=(update_every, 1))
        refuse_not_positive(step=step, clip=clip)
        if not 0 <= smoothing < 1:
            raise RecipeError(f"smoothing must be at least 0 and below 1, found {smoothing}")
        refuse_no_epochs(max_epochs)
        self.init = init or UNIFORM
        self.update_every = update_every
        self.step = step
        self.clip = clip
        self.smoothing = smoothing
        self.probe: Alignment = alignment or Alignment(score="projection")
        self.max_epochs = max_epochs

    def start(self, sizes: Mapping[str, int]) -> None:
        """Set the weights to where they start."""
        self._weights = softmax(self.init.logits(sizes))
        self._total = np.zeros_like(self._weights)
        self._updates = 0
        self._relative_rate = 1.0

    def weights(self, progress: float = 0.0) -> Vector:
        """Return the weights of the last update."""
        return self._weights

    def outcome(self) -> Vector:
        """Return the mean of the weights over all updates, the start if there was none."""
        return self._total / self._updates if self._updates else self._weights

    def due(self, step: int, relative_rate: float) -> bool:
        """Return whether a multiple of `update_every` is reached, and remember how far an update may go."""
        self._relative_rate = relative_rate
        return at_interval(step, self.update_every, after=0)

    def update(self, influences: Influences) -> dict[str, Any]:
        """Shift weight between the datasets that were measured; the others keep theirs but for the smoothing."""
        scores, _ = influences.combine("mean")
        if len(scores) > 1:
            self._shift(influences.probed, np.clip(scores, 0.0, self.clip))
            self._total = self._total + self._weights
            self._updates += 1
        return {"influence": scores.tolist()}

    def state_dict(self) -> dict[str, Any]:
        """Return the weights, and the sum and number of those before."""
        return {"weights": self._weights.tolist(), "total": self._total.tolist(), "updates": self._updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._weights, self._total = np.array(state["weights"]), np.array(state["total"])
        self._updates = state["updates"]

    def _shift(self, probed: NDArray[np.int64], scores: Vector) -> None:
        weights = self._weights.copy()
        moves = self.update_every * self.step * self._relative_rate * scores
        weights[probed] = weights[probed].sum() * softmax(np.log(weights[probed]) + moves)
        drawn = weights > 0
        self._weights = np.where(drawn, (1 - self.smoothing) * weights + self.smoothing / drawn.sum(), 0.0)

"""DoGE: a proxy run finds a mixture by gradients of datasets and dev sets, and a final run trains on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from mixfluence.influence import Probing, Projection
from mixfluence.policy import UNIFORM, InitialField, Vector, Weights, softmax
from mixfluence.schema import Count, Fraction, Positive
from mixfluence.strategies.base import Stage, Strategy
from mixfluence.strategies.static import final_stage

if TYPE_CHECKING:
    from mixfluence.influence import Influences
    from mixfluence.recipe import Recipe


class DoGE(Strategy):
    """Domain reweighting with generalisation estimation (Fan, Pagliardini and Jaggi, 2024).

    The score of a dataset is the projection of its gradient on the sum of the dev sets' gradients; scores are added to
    the logarithms of the weights, a mirror step. The final run trains on the mean of the weights over all updates.
    Prefer `MultiDDS` when there is no time for two runs.

    Cost per update: one gradient of every dataset and of every dev set, each about a training step; the final run
    comes on top. Memory: 1 parameter size.

    Attributes:
        init: The initial distribution. A dataset of weight zero is never drawn.
        rounds: Proxy runs; a second one starts from the mixture the first has found.
        proxy_steps: Steps of a proxy run; as many as the final run if None.
        update_every: Steps between updates.
        step: Change of a logarithm per training step and unit of score, at the peak of the learning rate. The
            published 0.01 is too small for contrastive gradients, which are nearly orthogonal between datasets.
        clip: Greatest score that counts; negative scores count as zero.
        smoothing: Share of the weights that is spread evenly at every update, so that no dataset is lost.
        alignment: How gradients are compared; `preconditioned` scores AdamW's step in place of the gradient.
        max_epochs: Most passes over any dataset in the final run.
    """

    title = "DoGE"
    needs_dev = True
    saved = "weights", "total", "updates"
    name: Literal["doge"] = "doge"
    init: InitialField = UNIFORM
    rounds: Annotated[int, Field(ge=1, le=2)] = 1
    proxy_steps: Count | None = None
    update_every: Count = 10
    step: Positive = 0.1
    clip: Positive = 5.0
    smoothing: Fraction = 1e-3
    alignment: Projection = Field(default_factory=Projection)

    @property
    def start_label(self) -> str:
        return f"proxy, {self.init.label}"

    def stages(self, recipe: Recipe) -> list[Stage]:
        steps = recipe.training.steps
        proxies = [Stage(name, self.proxy_steps or steps, self._proxy) for name in ("proxy", "second-proxy")]
        return [*proxies[: self.rounds], final_stage(steps, max_epochs=self.max_epochs)]

    @property
    def probing(self) -> Probing:
        return Probing(self.alignment)

    def start(self, sizes: Mapping[str, int]) -> None:
        self._weights = softmax(self.init.logits(sizes))
        self._total = np.zeros_like(self._weights)
        self._updates = 0
        self._relative_rate = 1.0

    def weights(self, progress: float = 0.0) -> Vector:
        return self._weights

    def outcome(self) -> Vector:
        """Return the mean of the weights over all updates, the start if there was none."""
        return self._total / self._updates if self._updates else self._weights

    def due(self, step: int, relative_rate: float) -> bool:
        """Return whether a multiple of `update_every` is reached, and remember how far an update may go."""
        self._relative_rate = relative_rate
        return step > 0 and step % self.update_every == 0

    def update(self, influences: Influences) -> dict[str, Any]:
        """Shift weight between the measured datasets; the others change by the smoothing alone."""
        scores, _ = influences.combine()
        if len(scores) > 1:
            self._shift(influences.probed, np.clip(scores, 0.0, self.clip))
            self._total = self._total + self._weights
            self._updates += 1
        return {"influence": scores.tolist()}

    def _proxy(self, found: Mapping[str, float]) -> Strategy:
        return self.model_copy(update={"init": Weights(found) if found else self.init, "max_epochs": None})

    def _shift(self, probed: NDArray[np.int64], scores: Vector) -> None:
        weights = self._weights.copy()
        moves = self.update_every * self.step * self._relative_rate * scores
        weights[probed] = weights[probed].sum() * softmax(np.log(weights[probed]) + moves)
        drawn = weights > 0
        self._weights = np.where(drawn, (1 - self.smoothing) * weights + self.smoothing / drawn.sum(), 0.0)

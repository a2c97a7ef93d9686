"""MultiDDS: datasets are drawn in proportion to how well their gradients agree with those of the dev sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from mixfluence.influence import Alignment, Probing
from mixfluence.policy import Adam, Vector, softmax
from mixfluence.schema import Count, Positive
from mixfluence.strategies.logits import LogitStrategy

if TYPE_CHECKING:
    from mixfluence.influence import Influences


class MultiDDS(LogitStrategy):
    """Reward matching by cosines of gradients (MultiDDS-S of Wang, Tsvetkov and Neubig, 2020).

    Every `update_every` steps the reward of a dataset is the mean cosine of its gradient with those of the dev sets.
    The logits then take `iterations` steps of Adam down -sum_i R_i log P(i), whose minimum is P in proportion to R:
    unlike the paper's rule for `InfDDS` it does not end on one dataset. Negative rewards count as zero. Cosines have
    no scale, so rewards do not fade as training converges; prefer `InfDDS` where you can afford its probes.

    Cost per update: one gradient of every dataset and of every dev set, each about a training step. Memory: 1
    parameter size. Start, intervals and floor are set as for `InfDDS`.

    Attributes:
        alignment: How gradients are compared.
        rate: Adam's step. A logit moves by at most about `rate` x `iterations` per update: with the published 1e-4
            that is 0.02, which needs hundreds of updates to leave the start.
        iterations: Steps of Adam per update.
    """

    title = "MultiDDS"
    saved = "logits", "adam"
    name: Literal["multidds"] = "multidds"
    alignment: Alignment = Field(default_factory=Alignment)
    rate: Positive = 1e-3
    iterations: Count = 200

    @property
    def probing(self) -> Probing:
        return Probing(self.alignment)

    def start(self, sizes: Mapping[str, int]) -> None:
        super().start(sizes)
        self._adam = Adam(len(self._logits))

    def update(self, influences: Influences) -> dict[str, Any]:
        cosines, _ = influences.combine()
        rewards = np.maximum(cosines, 0.0)
        if rewards.any() and len(rewards) > 1:
            self._match(influences.probed, rewards)
        return {"influence": cosines.tolist()}

    def _match(self, probed: NDArray[np.int64], rewards: Vector) -> None:
        before = self._logits[probed]
        logits = before
        for _ in range(self.iterations):
            uphill = rewards - softmax(logits) * rewards.sum()
            logits = logits + self.rate * self._adam.direction(uphill, probed)
        # Datasets that could not be measured keep their probability: only the shares of the others change.
        self._logits = self._logits.copy()
        self._logits[probed] = logits + np.logaddexp.reduce(before) - np.logaddexp.reduce(logits)

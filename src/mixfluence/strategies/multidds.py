"""MultiDDS: datasets are drawn in proportion to how well their gradients agree with those of the dev sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixfluence.influence import Alignment, Influences
from mixfluence.policy import Adam, Initial, Vector, softmax
from mixfluence.strategies.base import refuse_below, refuse_not_positive
from mixfluence.strategies.logits import LogitStrategy


class MultiDDS(LogitStrategy):
    """Reward matching by the cosines of gradients (MultiDDS-S of Wang, Tsvetkov and Neubig, 2020).

    Every `update_every` steps a dataset's reward is the mean cosine of its gradient with those of the dev sets. The
    logits then take `iterations` steps of Adam down -sum_i R_i log P(i), which is least where P is in proportion to R:
    unlike the rule of `InfDDS` it does not end on one dataset. A cosine has no size, so that rewards do not fade as
    training converges; prefer `InfDDS` where its probes can be paid for.

    A reward below zero counts as zero, and a round without any above zero moves nothing: as published, rewards that
    sum to less than zero would push away from the shares they stand for.

    Cost per update: one gradient of every dataset and one of every dev set, each about a training step. Memory: 1
    parameter size. For both with lookahead see `mixfluence.influence.alignment.Aligner`.

    Args:
        init: Where the logits start; proportional to size if None.
        update_every: Steps between updates.
        warmup_steps: Steps before the first update.
        alignment: How gradients are compared; with `lookahead` it is MultiDDS as first published, before the `S`.
        rate: Adam's step. A logit moves by no more than about `rate` x `iterations` per update: with the published
            1e-4 that is 0.02, which needs hundreds of updates to leave the start.
        iterations: Steps of Adam per update.
        freeze_below: No update while the learning rate is below this part of its maximum.
        floor: Least probability of any dataset.
        max_epochs: Most passes over any dataset.
    """

    inner_steps = 1

    def __init__(
        self,
        init: Initial | None = None,
        *,
        update_every: int = 50,
        warmup_steps: int = 25,
        alignment: Alignment | None = None,
        rate: float = 1e-3,
        iterations: int = 200,
        freeze_below: float = 0.0,
        floor: float = 0.0,
        max_epochs: float | None = None,
    ) -> None:
        refuse_below(iterations=(iterations, 1))
        refuse_not_positive(rate=rate)
        super().__init__(
            init,
            update_every=update_every,
            warmup_steps=warmup_steps,
            freeze_below=freeze_below,
            floor=floor,
            max_epochs=max_epochs,
        )
        self.probe: Alignment = alignment or Alignment()
        self.rate = rate
        self.iterations = iterations

    def start(self, sizes: Mapping[str, int]) -> None:
        """Set the logits to where they start."""
        super().start(sizes)
        self._adam = Adam(len(self.logits))

    def update(self, influences: Influences) -> dict[str, Any]:
        """Move the probabilities of the datasets that were measured towards the shares of their rewards."""
        cosines, _ = influences.combine("mean")
        rewards = np.maximum(cosines, 0.0)
        if rewards.any() and len(rewards) > 1:
            self._match(influences.probed, rewards)
        return {"influence": cosines.tolist()}

    def state_dict(self) -> dict[str, Any]:
        """Return the logits and Adam's moments."""
        return super().state_dict() | {"adam": self._adam.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self._adam.load_state_dict(state["adam"])

    def _match(self, probed: NDArray[np.int64], rewards: Vector) -> None:
        before = self.logits[probed]
        logits = before
        for _ in range(self.iterations):
            uphill = rewards - softmax(logits) * rewards.sum()
            logits = logits + self.rate * self._adam.direction(uphill, probed)
        # Datasets that could not be measured keep their probability: only the shares of the others change.
        self.logits = self.logits.copy()
        self.logits[probed] = logits + np.logaddexp.reduce(before) - np.logaddexp.reduce(logits)

"""Base of the strategies that keep logits and move them by measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixfluence.policy import (
    PROPORTIONAL,
    InitialField,
    Vector,
    lift,
    logits_from_json,
    logits_to_json,
    softmax,
)
from mixfluence.schema import Count, Share, WholeNumber
from mixfluence.strategies.base import Strategy, at_interval


class LogitStrategy(Strategy):
    """Draws by the softmax of logits, and measures at intervals. Subclasses say how logits move.

    Attributes:
        init: The initial distribution.
        update_every: Steps between updates.
        warmup_steps: Steps before the first update.
        freeze_below: No update while the learning rate is below this part of its maximum.
        floor: Least probability of any dataset.
        max_epochs: Most passes over any dataset.
    """

    needs_dev = True
    init: InitialField = PROPORTIONAL
    update_every: Count = 50
    warmup_steps: WholeNumber = 25
    freeze_below: Share = 0.0
    floor: Share = 0.0

    @property
    def logits(self) -> Vector:
        """The current logits, one per dataset."""
        return self._logits

    def start(self, sizes: Mapping[str, int]) -> None:
        """Set the logits to the initial distribution."""
        self._logits = self.init.logits(sizes)
        self.weights()  # an impossible floor is refused before training starts

    def weights(self, progress: float = 0.0) -> Vector:
        """Return the softmax of the logits, with the floor."""
        return lift(softmax(self._logits), self.floor)

    def due(self, step: int, relative_rate: float) -> bool:
        """Return whether a multiple of `update_every` is reached after the warm-up, at a useful learning rate."""
        return relative_rate >= self.freeze_below and at_interval(step, self.update_every, self.warmup_steps)

    def candidates(self) -> NDArray[np.int64]:
        """Return the datasets whose logit can move: a weight of zero never changes."""
        return np.flatnonzero(np.isfinite(self._logits))

    def state_dict(self) -> dict[str, Any]:
        """Return the logits."""
        return {"logits": logits_to_json(self._logits)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._logits = logits_from_json(state["logits"])

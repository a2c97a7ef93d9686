"""What strategies share that keep logits and move them by measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixfluence.policy import Initial, Temperature, Vector, lift, logits_from_json, logits_to_json, softmax
from mixfluence.strategies.base import Strategy, at_interval, refuse_below, refuse_no_epochs


class LogitStrategy(Strategy):
    """Draws by the softmax of logits, and asks for measurements at intervals. Subclasses say how logits move.

    Args:
        init: Where the logits start; proportional to size if None.
        update_every: Steps between updates.
        warmup_steps: Steps before the first update.
        freeze_below: No update while the learning rate is below this part of its maximum.
        floor: Least probability of any dataset.
        max_epochs: Most passes over any dataset.
    """

    def __init__(
        self,
        init: Initial | None,
        *,
        update_every: int,
        warmup_steps: int,
        freeze_below: float,
        floor: float,
        max_epochs: float | None,
    ) -> None:
        refuse_below(update_every=(update_every, 1), warmup_steps=(warmup_steps, 0))
        refuse_no_epochs(max_epochs)
        self.init = init or Temperature(1.0)
        self.update_every = update_every
        self.warmup_steps = warmup_steps
        self.freeze_below = freeze_below
        self.floor = floor
        self.max_epochs = max_epochs

    def start(self, sizes: Mapping[str, int]) -> None:
        """Set the logits to where they start."""
        self.logits = self.init.logits(sizes)
        self.weights()  # a floor that does not fit is refused before anything is trained

    def weights(self, progress: float = 0.0) -> Vector:
        """Return the softmax of the logits, with the floor."""
        return lift(softmax(self.logits), self.floor)

    def due(self, step: int, relative_rate: float) -> bool:
        """Return whether a multiple of `update_every` is reached after the warm-up, at a useful learning rate."""
        return relative_rate >= self.freeze_below and at_interval(step, self.update_every, self.warmup_steps)

    def candidates(self) -> NDArray[np.int64]:
        """Return the datasets whose logit can move: a weight of zero stays what it is."""
        return np.flatnonzero(np.isfinite(self.logits))

    def state_dict(self) -> dict[str, Any]:
        """Return the logits."""
        return {"logits": logits_to_json(self.logits)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.logits = logits_from_json(state["logits"])

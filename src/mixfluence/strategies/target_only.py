"""Only the targets' own training rows: the control that shows whether mixing helps at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mixfluence.errors import RecipeError
from mixfluence.policy import UNIFORM, Initial, Vector, softmax
from mixfluence.strategies.base import Strategy, refuse_no_epochs


class TargetOnly(Strategy):
    """Draw only training datasets that are named like a target, and nothing else of the pool.

    A control, not a method: a sampler that does not beat it has gained nothing from the other datasets. It exists
    only where a target has training rows of its own; `Static` with explicit weights draws any other part of the pool.

    Costs no training step and no memory.

    Args:
        targets: Names of the dev sets. One without a training dataset of its name is passed over, but not all may be.
        init: How the drawn datasets share the probability among themselves; uniform if None.
        max_epochs: Most passes over any dataset.
    """

    def __init__(
        self, targets: Sequence[str], init: Initial | None = None, *, max_epochs: float | None = None
    ) -> None:
        refuse_no_epochs(max_epochs)
        self.targets = list(targets)
        self.init = init or UNIFORM
        self.max_epochs = max_epochs

    def start(self, sizes: Mapping[str, int]) -> None:
        """Fix the distribution."""
        own = np.array([name in self.targets for name in sizes])
        if not own.any():
            raise RecipeError(
                f"no target has a training dataset of its own: the targets are {_listed(self.targets)}, "
                f"the training datasets {_listed(sizes)}"
            )
        logits = np.where(own, self.init.logits(sizes), -np.inf)
        if not np.isfinite(logits).any():
            drawn = [name for name in sizes if name in self.targets]
            raise RecipeError(f"init gives a weight of 0 to all that may be drawn: {_listed(drawn)}")
        self._weights = softmax(logits)

    def weights(self, progress: float = 0.0) -> Vector:
        """Return the distribution fixed by `start`."""
        return self._weights


def _listed(names: Sequence[str] | Mapping[str, int]) -> str:
    return ", ".join(names) or "none"

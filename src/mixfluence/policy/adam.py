"""Adam for a few numbers of which only some are measured at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixfluence.policy.bounds import Vector


class Adam:
    """Adam's direction for some of many numbers; what is not measured keeps its moments and its count.

    Args:
        size: How many numbers.
    """

    _decay, _decay_squares, _epsilon = 0.9, 0.999, 1e-12

    def __init__(self, size: int) -> None:
        self._state = {name: np.zeros(size) for name in ("count", "mean", "square")}

    def direction(self, gradient: Vector, measured: NDArray[np.int64]) -> Vector:
        """Take the gradient of the numbers that were measured; return by how much they should move, in steps."""
        count, mean, square = self._state.values()
        count[measured] += 1
        mean[measured] = self._decay * mean[measured] + (1 - self._decay) * gradient
        square[measured] = self._decay_squares * square[measured] + (1 - self._decay_squares) * gradient**2
        unbiased_mean = mean[measured] / (1 - self._decay ** count[measured])
        unbiased_square = square[measured] / (1 - self._decay_squares ** count[measured])
        return np.asarray(unbiased_mean / (np.sqrt(unbiased_square) + self._epsilon))

    def state_dict(self) -> dict[str, list[float]]:
        """Return counts and moments, as JSON values."""
        return {name: values.tolist() for name, values in self._state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name, values in self._state.items():
            values[:] = state[name]

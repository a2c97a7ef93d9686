"""What a sampler is to the rest of the program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from mixfluence.policy import Vector


class Strategy(ABC):
    """Decides how likely each dataset is to give the next batch.

    A strategy sees sizes and measurements, never the trainer or the model. The trainer calls `start`
    once, asks `weights` before every draw, and saves `state_dict` with each checkpoint.

    Attributes:
        max_epochs: How often a row may be seen at most; None for no limit. The sampler enforces it,
            because only the sampler knows how many rows were drawn.
    """

    max_epochs: float | None = None

    @abstractmethod
    def start(self, sizes: Mapping[str, int]) -> None:
        """Take the datasets' names and sizes, in the order of every later vector."""

    @abstractmethod
    def weights(self) -> Vector:
        """Return the current probability of each dataset."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs beyond the constructor's arguments, as JSON values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; called after `start`."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, found {sorted(state)}")

"""The weights of another run, held fixed: the control that shows whether it matters that weights change."""

from __future__ import annotations

from collections.abc import Mapping

from mixfluence.policy import Weights
from mixfluence.strategies.static import Static


class Replay(Static):
    """Draw every batch from the distribution that another run ended with, or had on average.

    A control: if it does as well as the run it replays, what helped was the mixture, and not that it changed on
    the way. `mixfluence.data.weights.replayed_weights` reads the weights from that run's folder. Use `Static` for a
    mixture of your own.

    Costs no training step and no memory, beyond those of the run it replays.

    Args:
        weights: The probability of each dataset.
        max_epochs: Most passes over any dataset; take that of the run that is replayed.
    """

    def __init__(self, weights: Mapping[str, float], *, max_epochs: float | None = None) -> None:
        super().__init__(Weights(weights), max_epochs=max_epochs)

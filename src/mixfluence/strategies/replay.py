"""Replay: the weights of another run, held fixed. The control that shows whether it matters that weights change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from mixfluence.data.weights import replayed_weights
from mixfluence.policy import Vector, Weights, softmax
from mixfluence.schema import PathLike
from mixfluence.strategies.base import Strategy


class Replay(Strategy):
    """Draw every batch from the distribution that another run ended with, or had on average.

    A control: if it does as well as the run it replays, the mixture helped, and not that it changed during
    training. Use `Static` for a mixture of your own.

    Costs no training step and no memory, beyond those of the run it replays.

    Attributes:
        run: The folder of the run to replay.
        which: `final` for the weights it ended with, `average` for their mean over all batches.
        max_epochs: Most passes over any dataset; use that of the replayed run.
    """

    title = "Replay"
    name: Literal["replay"] = "replay"
    run: PathLike
    which: Literal["final", "average"] = "average"

    @property
    def start_label(self) -> str:
        return f"{self.which} of {self.run.name}"

    def start(self, sizes: Mapping[str, int]) -> None:
        self._weights = softmax(Weights(replayed_weights(self.run, self.which)).logits(sizes))

    def weights(self, progress: float = 0.0) -> Vector:
        return self._weights

"""Replay: the weights of another run, held fixed. The control that shows whether it matters that weights change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from mixfluence.errors import DataError
from mixfluence.policy import Vector, Weights, softmax
from mixfluence.policy.initial import read_weights
from mixfluence.runs import TRACE_FILE, WEIGHTS_FILE, read_trace
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


def replayed_weights(run: Path, which: Literal["final", "average"]) -> dict[str, float]:
    """Return the final weights of a run's folder, or their average over all trained batches.

    A batch counts with the weights of its line in the trace, by which it was drawn if weights change at updates alone
    and the data loader has no workers.
    """
    path = run / {"final": WEIGHTS_FILE, "average": TRACE_FILE}[which]
    if not path.is_file():
        raise DataError(f"{run}: has no {path.name}, expected the folder of a finished run")
    if which == "final":
        return read_weights(path)
    totals: dict[str, float] = {}
    batches = 0
    for line in read_trace(path):
        trained = len(line.get("trained", []))
        batches += trained
        for name, weight in (line["weights"] if trained else {}).items():
            totals[name] = totals.get(name, 0.0) + trained * weight
    if not batches:
        raise DataError(f"{path}: contains no trained batches")
    return {name: total / batches for name, total in totals.items()}

"""Controls: a sampler that does not beat them has gained nothing from mixing, or from changing the mixture."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from mixfluence.errors import DataError, RecipeError
from mixfluence.policy import UNIFORM, InitialField, Vector, Weights, softmax
from mixfluence.policy.initial import read_weights
from mixfluence.runs import TRACE_FILE, WEIGHTS_FILE, read_trace
from mixfluence.schema import PathLike
from mixfluence.strategies.base import Strategy


class TargetOnly(Strategy):
    """Draw only the training datasets named like a target.

    A control, not a method: a sampler that does not beat it has gained nothing from the other datasets. It exists
    only where a target has training rows of its own; `Static` with explicit weights draws any other part of the pool.

    Costs no training step and no memory.

    Attributes:
        targets: Names of the targets; the dev sets if empty. Targets without a training dataset of their
            name are ignored, but at least one must have one.
        init: How the drawn datasets share the probability.
    """

    title = "Target only"
    needs_dev = True
    name: Literal["target-only"] = "target-only"
    targets: list[str] = Field(default_factory=list)
    init: InitialField = UNIFORM

    def for_targets(self, dev: Collection[str]) -> Strategy:
        return self if self.targets else self.model_copy(update={"targets": list(dev)})

    def start(self, sizes: Mapping[str, int]) -> None:
        own = [name for name in sizes if name in self.targets]
        if not own:
            found = f"the targets are {', '.join(self.targets) or 'none'}, the training datasets {', '.join(sizes)}"
            raise RecipeError(f"no target has a training dataset of its own: {found}")
        logits = np.where([name in own for name in sizes], self.init.logits(sizes), -np.inf)
        if not np.isfinite(logits).any():
            raise RecipeError(f"init: gives a weight of 0 to all datasets that may be drawn: {', '.join(own)}")
        self._weights = softmax(logits)

    def weights(self, progress: float = 0.0) -> Vector:
        return self._weights


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

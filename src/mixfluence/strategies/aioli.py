"""Aioli: influences are measured during training itself, one dataset after another, without rolling back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from mixfluence.errors import RecipeError
from mixfluence.influence import Probe, Probing
from mixfluence.policy import UNIFORM, InitialField, Vector, lift, softmax
from mixfluence.policy.evidence import ROUNDING
from mixfluence.schema import Count, Fraction, Positive, Share, WholeNumber
from mixfluence.strategies.base import Strategy

if TYPE_CHECKING:
    from mixfluence.influence import Influences

NONE = np.array([], np.int64)


class Aioli(Strategy):
    """Measure influences in line (Chen et al., arXiv 2411.05735): every step of a measurement trains the model.

    Every `update_every` steps a sweep starts: each dataset in turn gets a block of `block_steps` steps, and the
    influence of a dataset is the change of the dev sets over its block. Its share of the total is added to its logit.

    Much cheaper than `InfDDS`, and less precise: a block starts from the model and the momentum that the previous one
    left, and datasets x block steps of every `update_every` steps are drawn evenly. Prefer `InfDDS` when there is time
    for probes, or when there are many datasets and few steps. Keep the data loader without workers, as is the default,
    or a block would train on batches drawn for the previous one. There is no limit on epochs, because a block must
    draw its dataset.

    Cost per sweep: 0 training steps, and (datasets + 1) dev evaluations. Memory: 0 parameter sizes.

    Attributes:
        init: The initial distribution. A dataset of weight zero is never drawn.
        update_every: Steps from the start of a sweep to that of the next, more than a sweep takes.
        warmup_steps: Steps before the first sweep.
        block_steps: Steps of a block. With fewer, more of its gain is due to the momentum of the previous block.
        step: Change of a logit per share of the total influence.
        memory: None to add up the shares of all sweeps. With a number, logits are the start plus `step` times a moving
            mean of shares that keeps this part of itself; no ratio of weights then changes by more than exp(step).
        probe: Its `metric` and `dev_batch_size` are used, nothing else of it.
        freeze_below: No sweep starts while the learning rate is below this part of its maximum.
        floor: Least probability of any dataset outside sweeps.
    """

    title = "Aioli"
    needs_dev = True
    saved = "gains", "dev_evals", "sweeps"
    name: Literal["aioli"] = "aioli"
    max_epochs: None = None
    init: InitialField = UNIFORM
    update_every: Count = 100
    warmup_steps: WholeNumber = 25
    block_steps: Count = 4
    step: Positive = 0.3
    memory: Fraction | None = None
    probe: Probe = Field(default_factory=lambda: Probe(state="inherited", dev_batch_size=256))
    freeze_below: Share = 0.1
    floor: Share = 0.0

    @property
    def probing(self) -> Probing:
        """Dev evaluations only: there are no candidates to probe."""
        return Probing(self.probe, steps=0)

    def start(self, sizes: Mapping[str, int]) -> None:
        self._names = list(sizes)
        self._start = self.init.logits(sizes)
        # A dataset of weight zero is never drawn, not even in a block.
        self._tried = np.flatnonzero(np.isfinite(self._start))
        self._gains = np.zeros(len(self._names))
        self._dev_evals: list[list[float]] = []
        self._sweeps = 0
        self.weights()  # raises an error for an impossible floor
        tried = len(self._tried)
        if tried * self.block_steps >= self.update_every:
            sweep = f"{tried * self.block_steps}, the steps of a sweep ({tried} datasets x {self.block_steps})"
            raise RecipeError(f"update_every must be above {sweep}, found {self.update_every}")

    def weights(self, progress: float = 0.0) -> Vector:
        """Return the learned distribution, or that of the current block during a sweep."""
        if not self._dev_evals:
            return self.outcome()
        weights = np.zeros(len(self._names))
        weights[self._block()] = 1.0
        return weights

    def outcome(self) -> Vector:
        """Return the learned distribution, also during a sweep."""
        return lift(softmax(self._start + self.step * self._gains), self.floor)

    def due(self, step: int, relative_rate: float) -> bool:
        since = step - self.warmup_steps
        if step == 0 or since < 0:
            return False
        if not self._dev_evals:
            return since % self.update_every == 0 and relative_rate >= self.freeze_below
        return since % self.update_every == len(self._dev_evals) * self.block_steps

    def candidates(self) -> NDArray[np.int64]:
        return NONE

    def update(self, influences: Influences) -> dict[str, Any]:
        """Record a dev evaluation; after the last block of a sweep, move the logits."""
        if not np.isfinite(influences.base).all():
            self._end_sweep()
            return {"dropped": "a dev metric is not a number"}
        self._dev_evals.append(influences.base.tolist())
        if len(self._dev_evals) <= len(self._tried):
            return {"block": self._names[self._block()]}
        measured = self._measured(influences)
        values, _ = measured.combine()
        self._learn(_shares(values))
        self._end_sweep()
        columns = zip(measured.targets, measured.on_targets().T, strict=True)
        by_target = {target: self._named(column) for target, column in columns}
        return {"influence": self._named(values), "influence_on": by_target}

    def _order(self) -> NDArray[np.int64]:
        # Every second sweep reverses the one before: effects of time alone, such as a falling loss, then cancel.
        order = np.random.default_rng(self._sweeps // 2).permutation(len(self._tried))
        return order[::-1] if self._sweeps % 2 else order

    def _block(self) -> int:
        """Return the dataset of the current block."""
        return int(self._tried[self._order()[len(self._dev_evals) - 1]])

    def _measured(self, latest: Influences) -> Influences:
        """Return what a step on each dataset does for each target, from the evaluations of a sweep."""
        evals = np.array(self._dev_evals)
        gains = latest.sign * np.diff(evals, axis=0) / self.block_steps
        by_dataset = gains[np.argsort(self._order())]
        return replace(latest, probed=self._tried, failed=NONE, base=evals[0], gains=list(by_dataset.T[:, :, None]))

    def _learn(self, shares: Vector) -> None:
        before = self._gains[self._tried]
        if self.memory is None:
            self._gains[self._tried] = before + shares
        else:
            kept = self.memory if before.any() else 0.0
            self._gains[self._tried] = kept * before + (1 - kept) * shares

    def _end_sweep(self) -> None:
        self._dev_evals = []
        self._sweeps += 1

    def _named(self, values: Vector) -> dict[str, float]:
        return {self._names[dataset]: float(value) for dataset, value in zip(self._tried, values, strict=True)}


def _shares(values: Vector) -> Vector:
    """Return the part of each value in their total, after a shift that leaves none below zero."""
    if np.ptp(values) <= ROUNDING * np.abs(values).max():
        return np.full(len(values), 1 / len(values))
    shifted = values - min(0.0, float(values.min()))
    return np.asarray(shifted / shifted.sum())

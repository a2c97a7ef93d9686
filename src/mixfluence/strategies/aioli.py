"""Aioli: datasets are tried out one after another in the training itself, and nothing is taken back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixfluence.errors import RecipeError
from mixfluence.influence import Influences, Probe
from mixfluence.policy import UNIFORM, Initial, Vector, lift, softmax
from mixfluence.policy.evidence import ROUNDING
from mixfluence.strategies.base import Strategy, refuse_below, refuse_not_positive

NONE = np.array([], np.int64)


class Aioli(Strategy):
    """Measure influences in line (Chen et al., arXiv 2411.05735): every step of a measurement trains the model.

    Every `update_every` steps comes a sweep: each dataset in turn gets a block of `block_steps` steps. The dev sets
    are looked at before the first block and after each; a block's gain is the change from one look to the next, so
    nothing is rolled back. Where blocks draw other datasets too, a small linear system undoes that. Each dataset's
    share of the total influence is added to its logit.

    Much cheaper than `InfDDS`, and blunter: a block starts from the model and the momentum that the one before it
    left, and datasets x block steps of every `update_every` steps are drawn evenly, whatever was learned. Prefer
    `InfDDS` when there is time for probes, or when there are many datasets and few steps.

    New weights act only on batches not yet drawn: leave the loader without workers, as is the default, or a block
    would train on batches of the one before it. There is no limit on epochs, because a block must draw its dataset.

    Cost per sweep: no training step, and (datasets + 1) looks at every dev batch. Memory: 0 parameter sizes.

    Args:
        init: Where the logits start; uniform if None.
        update_every: Steps from the start of a sweep to that of the next.
        warmup_steps: Steps before the first sweep.
        block_steps: Steps of a block. The fewer, the more of its gain is due to the momentum of the block before.
        focus: Probability of a block's dataset in its block; the others share the rest evenly. A batch holds one
            dataset, so below 1 it is left to chance how often a block draws its own, and measurements are noisier.
        step: Change of a logit per share of the total influence.
        memory: None to add up the shares of all sweeps. With a number, logits are the start plus `step` times a moving
            mean of shares that keeps this part of itself; no ratio of weights then changes by more than exp(step).
        probe: Its `metric`, `dev_batch_size` and `aggregate` say how a look is done; nothing else of it is used.
        freeze_below: No sweep starts while the learning rate is below this part of its maximum.
        floor: Least probability of any dataset outside sweeps.
    """

    def __init__(
        self,
        init: Initial | None = None,
        *,
        update_every: int = 100,
        warmup_steps: int = 25,
        block_steps: int = 4,
        focus: float = 1.0,
        step: float = 0.3,
        memory: float | None = None,
        probe: Probe | None = None,
        freeze_below: float = 0.1,
        floor: float = 0.0,
    ) -> None:
        refuse_below(warmup_steps=(warmup_steps, 0), block_steps=(block_steps, 1))
        refuse_not_positive(step=step)
        if memory is not None and not 0 <= memory < 1:
            raise RecipeError(f"memory must be at least 0 and below 1, found {memory}")
        self.init = init or UNIFORM
        self.update_every = update_every
        self.warmup_steps = warmup_steps
        self.block_steps = block_steps
        self.focus = focus
        self.step = step
        self.memory = memory
        self.probe: Probe = probe or Probe()
        self.freeze_below = freeze_below
        self.floor = floor

    def start(self, sizes: Mapping[str, int]) -> None:
        """Set the logits to where they start, and refuse sweeps that cannot be done."""
        self._names = list(sizes)
        self._start = self.init.logits(sizes)
        # A dataset with a weight of zero is never drawn, in a block neither.
        self._tried = np.flatnonzero(np.isfinite(self._start))
        self._gains = np.zeros(len(self._names))
        self._looks: list[list[float]] = []
        self._sweeps = 0
        self._refuse_impossible_sweeps()
        self.weights()  # a floor that does not fit is refused before anything is trained

    def weights(self, progress: float = 0.0) -> Vector:
        """Return the learned distribution, or in a sweep that of the block."""
        if not self._looks:
            return self.outcome()
        weights = np.zeros(len(self._names))
        weights[self._tried] = self._mixtures()[len(self._looks) - 1]
        return weights

    def outcome(self) -> Vector:
        """Return the learned distribution, also in the middle of a sweep."""
        return lift(softmax(self._start + self.step * self._gains), self.floor)

    def due(self, step: int, relative_rate: float) -> bool:
        """Return whether a sweep is to start, or a block of it has ended."""
        since = step - self.warmup_steps
        if step == 0 or since < 0:
            return False
        if not self._looks:
            return since % self.update_every == 0 and relative_rate >= self.freeze_below
        return since % self.update_every == len(self._looks) * self.block_steps

    def candidates(self) -> NDArray[np.int64]:
        """Return none: only the dev sets are looked at."""
        return NONE

    def update(self, influences: Influences) -> dict[str, Any]:
        """Take a look at the dev sets; after the last block of a sweep, move the logits."""
        if not np.isfinite(influences.base).all():
            self._end_sweep()
            return {"dropped": "a dev metric is not a number"}
        self._looks.append(influences.base.tolist())
        if len(self._looks) <= len(self._tried):
            return {"block": self._names[self._tried[self._order()[len(self._looks) - 1]]]}
        measured = self._measured(influences.targets)
        values, _ = measured.combine(self.probe.aggregate)
        self._learn(_shares(values))
        self._end_sweep()
        return {
            "influence": self._named(values),
            "influence_on": {
                target: self._named(column)
                for target, column in zip(measured.targets, measured.on_targets().T, strict=True)
            },
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned, and how far the sweep has come."""
        return {"gains": self._gains.tolist(), "looks": list(self._looks), "sweeps": self._sweeps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._gains = np.array(state["gains"])
        self._looks = list(state["looks"])
        self._sweeps = state["sweeps"]

    def _order(self) -> NDArray[np.int64]:
        """Return the order of a sweep's blocks: of every two, one is the other backwards.

        What only depends on when a block comes, as loss that falls ever more slowly, so evens out.
        """
        order = np.random.default_rng(self._sweeps // 2).permutation(len(self._tried))
        return order[::-1] if self._sweeps % 2 else order

    def _mixtures(self) -> Vector:
        """Return the probability of each tried dataset in each block of the sweep, one row per block."""
        one_hot = np.eye(len(self._tried))[self._order()]
        if len(self._tried) == 1:
            return one_hot
        return self.focus * one_hot + (1 - self.focus) / (len(self._tried) - 1) * (1 - one_hot)

    def _measured(self, targets: list[str]) -> Influences:
        """Return what a step on each tried dataset does for each target, from the looks of a sweep."""
        metric = self.probe.metric
        sign = 1 if not isinstance(metric, str) and metric.higher_is_better else -1
        looks = np.array(self._looks)
        gains = sign * np.diff(looks, axis=0) / self.block_steps
        on_targets = np.linalg.solve(self._mixtures(), gains)
        return Influences(self._tried, NONE, targets, looks[0], list(on_targets.T[:, :, None]))

    def _learn(self, shares: Vector) -> None:
        before = self._gains[self._tried]
        if self.memory is None:
            self._gains[self._tried] = before + shares
        else:
            kept = self.memory if before.any() else 0.0
            self._gains[self._tried] = kept * before + (1 - kept) * shares

    def _end_sweep(self) -> None:
        self._looks = []
        self._sweeps += 1

    def _named(self, values: Vector) -> dict[str, float]:
        return {self._names[dataset]: float(value) for dataset, value in zip(self._tried, values, strict=True)}

    def _refuse_impossible_sweeps(self) -> None:
        tried = len(self._tried)
        if tried * self.block_steps >= self.update_every:
            raise RecipeError(
                f"update_every must be above {tried * self.block_steps}, the steps of a sweep "
                f"({tried} datasets x {self.block_steps}), found {self.update_every}"
            )
        if tried > 1 and not 1 / tried < self.focus <= 1:
            raise RecipeError(
                f"focus must be above {1 / tried:.3g}, an even share of {tried} datasets, and at most 1, "
                f"found {self.focus}"
            )


def _shares(values: Vector) -> Vector:
    """Return the part of each value in their total, after a shift that leaves none below zero."""
    if np.ptp(values) <= ROUNDING * np.abs(values).max():
        return np.full(len(values), 1 / len(values))
    shifted = values - min(0.0, float(values.min()))
    return np.asarray(shifted / shifted.sum())

"""Turn measurements into rewards, weighted by how far they exceed their noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixfluence.policy.bounds import Vector, divided

# Relative differences below this are rounding errors.
ROUNDING = 1e-12
# Standardised contrasts are clipped to this many standard deviations.
MOST_DEVIATIONS = 2.0


@dataclass(frozen=True)
class Reward:
    """The measurements of one round, relative to their mean.

    Arrays have one value per measured dataset, or one row per dataset and one column per target.

    Attributes:
        probed: Which datasets were measured, as positions in the mixture.
        contrasts: Each one's value minus their mean.
        spread: Standard deviation of the contrasts, of each column; 0 if all values are equal.
        trust: The share of each contrast that dev noise does not explain.
        gate: How consistent the rounds of the run have been so far, from 0 (not at all) to 1 (beyond doubt).
    """

    probed: NDArray[np.int64]
    contrasts: Vector
    spread: Vector
    trust: Vector
    gate: float = 1.0

    def standardised(self) -> Vector:
        """Return the contrasts in units of their spread, bounded; zero if all values are equal."""
        return np.clip(divided(self.contrasts, self.spread), -MOST_DEVIATIONS, MOST_DEVIATIONS)


class Evidence:
    """Turns measured values into rewards, weighted by their signal-to-noise ratio.

    The dev queries are a sample: with `shrink`, a contrast is trusted by the share of the spread that standard errors
    do not explain (empirical Bayes). The training batches of a probe are a sample too, which only the agreement of
    successive rounds shows: with `gate`, the gate opens as their correlation, over the whole run, exceeds chance, and
    is fully open at twice its standard deviation. It starts half open, and this prior counts as much as one comparison
    of two rounds: without it, a run of few rounds stays closed by chance. While the gate is closed, probabilities stay
    at the start.
    """

    def __init__(self, *, shrink: bool = True, gate: bool = True) -> None:
        self.shrink = shrink
        self.gate = gate
        self._last: dict[int, list[float]] = {}
        self._agreed, self._comparisons = 0.0, 0.0

    def judge(self, probed: NDArray[np.int64], values: Vector, errors: Vector) -> Reward:
        """Return the reward of a round; `errors` are the standard errors of each value's difference from the mean.

        Values and errors have one entry per measured dataset, or a row per dataset and a column per target. Columns
        are judged one by one and share the gate.
        """
        contrasts, spread = _contrasts(values)
        if spread.any():
            scaled = divided(contrasts, spread).reshape(len(probed), -1)
            self._compare_with_last(dict(zip(probed.tolist(), scaled.tolist(), strict=True)))
        trust = np.ones_like(contrasts)
        if self.shrink:
            # The variance of the contrasts that their errors do not explain, in each column.
            signal = np.maximum(0.0, np.mean(contrasts**2, axis=0) - np.mean(errors**2, axis=0))
            trust = np.divide(signal, signal + errors**2, out=np.zeros_like(errors), where=signal > 0)
        return Reward(probed, contrasts, spread, np.where(spread > 0, trust, 0.0), self._openness())

    def state_dict(self) -> dict[str, Any]:
        """Return the last round and how well rounds have agreed, as JSON values."""
        return {"last": list(self._last.items()), "agreed": self._agreed, "comparisons": self._comparisons}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._last = {int(dataset): values for dataset, values in state["last"]}
        self._agreed, self._comparisons = state["agreed"], state["comparisons"]

    def _openness(self) -> float:
        if not self.gate:
            return 1.0
        if not self._comparisons:
            return 0.5
        # The correlation of n unrelated values has the variance 1 / (n - 1), so this is the sum over rounds in
        # standard deviations.
        return min(1.0, max(0.0, self._agreed / math.sqrt(self._comparisons) / 2))

    def _compare_with_last(self, now: dict[int, list[float]]) -> None:
        both = sorted(now.keys() & self._last.keys())
        before, after = (np.array([values[dataset] for dataset in both]) for values in (self._last, now))
        self._last.update(now)
        if not self._comparisons:
            # The prior: a comparison that was one standard deviation above chance.
            self._comparisons = float((len(now) - 1) * len(next(iter(now.values()))))
            self._agreed = math.sqrt(self._comparisons)
        if len(both) < 2:
            return
        for first, second in zip(before.T, after.T, strict=True):
            if first.std() and second.std():
                self._agreed += (len(both) - 1) * float(np.corrcoef(first, second)[0, 1])
                self._comparisons += len(both) - 1


def _contrasts(values: Vector) -> tuple[Vector, Vector]:
    """Return each value minus their mean, and the standard deviation, both 0 where only rounding differs."""
    contrasts = values - values.mean(axis=0)
    spread = contrasts.std(axis=0)
    spread = np.where(spread <= ROUNDING * np.abs(values).max(axis=0, initial=0.0), 0.0, spread)
    return np.where(spread > 0, contrasts, 0.0), spread

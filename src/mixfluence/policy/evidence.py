"""How much of the differences between datasets is signal: measurements become rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixfluence.policy.bounds import Vector

# Differences below this share of the values are rounding.
ROUNDING = 1e-12
# No single measurement counts for more standard deviations than this.
MOST_DEVIATIONS = 2.0


@dataclass(frozen=True)
class Reward:
    """What one round says of the datasets it measured, without what they have in common.

    Attributes:
        probed: Which datasets were measured, as positions in the mixture.
        contrasts: Each one's value minus their mean, shrunk by as much as noise explains.
        spread: Standard deviation of the contrasts before they were shrunk; 0 if all values are equal.
    """

    probed: NDArray[np.int64]
    contrasts: Vector
    spread: float

    def standardised(self) -> Vector:
        """Return the contrasts in units of their spread, bounded; zero if all values are equal."""
        if not self.spread:
            return np.zeros_like(self.contrasts)
        return np.clip(self.contrasts / self.spread, -MOST_DEVIATIONS, MOST_DEVIATIONS)


class Evidence:
    """Turns measured values into rewards, trusting them as far as they stand out from their errors.

    Two kinds of noise are told apart. The dev queries are a sample: the standard errors say how much of the
    spread that explains, and each contrast is shrunk to its posterior mean (empirical Bayes). The batches a
    dataset was judged by are a sample too, which no standard error over queries shows; how well a round agrees
    with the one before does.

    Args:
        shrink: Shrink contrasts by their standard errors.
        gate: Do no harm: scale contrasts by the correlation between successive rounds, down to nothing
            while rounds do not agree.
        memory: Share of the agreement's running mean that a new round leaves in place.
    """

    def __init__(self, *, shrink: bool = True, gate: bool = True, memory: float = 0.7) -> None:
        self.shrink = shrink
        self.gate = gate
        self._memory = memory
        self._last: dict[int, float] = {}
        self.agreement: float | None = None

    def judge(self, probed: NDArray[np.int64], values: Vector, errors: Vector) -> Reward:
        """Return the reward of one round of measurements.

        Args:
            probed: Which datasets were measured.
            values: What was measured, larger is better.
            errors: Standard error of each value's difference from the mean of all.
        """
        contrasts = values - values.mean()
        spread = float(contrasts.std())
        if spread <= ROUNDING * np.abs(values).max(initial=0.0):
            return Reward(probed, np.zeros_like(values), 0.0)
        self._compare_with_last(dict(zip(probed.tolist(), (contrasts / spread).tolist(), strict=True)))
        if self.shrink:
            contrasts = contrasts * _trust(contrasts, errors)
        if self.gate and self.agreement is not None:
            contrasts = contrasts * max(0.0, self.agreement)
        return Reward(probed, contrasts, spread)

    def state_dict(self) -> dict[str, Any]:
        """Return the last round and the running agreement, as JSON values."""
        return {"last": list(self._last.items()), "agreement": self.agreement}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._last = {int(dataset): value for dataset, value in state["last"]}
        self.agreement = state["agreement"]

    def _compare_with_last(self, now: dict[int, float]) -> None:
        both = sorted(now.keys() & self._last.keys())
        before, after = (np.array([values[dataset] for dataset in both]) for values in (self._last, now))
        self._last.update(now)
        if len(both) < 2 or not (before.std() and after.std()):
            return
        correlation = float(np.corrcoef(before, after)[0, 1])
        known = correlation if self.agreement is None else self.agreement
        self.agreement = self._memory * known + (1 - self._memory) * correlation


def _trust(contrasts: Vector, errors: Vector) -> Vector:
    """Return the share of each contrast that is signal: var(signal) / (var(signal) + error^2)."""
    noise = errors**2
    signal = max(0.0, float(np.mean(contrasts**2) - noise.mean()))
    return signal / (signal + noise) if signal else np.zeros_like(contrasts)

"""What a mixture must keep: probabilities above a floor and below limits, and dev sets that must not get worse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixfluence.errors import RecipeError

Vector = NDArray[np.float64]
# Share of its weight that a measured harm keeps when the next one is measured.
MEMORY = 0.8
# Largest multiplier: no guard changes a logit by more, relative to their mean. If no mixture spares a guard, this is
# how far the mixture moves towards the datasets that harm it least.
MOST_PUSH = 10.0
_SWEEPS, _HALVINGS, _SETTLED = 50, 60, 1e-9


def softmax(logits: Vector) -> Vector:
    """Turn logits into probabilities."""
    scaled = np.exp(logits - logits.max())
    return np.asarray(scaled / scaled.sum())


def divided(numerator: Vector, denominator: Vector) -> Vector:
    """Return quotients, zero where the denominator is zero."""
    return np.asarray(np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0))


def lift(probabilities: Vector, floor: float) -> Vector:
    """Mix in the uniform distribution just enough that no probability is below `floor`."""
    share = floor * len(probabilities)
    if not 0 <= share <= 1:
        limit = 1 / len(probabilities)
        raise RecipeError(f"a floor of {floor} for {len(probabilities)} datasets must lie between 0 and {limit:.3g}")
    return (1 - share) * probabilities + floor


def cap(probabilities: Vector, limits: Vector) -> Vector:
    """Cut every probability to its limit and give the excess to the others (water-filling).

    The excess goes to the datasets below their limit in proportion to their probability, so their ratios do not
    change. Limits that sum to less than one are returned rescaled; if all limits are zero, the probabilities are
    returned unchanged.
    """
    capped = np.zeros(len(probabilities), dtype=bool)
    shares = probabilities
    while (over := ~capped & (shares > limits)).any():
        capped |= over
        free = np.where(capped, 0.0, probabilities)
        rest = max(0.0, 1.0 - limits[capped].sum())
        scale = rest / free.sum() if free.any() else 0.0
        shares = np.where(capped, limits, free * scale)
    return np.asarray(shares / shares.sum() if shares.any() else probabilities)


class Guards:
    """Keeps a mixture from harming dev sets that are not targets.

    Each guard may get worse by a share of its metric at the start of the run. With G[i,g] the running mean of the
    influence of dataset i on guard g, and `room` what is left of that share, a mixture p must have

        sum_i p_i G[i,g] >= -room_g / rounds

    where `rounds` is how many probes follow each other until the next update. A guard with enough room does not act.

    Attributes:
        pushes: Multiplier of each guard in the last mixture; 0 for one that did not act.
    """

    def __init__(self, allowed: Mapping[str, float], datasets: int) -> None:
        self._allowed = np.array(list(allowed.values()))
        self._names = list(allowed)
        self._start: Vector | None = None
        self._room = np.zeros(len(allowed))
        self._worse = np.zeros(len(allowed))
        self._total, self._weight = np.zeros((datasets, len(allowed))), np.zeros((datasets, 1))
        self.pushes = np.zeros(len(allowed))

    def observe(self, probed: NDArray[np.int64], metrics: Vector, gains: Vector, sign: int) -> None:
        """Record a round: the metric on each guard before it, and the influence of each probed dataset on each guard.

        The first metrics are those of the start.
        """
        if not np.isfinite(metrics).all():
            return
        if self._start is None:
            self._start = metrics.copy()
        loss = sign * (self._start - metrics)
        self._room = np.maximum(0.0, self._allowed * np.abs(self._start) - loss)
        self._worse = divided(loss, np.abs(self._start))
        self._total[probed] = MEMORY * self._total[probed] + gains
        self._weight[probed] = MEMORY * self._weight[probed] + 1.0

    def hold(self, logits: Vector, solve: Callable[[Vector], Vector], *, rounds: float) -> Vector:
        """Return the logits of the best mixture that spares the guards: `logits` themselves if they do.

        `solve` returns the logits that the rule finds if a vector is added to its start, which is what the multipliers
        of linear constraints do to a problem that is pulled to a start by a KL divergence. A larger multiplier of one
        guard, with the others fixed, never helps it less. So each is found by bisection, in turn until none changes.
        """
        influence = divided(self._total, self._weight)
        scale = np.abs(influence - influence.mean(axis=0)).max(axis=0)
        influence, room = divided(influence, scale), divided(self._room, rounds * scale)
        pushes = np.zeros(len(scale))

        def found(pushes: Vector) -> Vector:
            return solve(influence @ pushes) if pushes.any() else logits

        def spared(guard: int, push: float) -> bool:
            pushes[guard] = push
            return bool(softmax(found(pushes)) @ influence[:, guard] >= -room[guard])

        for _ in range(_SWEEPS):
            before = pushes.copy()
            for guard in np.flatnonzero(scale).tolist():
                pushes[guard] = _least(partial(spared, guard))
            if np.abs(pushes - before).max() < _SETTLED or len(pushes) == 1:
                break
        self.pushes = pushes
        return found(pushes)

    def facts(self) -> dict[str, dict[str, float]]:
        """Return for the trace how much worse each guard is than at the start, as a share, and its multiplier."""
        values = zip(self._names, self._worse.tolist(), self.pushes.tolist(), strict=True)
        return {name: {"worse": worse, "push": push} for name, worse, push in values}

    def state_dict(self) -> dict[str, Any]:
        """Return the metrics of the start and the influences, as JSON values."""
        start = None if self._start is None else self._start.tolist()
        return {"start": start, "total": self._total.tolist(), "weight": self._weight.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._start = None if state["start"] is None else np.array(state["start"])
        self._total[:], self._weight[:] = state["total"], state["weight"]


def _least(enough: Callable[[float], bool]) -> float:
    """Return the least push that is enough, or the largest one if none is."""
    if enough(0.0):
        return 0.0
    low, high = 0.0, MOST_PUSH
    if not enough(high):
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
        if high - low < _SETTLED / 10:
            break
    return high

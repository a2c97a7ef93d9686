"""A rule for several targets: the mixture that helps each of them in proportion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from mixfluence.policy.bounds import Vector
from mixfluence.policy.evidence import Reward
from mixfluence.policy.rules import REACH, START_WEIGHT, Rule
from mixfluence.schema import Fraction, Positive

# Added to the help of every target, in standard deviations: bounds the weight of one that is hardly helped.
_LEAST_HELP = 0.05
# Below `_FULL_STEPS` rounding hides what a step gains, and Newton's method converges without a line search.
_NEWTON_STEPS, _FULL_STEPS, _SOLVED = 200, 1e-8, 1e-20


class Fair(Rule):
    """Help every target in proportion, whatever the scale of its loss (Nash bargaining).

    The probabilities maximise mean_t log(eps + sum_i p_i A[i,t]) - (`pull` / gate) KL(p || start). A[i,t] is the
    running mean of the standardised influence of dataset i on target t where that is positive, else 0. A target that
    no dataset helps has no vote; if each target is helped by its own dataset alone, these get equal probabilities.
    A single target has nothing to share: the rule is then `Anchored`, because the problem above would put nearly all
    weight on the leader of the moment. Prefer `Anchored`, which sees the mean over targets only, when several targets
    need not be served alike.

    A round measures contrasts between the probed datasets. Estimates of the others are kept and lose weight.

    Attributes:
        pull: Strength of the pull towards the start; a smaller one follows the influences further.
        memory: Share of its weight that a round keeps when a fully trusted one follows.
    """

    name: Literal["fair"] = "fair"
    by_target = True
    pull: Positive = 0.15
    memory: Fraction = 0.9

    def start(self, logits: Vector) -> None:
        """Remember the initial logits and forget all rounds."""
        self._start = logits.copy()
        self._state = {}

    def move(self, logits: Vector, reward: Reward) -> Vector:
        """Update the matrix of means and solve for the mixture."""
        if not reward.trust.any():
            return logits
        shape = (len(logits), reward.contrasts.shape[1])
        total, weight = (self._state.setdefault(name, np.zeros(shape)) for name in ("total", "weight"))
        # A round determines contrasts up to a constant and a scale: the measured datasets keep their mean among all
        # and, if they are a subset, their expected spread. Otherwise a few similar datasets would seem far apart.
        known = (total / (START_WEIGHT + weight))[reward.probed]
        unknown = (START_WEIGHT / (START_WEIGHT + weight))[reward.probed]
        whole = len(reward.probed) == np.isfinite(self._start).sum()
        spread = 1.0 if whole else np.sqrt(known.var(axis=0) + unknown.mean(axis=0))
        values = spread * reward.standardised() + known.mean(axis=0)
        learned = np.tile(reward.trust.mean(axis=0), (len(logits), 1))
        learned[reward.probed] = reward.trust
        # In place: these arrays are the state.
        for kept in (total, weight):
            kept *= self.memory**learned
        total[reward.probed] += reward.trust * values
        weight[reward.probed] += reward.trust
        return self._solve(self._start, reward.gate)

    def shifted(self, logits: Vector, shift: Vector, gate: float) -> Vector:
        """Solve again with `shift` added to the start."""
        return self._solve(self._start + shift, gate) if self._state else np.asarray(logits + shift)

    def _solve(self, start: Vector, gate: float) -> Vector:
        if not gate:
            return np.array(start)
        means = self._state["total"] / (START_WEIGHT + self._state["weight"])
        if means.shape[1] == 1:
            return np.asarray(start + REACH * gate * means[:, 0])
        return fair_mixture(start, np.maximum(means, 0.0), self.pull / gate)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the matrix."""
        self._state = {name: np.array(values) for name, values in state.items()}


def fair_mixture(start: Vector, helps: Vector, pull: float) -> Vector:
    """Return the logarithms of the p that maximise mean_t log(eps + sum_i p_i A[i,t]) - pull KL(p || start).

    Solved by Newton's method in the dual, which has one variable per target: with the multipliers w, the mixture is
    p_i ~ start_i exp((A w)_i / pull), and w minimises the strictly convex function `dual` below.

    Args:
        start: Logarithms of the initial probabilities, up to a constant.
        helps: The matrix A of datasets x targets, not negative.
        pull: Strength of the pull towards the start.
    """
    targets = helps.shape[1]

    def mixture(weights: Vector) -> tuple[Vector, float]:
        logits = start + helps @ weights / pull
        total = np.logaddexp.reduce(logits)
        return logits - total, float(total)

    def dual(weights: Vector) -> float:
        return float(pull * mixture(weights)[1] - np.log(weights).mean() + _LEAST_HELP * weights.sum())

    weights = np.full(targets, 1.0 / (targets * (_LEAST_HELP + helps.max(initial=0.0))))
    for _ in range(_NEWTON_STEPS):
        logits, _ = mixture(weights)
        p = np.exp(logits)
        mean = p @ helps
        gradient = mean - 1 / (targets * weights) + _LEAST_HELP
        hessian = (helps.T * p) @ helps / pull - np.outer(mean, mean) / pull + np.diag(1 / (targets * weights**2))
        step = np.linalg.solve(hessian, gradient)
        decrease = float(gradient @ step)
        if decrease < _SOLVED:
            break
        size = 1.0
        while (weights <= size * step).any() or (
            decrease > _FULL_STEPS and dual(weights - size * step) > dual(weights) - 0.1 * size * decrease
        ):
            size /= 2
        weights = weights - size * step
    return mixture(weights)[0]

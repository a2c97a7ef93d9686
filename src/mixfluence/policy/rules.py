"""Update rules: how rewards move logits.

`PolicyGradient` and `Anchored` change only the logits of the datasets that were measured; `Fair` solves for the
mixture that helps several targets in proportion. Rewards are relative to their mean, so adding a constant to every
influence changes nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from mixfluence.policy.bounds import Vector, softmax
from mixfluence.policy.evidence import Reward
from mixfluence.schema import Fraction, Positive, Section

# Weight of the start in a running mean of rounds, in fully trusted rounds.
START_WEIGHT = 0.25
# Change of a logit per standard deviation of mean influence.
REACH = 2.0
# Added to the help of every target, in standard deviations: bounds the weight of one that is hardly helped.
_LEAST_HELP = 0.05
# Below `_FULL_STEPS` rounding hides what a step gains, and Newton's method converges without a line search.
_NEWTON_STEPS, _FULL_STEPS, _SOLVED = 200, 1e-8, 1e-20


class Rule(Section):
    """Moves logits by rewards. Add one by a subclass and a line in `RULES`."""

    # Whether rewards have a column per target; otherwise targets are combined into one number before.
    by_target: ClassVar[bool] = False
    name: str = ""

    def start(self, logits: Vector) -> None:
        """Reset the rule to the initial logits."""
        self._start = logits.copy()
        self._state: dict[str, Vector] = {}

    @abstractmethod
    def move(self, logits: Vector, reward: Reward) -> Vector:
        """Return the logits after a round of measurements."""

    def shifted(self, logits: Vector, shift: Vector, gate: float) -> Vector:
        """Return what `move` would have returned, instead of `logits`, had `shift` been added to the start."""
        return np.asarray(logits + shift)

    def state_dict(self) -> dict[str, list[float]]:
        """Return the state of the rule as JSON values."""
        return {name: values.tolist() for name, values in self._state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; called after `start`."""
        self._state.update({name: np.array(values) for name, values in state.items()})


class PolicyGradient(Rule):
    """The paper's rule: ascend sum_i P(i|S) I_i grad log P(i|S).

    The gradient of dataset k is P(k|S) (I_k - sum_j P(j|S) I_j). It vanishes with P(k|S), and its only fixed points
    are single datasets. Prefer `Anchored` unless you reproduce the paper.

    Attributes:
        step: Step size. The paper gives none; 0.02 with Adam suits its 139 updates, a short run needs more.
        betas: Decay of the two moments of Adam, whose step does not depend on the scale of influences and hardly on
            their trust.
    """

    name: Literal["gradient"] = "gradient"
    step: Positive = 0.02
    betas: Annotated[list[Fraction], Field(min_length=2, max_length=2, default=[0.9, 0.999])]

    def start(self, logits: Vector) -> None:
        super().start(logits)
        self._adam = Adam(len(logits), self.betas)
        self._state = self._adam.state

    def move(self, logits: Vector, reward: Reward) -> Vector:
        believed = reward.gate * reward.trust * reward.contrasts
        if not believed.any():
            return logits
        shares = softmax(logits[reward.probed])
        gradient = shares * (believed - shares @ believed)
        moved = logits.copy()
        moved[reward.probed] += self.step * self._adam.direction(gradient, reward.probed)
        return moved


class Anchored(Rule):
    """Keep the logits at the start plus a multiple of the running mean of standardised influence.

    A round counts by its trust, so a noisy one changes little. While the gate is closed the logits stay at the start,
    and they never move further than 2 x `reach` from it.

    Attributes:
        reach: Change of a logit per standard deviation of mean influence.
        memory: Share of its weight that a round keeps when a fully trusted one follows.
    """

    name: Literal["anchored"] = "anchored"
    reach: Positive = REACH
    memory: Fraction = 0.9

    def start(self, logits: Vector) -> None:
        super().start(logits)
        self._state = {"total": np.zeros_like(logits), "weight": np.zeros_like(logits)}

    def move(self, logits: Vector, reward: Reward) -> Vector:
        if not reward.trust.any():
            return logits
        probed, total, weight = reward.probed, *self._state.values()
        # Earlier rounds lose weight by the trust of this one, so that noisy rounds do not erase them.
        kept = self.memory**reward.trust
        total[probed] = kept * total[probed] + reward.trust * reward.standardised()
        weight[probed] = kept * weight[probed] + reward.trust
        moved = logits.copy()
        mean = total[probed] / (START_WEIGHT + weight[probed])
        moved[probed] = self._start[probed] + self.reach * reward.gate * mean
        return moved


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


class Adam:
    """Adam for a few numbers, of which only some are measured at a time; the others keep their moments and counts."""

    _epsilon = 1e-12

    def __init__(self, size: int, betas: Sequence[float] = (0.9, 0.999)) -> None:
        self._decay, self._decay_squares = betas
        self.state = {name: np.zeros(size) for name in ("count", "mean", "square")}

    def direction(self, gradient: Vector, measured: NDArray[np.int64]) -> Vector:
        """Take the gradient of the measured numbers; return how far each should move, in steps."""
        count, mean, square = self.state.values()
        count[measured] += 1
        mean[measured] = self._decay * mean[measured] + (1 - self._decay) * gradient
        square[measured] = self._decay_squares * square[measured] + (1 - self._decay_squares) * gradient**2
        unbiased_mean = mean[measured] / (1 - self._decay ** count[measured])
        unbiased_square = square[measured] / (1 - self._decay_squares ** count[measured])
        return np.asarray(unbiased_mean / (np.sqrt(unbiased_square) + self._epsilon))

    def state_dict(self) -> dict[str, list[float]]:
        return {name: values.tolist() for name, values in self.state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, values in self.state.items():
            values[:] = state[name]


# Names as recipes spell them.
RULES: dict[str, type[Rule]] = {"gradient": PolicyGradient, "anchored": Anchored, "fair": Fair}

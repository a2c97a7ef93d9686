"""Update rules: how rewards move logits.

The rules of this module change only the logits of the datasets that were measured; `fair` has one for several targets.
Rewards are relative to their mean, so adding a constant to every influence changes nothing.
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


class Rule(Section):
    """Moves logits by rewards. Add one by a subclass and a line in `RULES`, in `policy/__init__.py`."""

    # Whether rewards have a column per target; otherwise targets are combined into one number before.
    by_target: ClassVar[bool] = False
    name: str = ""

    def start(self, logits: Vector) -> None:
        """Reset the rule to the initial logits."""
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
        for name in self._state:
            self._state[name][:] = state[name]


class PolicyGradient(Rule):
    """The paper's rule: ascend sum_i P(i|S) I_i grad log P(i|S).

    The gradient of dataset k is P(k|S) (I_k - sum_j P(j|S) I_j). It vanishes with P(k|S), and its only fixed points
    are single datasets. Prefer `Anchored` unless you reproduce the paper.

    Attributes:
        step: Step size. The paper gives none; 0.02 with Adam suits its 139 updates, a short run needs more.
        optimizer: Adam, whose step does not depend on the scale of influences and hardly on their trust, or plain
            gradient ascent.
        betas: Decay of Adam's two moments.
    """

    name: Literal["gradient"] = "gradient"
    step: Positive = 0.02
    optimizer: Literal["adam", "sgd"] = "adam"
    betas: Annotated[list[Fraction], Field(min_length=2, max_length=2, default=[0.9, 0.999])]

    def start(self, logits: Vector) -> None:
        self._adam = Adam(len(logits), self.betas)
        self._state = self._adam.state

    def move(self, logits: Vector, reward: Reward) -> Vector:
        believed = reward.gate * reward.trust * reward.contrasts
        if not believed.any():
            return logits
        shares = softmax(logits[reward.probed])
        gradient = shares * (believed - shares @ believed)
        moved = logits.copy()
        if self.optimizer == "adam":
            gradient = self._adam.direction(gradient, reward.probed)
        moved[reward.probed] += self.step * gradient
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
        self._start = logits.copy()
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
        """Return counts and moments as JSON values."""
        return {name: values.tolist() for name, values in self.state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name, values in self.state.items():
            values[:] = state[name]

"""Rewards move logits: the paper's gradient, and three ways that do not end on a single dataset.

A rule changes only the logits of the datasets that were measured. Rewards are free of what all datasets
have in common, so adding a constant to every influence changes nothing, and equal influences change nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from mixfluence.errors import RecipeError
from mixfluence.policy.adam import Adam
from mixfluence.policy.bounds import Vector, softmax
from mixfluence.policy.evidence import Reward


class Rule(ABC):
    """Moves logits by rewards."""

    def start(self, logits: Vector) -> None:
        """Take the starting logits, before the first move."""
        self._state: dict[str, Vector] = {}

    @abstractmethod
    def move(self, logits: Vector, reward: Reward) -> Vector:
        """Return the logits after a round of measurements."""

    def state_dict(self) -> dict[str, list[float]]:
        """Return what a resumed run needs, as JSON values."""
        return {name: values.tolist() for name, values in self._state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; called after `start`."""
        for name in self._state:
            self._state[name][:] = state[name]


class PolicyGradient(Rule):
    """The paper's rule: ascend sum_i P(i|S) I_i grad log P(i|S).

    The gradient of dataset k is P(k|S) (I_k - sum_j P(j|S) I_j): it vanishes with P(k|S), and its only fixed points
    are single datasets. Prefer `Anchored` unless the paper is to be reproduced.

    Args:
        step: Step size. The paper gives none; 0.02 with Adam suits its 139 updates, a short run needs more.
        optimizer: Adam, whose step does not depend on the scale of influences and hardly on their trust, or plain
            gradient ascent.
    """

    def __init__(self, step: float = 0.02, optimizer: Literal["adam", "sgd"] = "adam") -> None:
        self.step = _positive("step", step)
        self.optimizer = optimizer

    def start(self, logits: Vector) -> None:
        """Forget all moments."""
        self._adam = Adam(len(logits))

    def move(self, logits: Vector, reward: Reward) -> Vector:
        """Take one step uphill."""
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

    def state_dict(self) -> dict[str, list[float]]:
        """Return Adam's moments."""
        return self._adam.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._adam.load_state_dict(state)


class Mirror(Rule):
    """Add the standardised influence to the logit: an exponentiated-gradient step of fixed size.

    Rewards add up without bound, so a dataset that is a little better every time ends with all the
    probability. Faster than `Anchored` to leave a bad start, and easier to fool.

    Args:
        step: Change of a logit per standard deviation of influence.
    """

    def __init__(self, step: float = 0.3) -> None:
        self.step = _positive("step", step)

    def move(self, logits: Vector, reward: Reward) -> Vector:
        """Add the rewards."""
        moved = logits.copy()
        moved[reward.probed] += self.step * reward.gate * reward.trust * reward.standardised()
        return moved


class Matching(Rule):
    """Move the probabilities towards the shares of the positive rewards, as MultiDDS does with its own.

    Rewards are taken relative to their mean: with raw ones, what all datasets have in common would make the
    target uniform. The measured datasets keep the probability they have together.

    Args:
        step: Part of the way to go at each update, between 0 and 1.
    """

    def __init__(self, step: float = 0.1) -> None:
        if not 0 < step < 1:
            raise RecipeError(f"step must lie between 0 and 1, found {step}")
        self.step = step

    def move(self, logits: Vector, reward: Reward) -> Vector:
        """Go part of the way to the shares of the rewards."""
        positive = np.maximum(reward.trust * reward.contrasts, 0.0)
        if not reward.gate or not positive.any():
            return logits
        before = logits[reward.probed]
        step = self.step * reward.gate * float(reward.trust.mean())
        with np.errstate(divide="ignore"):
            target = np.log(positive / positive.sum()) + np.logaddexp.reduce(before)
            moved = logits.copy()
            moved[reward.probed] = np.logaddexp(np.log1p(-step) + before, np.log(step) + target)
        return moved


class Anchored(Rule):
    """Keep the logits at the start plus a multiple of the mean standardised influence so far.

    A round counts as much as it is trusted, so that one of noise changes little; while the gate is closed the logits
    stay at the start, and they are never further than 2 `reach` from it. Prefer `Mirror` when the start is known
    to be far off.

    Args:
        reach: Change of a logit per standard deviation of mean influence.
        memory: Share of its weight that a round keeps when a fully trusted one comes.
    """

    # What the start weighs, in fully trusted rounds.
    _prior = 0.25

    def __init__(self, reach: float = 2.0, memory: float = 0.9) -> None:
        self.reach = _positive("reach", reach)
        if not 0 <= memory < 1:
            raise RecipeError(f"memory must be at least 0 and below 1, found {memory}")
        self.memory = memory

    def start(self, logits: Vector) -> None:
        """Remember where the logits started."""
        self._start = logits.copy()
        self._state = {"total": np.zeros_like(logits), "weight": np.zeros_like(logits)}

    def move(self, logits: Vector, reward: Reward) -> Vector:
        """Update the means and go to the start plus `reach` times them."""
        if not reward.trust.any():
            return logits
        probed, total, weight = reward.probed, *self._state.values()
        # What is known ages by as much as is learned: rounds of noise do not wear it away.
        kept = self.memory**reward.trust
        total[probed] = kept * total[probed] + reward.trust * reward.standardised()
        weight[probed] = kept * weight[probed] + reward.trust
        moved = logits.copy()
        mean = total[probed] / (self._prior + weight[probed])
        moved[probed] = self._start[probed] + self.reach * reward.gate * mean
        return moved


# Names as users type them.
RULES: dict[str, type[Rule]] = {
    "gradient": PolicyGradient,
    "mirror": Mirror,
    "matching": Matching,
    "anchored": Anchored,
}


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise RecipeError(f"{name} must be above 0, found {value}")
    return value

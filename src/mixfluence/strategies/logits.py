"""Samplers that start from a distribution over the datasets and move its logits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from mixfluence.policy import UNIFORM, InitialField, Vector, lift, softmax
from mixfluence.schema import Count, Positive, Share, WholeNumber
from mixfluence.strategies.base import Strategy

if TYPE_CHECKING:
    from mixfluence.influence import RoundCost

# To fit so many rounds into a budget, each measures fewer rows of a target, down to this many.
LEAST_ROUNDS = 2
LEAST_ROWS = 16


class LogitStrategy(Strategy):
    """Draws by the softmax of logits, and measures at intervals. Subclasses say how logits move.

    Attributes:
        init: The initial distribution.
        update_every: Steps between updates.
        warmup_steps: Steps before the first update.
        budget: Most time for measuring, as a fraction of the training time; None for no limit. Updates are then
            fewer and further apart the later they are, because early ones act on more of the run, and at least
            `update_every` steps apart. If not even two fit, they measure fewer dev rows, down to 16 of each target. At
            least one takes place; `plan` warns if it exceeds the budget.
        freeze_below: No update while the learning rate is below this part of its maximum.
        floor: Least probability of any dataset.
    """

    needs_dev = True
    saved: ClassVar[tuple[str, ...]] = ("logits",)
    init: InitialField = UNIFORM
    update_every: Count = 50
    warmup_steps: WholeNumber = 25
    budget: Positive | None = None
    freeze_below: Share = 0.0
    floor: Share = 0.0

    @property
    def logits(self) -> Vector:
        """The current logits, one per dataset."""
        return self._logits

    def start(self, sizes: Mapping[str, int]) -> None:
        self._logits = self.init.logits(sizes)
        # Where a budget puts the rounds, and the end of the run; None for fixed intervals.
        self._rounds_at: list[int] | None = None
        self._step = 0
        self.weights()  # raises an error for an impossible floor

    def weights(self, progress: float = 0.0) -> Vector:
        return lift(softmax(self._logits), self.floor)

    def measuring_limit(self, steps: int) -> float:
        return inf if self.budget is None else self.budget * steps

    def space_rounds(self, cost: RoundCost, steps: int) -> int:
        rows = super().space_rounds(cost, steps)
        if self.budget is None:
            return rows
        limit = self.measuring_limit(steps)
        while (allowed := int(limit / cost(rows))) < LEAST_ROUNDS and rows > LEAST_ROWS:
            rows = max(LEAST_ROWS, rows // 2)
        # Linear decay reaches `freeze_below` at about this step.
        end = int((1 - self.freeze_below) * steps)
        first = max(1, self.warmup_steps)
        most = 1 + max(0, end - first) // self.update_every
        count = max(1, min(allowed, most))
        self._rounds_at = [*growing_intervals(first, end, count, least=self.update_every), steps]
        return rows

    def due(self, step: int, relative_rate: float) -> bool:
        self._step = step
        if self._rounds_at is None:
            first = self.warmup_steps or self.update_every
            on_time = step >= first and (step - first) % self.update_every == 0
        else:
            place = bisect_left(self._rounds_at, step)
            on_time = place < len(self._rounds_at) - 1 and self._rounds_at[place] == step
        return on_time and relative_rate >= self.freeze_below

    def steps_to_next_round(self) -> int:
        """Return how many steps will be trained with the weights of a round that was due."""
        return next((step - self._step for step in self._rounds_at or () if step > self._step), self.update_every)

    def candidates(self) -> NDArray[np.int64]:
        """Return the datasets whose logit can move: a weight of zero never changes."""
        return np.flatnonzero(np.isfinite(self._logits))


def growing_intervals(first: int, end: int, count: int, *, least: int) -> list[int]:
    """Return at most `count` numbers from `first` to below `end`, each the same multiple of the one before.

    They are at least `least` apart, so that fewer may fit. The multiple is the one that would put another at `end`.
    """

    def numbers(growth: float) -> list[float]:
        found = [float(first)]
        for _ in range(count):
            found.append(max(found[-1] + least, found[-1] * growth))
        return found

    low, high = 1.0, max(1.0, end / first)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if numbers(middle)[-1] < end else (low, middle)
    return [first, *(int(number) for number in numbers(low)[1:-1] if number < end)]

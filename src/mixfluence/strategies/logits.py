"""Samplers that start from a distribution over datasets or their clusters, and those that move its logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from mixfluence.errors import RecipeError
from mixfluence.policy import (
    PROPORTIONAL,
    Arms,
    InitialField,
    Vector,
    lift,
    logits_from_json,
    logits_to_json,
    softmax,
)
from mixfluence.schema import Count, Positive, Share, WholeNumber
from mixfluence.strategies.base import Strategy, check_faiss

if TYPE_CHECKING:
    from mixfluence.clustering import Partition
    from mixfluence.data.mixture import Mixture
    from mixfluence.recipe import ModelSection


class ArmStrategy(Strategy):
    """Starts from a distribution over the datasets, and draws datasets or clusters of them.

    Attributes:
        init: The initial distribution.
        arms: Draw clusters of each dataset instead of datasets; None to draw datasets.
    """

    init: InitialField = PROPORTIONAL
    arms: Arms | None = None

    @model_validator(mode="after")
    def _batches_have_one_loss(self) -> Self:
        if self.learns_from_loss and self.arms and self.arms.batches == "dataset":
            raise ValueError(
                f"arms.batches: {self.name} learns from the loss of a batch, which must be of one cluster"
            )
        return self

    @property
    def label(self) -> str:
        return f"{super().label}, {self.arms.label}" if self.arms else super().label

    @property
    def division(self) -> Arms | None:
        return self.arms

    def divide(
        self, mixture: Mixture, targets: Mapping[str, Any], *, model: ModelSection, least_rows: int, seed: int
    ) -> Partition:
        from mixfluence.clustering.arms import cut_into_arms
        from mixfluence.encoders import load_encoder

        assert self.arms is not None
        encoder = load_encoder(self.arms.encoder) if self.arms.encoder else load_encoder(**model.model_dump())
        return cut_into_arms(mixture, encoder, self.arms, least_rows=least_rows, seed=seed)

    def encoded_rows(self, train: Mapping[str, int], dev: Mapping[str, int]) -> int:
        own = super().encoded_rows(train, dev)
        if self.arms is None:
            return own
        check_faiss()
        return own + sum(rows for rows in train.values() if self.arms.number(rows) > 1)

    def _initial_logits(self, sizes: Mapping[str, int]) -> Vector:
        """Return the logits to start from."""
        return self.arms.logits(self.init, sizes) if self.arms else self.init.logits(sizes)


class LogitStrategy(ArmStrategy):
    """Draws by the softmax of logits, and measures at intervals. Subclasses say how logits move.

    Attributes:
        update_every: Steps between updates.
        warmup_steps: Steps before the first update.
        budget: Most time for measuring, as a fraction of the training time; None for no limit. Updates are then
            fewer and further apart the later they are: early ones act on more of the run.
        freeze_below: No update while the learning rate is below this part of its maximum.
        floor: Least probability of any dataset.
    """

    needs_dev = True
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
        self._logits = self._initial_logits(sizes)
        self.weights()  # an impossible floor is refused before training starts

    def weights(self, progress: float = 0.0) -> Vector:
        return lift(softmax(self._logits), self.floor)

    def space_rounds(self, cost: float, steps: int, extra: float = 0.0) -> None:
        if self.budget is None:
            return
        allowed = int((self.budget * steps - extra) / cost)
        if allowed < 1:
            once = f"measuring once costs {cost + extra:.0f} steps, more than {self.budget:g} of {steps}"
            raise RecipeError(
                f"strategy.budget: {once}; raise the budget, lower inner_steps or dev_batch_size, or measure a subset"
            )
        self._rounds_at = growing_intervals(max(1, self.warmup_steps), steps, allowed, least=self.update_every)

    def due(self, step: int, relative_rate: float) -> bool:
        if self.budget is not None:
            on_time = step in self._rounds_at
        else:
            on_time = at_interval(step, self.update_every, self.warmup_steps)
        return on_time and relative_rate >= self.freeze_below

    def candidates(self) -> NDArray[np.int64]:
        """Return the datasets whose logit can move: a weight of zero never changes."""
        return np.flatnonzero(np.isfinite(self._logits))

    def state_dict(self) -> dict[str, Any]:
        return {"logits": logits_to_json(self._logits)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._logits = logits_from_json(state["logits"])


def growing_intervals(first: int, end: int, count: int, *, least: int) -> list[int]:
    """Return at most `count` numbers from `first` to below `end`, each a fixed multiple of the one before.

    They are at least `least` apart, so that fewer may fit.
    """
    growth = (end / first) ** (1 / count)
    found = [first]
    while len(found) < count and (next_ := max(found[-1] + least, round(found[-1] * growth))) < end:
        found.append(next_)
    return found


def at_interval(step: int, every: int, after: int) -> bool:
    """Return whether a multiple of `every` steps has passed since step `after`; never at step 0."""
    return step > 0 and step >= after and (step - after) % every == 0

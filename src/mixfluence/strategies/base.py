"""What a sampler is to the rest of the program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixfluence.errors import RecipeError
from mixfluence.influence import Influences, Measurement, Reptile
from mixfluence.policy import Vector


class Strategy(ABC):
    """Decides how likely each dataset is to give the next batch.

    A strategy sees sizes and measurements, never the trainer or the model. The trainer calls `start`
    once, asks `weights` before every draw, and saves `state_dict` with each checkpoint. One that says how it wants
    datasets probed is asked after every step whether a round is `due`, and gets what was measured by `update`.

    Attributes:
        max_epochs: How often a row may be seen at most; None for no limit. The sampler enforces it,
            because only the sampler knows how many rows were drawn.
        probe: How datasets are to be measured: by a `Probe` that trains on them, or by the `Alignment` of
            their gradients with those of the dev sets; None for a strategy that needs no measurement.
        inner_steps: Batches of a dataset that a measurement takes: training steps of a probe.
        subset: How many datasets, drawn anew, a round measures; None for all.
        reptile: How the model follows its probes; None if it does not.
    """

    max_epochs: float | None = None
    probe: Measurement | None = None
    inner_steps: int = 0
    subset: int | None = None
    reptile: Reptile | None = None

    @abstractmethod
    def start(self, sizes: Mapping[str, int]) -> None:
        """Take the datasets' names and sizes, in the order of every later vector."""

    @abstractmethod
    def weights(self, progress: float = 0.0) -> Vector:
        """Return the current probability of each dataset.

        Args:
            progress: The part of the run's batches that have been drawn, for a strategy that keeps a schedule.
        """

    def outcome(self) -> Vector | None:
        """Return the mixture that a later run should train on, for a strategy that looks for one; None for others."""
        return None

    def due(self, step: int, relative_rate: float) -> bool:
        """Return whether datasets are to be probed after a step.

        Args:
            step: Steps trained.
            relative_rate: The learning rate of the next step, divided by the greatest of the schedule.
        """
        return False

    def candidates(self) -> NDArray[np.int64]:
        """Return the datasets worth measuring: those that may be drawn. With none, only the dev sets are looked at."""
        return np.flatnonzero(self.weights() > 0)

    def update(self, influences: Influences) -> dict[str, Any]:
        """Take what was measured; return, by name, what the trace should say of it beyond the influences.

        A list in it has one value per dataset that was measured. A strategy that asks for probes only to have them
        traced need not do anything.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs beyond the constructor's arguments, as JSON values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; called after `start`."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, found {sorted(state)}")


def at_interval(step: int, every: int, after: int) -> bool:
    """Return whether a multiple of `every` steps has passed since step `after`; never at step 0."""
    return step > 0 and step >= after and (step - after) % every == 0


def refuse_below(**options: tuple[float | None, float]) -> None:
    """Refuse options that are below the least they may be: name=(value, least)."""
    for name, (value, least) in options.items():
        if value is not None and value < least:
            raise RecipeError(f"{name} must be at least {least}, found {value}")


def refuse_not_positive(**options: float) -> None:
    """Refuse options that are not above zero."""
    for name, value in options.items():
        if not value > 0:
            raise RecipeError(f"{name} must be above 0, found {value}")


def refuse_no_epochs(max_epochs: float | None) -> None:
    """Refuse a limit on epochs that would let no row be drawn."""
    if max_epochs is not None and not max_epochs > 0:
        raise RecipeError(f"max_epochs must be above 0, found {max_epochs}")

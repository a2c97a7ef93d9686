"""What measuring needs of whatever trains the model, and what training needs of whatever measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from mixfluence.errors import RecipeError
from mixfluence.influence.influences import Aggregate, Influences
from mixfluence.influence.metrics import DevBatch, Metric
from mixfluence.influence.reptile import Reptile


class Learner(Protocol):
    """What a measurement needs of whatever trains the model.

    Attributes:
        model: The encoder as the metric calls it.
        modules: Everything that trains as one: the encoder, and losses with parameters of their own.
        optimizer: The run's optimizer, between two steps.
        rank: Which of the processes that share out the datasets this is.
        world: How many they are: 1 if there is one, or if all work on every dataset together.
    """

    model: nn.Module
    modules: nn.Module
    optimizer: Optimizer
    rank: int
    world: int

    def backward(self, batch: Any) -> None:
        """Leave the clipped gradient of a batch's loss in the parameters."""

    def agree(self, values: Tensor) -> Tensor:
        """Return the values of the first process on every process, so that all decide alike."""

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over all processes, on every process."""


class Meter(Protocol):
    """Measures what datasets are worth now, and leaves no trace unless a Reptile step was asked for.

    Attributes:
        memory: What the last round needed on the device beyond training, in parameter sizes.
    """

    memory: float

    def measure(
        self,
        datasets: Sequence[int],
        batches: Callable[[int], Iterable[Any]],
        dev: Sequence[DevBatch],
        *,
        seed: int,
        spread: float,
    ) -> Influences:
        """Measure datasets one after another.

        Args:
            datasets: Which ones. With none, only the dev sets are looked at.
            batches: Returns a dataset's batches.
            dev: The rows of every target, the same for all datasets.
            seed: Decides dropout, the same for all datasets.
            spread: Spread of the influences one round ago, infinite if there was none.
        """


class Measurement(Protocol):
    """How a strategy wants datasets measured. `Probe` trains on them, `Alignment` compares gradients."""

    @property
    def batch_size(self) -> int | None:
        """Rows per batch; the training batch if None."""

    @property
    def dev_batch_size(self) -> int:
        """Rows of each target that every round looks at."""

    @property
    def metric(self) -> Metric | Literal["training-loss"]:
        """What is measured on dev; `training-loss` is the trainer's own loss."""

    @property
    def aggregate(self) -> Aggregate:
        """How several targets become one number."""

    @property
    def needs_moments(self) -> bool:
        """Whether it only works with an optimizer of the Adam family."""

    @property
    def alone(self) -> bool:
        """Whether a process measures a dataset by itself, so that several can share out the datasets."""

    def meter(self, learner: Learner, metric: Metric, reptile: Reptile | None) -> Meter:
        """Return what measures by it."""


def refuse_single_rows(measurement: Measurement) -> None:
    """Refuse batches of one row, which has no negatives."""
    for name, size in ("batch_size", measurement.batch_size), ("dev_batch_size", measurement.dev_batch_size):
        if size is not None and size < 2:
            raise RecipeError(f"{name} must be at least 2, found {size}: a single row has no negatives")

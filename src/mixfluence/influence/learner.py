"""What measuring needs of whatever trains the model, and what training needs of whatever measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from mixfluence.influence.influences import Influences
from mixfluence.influence.metrics import DevBatch


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

"""Interfaces between measurements and the trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from mixfluence.errors import RecipeError
from mixfluence.influence.influences import Influences
from mixfluence.influence.metrics import DevBatch


class Learner(Protocol):
    """What a measurement needs from the trainer.

    Attributes:
        model: The encoder, as the metric calls it.
        modules: Everything that is trained: the encoder, and losses with parameters.
        optimizer: The optimizer of the run, between two steps.
        rank: Number of this process among those that divide the datasets.
        world: Number of processes that divide the datasets; 1 if all work on every dataset together.
    """

    model: nn.Module
    modules: nn.Module
    optimizer: Optimizer
    rank: int
    world: int

    def backward(self, batch: Any) -> None:
        """Compute the clipped gradient of a batch's loss, in the `grad` of the parameters."""

    def agree(self, values: Tensor) -> Tensor:
        """Return the values of the first process on every process, so that all take the same decisions."""

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over all processes, on every process."""


class Meter(Protocol):
    """Measures the influence of datasets, without side effects except for a Reptile step.

    Attributes:
        memory: Extra device memory of the last round, in parameter sizes.
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
            datasets: Positions in the mixture. If empty, only the dev sets are evaluated.
            batches: Returns the batches of a dataset.
            dev: The rows of every target, the same for all datasets.
            seed: Seed of dropout, the same for all datasets.
            spread: Spread of the influences in the previous round; infinite if there was none.
        """


def refuse_without_moments(optimizer: Optimizer) -> None:
    """Raise RecipeError for an optimizer that is not of the Adam family, before or after its first step."""
    adam = all("betas" in group and "eps" in group for group in optimizer.param_groups)
    if not adam or (optimizer.state and not any("exp_avg_sq" in state for state in optimizer.state.values())):
        raise RecipeError(
            "momentum-free probes and preconditioned gradients need an optimizer with second moments such as AdamW, "
            f"found {type(optimizer).__name__}"
        )

"""How datasets are measured: settings as recipes spell them, and the interfaces between a measurement and the trainer.

This module needs no torch, so that recipes can be read without it. `probe` and `alignment` do the measuring.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol

from pydantic import BeforeValidator

from mixfluence.errors import RecipeError
from mixfluence.schema import BatchSize, Section, word_or_positive

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from mixfluence.influence.influences import Influences
    from mixfluence.influence.metrics import DevBatch, Metric

# Returns the batches of a dataset, given its position in the mixture.
Batches = Callable[[int], Iterable[Any]]
# Returns the cost of a round in training steps, given the most rows of a target that it measures.
RoundCost = Callable[[int], float]
# Cost of a forward pass in training steps (forward, backward and optimizer).
FORWARD = 1 / 3


class Learner(Protocol):
    """What a measurement needs from the trainer, between two steps."""

    model: nn.Module
    # Everything that is trained: the encoder, and losses with parameters.
    modules: nn.Module
    optimizer: Optimizer
    # Number of this process among those that divide the datasets; a world of 1 works on every dataset together.
    rank: int
    world: int

    def backward(self, batch: Any) -> None:
        """Compute the clipped gradient of a batch's loss, in the `grad` of the parameters."""

    def agree(self, values: Tensor) -> Tensor:
        """Return the values of the first process on every process, so that all take the same decisions."""

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over all processes, on every process."""


class Meter(ABC):
    """Measures the influence of datasets, without side effects except for a Reptile step.

    Attributes:
        memory: Extra device memory of the last round, in parameter sizes: 1 for a copy of the parameters in fp32.
    """

    def __init__(self, learner: Learner, metric: Metric) -> None:
        self._learner = learner
        self._metric = metric
        self._parameters = [p for group in learner.optimizer.param_groups for p in group["params"]]
        self.memory = 0.0

    @abstractmethod
    def measure(
        self, datasets: Sequence[int], batches: Batches, dev: Sequence[DevBatch], *, seed: int, spread: float
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
            f"found {type(optimizer).__name__}; probe.state: inherited works with any"
        )


class Reptile(Section):
    """Let the model follow its probes, by a weighted mean of their displacements.

    Attributes:
        rate: `relative`: the learning rate divided by its maximum; `literal`: the learning rate itself, as the paper
            prints it, which at 2e-5 moves no weight by more than rounding does; or a constant.
        weights: `softmax` of the influence divided by `tau`; or `sum`, as in the paper's Algorithm 1: the influence
            divided by the sum of influences, negative ones counting as zero.
        tau: Temperature of the softmax: a number, or `spread`, the standard deviation of the previous round.
    """

    rate: Annotated[str | float, word_or_positive("relative", "literal")] = "relative"
    weights: Literal["softmax", "sum"] = "softmax"
    tau: Annotated[str | float, word_or_positive("spread")] = "spread"

    def alpha(self, learning_rate: float, relative_rate: float) -> float:
        """Return the part of the mean displacement that the model takes."""
        if isinstance(self.rate, str):
            return relative_rate if self.rate == "relative" else learning_rate
        return self.rate


def _known_metric(value: Any) -> Any:
    # The default is not looked up: the registry imports torch.
    if isinstance(value, str) and value != "info-nce":
        from mixfluence.influence.metrics import METRICS

        if value not in METRICS:
            raise ValueError(f"expected one of {', '.join(METRICS)}, found {value!r}")
    return value


class Measurement(Section):
    """How a dataset is measured, and by which metric on the dev sets.

    Attributes:
        batch_size: Rows per batch; the training batch if None.
        dev_batch_size: Rows of each target per round. No two in a batch share a query or an answer; if few rows can be
            together, there are several batches.
        metric: A name in `METRICS`, such as `info-nce` or `training-loss`, or a `Metric` of your own.
    """

    batch_size: BatchSize | None = None
    dev_batch_size: BatchSize = 256
    metric: Annotated[Any, BeforeValidator(_known_metric)] = "info-nce"

    @property
    def alone(self) -> bool:
        """Whether each process measures datasets by itself, so that several can divide the datasets among them."""
        return False

    @abstractmethod
    def meter(self, learner: Learner, metric: Metric, reptile: Reptile | None) -> Meter:
        """Return the object that measures with these settings, or raise RecipeError if it cannot."""

    @abstractmethod
    def round_cost(self, datasets: int, batch: float, steps: int, dev: float, processes: int) -> float:
        """Return the cost of a round in training steps.

        The unit of `batch`, a batch on one process, and of `dev`, the dev rows of all targets, is a training step too.
        """

    @abstractmethod
    def memory(self, reptile: Reptile | None) -> float:
        """Return the device memory that a round needs on top of training, in parameter sizes."""


class Probe(Measurement):
    """Train on a dataset for a few steps, measure the dev sets, and roll back.

    Attributes:
        state: `momentum-free`: Adam's steps without its momentum, which depend on the dataset alone and need no copy
            of the optimizer's state; `inherited`: steps of the run's own optimizer, as in the paper, whose first ones
            mostly continue the direction of training. Optimizers other than those of the Adam family need it.
        learning_rate: That of the schedule (`current`), or a number.
        snapshot: Where the parameters are copied to: the `device`, or the `cpu` if device memory is short.
        batch_size: Rows per step and process; the rows that a process has of a training batch if None.
        processes: Several processes divide the datasets (`divided`), each probing its own with the rows and negatives
            of one process; or probe every dataset `together`, with batches and negatives across processes as in
            training. `divided` is faster; sharded models need `together`.
    """

    state: Literal["inherited", "momentum-free"] = "momentum-free"
    dev_batch_size: BatchSize = 128
    learning_rate: Annotated[str | float, word_or_positive("current")] = "current"
    snapshot: Literal["device", "cpu"] = "device"
    processes: Literal["divided", "together"] = "divided"

    @property
    def alone(self) -> bool:
        return self.processes == "divided"

    def meter(self, learner: Learner, metric: Metric, reptile: Reptile | None) -> Meter:
        from mixfluence.influence.probe import Prober

        return Prober(learner, self, metric, reptile)

    def round_cost(self, datasets: int, batch: float, steps: int, dev: float, processes: int) -> float:
        """Steps on every dataset, and a dev evaluation first and after each; processes may divide the datasets.

        Fewer dev rows than a probe's batch count as one: on a GPU a small forward pass takes as long.
        """
        own = math.ceil(datasets / processes) if self.alone else datasets
        return own * steps * batch + (own + 1) * max(batch, dev) * FORWARD

    def memory(self, reptile: Reptile | None) -> float:
        snapshot = 0.0 if self.snapshot == "cpu" else 3.0 if self.state == "inherited" else 1.0
        return snapshot + (1.0 if reptile else 0.0)


class Alignment(Measurement):
    """Compare the gradient of a dataset with those of the targets: the mean of their cosines (MultiDDS-S).

    Cheaper than a `Probe`, and it ignores how far a step goes: a gradient says which way, not whether the dev loss
    falls. Prefer a `Probe` where you can afford it. All dev rows pass through the model with a gradient, so a
    `dev_batch_size` above the training batch needs more memory than training does.

    Attributes:
        preconditioned: Divide a dataset's gradient by the root of Adam's second moments, as its step would be. A
            parameter without moments is divided as in Adam's first step.
    """

    # `projection`: on the sum of the targets' gradients, each cut to length 1, in units of the datasets' mean norm.
    score: ClassVar[Literal["cosine", "projection"]] = "cosine"
    preconditioned: bool = False

    def meter(self, learner: Learner, metric: Metric, reptile: Reptile | None) -> Meter:
        from mixfluence.influence.alignment import Aligner

        if reptile is not None:
            raise RecipeError("reptile: follows probes, and gradient alignment has none")
        return Aligner(learner, self, metric)

    def round_cost(self, datasets: int, batch: float, steps: int, dev: float, processes: int) -> float:
        return datasets * batch + dev

    def memory(self, reptile: Reptile | None) -> float:
        return 1.0


class Projection(Alignment):
    """Project the gradient of a dataset on the sum of the targets' gradients, where a long one counts more (DoGE)."""

    score = "projection"


@dataclass(frozen=True)
class Probing:
    """What a strategy wants to have measured in a round.

    Attributes:
        method: How to measure.
        steps: Batches per dataset: the training steps of a probe.
        subset: How many datasets a round measures, chosen at random each time; None for all.
        reptile: How the model follows its probes; None if it does not.
    """

    method: Measurement
    steps: int = 1
    subset: int | None = None
    reptile: Reptile | None = None

    def measured(self, possible: int) -> int:
        """Return how many of the datasets that could be measured a round measures."""
        return min(self.subset or possible, possible)

"""What a run will cost before its first step: epochs, overhead, memory, and likely mistakes.

The unit of cost is one training step: forward, backward and optimizer on the rows that a process has of a step. A
forward pass alone is a third of it. Work that depends on parameters and not on rows, such as restoring a snapshot, is
not counted. `planning.plan_run` makes the plan of a recipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from mixfluence.policy import Vector
from mixfluence.recipe import Recipe

# Weights, gradients and the two moments of Adam; a second copy of the gradients where processes exchange them.
TRAINING_MEMORY, EXCHANGE_MEMORY = 4.0, 1.0
BYTES_PER_PARAMETER = 4
MOST_EPOCHS, LEAST_SHARE = 20, 1e-6

# Rows of each dataset; None where unknown.
Rows = dict[str, int | None]


@dataclass(frozen=True)
class DatasetPlan:
    """How often a dataset is drawn in the first stage, by the weights before any measurement; None where unknown.

    Of models to merge it is drawn in its own stage.
    """

    name: str
    rows: int | None
    share: float | None
    epochs: float | None


@dataclass(frozen=True)
class StagePlan:
    """The cost of one stage, in training steps, and its memory on top of training, in parameter sizes.

    `dev_batch_size` is the number of rows of each dev set that an update asks for. If the stage `merges` models, a
    step is the scoring of one merge.
    """

    name: str
    steps: int
    step_cost: float
    measures: bool
    updates: int
    first_update: int | None
    update_cost: float
    dev_batch_size: int
    memory: float
    merges: bool

    @property
    def cost(self) -> float:
        """The whole stage in training steps."""
        return self.steps * self.step_cost + self.updates * self.update_cost


@dataclass(frozen=True)
class Plan:
    """What a run will cost. Costs and memory are those of each process.

    Attributes:
        steps: Steps of the final stage, those of a static run.
        batch_size: Rows per batch and process.
        batches_per_step: Batches whose gradients make one step.
        guides: Rows of each dev set that guides sampling.
        clustering: Cost of clustering before training; None if the rows are unknown.
        parameters: Parameters of the model; None if its files are not on this machine.
        concerns: Likely mistakes.
        unknown: What could not be determined, and what was assumed instead.
        calibration: Measured seconds; see `calibrated`.
    """

    name: str
    method: str
    model: str
    processes: int
    steps: int
    batch_size: int
    batches_per_step: int
    datasets: list[DatasetPlan]
    guides: Rows
    stages: list[StagePlan]
    clustering: float | None
    parameters: int | None
    concerns: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    calibration: dict[str, float] | None = None

    @property
    def cost(self) -> float:
        """The whole run in training steps."""
        return sum(stage.cost for stage in self.stages) + (self.clustering or 0.0)

    @property
    def times_static(self) -> float:
        """The whole run relative to a static run of as many steps."""
        return self.cost / self.steps

    @property
    def sampler_memory(self) -> float:
        """The most that the sampler needs on the device, in parameter sizes."""
        return max(stage.memory for stage in self.stages)

    @property
    def training_memory(self) -> float:
        """Memory of training itself, in parameter sizes; no activations."""
        return TRAINING_MEMORY + (EXCHANGE_MEMORY if self.processes > 1 else 0.0)

    @property
    def memory(self) -> float:
        """Training and sampler together, in parameter sizes."""
        return self.training_memory + self.sampler_memory

    @property
    def memory_bytes(self) -> int | None:
        """Training and sampler together, in bytes of fp32."""
        return None if self.parameters is None else round(self.memory * self.parameters * BYTES_PER_PARAMETER)

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        derived = ("cost", "times_static", "sampler_memory", "memory", "memory_bytes")
        return asdict(self) | {name: getattr(self, name) for name in derived}


def concerns(recipe: Recipe, plan: Plan) -> Iterator[str]:
    """Yield what a user should know before the run starts, a sentence each."""
    batch = plan.batch_size * plan.processes
    for dataset in plan.datasets:
        if dataset.epochs is not None and dataset.epochs > MOST_EPOCHS:
            yield f"{dataset.name}: its {dataset.rows:,} rows would be seen {dataset.epochs:,.0f} times"
        if dataset.share is not None and 0 < dataset.share < LEAST_SHARE:
            yield f"{dataset.name}: starts with a probability of {dataset.share:.1g}, so it is practically never drawn"
        if dataset.rows is not None and dataset.rows < batch:
            yield f"{dataset.name}: {dataset.rows:,} rows do not fill a batch of {batch:,}"
    yield from _epoch_limit(recipe, plan)
    total = sum(stage.steps for stage in plan.stages if not stage.merges)
    if total > plan.steps:
        yield f"training.steps is {plan.steps:,}, but with its stages the run trains for {total:,} steps"
    for stage in plan.stages:
        if stage.measures:
            yield from _first_update(recipe, stage)
    wanted = max(stage.dev_batch_size for stage in plan.stages)
    for name, rows in plan.guides.items():
        if rows is not None and rows < wanted:
            yield f"dev set {name}: {rows:,} rows guide sampling, fewer than the {wanted:,} that an update asks for"


def batch_rows(sizes: Vector, batch_size: int, processes: int) -> Vector:
    """Return the rows of a batch of each dataset over all processes, which have as many each."""
    return np.asarray(np.maximum(1, np.minimum(batch_size, sizes // processes)) * processes)


def relative_rate(step: int, steps: int, warmup_steps: int) -> float:
    """Return the learning rate after some steps relative to its maximum: linear warm-up, then linear decay."""
    if step < warmup_steps:
        return step / warmup_steps
    return max(0.0, (steps - step) / max(1, steps - warmup_steps))


def _epoch_limit(recipe: Recipe, plan: Plan) -> Iterator[str]:
    limit = recipe.strategy.max_epochs
    # Clusters have sizes of their own.
    if limit is None or recipe.strategy.clusters or any(dataset.rows is None for dataset in plan.datasets):
        return
    rows = np.array([dataset.rows for dataset in plan.datasets if dataset.share != 0])
    possible = int((np.floor(limit * rows) // batch_rows(rows, plan.batch_size, plan.processes)).sum())
    needed = plan.steps * plan.batches_per_step
    if possible < needed:
        yield f"max_epochs allows {possible:,} batches but the run needs {needed:,}: it will be refused"


def _first_update(recipe: Recipe, stage: StagePlan) -> Iterator[str]:
    if stage.first_update is None:
        yield f"no update happens in the {stage.steps:,} steps of the {stage.name} stage"
        return
    warmup = recipe.training.warmup_steps
    if stage.first_update < warmup:
        rate = relative_rate(stage.first_update, stage.steps, warmup)
        yield (
            f"the first update is at step {stage.first_update}, when the learning rate has reached only {rate:.0%} of "
            f"its maximum (training.warmup_steps is {warmup})"
        )

"""What a plan says: the datasets, the stages, and what follows from them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from mixfluence.planning import costs

BYTES_PER_PARAMETER = 4


@dataclass(frozen=True)
class DatasetPlan:
    """What a dataset is drawn for in the first stage, by the weights before anything is measured.

    Attributes:
        name: As in the recipe.
        rows: How many it has; None if that is not known.
        share: Its part of the batches, on average over the stage.
        epochs: How often each of its rows is seen.
    """

    name: str
    rows: int | None
    share: float | None
    epochs: float | None


@dataclass(frozen=True)
class StagePlan:
    """What one of a method's runs does and costs.

    Attributes:
        name: `final` for the last.
        steps: Training steps.
        step_cost: What each costs, in plain training steps.
        measures: Whether it is one that measures datasets.
        updates: How often it does.
        first_update: The step after which it first does.
        update_cost: What each update costs, in training steps.
        dev_batch_size: Rows of each dev set that an update wants to look at.
        memory: What it keeps beside training, in parameter sizes.
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

    @property
    def cost(self) -> float:
        """The whole stage in training steps."""
        return self.steps * self.step_cost + self.updates * self.update_cost


@dataclass(frozen=True)
class Plan:
    """What a run will cost. Costs and memory are those of each of its processes.

    Attributes:
        name: Of the recipe.
        method: The sampler.
        model: The encoder.
        processes: How many train together.
        steps: Steps of the final stage: those of a static run.
        batch_size: Rows that each process has of a batch.
        batches_per_step: Batches whose gradients make one step.
        datasets: What is drawn.
        guides: Rows of each dev set that guides; empty if none does.
        stages: The method's runs.
        clustering: Training steps that a clustering before them costs; None if the rows are not known.
        parameters: Of the model; None if its files are not on this machine.
        concerns: What looks wrong.
        unknown: What could not be told, and what was taken instead.
        calibration: Measured seconds, if they were; see `mixfluence.planning.calibration`.
    """

    name: str
    method: str
    model: str
    processes: int
    steps: int
    batch_size: int
    batches_per_step: int
    datasets: list[DatasetPlan]
    guides: dict[str, int | None]
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
        """The whole run in static runs of as many steps."""
        return self.cost / self.steps

    @property
    def sampler_memory(self) -> float:
        """The most that the sampler keeps on the device at any time, in parameter sizes."""
        return max(stage.memory for stage in self.stages)

    @property
    def training_memory(self) -> float:
        """Weights, gradients and Adam's moments, and what processes exchange gradients by, in parameter sizes."""
        return costs.TRAINING_MEMORY + (costs.EXCHANGE_MEMORY if self.processes > 1 else 0.0)

    @property
    def memory(self) -> float:
        """What training needs and what the sampler keeps, in parameter sizes; no activations."""
        return self.training_memory + self.sampler_memory

    @property
    def memory_bytes(self) -> int | None:
        """The same in bytes of fp32, in which encoders are trained."""
        return None if self.parameters is None else round(self.memory * self.parameters * BYTES_PER_PARAMETER)

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        derived = ("cost", "times_static", "sampler_memory", "memory", "memory_bytes")
        return asdict(self) | {name: getattr(self, name) for name in derived}

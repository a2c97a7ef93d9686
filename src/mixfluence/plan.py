"""What a run will cost before its first step: epochs, overhead, memory, and likely mistakes.

The unit of cost is one training step: forward, backward and optimizer on the rows that a process has of a step. A
forward pass alone is a third of it. Work that depends on parameters and not on rows, such as restoring a snapshot, is
not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mixfluence.errors import MixfluenceError, RecipeError, collecting, refuse
from mixfluence.influence.settings import FORWARD, RoundCost
from mixfluence.policy import Vector, cap
from mixfluence.preflight import Checked, encoder_here, model_is_here, preflight
from mixfluence.recipe import Recipe
from mixfluence.runs import TRACE_FILE
from mixfluence.strategies import Stage, Strategy

# Weights, gradients and the two moments of Adam; a second copy of the gradients where processes exchange them.
TRAINING_MEMORY, EXCHANGE_MEMORY = 4.0, 1.0
# Parameters of the reference model that a stage is trained against.
AGAINST_MEMORY = 1.0
MOST_EPOCHS, LEAST_SHARE = 20, 1e-6
# A budget that leaves no more than this part of the dev rows that an update asks for is worth a warning.
FEW_ROWS = 1 / 4
# Points at which a schedule of weights is sampled.
POINTS = 1_000


@dataclass(frozen=True)
class DatasetPlan:
    """How often a dataset is drawn in the first stage (in all stages of models to merge), by the initial weights.

    `share` and `epochs` are None if a clustering decides them when the run starts.
    """

    name: str
    rows: int
    share: float | None
    epochs: float | None


@dataclass(frozen=True)
class StagePlan:
    """The cost of one stage, in training steps, and its memory on top of training, in parameter sizes.

    The steps of a stage that is reused from an earlier run cost nothing; those of a stage that `merges` models score
    one merge each.

    Attributes:
        scoring_cost: Cost of scoring the model of the stage.
        dev_batch_size: Rows of each dev set that an update asks for; 0 for a stage that never measures.
        concerns: Likely mistakes about its updates.
    """

    name: str
    steps: int
    step_cost: float
    memory: float = 0.0
    scoring_cost: float = 0.0
    merges: bool = False
    updates: int = 0
    first_update: int | None = None
    update_cost: float = 0.0
    dev_batch_size: int = 0
    concerns: Sequence[str] = ()

    @property
    def measuring_cost(self) -> float:
        """All updates of the stage in training steps."""
        return self.updates * self.update_cost

    @property
    def cost(self) -> float:
        """The whole stage in training steps."""
        return self.steps * self.step_cost + self.measuring_cost + self.scoring_cost


@dataclass(frozen=True)
class Plan:
    """What a recipe will cost, with the data that was checked. Costs and memory are those of each process."""

    recipe: Recipe
    processes: int
    checked: Checked
    datasets: list[DatasetPlan]
    stages: list[StagePlan]

    @property
    def cost(self) -> float:
        """The whole run in training steps."""
        return sum(stage.cost for stage in self.stages) + sum(cost for cost, _ in self.checked.encodings.values())

    @property
    def times_static(self) -> float:
        """The whole run relative to a static run of as many steps."""
        return self.cost / self.recipe.training.steps

    @property
    def sampler_memory(self) -> float:
        """The most that the sampler needs on the device, in parameter sizes."""
        return max(stage.memory for stage in self.stages)

    @property
    def memory(self) -> float:
        """Training and sampler together, in parameter sizes; no activations."""
        return TRAINING_MEMORY + (EXCHANGE_MEMORY if self.processes > 1 else 0.0) + self.sampler_memory

    @property
    def guides(self) -> dict[str, int]:
        """Rows of each dev set that guides sampling."""
        measured = any(stage.dev_batch_size for stage in self.stages)
        return self.checked.dev if measured or self.recipe.strategy.scoring or self.recipe.select else {}

    @property
    def concerns(self) -> list[str]:
        """Likely mistakes, a sentence each."""
        return list(_concerns(self))


def plan_run(recipe: Recipe, *, processes: int = 1, missing: Sequence[MixfluenceError] = ()) -> Plan:
    """Return what a recipe will cost on some processes, such as one per GPU.

    Whatever a run would refuse before its first step is refused here, all of it at once. Data on this machine is read.
    For data elsewhere, in a recipe read with `files_may_be_missing`, the recipe's `published.rows` count; errors in
    `missing`, of files that are needed, are reported with the others.
    """
    problems = [*missing]
    checked = preflight(recipe, problems)
    with collecting(problems):
        if checked:
            plan = _plan(recipe, checked, processes)
            _check_epoch_limit(plan)
    refuse(problems)
    return plan


def _plan(recipe: Recipe, checked: Checked, processes: int) -> Plan:
    train = checked.train
    stages: list[tuple[Stage, Strategy]] = []
    evenly = dict.fromkeys(train, 1 / len(train))
    for stage in recipe.strategy.stages(recipe):
        strategy = stage.strategy(evenly if stages or recipe.strategy.clusters else {})
        strategy.start(train)
        stages.append((stage, strategy))
    drawing = stages[:-1] if stages[-1][0].merges else stages[:1]
    datasets = _plan_datasets(recipe, drawing, train, processes)
    planned = [_plan_stage(recipe, stage, strategy, train, checked.dev, processes) for stage, strategy in stages]
    return Plan(recipe, processes, checked, datasets, planned)


def relative_rate(step: int, steps: int, warmup_steps: int) -> float:
    """Return the learning rate after some steps relative to its maximum: linear warm-up, then linear decay."""
    if step < warmup_steps:
        return step / warmup_steps
    return max(0.0, (steps - step) / max(1, steps - warmup_steps))


def _plan_datasets(
    recipe: Recipe, stages: Sequence[tuple[Stage, Strategy]], train: Mapping[str, int], processes: int
) -> list[DatasetPlan]:
    if recipe.strategy.clusters:
        return [DatasetPlan(name, rows, None, None) for name, rows in train.items()]
    draws = sum(stage.steps for stage, _ in stages) * recipe.training.gradient_accumulation
    points = min(draws, POINTS)
    shares = np.mean([own.weights(point / points) for _, own in stages for point in range(points)], axis=0)
    sizes = np.array(list(train.values()), np.float64)
    batches = _batch_rows(recipe, train, processes)
    if (max_epochs := stages[0][1].max_epochs) is not None:
        shares = cap(shares, np.floor(max_epochs * sizes) // batches / draws)
    drawn, share_of = (dict(zip(train, values.tolist(), strict=True)) for values in (shares * draws * batches, shares))
    return [DatasetPlan(name, rows, share_of[name], drawn[name] / rows) for name, rows in train.items()]


def _plan_stage(
    recipe: Recipe,
    stage: Stage,
    strategy: Strategy,
    train: Mapping[str, int],
    guides: Mapping[str, int],
    processes: int,
) -> StagePlan:
    if stage.merges:
        from mixfluence.encoders import is_linear

        # The start and each expert of a linear model are encoded once, and there are as many as stages.
        linear = (model := encoder_here(recipe.model)) is not None and is_linear(model)
        encoded = min(1.0, len(recipe.strategy.stages(recipe)) / stage.steps) if linear else 1.0
        return StagePlan(stage.name, stage.steps, encoded * _scoring_cost(recipe, guides), merges=True)
    step_cost, memory = 0.0 if stage.reused else stage.step_cost, AGAINST_MEMORY if stage.against else 0.0
    probing = strategy.probing
    if probing is None:
        scoring_cost = _scoring_cost(recipe, guides) if stage.scored else 0.0
        return StagePlan(stage.name, stage.steps, step_cost, memory, scoring_cost)
    cost = _round_cost(recipe, strategy, train, guides, processes)
    rows = strategy.space_rounds(cost, stage.steps)
    warmup_steps = stage.warmup_steps(recipe.training)
    updates = list(_updates(strategy, stage.steps, warmup_steps))
    if len(strategy.candidates()) and updates:
        memory += probing.method.memory(probing.reptile)
    return StagePlan(
        stage.name,
        stage.steps,
        step_cost,
        memory,
        updates=len(updates),
        first_update=updates[0] if updates else None,
        update_cost=cost(rows),
        dev_batch_size=rows,
        concerns=list(_concerns_of_updates(stage, updates, warmup_steps, cost(rows), strategy)),
    )


def _round_cost(
    recipe: Recipe, strategy: Strategy, train: Mapping[str, int], guides: Mapping[str, int], processes: int
) -> RoundCost:
    probing, possible = strategy.probing, strategy.candidates()
    assert probing is not None
    method, rows_per_step = probing.method, recipe.training.rows_per_step
    sharing = 1 if method.alone else processes
    batches = _batch_rows(recipe, train, sharing, method.batch_size)[possible]
    batch = float(batches.mean()) / sharing / rows_per_step if len(possible) else 0.0

    def cost(most: int) -> float:
        dev = sum(min(most, rows) for rows in guides.values()) / rows_per_step
        if not len(possible):
            return dev * FORWARD
        return method.round_cost(probing.measured(len(possible)), batch, probing.steps, dev, processes)

    return cost


def _scoring_cost(recipe: Recipe, guides: Mapping[str, int]) -> float:
    """Return the cost of scoring one model on the dev sets; a training row has at least two texts."""
    scoring = recipe.strategy.scoring
    assert scoring is not None
    queries, passages = scoring.shares(len(guides))
    texts = sum(min(queries, rows) + passages for rows in guides.values())
    return texts / (2 * recipe.training.rows_per_step) * FORWARD


def _updates(strategy: Strategy, steps: int, warmup_steps: int) -> Iterator[int]:
    """Yield the steps after which a started strategy would measure."""
    for step in range(1, steps):
        if strategy.due(step, relative_rate(step, steps, warmup_steps)):
            if not len(strategy.candidates()):
                from mixfluence.influence import Influences

                # An evaluation of unchanged dev sets: when the next one is due may depend on how many there were.
                none = np.array([], np.int64)
                strategy.update(Influences(none, none, ["dev"], np.zeros(1), [np.zeros((0, 1))]))
            yield step


def _concerns_of_updates(
    stage: Stage, updates: Sequence[int], warmup_steps: int, cost: float, strategy: Strategy
) -> Iterator[str]:
    if not updates:
        yield f"no update happens in the {stage.steps:,} steps of the {stage.name} stage"
    elif updates[0] < warmup_steps:
        rate = f"{relative_rate(updates[0], stage.steps, warmup_steps):.0%} of its maximum"
        when = f"the learning rate has reached only {rate} (it warms up for {warmup_steps} steps)"
        yield f"the first update is at step {updates[0]}, when {when}"
    limit = strategy.measuring_limit(stage.steps)
    if (total := len(updates) * cost) > limit:
        allowed = f"more than the {limit:,.1f} of strategy.budget"
        yield f"one update costs {total:,.1f} training steps, {allowed}: raise it, or train for more steps"


def _batch_rows(recipe: Recipe, train: Mapping[str, int], processes: int, batch_size: int | None = None) -> Vector:
    """Return the rows of a batch of each dataset over all processes."""
    wanted = [batch_size or recipe.batch_size_of(name) for name in train]
    sizes = np.array(list(train.values()))
    return np.asarray(np.maximum(1, np.minimum(wanted, sizes // processes)) * processes)


def _concerns(plan: Plan) -> Iterator[str]:
    training = plan.recipe.training
    yield from plan.recipe.warnings()
    yield from _of_this_machine(plan)
    for dataset in plan.datasets:
        if dataset.epochs is not None and dataset.epochs > MOST_EPOCHS:
            yield f"{dataset.name}: its {dataset.rows:,} rows would be seen {dataset.epochs:,.0f} times"
        if dataset.share is not None and 0 < dataset.share < LEAST_SHARE:
            yield f"{dataset.name}: starts with a probability of {dataset.share:.1g}, so it is practically never drawn"
        if dataset.rows < (batch := plan.recipe.batch_size_of(dataset.name) * plan.processes):
            yield f"{dataset.name}: {dataset.rows:,} rows do not fill a batch of {batch:,}"
    total = sum(stage.steps for stage in plan.stages if stage.step_cost and not stage.merges)
    if total > training.steps:
        yield f"training.steps is {training.steps:,}, but with its stages the run trains for {total:,} steps"
    if len(plan.checked.train) == 1 and any(stage.updates for stage in plan.stages):
        yield f"there is one training set, so {plan.recipe.strategy.name} decides nothing: write strategy: static"
    for stage in plan.stages:
        yield from stage.concerns
    yield from _of_dev_sets(plan)


def _of_dev_sets(plan: Plan) -> Iterator[str]:
    wanted = max(stage.dev_batch_size for stage in plan.stages)
    for name, rows in plan.guides.items():
        if rows < wanted:
            yield f"dev set {name}: {rows:,} rows guide sampling, fewer than the {wanted:,} that an update asks for"
    probing, most = plan.recipe.strategy.probing, max(plan.guides.values(), default=0)
    if probing and 0 < wanted <= FEW_ROWS * min(probing.method.dev_batch_size, most):
        left = f"strategy.budget leaves {wanted} rows of each dev set for an update"
        yield f"{left}: raise it, train for more steps, or set strategy.subset to measure fewer datasets at a time"


def _of_this_machine(plan: Plan) -> Iterator[str]:
    if not plan.checked.absent and not model_is_here(plan.recipe.model):
        yield f"{plan.recipe.model.name}: not on this machine, so it is downloaded when the run starts"
    if (plan.recipe.output / TRACE_FILE).exists():
        yield f"{plan.recipe.output}: already holds a run, so train needs --resume or another output"


def _check_epoch_limit(plan: Plan) -> None:
    strategy, training = plan.recipe.strategy, plan.recipe.training
    # Clusters have sizes of their own.
    if strategy.max_epochs is None or strategy.clusters:
        return
    drawn = {dataset.name: dataset.rows for dataset in plan.datasets if dataset.share != 0}
    limits = np.floor(strategy.max_epochs * np.array(list(drawn.values())))
    batches = limits // _batch_rows(plan.recipe, drawn, plan.processes)
    needed = training.steps * training.gradient_accumulation
    if batches.sum() < needed:
        allowed = f"max_epochs allows {batches.sum():,.0f} batches but the run needs {needed:,}"
        raise RecipeError(f"strategy.{allowed}: raise max_epochs or train for fewer steps")

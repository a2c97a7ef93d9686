"""What looks wrong with a plan, in one sentence each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from mixfluence.planning.walk import batch_rows, relative_rate
from mixfluence.recipe import Recipe

if TYPE_CHECKING:
    from mixfluence.planning.plan import Plan, StagePlan

MOST_EPOCHS = 20
LEAST_SHARE = 1e-6


def find_concerns(recipe: Recipe, plan: Plan) -> list[str]:
    """Return what a user should know before the run starts."""
    return [*_datasets(recipe, plan), *_stages(recipe, plan), *_guides(plan)]


def _datasets(recipe: Recipe, plan: Plan) -> Iterator[str]:
    batch = plan.batch_size * plan.processes
    for dataset in plan.datasets:
        if dataset.epochs is not None and dataset.epochs > MOST_EPOCHS:
            yield f"{dataset.name}: its {dataset.rows:,} rows would be seen {dataset.epochs:,.0f} times"
        if dataset.share is not None and 0 < dataset.share < LEAST_SHARE:
            yield f"{dataset.name}: starts with a probability of {dataset.share:.1g}, as good as never drawn"
        if dataset.rows is not None and dataset.rows < batch:
            yield f"{dataset.name}: {dataset.rows:,} rows do not fill a batch of {batch:,}"
    yield from _limit(recipe, plan)


def _limit(recipe: Recipe, plan: Plan) -> Iterator[str]:
    limit = getattr(recipe.strategy, "max_epochs", None)
    rows = np.array([dataset.rows for dataset in plan.datasets if dataset.rows is not None and dataset.share != 0])
    # Clusters have sizes of their own.
    if limit is None or plan.method == "crisp" or any(dataset.rows is None for dataset in plan.datasets):
        return
    possible = int((np.floor(limit * rows) // batch_rows(rows, plan.batch_size, plan.processes)).sum())
    needed = plan.steps * plan.batches_per_step
    if possible < needed:
        yield f"max_epochs allows {possible:,} batches but the run needs {needed:,}: it will be refused"


def _stages(recipe: Recipe, plan: Plan) -> Iterator[str]:
    if len(plan.stages) > 1:
        total = sum(stage.steps for stage in plan.stages)
        yield f"training.steps is {plan.steps:,}, but with its stages the run trains for {total:,} steps"
    for stage in plan.stages:
        if stage.measures:
            yield from _updates(recipe, stage)


def _updates(recipe: Recipe, stage: StagePlan) -> Iterator[str]:
    if stage.first_update is None:
        yield f"no update would ever come in the {stage.steps:,} steps of the {stage.name} stage"
        return
    warmup = recipe.training.warmup_steps
    if stage.first_update < warmup:
        rate = relative_rate(stage.first_update, stage.steps, warmup)
        yield (
            f"the first update comes at step {stage.first_update}, when the learning rate has warmed up to "
            f"{rate:.0%} only (training.warmup_steps is {warmup})"
        )


def _guides(plan: Plan) -> Iterator[str]:
    wanted = max(stage.dev_batch_size for stage in plan.stages)
    for name, rows in plan.guides.items():
        if rows is not None and rows < wanted:
            yield f"dev set {name}: {rows:,} rows may guide, fewer than the {wanted:,} an update would look at"

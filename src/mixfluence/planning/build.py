"""A recipe becomes a plan: its stages, what each costs, and what every dataset is drawn for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mixfluence.config.samplers import UNIFORM, CrispSection, ReplaySection, StaticSection
from mixfluence.errors import DataError, RecipeError
from mixfluence.planning import costs, walk
from mixfluence.planning.concerns import find_concerns
from mixfluence.planning.inventory import Counts, count_guides, count_parameters, count_train, split_sizes
from mixfluence.planning.plan import DatasetPlan, Plan, StagePlan
from mixfluence.policy import Vector
from mixfluence.recipe import Recipe

if TYPE_CHECKING:
    from mixfluence.stages import Stage
    from mixfluence.strategies import Strategy


def plan_run(recipe: Recipe, sizes: Mapping[str, int] | None = None, *, processes: int = 1) -> Plan:
    """Return what a recipe will cost.

    Data that is on this machine is counted; of other data, what can be told without it is told.

    Args:
        recipe: What is to be done; it may have been read with `files_may_be_missing`.
        sizes: Rows of training sets, and of dev sets as `dev.NAME`. These are not read.
        processes: How many will train together, such as one on each GPU.

    Raises:
        RecipeError: If a size is of no dataset, there is no process, or the run would be refused.
    """
    if processes < 1:
        raise RecipeError(f"processes must be at least 1, found {processes}")
    given, given_dev = split_sizes(recipe, sizes or {})
    train = count_train(recipe, given)
    training, sized = recipe.training, walk.guessed(train.rows)
    strategies, unknown = _strategies(recipe)
    first, drawing = strategies[0]
    draws = first.steps * training.gradient_accumulation
    weights = None if unknown else walk.mean_weights(drawing, train.rows, draws)
    for _, strategy in strategies:
        strategy.start(sized)
    guided = any(strategy.probe for _, strategy in strategies)
    guides = count_guides(recipe, given_dev) if guided else Counts({})
    stages = [_plan_stage(recipe, stage, strategy, sized, guides, processes) for stage, strategy in strategies]
    plan = Plan(
        recipe.name,
        recipe.strategy.name,
        recipe.model.name,
        processes,
        training.steps,
        training.batch_size,
        training.gradient_accumulation,
        _plan_datasets(train, weights, training.batch_size, processes, draws, drawing.max_epochs),
        guides.rows,
        stages,
        _clustering(recipe, train),
        count_parameters(recipe.model),
        unknown=[*unknown, *_unknown_shares(stages), *_unknown_rows(train, guides)],
    )
    return replace(plan, concerns=find_concerns(recipe, plan))


def _strategies(recipe: Recipe) -> tuple[list[tuple[Stage, Strategy]], list[str]]:
    """Return every stage with its strategy, and why the weights it starts from are not known, if they are not."""
    from mixfluence.stages import build_stages

    anything = dict.fromkeys(recipe.train, 1.0)
    clustered = isinstance(recipe.strategy, CrispSection)
    try:
        stages = build_stages(recipe)
        # Later stages draw by what the earlier ones find.
        found = [anything if clustered or number else {} for number in range(len(stages))]
        strategies = [(stage, stage.strategy(weights)) for stage, weights in zip(stages, found, strict=True)]
    except DataError as error:
        strategies, _ = _strategies(_without_files(recipe))
        return strategies, [f"the weights that it starts from: {error}"]
    clusters = "clusters, and how often each is drawn: that is found when the run starts"
    return strategies, [clusters] if clustered else []


def _without_files(recipe: Recipe) -> Recipe:
    """Return a recipe that costs the same and starts from no file."""
    section = recipe.strategy
    if isinstance(section, ReplaySection):
        return recipe.model_copy(update={"strategy": StaticSection(init=UNIFORM, max_epochs=section.max_epochs)})
    return recipe.model_copy(update={"strategy": section.model_copy(update={"init": UNIFORM})})


def _plan_stage(
    recipe: Recipe, stage: Stage, strategy: Strategy, sizes: Mapping[str, int], guides: Counts, processes: int
) -> StagePlan:
    training, probe = recipe.training, strategy.probe
    dev = walk.guessed(guides.rows)
    per_round = walk.round_cost(strategy, sizes, dev, training, processes) if probe else 0.0
    memory = walk.round_memory(strategy)
    updates = list(walk.updates(strategy, stage.steps, training.warmup_steps))
    return StagePlan(
        name=stage.name,
        steps=stage.steps,
        step_cost=costs.PROXY_STEP if stage.against else 1.0,
        measures=probe is not None,
        updates=len(updates),
        first_update=updates[0] if updates else None,
        update_cost=per_round,
        dev_batch_size=probe.dev_batch_size if probe else 0,
        memory=(memory if updates else 0.0) + (costs.REFERENCE_MEMORY if stage.against else 0.0),
    )


def _plan_datasets(
    train: Counts, weights: Vector | None, batch_size: int, processes: int, draws: int, max_epochs: float | None
) -> list[DatasetPlan]:
    names = list(train.rows)
    if weights is None or (train.unknown and max_epochs is not None):
        return [DatasetPlan(name, train.rows[name], None, None) for name in names]
    sizes = np.array(list(walk.guessed(train.rows).values()), np.float64)
    batches = walk.batch_rows(sizes, batch_size, processes)
    shares = walk.within_epochs(weights, sizes, batches, draws, max_epochs)
    epochs = shares * draws * batches / sizes
    return [
        DatasetPlan(name, rows, share, None if rows is None else times)
        for (name, rows), share, times in zip(train.rows.items(), shares.tolist(), epochs.tolist(), strict=True)
    ]


def _clustering(recipe: Recipe, train: Counts) -> float | None:
    if not isinstance(recipe.strategy, CrispSection):
        return 0.0
    rows = [rows for rows in train.rows.values() if rows is not None]
    # The first process does it for all: the others wait.
    per_step = recipe.training.batch_size * recipe.training.gradient_accumulation
    return None if train.unknown else costs.clustering(sum(rows), per_step)


def _unknown_shares(stages: list[StagePlan]) -> list[str]:
    return ["how often each dataset is drawn in the final stage: the stages before it find that"] * (len(stages) > 1)


def _unknown_rows(train: Counts, guides: Counts) -> list[str]:
    told = []
    for counts, kind, taken in (train, "training", "a batch"), (guides, "dev", "a dev batch"):
        if missing := counts.unknown:
            names = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            sets = "set" if len(missing) == 1 else "sets"
            told.append(f"rows of the {kind} {sets} {names}, taken to be enough for {taken} ({counts.reason})")
    return told

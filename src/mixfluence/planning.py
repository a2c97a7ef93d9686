"""Make the plan of a recipe: count its data, start its strategies, and add up what their stages cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from mixfluence.errors import DataError, RecipeError
from mixfluence.influence.settings import FORWARD
from mixfluence.plan import DatasetPlan, Plan, Rows, StagePlan, batch_rows, concerns, relative_rate
from mixfluence.policy import UNIFORM, Vector, cap
from mixfluence.recipe import ModelSection, Recipe
from mixfluence.runs import TRACE_FILE, read_trace
from mixfluence.schema import unknown_key
from mixfluence.strategies import Stage, Static, Strategy

if TYPE_CHECKING:
    from mixfluence.data.formats import Source

# A stage trained against a reference model: one more forward pass, and the reference's parameters.
AGAINST_COST, AGAINST_MEMORY = 1 + FORWARD, 1.0
# Rows of a dataset whose size is unknown: enough for any batch.
GUESS = 1_000_000
# Points at which a schedule of weights is sampled.
POINTS = 1_000
# Parameters of the encoders from Python packages, whose weights are always the same.
PACKAGED = {"minilm": 22_713_216, "wordllama": 8_192_000}
DEV = "dev."


def plan_run(recipe: Recipe, sizes: Mapping[str, int] | None = None, *, processes: int = 1) -> Plan:
    """Return what a recipe will cost. Data on this machine is counted; other data may be missing.

    Args:
        recipe: It may have been read with `files_may_be_missing`.
        sizes: Rows of training sets, and of dev sets as `dev.NAME`; these are not read.
        processes: How many train together, such as one per GPU.
    """
    sizes, training = sizes or {}, recipe.training
    _check_sizes(recipe, sizes)
    train, reason = _count(recipe.train, sizes)
    stages, problem = _started_stages(recipe, _guessed(train))
    unknown = [problem] if problem else []
    merges = stages[-1][0].merges
    if len(stages) > 1 and not merges:
        unknown.append("how often each dataset is drawn in the final stage: earlier stages find that")
    if reason:
        unknown.append(f"rows of the training sets {_missing(train)}, assumed to fill a batch ({reason})")
    first, drawing = stages[0]
    draws = first.steps * training.gradient_accumulation
    weights = None if problem else _mean_weights(drawing, train, draws)
    if merges:
        draws *= len(stages) - 1
        weights = np.mean([expert.weights() for _, expert in stages[:-1]], axis=0)
    drawing.start(_guessed(train))
    guides: Rows = {}
    if recipe.strategy.scoring or any(strategy.probing for _, strategy in stages):
        given = {name.removeprefix(DEV): rows for name, rows in sizes.items() if name.startswith(DEV)}
        halves = recipe.selection is not None and recipe.selection.dev == "halves"
        guides, reason = _count(recipe.dev, given, halves=halves)
        if reason:
            unknown.append(f"rows of the dev sets {_missing(guides)}, assumed to fill a dev batch ({reason})")
    plan = Plan(
        recipe.name,
        recipe.strategy.name,
        recipe.model.name,
        processes,
        training.steps,
        training.batch_size,
        training.gradient_accumulation,
        _plan_datasets(train, weights, recipe, processes, draws, drawing.max_epochs),
        guides,
        [_plan_stage(recipe, stage, strategy, train, guides, processes) for stage, strategy in stages],
        _clustering_cost(recipe, train),
        count_parameters(recipe.model),
        unknown=unknown,
    )
    return replace(plan, concerns=list(concerns(recipe, plan)))


def calibrated(plan: Plan, recipe: Recipe, steps: int) -> Plan:
    """Return the plan of a recipe with measured seconds.

    Every stage trains for a few steps in a temporary folder, with one update. Reading data, selection and tests come
    on top. The cost of clustering is that of the cost model.
    """
    if plan.processes > 1:
        raise RecipeError(f"--calibrate measures one process, but the plan is for {plan.processes}")
    from mixfluence.build import stage_folder
    from mixfluence.experiment import run

    with TemporaryDirectory(prefix="mixfluence-") as folder:
        run(_shortened(recipe, steps, Path(folder)))
        traces = [read_trace(stage_folder(Path(folder), stage.name) / TRACE_FILE) for stage in plan.stages]
    paces = [pace(trace) for trace in traces]
    seconds = sum(
        stage.steps * per_step + stage.updates * per_update
        for stage, (per_step, per_update) in zip(plan.stages, paces, strict=True)
    )
    step, update = paces[0][0], max(per_update for _, per_update in paces)
    total = seconds + (plan.clustering or 0.0) * step
    facts = {"steps": steps, "seconds_per_step": step, "seconds_per_update": update, "seconds": total}
    return replace(plan, calibration=facts)


def pace(trace: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return the median seconds of a step and of an update in a trace with a line for every step."""
    # From the last line of the step before to the first of its own: an update comes between its own lines.
    steps = [
        after["seconds"] - before["seconds"] for before, after in pairwise(trace) if after["step"] > before["step"]
    ]
    updates = [line["update"]["seconds"] for line in trace if "update" in line]
    return median(steps), median(updates) if updates else 0.0


def _shortened(recipe: Recipe, steps: int, folder: Path) -> Recipe:
    """Return a recipe whose stages have a few steps each, with an update in the middle."""
    trainer_args = {name: value for name, value in recipe.training.trainer_args.items() if name != "report_to"}
    changes = {"steps": steps, "warmup_steps": 0, "log_every": 1, "save_every": None, "trainer_args": trainer_args}
    training, strategy = recipe.training.model_copy(update=changes), recipe.strategy.shortened(steps)
    return recipe.model_copy(
        update={"strategy": strategy, "training": training, "selection": None, "test": {}, "output": folder}
    )


def count_parameters(section: ModelSection) -> int | None:
    """Return the floating-point parameters of an encoder; None if its files are not on this machine."""
    from huggingface_hub import try_to_load_from_cache
    from safetensors import SafetensorError, safe_open

    if section.name in PACKAGED:
        return PACKAGED[section.name]
    folder = Path(section.name)
    if not folder.is_dir():
        found = try_to_load_from_cache(section.name, "model.safetensors", revision=section.revision)
        if not isinstance(found, str):
            return None
        folder = Path(found).parent
    total = 0
    try:
        for path in (*folder.glob("*.safetensors"), *folder.glob("*_*/*.safetensors")):
            with safe_open(path, "np") as tensors:
                slices = [tensors.get_slice(name) for name in tensors.keys()]  # noqa: SIM118
                total += sum(math.prod(part.get_shape()) for part in slices if "F" in part.get_dtype())
    except (OSError, SafetensorError):
        return None
    return total or None


def _started_stages(recipe: Recipe, sizes: Mapping[str, int]) -> tuple[list[tuple[Stage, Strategy]], str | None]:
    """Return every stage with its started strategy, and why the initial weights are unknown, if they are."""
    clusters = recipe.strategy.clusters
    problem = "clusters, and how often each is drawn: found when the run starts" if clusters else None
    started = []
    for number, stage in enumerate(recipe.strategy.stages(recipe)):
        strategy = stage.strategy(dict.fromkeys(sizes, 1.0) if number or clusters else {})
        try:
            strategy.start(sizes)
        except DataError as error:
            problem = f"the weights that it starts from: {error}"
            strategy = _without_file(strategy)
            strategy.start(sizes)
        started.append((stage, strategy))
    return started, problem


def _without_file(strategy: Strategy) -> Strategy:
    """Return a strategy of the same cost that starts uniformly, for one whose file of weights is missing."""
    if "init" in type(strategy).model_fields:
        return strategy.model_copy(update={"init": UNIFORM})
    return Static(init=UNIFORM, max_epochs=strategy.max_epochs)


def _mean_weights(strategy: Strategy, rows: Rows, draws: int) -> Vector | None:
    """Return the mean probability of each dataset over the run; None if it depends on an unknown size."""

    def mean(sizes: Mapping[str, int]) -> Vector:
        strategy.start(sizes)
        points = min(draws, POINTS)
        return np.asarray(np.mean([strategy.weights(point / points) for point in range(points)], axis=0))

    # Whether sizes matter is found by trying others, whatever the strategy.
    first = mean(_guessed(rows))
    second = mean({name: size or number for number, (name, size) in enumerate(rows.items(), 1)})
    return first if np.allclose(first, second, rtol=1e-9, atol=0) else None


def _updates(strategy: Strategy, steps: int, warmup_steps: int) -> Iterator[int]:
    """Yield the steps after which a started strategy would measure."""
    for step in range(1, steps if strategy.probing else 1):
        if strategy.due(step, relative_rate(step, steps, warmup_steps)):
            if not len(strategy.candidates()):
                from mixfluence.influence import Influences

                # An evaluation of unchanged dev sets: when the next one is due may depend on how many there were.
                none = np.array([], np.int64)
                strategy.update(Influences(none, none, ["dev"], np.zeros(1), [np.zeros((0, 1))]))
            yield step


def _plan_stage(
    recipe: Recipe, stage: Stage, strategy: Strategy, train: Rows, guides: Rows, processes: int
) -> StagePlan:
    probing, scoring_cost = strategy.probing, _scoring_cost(recipe, guides)
    update_cost, memory = _update_cost(recipe, strategy, train, guides, processes)
    updates = list(_updates(strategy, stage.steps, recipe.training.warmup_steps))
    if stage.scored:
        updates, update_cost = [stage.steps], scoring_cost
    return StagePlan(
        name=stage.name,
        steps=stage.steps,
        step_cost=scoring_cost if stage.merges else AGAINST_COST if stage.against else 1.0,
        measures=probing is not None,
        updates=len(updates),
        first_update=updates[0] if updates else None,
        update_cost=update_cost,
        dev_batch_size=probing.method.dev_batch_size if probing else 0,
        memory=(memory if updates else 0.0) + (AGAINST_MEMORY if stage.against else 0.0),
        merges=stage.merges,
    )


def _scoring_cost(recipe: Recipe, guides: Rows) -> float:
    """Return the cost of scoring one model on the dev sets; a training row has at least two texts."""
    if (scoring := recipe.strategy.scoring) is None:
        return 0.0
    texts = sum(min(scoring.queries, rows) + scoring.passages for rows in _guessed(guides).values())
    return texts / (2 * recipe.training.batch_size * recipe.training.gradient_accumulation) * FORWARD


def _update_cost(recipe: Recipe, strategy: Strategy, train: Rows, guides: Rows, processes: int) -> tuple[float, float]:
    """Return the cost and the memory of one update of a started strategy."""
    probing, training = strategy.probing, recipe.training
    if probing is None:
        return 0.0, 0.0
    method, rows_per_step = probing.method, training.batch_size * training.gradient_accumulation
    dev = sum(min(method.dev_batch_size, rows) for rows in _guessed(guides).values()) / rows_per_step
    possible = strategy.candidates()
    if not len(possible):
        return dev * FORWARD, 0.0
    measured = min(probing.subset or len(possible), len(possible))
    sharing = 1 if method.alone else processes
    sizes = np.array(list(_guessed(train).values()))[possible]
    batch = float(batch_rows(sizes, method.batch_size or training.batch_size, sharing).mean()) / sharing
    cost = method.round_cost(measured, batch / rows_per_step, probing.steps, dev, processes)
    return cost, method.memory(probing.reptile)


def _plan_datasets(
    train: Rows, weights: Vector | None, recipe: Recipe, processes: int, draws: int, max_epochs: float | None
) -> list[DatasetPlan]:
    if weights is None or (None in train.values() and max_epochs is not None):
        return [DatasetPlan(name, rows, None, None) for name, rows in train.items()]
    sizes = np.array(list(_guessed(train).values()), np.float64)
    batches = batch_rows(sizes, recipe.training.batch_size, processes)
    shares = weights if max_epochs is None else cap(weights, np.floor(max_epochs * sizes) // batches / draws)
    epochs = shares * draws * batches / sizes
    return [
        DatasetPlan(name, rows, share, None if rows is None else times)
        for (name, rows), share, times in zip(train.items(), shares.tolist(), epochs.tolist(), strict=True)
    ]


def _clustering_cost(recipe: Recipe, train: Rows) -> float | None:
    """Return the cost of one forward pass over all rows, by an encoder like the one that is trained."""
    if not recipe.strategy.clusters:
        return 0.0
    rows = [rows for rows in train.values() if rows is not None]
    # The first process does it for all: the others wait.
    per_step = recipe.training.batch_size * recipe.training.gradient_accumulation
    return None if len(rows) < len(train) else sum(rows) / per_step * FORWARD


def _guessed(rows: Rows) -> dict[str, int]:
    return {name: GUESS if size is None else size for name, size in rows.items()}


def _count(sources: Mapping[str, Source], given: Mapping[str, int], *, halves: bool = False) -> tuple[Rows, str]:
    """Return the rows of each dataset, or of the half that guides, and the first reason why one is unknown."""
    rows: Rows = {}
    reason = ""
    for name, source in sources.items():
        known = given.get(name) or (source.published and not source.on_disk and source.published.rows)
        try:
            rows[name] = (known // 2 if halves else known) if known else _read_count(name, source, halves)
        except DataError as error:
            rows[name] = None
            reason = reason or str(error)
    return rows, reason


def _read_count(name: str, source: Source, halves: bool) -> int:
    # Before anything heavy is imported: a plan without data should be quick.
    if not source.on_disk:
        raise DataError(f"{source.location}: no such file or folder")
    from mixfluence.data.formats import read_rows
    from mixfluence.data.retrieval import guiding_half

    rows = read_rows(source)
    return len(guiding_half(name, rows) if halves else rows)


def _check_sizes(recipe: Recipe, sizes: Mapping[str, int]) -> None:
    known = [*recipe.train, *(DEV + name for name in recipe.dev)]
    for name in sizes:
        if name not in known:
            raise RecipeError(f"sizes: {unknown_key(name, known)}")


def _missing(rows: Rows) -> str:
    names = [name for name, size in rows.items() if size is None]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

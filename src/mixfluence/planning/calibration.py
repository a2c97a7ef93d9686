"""A few real steps in a folder that is thrown away: how long they take on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from mixfluence.config.samplers import CrispSection, StaticSection
from mixfluence.errors import RecipeError
from mixfluence.planning.plan import Plan
from mixfluence.recipe import Recipe
from mixfluence.runs import TRACE_FILE, read_trace


@dataclass(frozen=True)
class Pace:
    """Seconds of a stage's step, and of its update if there was one."""

    step: float
    update: float


def calibrated(plan: Plan, recipe: Recipe, steps: int) -> Plan:
    """Return a plan with measured seconds: every stage is trained for a few steps, and measures once if it would.

    Selection and tests come on top, and so does reading the data, which is kept for the run itself. Clusters are not
    made; their cost stays what the cost model says.

    Args:
        plan: Of this recipe.
        recipe: Its data must be here.
        steps: How many steps of each stage.

    Raises:
        RecipeError: If the plan is for several processes: one is measured here.
    """
    if plan.processes > 1:
        raise RecipeError(f"steps are measured on one process, and the plan is for {plan.processes}")
    from mixfluence.experiment import run
    from mixfluence.stage_run import stage_folder

    with TemporaryDirectory(prefix="mixfluence-") as folder:
        run(_shortened(recipe, steps, Path(folder)))
        paces = [pace_of(read_trace(stage_folder(Path(folder), stage.name) / TRACE_FILE)) for stage in plan.stages]
    seconds = sum(
        stage.steps * pace.step + stage.updates * pace.update for stage, pace in zip(plan.stages, paces, strict=True)
    )
    facts = {
        "steps": steps,
        "seconds_per_step": paces[-1].step,
        "seconds_per_update": max(pace.update for pace in paces),
        "seconds": seconds + (plan.clustering or 0.0) * paces[-1].step,
    }
    return replace(plan, calibration=facts)


def pace_of(trace: Sequence[Mapping[str, Any]]) -> Pace:
    """Return how long steps and updates took in a trace that has a line for every step.

    A step lasts from the last line of the step before it to its own first: an update comes between its own lines.
    """
    steps = [
        after["seconds"] - before["seconds"] for before, after in pairwise(trace) if after["step"] > before["step"]
    ]
    updates = [line["update"]["seconds"] for line in trace if "update" in line]
    return Pace(median(steps), median(updates) if updates else 0.0)


def _shortened(recipe: Recipe, steps: int, folder: Path) -> Recipe:
    """Return a recipe whose stages all have a few steps, with an update in their middle if they measure."""
    section = StaticSection() if isinstance(recipe.strategy, CrispSection) else recipe.strategy
    middle = {"update_every": steps // 2, "warmup_steps": steps // 2, "freeze_below": 0.0}
    if "block_steps" in type(section).model_fields:
        # The steps between sweeps have to hold a sweep.
        del middle["update_every"]
    changes = {**middle, "reference_steps": None, "proxy_steps": None, "max_epochs": None}
    known = {name: value for name, value in changes.items() if name in type(section).model_fields}
    host = {name: value for name, value in recipe.training.host.items() if name != "report_to"}
    training = {"steps": steps, "warmup_steps": 0, "log_every": 1, "save_every": None, "host": host}
    return recipe.model_copy(
        update={
            "strategy": section.model_copy(update=known),
            "training": recipe.training.model_copy(update=training),
            "selection": None,
            "test": {},
            "output": folder,
        }
    )

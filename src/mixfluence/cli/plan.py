"""`mixfluence plan`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

from rich import filesize
from rich.console import Group
from rich.table import Table
from rich.text import Text
from typer import Option

from mixfluence.cli.terminal import Overrides, RecipeName, output, print_line, read_recipe, show_log
from mixfluence.display import duration, percent
from mixfluence.errors import RecipeError

if TYPE_CHECKING:
    from mixfluence.plan import Plan, StagePlan


def plan(
    recipe: RecipeName,
    overrides: Overrides = None,
    sizes: Annotated[
        list[str] | None,
        Option(metavar="NAME=ROWS,...", help="Rows of datasets that are not on this machine; dev.NAME for dev sets."),
    ] = None,
    processes: Annotated[int, Option(min=1, metavar="N", help="Processes that train together, one per GPU.")] = 1,
    calibrate: Annotated[int | None, Option(min=5, metavar="STEPS", help="Train a few steps to time them.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Estimate the cost of a run before it starts: epochs, overhead, memory, and likely mistakes."""
    parsed = read_recipe(recipe, overrides, files_may_be_missing=calibrate is None)
    given = dict(map(_size, (part for text in sizes or [] for part in text.split(","))))
    show_log(verbose=False)
    from mixfluence.planning import calibrated, plan_run

    planned = plan_run(parsed, given, processes=processes)
    if calibrate:
        planned = calibrated(planned, parsed, calibrate)
    if as_json:
        print_line(json.dumps(planned.as_json(), indent=1))
        return
    output.print(plan_view(planned), highlight=False)
    if None in [*(dataset.rows for dataset in planned.datasets), *planned.guides.values()]:
        print_line("\nGive the missing sizes with --sizes NAME=ROWS,dev.NAME=ROWS.")


def _size(text: str) -> tuple[str, int]:
    name, _, rows = (part.strip() for part in text.rpartition("="))
    if not name or not rows.isdecimal() or int(rows) < 1:
        raise RecipeError(f"--sizes {text!r}: expected NAME=ROWS, such as fever=109810")
    return name, int(rows)


def plan_view(plan: Plan) -> Group:
    """Return a plan as tables and sentences; names are not interpreted as markup."""
    processes = f" on {plan.processes:,} processes" if plan.processes > 1 else ""
    batches = f" x {plan.batches_per_step}" if plan.batches_per_step > 1 else ""
    what = f"{plan.steps:,} steps of {plan.batch_size * plan.processes:,} rows{batches}"
    title = Text(f"{plan.name}{processes}: {plan.method} on {plan.model}, {what}", "bold")
    costs = Table.grid(padding=(0, 3, 0, 0))
    costs.add_column(style="dim", no_wrap=True)
    for heading, text in _costs(plan):
        costs.add_row(heading, Text(text))
    view = Group(title, "", _datasets(plan), "", costs)
    for heading, sentences in (("warnings", plan.concerns), ("unknown", plan.unknown)):
        if sentences:
            bullets = Table.grid(padding=(0, 1, 0, 0))
            for sentence in sentences:
                bullets.add_row("-", Text(sentence, overflow="fold"))
            style = "bold yellow" if heading == "warnings" else "bold"
            view.renderables.extend([Text(f"\n{heading}:", style), bullets])
    return view


def _datasets(plan: Plan) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("dataset")
    stage = f" in stage {plan.stages[0].name}" if len(plan.stages) > 1 and not plan.stages[-1].merges else ""
    for heading in ("rows", "share", f"epochs{stage}"):
        table.add_column(heading, justify="right")
    for dataset in plan.datasets:
        share = "?" if dataset.share is None else percent(dataset.share)
        epochs = "?" if dataset.epochs is None else f"{dataset.epochs:,.{2 if dataset.epochs < 10 else 0}f}"
        table.add_row(Text(dataset.name), _count(dataset.rows), share, epochs)
    return table


def _costs(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.guides:
        yield "guided by", ", ".join(f"{name} ({_count(rows)} rows)" for name, rows in plan.guides.items())
    if plan.clustering != 0:
        steps = (
            f", at most {plan.clustering:,.0f} training steps if its encoder is no larger" if plan.clustering else ""
        )
        yield "clustering", f"one forward pass over all rows{steps}"
    several = len(plan.stages) > 1
    for text, same in groupby(plan.stages, _stage):
        stages = list(same)
        if len(stages) > 2:
            yield f"{len(stages)} stages", f"{stages[0].name} to {stages[-1].name}, each {text}"
            continue
        for stage in stages:
            if several:
                yield f"stage {stage.name}", text
            elif stage.measures:
                yield "measuring", _updates(stage)
    clusters = ", and the clustering" if plan.clustering is None else ""
    times = f"{plan.times_static:.2f} times a static run of {plan.steps:,}"
    yield "cost", f"{plan.cost:,.0f} training steps, {times}{clusters}"
    yield "memory", _memory(plan)
    if facts := plan.calibration:
        update = f", {facts['seconds_per_update']:.3g} s an update" if facts["seconds_per_update"] else ""
        pace = f"{facts['seconds_per_step']:.3g} s a step{update}"
        yield "time", f"{duration(facts['seconds'])} on this machine ({pace}); selection and tests come on top"


def _stage(stage: StagePlan) -> str:
    if stage.merges:
        return f"{stage.steps:,} merges scored on dev, each {stage.step_cost:.1f} training steps"
    cost = "" if stage.step_cost == 1 else f" of {stage.step_cost:.2f} training steps each"
    scored = f", scored on dev for {stage.update_cost:.1f} more" if stage.updates and not stage.measures else ""
    return f"{stage.steps:,} steps{cost}{scored}" + (f"; {_updates(stage)}" if stage.measures else "")


def _updates(stage: StagePlan) -> str:
    if not stage.updates:
        return "no update"
    added = stage.updates * stage.update_cost / stage.steps
    each = f"each {stage.update_cost:.1f} training steps (+{added:.0%})"
    return f"{stage.updates:,} updates from step {stage.first_update:,} on, {each}"


def _memory(plan: Plan) -> str:
    place = " on each process" if plan.processes > 1 else ""
    text = (
        f"{plan.training_memory:g} parameter sizes to train with Adam{place}, {plan.sampler_memory:g} for the sampler"
    )
    if plan.parameters is not None and plan.memory_bytes is not None:
        text += f": {filesize.decimal(plan.memory_bytes)} for {plan.parameters / 1e6:,.1f} million parameters"
    return f"{text}; activations come on top"


def _count(rows: int | None) -> str:
    return "?" if rows is None else f"{rows:,}"

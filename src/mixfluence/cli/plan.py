"""`mixfluence plan`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

from rich.console import Group
from rich.table import Table
from rich.text import Text
from typer import Option

from mixfluence.cli.terminal import Overrides, RecipeName, output, print_line, read_recipe, show_log
from mixfluence.display import counted, percent, printable

if TYPE_CHECKING:
    from mixfluence.memory import Memory
    from mixfluence.plan import Plan, StagePlan


def plan(
    recipe: RecipeName,
    overrides: Overrides = None,
    processes: Annotated[int, Option(min=1, metavar="N", help="Processes that train together, one per GPU.")] = 1,
) -> None:
    """Estimate the cost of a run before it starts: epochs, overhead, memory, and likely mistakes."""
    parsed = read_recipe(recipe, overrides, files_may_be_missing=True)
    show_log(verbose=False)
    from mixfluence.plan import plan_run

    planned = plan_run(parsed, processes=processes)
    if planned.data:
        from mixfluence.data.preview import preview
        from mixfluence.preflight import recipe_counter

        count = recipe_counter(parsed)
        for line in (line for name, rows in planned.data.train.items() for line in preview(name, rows, count)):
            print_line(line)
    output.print(plan_view(planned), highlight=False)


def plan_view(plan: Plan) -> Group:
    """Return a plan as tables and sentences; names are not interpreted as markup."""
    recipe, training = plan.recipe, plan.recipe.training
    processes = f" on {plan.processes:,} processes" if plan.processes > 1 else ""
    batches = f" x {training.gradient_accumulation}" if training.gradient_accumulation > 1 else ""
    what = f"{training.steps:,} steps of {training.batch_size * plan.processes:,} rows{batches}"
    title = printable(f"{recipe.name}{processes}: {recipe.strategy.name} on {recipe.model.name}, {what}")
    costs = Table.grid(padding=(0, 3, 0, 0))
    costs.add_column(style="dim", no_wrap=True)
    for heading, text in _costs(plan):
        costs.add_row(heading, Text(printable(text)))
    view = Group(Text(title, "bold"), "", _datasets(plan), "", costs)
    if plan.concerns:
        sentences = [Text(printable(f"- {sentence}")) for sentence in plan.concerns]
        view.renderables.extend([Text("\nwarnings:", "bold yellow"), *sentences])
    return view


def _datasets(plan: Plan) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("dataset")
    stage = f" in stage {plan.stages[0].name}" if len(plan.stages) > 1 and not plan.stages[-1].merges else ""
    for heading in ("rows", "share", f"epochs{stage}"):
        table.add_column(heading, justify="right")
    for dataset in plan.datasets:
        share = "from encodings" if dataset.share is None else percent(dataset.share)
        epochs = "" if dataset.epochs is None else f"{dataset.epochs:,.{2 if dataset.epochs < 10 else 0}f}"
        table.add_row(Text(printable(dataset.name)), f"{dataset.rows:,}", share, epochs)
    return table


def _costs(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.absent:
        names = ", ".join(plan.absent[:3]) + (f" and {len(plan.absent) - 3} more" if len(plan.absent) > 3 else "")
        yield "absent", f"{names}: not on this machine, so train will refuse to start; sizes are the published ones"
    if plan.guides:
        yield "guided by", ", ".join(f"{name} ({rows:,} rows)" for name, rows in plan.guides.items())
    if plan.clusters:
        yield "arms", f"at most {plan.clusters:,} clusters of {len(plan.datasets):,} datasets"
    for purpose, (cost, text) in plan.encodings.items():
        size = " if it is as large as the model" if purpose == "encoding" else ""
        yield purpose, f"{text}; as much as {cost:,.0f} training steps{size}"
    for text, same in groupby(plan.stages, _stage):
        stages = list(same)
        if len(stages) > 2:
            yield f"{len(stages)} stages", f"{stages[0].name} to {stages[-1].name}, each {text}"
            continue
        for stage in stages:
            if len(plan.stages) > 1:
                yield f"stage {stage.name}", text
            elif stage.dev_batch_size:
                yield "measuring", _updates(stage)
    steps = plan.recipe.training.steps
    yield "cost", f"{plan.cost:,.0f} training steps, {plan.times_static:.2f} times a static run of {steps:,}"
    yield from _memory(plan)


def _memory(plan: Plan) -> Iterator[tuple[str, str]]:
    from mixfluence.memory import plan_memory

    place = " on each process" if plan.processes > 1 else ""
    found = plan_memory(plan.recipe, plan.processes, plan.sampler_memory)
    if found is None:
        training = f"{plan.memory - plan.sampler_memory:g} parameter sizes to train with Adam{place}"
        yield "memory", f"{training}, {plan.sampler_memory:g} for the sampler; activations come on top"
        return
    yield "memory", f"about {_gib(found)}{place}"
    if plan.processes > 1:
        yield "in shards", f"about {_gib(found.sharded(plan.processes))} with FSDP2, and layers that are gathered"


def _gib(memory: Memory) -> str:
    parts = [f"{name} {value:,.2f}" for name, value in vars(memory).items() if value]
    return f"{memory.total:,.1f} GiB: {', '.join(parts)}"


def _stage(stage: StagePlan) -> str:
    if stage.merges:
        return f"{stage.steps:,} merges scored on dev, each {stage.step_cost:.1f} training steps"
    if not stage.step_cost:
        return "taken from an earlier run"
    cost = "" if stage.step_cost == 1 else f" of {stage.step_cost:.2f} training steps each"
    scored = f", scored on dev for {stage.scoring_cost:.1f} more" if stage.scoring_cost else ""
    return f"{stage.steps:,} steps{cost}{scored}" + (f"; {_updates(stage)}" if stage.dev_batch_size else "")


def _updates(stage: StagePlan) -> str:
    if not stage.updates:
        return "no update"
    most = "at most " if stage.adapts else ""
    first = f", the first {stage.update_cost + stage.first_extra:.1f}" if stage.first_extra else ""
    added = f"(+{most}{stage.measuring_cost / stage.steps:.0%})"
    each = f"each {most}{stage.update_cost:.1f} training steps{first} {added}"
    rows = f"on {most}{stage.dev_batch_size:,} rows of each dev set"
    return f"{counted(stage.updates, 'update')} from step {stage.first_update:,} on, {each}, {rows}"

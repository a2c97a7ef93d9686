"""Show a plan in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import filesize
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mixfluence.display import duration, percent
from mixfluence.plan import Plan, StagePlan


def plan_view(plan: Plan) -> Group:
    """Return a plan as tables and sentences; names are not interpreted as markup."""
    processes = f" on {plan.processes:,} processes" if plan.processes > 1 else ""
    batch = f"{plan.batch_size * plan.processes:,} rows"
    batches = f" x {plan.batches_per_step}" if plan.batches_per_step > 1 else ""
    what = f"{plan.method} on {plan.model}, {plan.steps:,} steps of {batch}{batches}"
    title = Text(f"{plan.name}{processes}: {what}", "bold")
    return Group(title, "", _datasets(plan), "", _costs(plan), *_remarks(plan))


def _datasets(plan: Plan) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("dataset")
    stage = f" in stage {plan.stages[0].name}" if len(plan.stages) > 1 else ""
    for heading in ("rows", "share", f"epochs{stage}"):
        table.add_column(heading, justify="right")
    for dataset in plan.datasets:
        table.add_row(
            Text(dataset.name),
            "?" if dataset.rows is None else f"{dataset.rows:,}",
            "?" if dataset.share is None else percent(dataset.share),
            "?" if dataset.epochs is None else f"{dataset.epochs:,.{2 if dataset.epochs < 10 else 0}f}",
        )
    return table


def _costs(plan: Plan) -> Table:
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for heading, text in _lines(plan):
        table.add_row(heading, Text(text))
    return table


def _lines(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.guides:
        yield "guided by", ", ".join(f"{name} ({_count(rows)} rows)" for name, rows in plan.guides.items())
    if plan.clustering is None:
        yield "clustering", "one forward pass over all rows"
    elif plan.clustering:
        steps = f"at most {plan.clustering:,.0f} training steps if its encoder is no larger"
        yield "clustering", f"one forward pass over all rows, {steps}"
    for stage in plan.stages:
        if len(plan.stages) > 1 or stage.measures:
            yield (f"stage {stage.name}" if len(plan.stages) > 1 else "measuring"), _stage(stage, len(plan.stages))
    clusters = ", and the clustering" if plan.clustering is None else ""
    times = f"{plan.times_static:.2f} times a static run of {plan.steps:,}"
    yield "cost", f"{plan.cost:,.0f} training steps, {times}{clusters}"
    yield "memory", _memory(plan)
    if plan.calibration:
        yield "time", _time(plan)


def _stage(stage: StagePlan, stages: int) -> str:
    parts = []
    if stages > 1:
        step = "" if stage.step_cost == 1 else f" of {stage.step_cost:.2f} training steps each"
        parts.append(f"{stage.steps:,} steps{step}")
    if stage.measures and not stage.updates:
        parts.append("no update")
    elif stage.measures:
        added = stage.updates * stage.update_cost / stage.steps
        each = f"each {stage.update_cost:.1f} training steps (+{added:.0%})"
        parts.append(f"{stage.updates:,} updates from step {stage.first_update:,} on, {each}")
    return "; ".join(parts)


def _memory(plan: Plan) -> str:
    extra = f"{plan.sampler_memory:g} for the sampler" if plan.sampler_memory else "none for the sampler"
    place = " on each process" if plan.processes > 1 else ""
    text = f"{plan.training_memory:g} parameter sizes to train with Adam{place}, {extra}"
    if plan.memory_bytes is not None:
        text += f": {filesize.decimal(plan.memory_bytes)} for {_millions(plan.parameters or 0)} parameters"
    return f"{text}; activations come on top"


def _time(plan: Plan) -> str:
    facts = plan.calibration or {}
    update = f", {facts['seconds_per_update']:.3g} s an update" if facts["seconds_per_update"] else ""
    pace = f"{facts['seconds_per_step']:.3g} s a step{update}"
    return f"{duration(facts['seconds'])} on this machine ({pace}); selection and tests come on top"


def _remarks(plan: Plan) -> Iterator[RenderableType]:
    if plan.concerns:
        yield Text("\nwarnings:", "bold yellow")
        yield _list(plan.concerns)
    if plan.unknown:
        yield Text("\nunknown:", "bold")
        yield _list(plan.unknown)


def _list(sentences: list[str]) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    for sentence in sentences:
        table.add_row("-", Text(sentence, overflow="fold"))
    return table


def _count(rows: int | None) -> str:
    return "?" if rows is None else f"{rows:,}"


def _millions(count: int) -> str:
    return f"{count / 1e6:,.1f} million" if count >= 1e5 else f"{count:,}"

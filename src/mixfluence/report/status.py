"""Progress of a run, read from its folder alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.text import Text

from mixfluence import runs
from mixfluence.display import MOST_DATASETS, duration, facts_table, largest, mixture_table, printable
from mixfluence.report.curves import influence_unit, matrix, with_error
from mixfluence.report.tables import Screen, Sheet, measure_sheet, numbers, words
from mixfluence.runs import Run, TraceLine, read_run
from mixfluence.strategies import FINAL

# A trace that has not grown for this many times its longest pause, and at least a minute, has probably ended.
PATIENCE, LEAST_PATIENCE = 5, 60.0


@dataclass(frozen=True)
class Status:
    """Progress of a run: the stage that ran last, the steps of each, its trace and its last complete checkpoint.

    `changed` is when the trace last grew, `silent` the seconds since then if that is long for this run.
    """

    run: Run
    stage: str
    stages: dict[str, int]
    trace: list[TraceLine]
    checkpoint: int | None
    changed: float
    silent: float | None

    @property
    def state(self) -> str:
        """`finished`, `testing` once all steps are trained, or `training`."""
        trained = self.stage == FINAL and self.step >= self.stages[FINAL]
        return "finished" if self.run.finished else "testing" if trained else "training"

    @property
    def ended(self) -> bool:
        """Whether the run has finished, or has probably stopped."""
        return self.run.finished or self.silent is not None

    @property
    def step(self) -> int:
        """Steps trained in the stage."""
        return int(self.trace[-1]["step"]) if self.trace else 0

    @property
    def left(self) -> float | None:
        """Seconds of training left, later stages included, at the same pace."""
        steps = sum(list(self.stages.values())[list(self.stages).index(self.stage) :])
        return float(self.trace[-1]["seconds"] / self.step * (steps - self.step)) if self.step else None

    @property
    def found(self) -> list[Mapping[str, float]]:
        """Mixtures found so far, oldest first, of a stage that searches for one."""
        return [line["outcome"] for line in self.trace if "outcome" in line]

    @property
    def history(self) -> list[Mapping[str, float]]:
        """`found`, or the probabilities of the datasets, oldest first."""
        return self.found or [line["weights"] for line in self.trace[1:]]

    @property
    def influence(self) -> tuple[int | None, dict[str, float]]:
        """Step of the last measured influences, and their values."""
        for line in reversed(self.trace):
            if values := line.get("update", {}).get("influence"):
                return line["step"], {name: value for name, value in values.items() if value is not None}
        return None, {}


def read_status(path: Path, now: float | None = None) -> Status:
    """Read the progress of a run at a time in seconds since 1970, by default the present."""
    run = read_run(path)
    stages = {stage.name: stage.steps for stage in run.recipe.strategy.stages(run.recipe)}
    started = [name for name in stages if run.stages.get(name)]
    stage = FINAL if run.trace or not started else started[-1]
    trace, folder = (run.trace, path) if stage == FINAL else (run.stages[stage], path / runs.STAGES_FOLDER / stage)
    changed = (folder / runs.TRACE_FILE if trace else path / runs.RECIPE_FILE).stat().st_mtime
    silent = (time.time() if now is None else now) - changed
    pauses = [after["seconds"] - before["seconds"] for before, after in pairwise(trace)]
    ended = not run.finished and silent >= max(LEAST_PATIENCE, PATIENCE * max(pauses, default=0.0))
    sealed = runs.checkpoint_files(folder, runs.MANIFEST_FILE)
    checkpoint = runs.step_of(sealed[0].parent) if sealed else None
    return Status(run, stage, stages, trace, checkpoint, changed, silent if ended else None)


def status_view(status: Status) -> Lines:
    """Return a status for the terminal; names are never interpreted as markup."""
    run, (measured, influence) = status.run, status.influence
    tested = ("model", f"{run.untrained}, tested without training")
    facts = facts_table([tested] if run.untrained else _facts(status))
    state = status.state if status.silent is None else f"probably stopped while {status.state}"
    title = printable(f"{run.recipe.name}: {run.recipe.strategy.name}, {state}")
    parts: list[RenderableType] = [Text(title, "bold"), "", facts]
    if status.history:
        what = "mixture found" if status.found else "sampling probabilities"
        when = "" if run.finished else " so far" if status.found else " now"
        note = f", last influence from step {measured:,}" if measured else ""
        table = mixture_table(status.history, influence)
        parts += [Text(f"\n{what}{when}, with history{note}", "dim"), table]
    sheets = list(_matrix_sheets(status))
    if scores := run.record.get("scores"):
        sheets.append(measure_sheet("test scores x 100", scores))
    return Lines(*parts, "", Screen(sheets)) if sheets else Lines(*parts)


def _matrix_sheets(status: Status) -> Iterator[Sheet]:
    """Yield the influence of the most likely datasets on each dev set, if it was measured."""
    if found := matrix(status.trace):
        measured = {name for own in found.values() for name in own}
        shown = [name for name in largest(status.history[-1], MOST_DATASETS) if name in measured]
        columns = [numbers(target, [with_error(own.get(name, [])) for name in shown]) for target, own in found.items()]
        title = f"what helps whom: {influence_unit(status.run)}, mean of the last rounds"
        yield Sheet(title, (words("", shown), *columns), 1)


def _facts(status: Status) -> Iterator[tuple[str, str]]:
    steps, run = status.stages[status.stage], status.run
    if status.silent is not None:
        since = datetime.fromtimestamp(status.changed).strftime("%Y-%m-%d %H:%M")
        yield "last change", f"{since}, {duration(status.silent)} ago"
    if len(status.stages) > 1:
        yield "stage", f"{status.stage}, {list(status.stages).index(status.stage) + 1} of {len(status.stages)}"
    yield "step", f"{status.step:,} of {steps:,} ({status.step / steps:.0%})"
    for key, name, digits in (("loss", "loss", 4), ("learning_rate", "learning rate", 3)):
        if values := [line[key] for line in status.trace if key in line]:
            yield name, f"{values[-1]:.{digits}g}"
    if status.step:
        seconds, when = status.trace[-1]["seconds"], "in total" if run.finished else "so far"
        probing = sum(line["update"]["seconds"] for line in status.trace if "update" in line)
        # In a stage that merges models, a step is nothing but an evaluation.
        own = seconds if any("merged" in line.get("update", {}) for line in status.trace) else seconds - probing
        yield "pace", f"{own / status.step:.3g} s per step, {duration(seconds)} {when}"
        if 0 < probing < seconds and own < seconds:
            yield "probing", f"{duration(probing)}, {probing / (seconds - probing):.0%} on top of training"
        if status.state == "training":
            yield "left", duration(status.left or 0.0)
    yield from _guard_facts(status)
    if status.checkpoint is not None:
        yield "checkpoint", f"step {status.checkpoint:,}"
    if run.finished:
        yield "model", f"from step {run.record['selected_step']:,}"


def _guard_facts(status: Status) -> Iterator[tuple[str, str]]:
    updates = [line["update"] for line in status.trace if "guards" in line.get("update", {})]
    for name, facts in updates[-1]["guards"].items() if updates else ():
        change = f"{abs(facts['worse']):.1%} {'worse' if facts['worse'] > 0 else 'better'} than at the start"
        acting = ", changes the mixture" if facts["push"] else ""
        yield "guard", f"{name}: {change}, {status.run.recipe.strategy.guards[name]:.1%} allowed{acting}"

"""A run as its folder shows it: how far it is, what it draws, and whether it still moves."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mixfluence.display import duration, mixture_table
from mixfluence.recipe import Recipe
from mixfluence.report.folders import RunFolder, read_run
from mixfluence.report.tables import measure_table
from mixfluence.run_folder import CHECKPOINTS_FOLDER, MANIFEST_FILE, RECIPE_FILE, STAGES_FOLDER, TRACE_FILE
from mixfluence.strategies import FINAL

# A trace that has not grown for this many times its longest pause, and at least a minute, has probably ended.
PATIENCE, LEAST_PATIENCE = 5, 60.0
Trace = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Status:
    """Where a run stands.

    Attributes:
        name: Of the recipe.
        method: The sampler.
        state: `finished`; `testing` when all steps are trained but not all is written; else `training`.
        stage: Which of its runs the rest is about.
        stages: Steps of each of them, in order.
        step: Steps trained in the stage.
        seconds: How long they took, probing included.
        probing: Part of that which went into measuring datasets.
        loss: The last that was logged.
        learning_rate: The same.
        history: Probabilities of the datasets, oldest first; of a strategy that looks for a mixture, what it found.
        searching: Whether it is such a strategy.
        influence: Last influence of each dataset that was measured.
        influence_step: When that was.
        checkpoint: Step of the last one; None if there is none.
        changed: When the trace last grew, in seconds since 1970.
        silent: How long it has not grown, if that is long for this run; None if not.
        selected: Step of the model that was kept; None if it has not finished.
        scores: What that model scored on each test set, by measure; empty if it has not finished.
    """

    name: str
    method: str
    state: str
    stage: str
    stages: dict[str, int]
    step: int
    seconds: float
    probing: float
    loss: float | None
    learning_rate: float | None
    history: list[Mapping[str, float]]
    searching: bool
    influence: Mapping[str, float]
    influence_step: int | None
    checkpoint: int | None
    changed: float
    silent: float | None
    selected: int | None
    scores: Mapping[str, Mapping[str, float]]

    @property
    def steps(self) -> int:
        """Steps that the stage will have."""
        return self.stages[self.stage]

    @property
    def seconds_per_step(self) -> float | None:
        """How long a training step takes, without probing."""
        return (self.seconds - self.probing) / self.step if self.step else None

    @property
    def overhead(self) -> float | None:
        """Seconds of probing per second of everything else in training."""
        spent = self.seconds - self.probing
        return self.probing / spent if spent > 0 else None

    @property
    def left(self) -> float | None:
        """Seconds that are left to train, later stages included if they go at the same pace."""
        if not self.step:
            return None
        later = list(self.stages.values())[list(self.stages).index(self.stage) + 1 :]
        return self.seconds / self.step * (self.steps - self.step + sum(later))


def read_status(path: Path, now: float | None = None) -> Status:
    """Read where a run stands.

    Args:
        path: The run's folder.
        now: Seconds since 1970; the present if None.

    Raises:
        DataError: If the folder does not hold a run.
    """
    run = read_run(path)
    stage, trace, folder = _current(run)
    file = folder / TRACE_FILE if trace else path / RECIPE_FILE
    changed = file.stat().st_mtime
    stages, step = stage_steps(run.recipe), trace[-1]["step"] if trace else 0
    trained = stage == FINAL and step >= stages[FINAL]
    silent = (time.time() if now is None else now) - changed
    logged = next((line for line in reversed(trace) if "loss" in line), {})
    measured = next((line for line in reversed(trace) if line.get("update", {}).get("influence")), None)
    influence = measured["update"]["influence"] if measured else {}
    found = [line["outcome"] for line in trace if "outcome" in line]
    return Status(
        name=run.recipe.name,
        method=run.recipe.strategy.name,
        state="finished" if run.finished else "testing" if trained else "training",
        stage=stage,
        stages=stages,
        step=step,
        seconds=trace[-1]["seconds"] if trace else 0.0,
        probing=sum(line["update"]["seconds"] for line in trace if "update" in line),
        loss=logged.get("loss"),
        learning_rate=logged.get("learning_rate"),
        history=found or [line["weights"] for line in trace if "weights" in line],
        searching=bool(found),
        influence={name: value for name, value in influence.items() if value is not None},
        influence_step=measured["step"] if measured else None,
        checkpoint=_last_checkpoint(folder),
        changed=changed,
        silent=None if run.finished or silent < _patience(trace) else silent,
        selected=run.record.get("selected_step"),
        scores=run.record.get("scores", {}),
    )


def stage_steps(recipe: Recipe) -> dict[str, int]:
    """Return the names and steps of a recipe's runs, in order."""
    return {stage.name: stage.steps for stage in recipe.strategy.stages(recipe)}


def _current(run: RunFolder) -> tuple[str, Trace, Path]:
    """Return the stage that was last at work, its trace and its folder."""
    names = [name for name in stage_steps(run.recipe) if run.stages.get(name)]
    if run.trace or not names:
        return FINAL, run.trace, run.path
    return names[-1], run.stages[names[-1]], run.path / STAGES_FOLDER / names[-1]


def _last_checkpoint(folder: Path) -> int | None:
    whole = (folder / CHECKPOINTS_FOLDER).glob(f"checkpoint-*/{MANIFEST_FILE}")
    numbers = [path.parent.name.rpartition("-")[2] for path in whole]
    return max((int(number) for number in numbers if number.isdecimal()), default=None)


def _patience(trace: Trace) -> float:
    pauses = [after["seconds"] - before["seconds"] for before, after in pairwise(trace)]
    return max(LEAST_PATIENCE, PATIENCE * max(pauses, default=0.0))


def status_view(status: Status) -> Group:
    """Return a status as a terminal shows it. Names in it are data and mean nothing to the terminal."""
    facts = Table.grid(padding=(0, 3, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    for heading, text in _lines(status):
        facts.add_row(heading, Text(text))
    title = Text(f"{status.name}: {status.method}, {_state(status)}", "bold")
    parts: list[RenderableType] = [title, "", facts]
    if status.history:
        measured = f", last influence from step {status.influence_step:,}" if status.influence_step else ""
        parts.append(Text(f"\n{_mixture(status)}, how it went{measured}", "dim"))
        parts.append(mixture_table(status.history, status.influence))
    if status.selected is not None:
        scored = ", test scores x 100" if status.scores else ""
        parts.append(Text(f"\nthe model is that of step {status.selected:,}{scored}"))
    if status.scores:
        parts.append(measure_table(status.scores))
    return Group(*parts)


def _mixture(status: Status) -> str:
    if status.state == "finished":
        return "the mixture found" if status.searching else "what was drawn at the end"
    return "the mixture found so far" if status.searching else "what is drawn now"


def _state(status: Status) -> str:
    if status.state == "finished":
        return "finished"
    if status.silent is not None:
        return f"probably stopped in {'its tests' if status.state == 'testing' else 'training'}"
    return "trained, now testing" if status.state == "testing" else "training"


def _lines(status: Status) -> Iterator[tuple[str, str]]:
    if status.silent is not None:
        since = datetime.fromtimestamp(status.changed).strftime("%Y-%m-%d %H:%M")
        yield "last sign", f"{since}, {duration(status.silent)} ago"
    if len(status.stages) > 1:
        place = list(status.stages).index(status.stage) + 1
        yield "stage", f"{status.stage}, {place} of {len(status.stages)}"
    yield "step", f"{status.step:,} of {status.steps:,} ({status.step / status.steps:.0%})"
    if status.loss is not None:
        yield "loss", f"{status.loss:.4g}"
    if status.learning_rate is not None:
        yield "learning rate", f"{status.learning_rate:.3g}"
    if status.seconds_per_step is not None:
        until = "in all" if status.state == "finished" else "so far"
        yield "pace", f"{status.seconds_per_step:.3g} s a step, {duration(status.seconds)} {until}"
    if status.overhead:
        yield "probing", f"{duration(status.probing)}, {status.overhead:.0%} on top of training"
    if status.state == "training" and status.left is not None:
        yield "left", duration(status.left)
    if status.checkpoint is not None:
        yield "checkpoint", f"step {status.checkpoint:,}"

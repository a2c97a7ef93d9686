"""Results of a study's cells, by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import fmean

from mixfluence.recipe import Recipe
from mixfluence.runs import PARTS, Group, Run, Score, read_run
from mixfluence.sweep import State
from reproduction.cells import Cell
from reproduction.schema import Row
from reproduction.stability import Mixture, mean_mixture


@dataclass(frozen=True)
class Trajectory:
    """The mixture of a run over its steps.

    Attributes:
        target: The only target of the run; None if it is for all.
        seed: The seed of the run.
        steps: Its training steps.
        mixtures: The mixture at the start and after each change, with its step.
    """

    target: str | None
    seed: int
    steps: int
    mixtures: Sequence[tuple[int, Mixture]]

    @property
    def final(self) -> Mixture:
        """The last mixture."""
        return self.mixtures[-1][1]


@dataclass(frozen=True)
class Outcome:
    """The finished part of a row.

    Attributes:
        row: The row of the study.
        label: Its title in tables.
        groups: Target -> its finished runs, which differ only in their seed; None stands for all targets.
        columns: The test sets that count.
        measure: The measure of all scores.
        missing: The number of unfinished cells.
    """

    row: Row
    label: str
    groups: Mapping[str | None, Group]
    columns: tuple[str, ...]
    measure: str
    missing: int

    @property
    def recipe(self) -> Recipe:
        """The recipe of its first run."""
        return self.all_runs[0].recipe

    @property
    def all_runs(self) -> list[Run]:
        """Its finished runs, trained or only tested."""
        return [run for group in self.groups.values() for run in group.runs]

    @property
    def runs(self) -> list[Run]:
        """Its trained runs."""
        return [run for run in self.all_runs if not run.untrained]

    @property
    def scores(self) -> dict[str, Score]:
        """Column -> score. With a run for each target, a column comes from the target's own runs."""
        found = {name: score for group in self.groups.values() for name, score in group.scores(self.measure).items()}
        return {name: found[name] for name in self.columns if name in found}

    @property
    def by_seed(self) -> dict[int, dict[str, float]]:
        """Seed -> column -> points."""
        found: dict[int, dict[str, float]] = {}
        for group in self.groups.values():
            for name, score in group.scores(self.measure).items():
                for run, value in zip(group.runs, score.values, strict=True):
                    if name in self.columns:
                        found.setdefault(run.recipe.seed, {})[name] = value
        return found

    @property
    def average(self) -> Score | None:
        """The mean over columns, of the seeds that have them all; None if none has."""
        values = [fmean(own.values()) for own in self.by_seed.values() if len(own) == len(self.columns)]
        return Score(tuple(values)) if values else None

    @property
    def is_static(self) -> bool:
        """Whether its mixture never changes."""
        return self.recipe.strategy.name == "static"

    @cached_property
    def trajectories(self) -> list[Trajectory]:
        """The trajectories of its trained runs."""
        return [
            Trajectory(target, run.recipe.seed, run.recipe.training.steps, _mixtures(run))
            for target, group in self.groups.items()
            for run in group.runs
            if not run.untrained
        ]

    @property
    def final_weights(self) -> dict[str | None, dict[str, float]]:
        """Target -> dataset -> probability at the end of the run, mean over seeds."""
        trained = {target: group for target, group in self.groups.items() if not group.runs[0].untrained}
        return {target: mean_mixture([run.weights for run in group.runs]) for target, group in trained.items()}

    def hours(self, on_gpu: bool) -> dict[str, float] | None:
        """Return the mean hours of a run by part, None if nothing was trained."""
        found = [hours for group in self.groups.values() if (hours := group.hours(on_gpu))]
        return {part: fmean(hours[part] for hours in found) for part in PARTS} if found else None


def read_outcomes(cells: Sequence[Cell], columns: Sequence[str], measure: str) -> list[Outcome]:
    """Return the rows that have a finished cell.

    Args:
        cells: All cells of the study.
        columns: The test sets that count.
        measure: The measure to read.
    """
    rows: dict[str, list[Cell]] = {}
    for cell in cells:
        rows.setdefault(cell.title, []).append(cell)
    outcomes = []
    for own in rows.values():
        done: dict[str | None, list[Cell]] = {}
        for cell in own:
            if cell.state() is State.FINISHED:
                done.setdefault(cell.target, []).append(cell)
        if done:
            groups = {target: _group(finished) for target, finished in done.items()}
            missing = len(own) - sum(map(len, done.values()))
            outcomes.append(Outcome(own[0].row, own[0].title, groups, tuple(columns), measure, missing))
    return outcomes


def _group(cells: Sequence[Cell]) -> Group:
    # Not `group_by_seed`: a resampled row has other training files for each seed.
    return Group(tuple(cell.name for cell in cells), tuple(read_run(cell.folder) for cell in cells))


def _mixtures(run: Run) -> list[tuple[int, Mixture]]:
    lines = [line for line in run.trace if "weights" in line]
    if not lines or not set(lines[0]["weights"]) <= set(run.recipe.train):
        # Clusters are sampled; their shares of the datasets are only known for the end.
        return [(0, run.weights)]
    changed = [line for before, line in pairwise(lines) if line["weights"] != before["weights"]]
    return [(0, lines[0]["weights"]), *((line["step"], line["weights"]) for line in changed)]

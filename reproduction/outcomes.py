"""Results of a study's cells, by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import fmean

from mixfluence.recipe import Recipe
from mixfluence.sweep import State
from reproduction.cells import Cell
from reproduction.package import PARTS, RECORD_FILE, Run, read_record, read_run
from reproduction.schema import Row
from reproduction.stability import Mixture, mean_mixture


@dataclass(frozen=True)
class Done:
    """A finished cell.

    Attributes:
        cell: The cell.
        scores: Test set -> points (x 100).
        run: Its run folder; None if nothing was trained.
    """

    cell: Cell
    scores: Mapping[str, float]
    run: Run | None

    @cached_property
    def trajectory(self) -> list[tuple[int, Mixture]]:
        """The mixture at the start and after each change, with its step."""
        if self.run is None:
            return []
        lines = [line for line in self.run.trace if "weights" in line]
        if not lines or not set(lines[0]["weights"]) <= set(self.cell.recipe.train):
            # Clusters are sampled; their shares of the datasets are only known for the end.
            return [(0, self.run.weights)]
        changed = [line for before, line in pairwise(lines) if line["weights"] != before["weights"]]
        return [(0, lines[0]["weights"]), *((line["step"], line["weights"]) for line in changed)]


@dataclass(frozen=True)
class Outcome:
    """The finished part of a row.

    Attributes:
        row: The row of the study.
        label: Its title in tables.
        recipe: The recipe of its first cell.
        done: Its finished cells.
        columns: The test sets that count.
        missing: The number of unfinished cells.
    """

    row: Row
    label: str
    recipe: Recipe
    done: tuple[Done, ...]
    columns: tuple[str, ...]
    missing: int

    @property
    def scores(self) -> dict[str, list[float]]:
        """Column -> points by seed. With a run for each target, a column comes from the target's own runs."""
        found = {name: [one.scores[name] for one in self.done if name in one.scores] for name in self.columns}
        return {name: values for name, values in found.items() if values}

    @property
    def by_seed(self) -> dict[int, dict[str, float]]:
        """Seed -> column -> points."""
        found: dict[int, dict[str, float]] = {}
        for done in self.done:
            own = {name: value for name, value in done.scores.items() if name in self.columns}
            found.setdefault(done.cell.seed, {}).update(own)
        return found

    @property
    def averages(self) -> list[float]:
        """The average over columns for every seed that has them all."""
        return [fmean(own.values()) for own in self.by_seed.values() if len(own) == len(self.columns)]

    @property
    def runs(self) -> list[Run]:
        """The run folders of its trained cells."""
        return [done.run for done in self.done if done.run]

    @property
    def is_static(self) -> bool:
        """Whether its mixture never changes."""
        return self.recipe.strategy.name == "static"

    @property
    def final_weights(self) -> dict[str | None, dict[str, float]]:
        """Target -> dataset -> probability at the end of the run, mean over seeds."""
        found: dict[str | None, list[Mixture]] = {}
        for done in self.done:
            if done.run:
                found.setdefault(done.cell.target, []).append(done.run.weights)
        return {target: mean_mixture(mixtures) for target, mixtures in found.items()}

    def hours(self, on_gpu: bool) -> dict[str, float] | None:
        """Return the mean hours of a run by part, None if nothing was trained."""
        parts = [run.hours(on_gpu) for run in self.runs]
        return {part: fmean(hours[part] for hours in parts) for part in PARTS} if parts else None


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
        done = tuple(_read(cell, measure) for cell in own if cell.state() is State.FINISHED)
        if done:
            first = own[0]
            outcomes.append(Outcome(first.row, first.title, first.recipe, done, tuple(columns), len(own) - len(done)))
    return outcomes


def _read(cell: Cell, measure: str) -> Done:
    scores = {
        name: 100 * summary[measure] for name, summary in read_record(cell.folder / RECORD_FILE)["scores"].items()
    }
    return Done(cell, scores, None if cell.row.reference else read_run(cell.folder))

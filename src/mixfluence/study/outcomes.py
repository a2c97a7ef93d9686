"""What the cells of a study left behind, by row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import fmean
from typing import Any

from mixfluence.recipe import Recipe
from mixfluence.runs import PARTS, RECORD_FILE, Run, Score, read_run
from mixfluence.study.arithmetic import Mixture
from mixfluence.study.cell import State, state_of
from mixfluence.study.grid import Cell
from mixfluence.study.schema import Row


@dataclass(frozen=True)
class Done:
    """A finished cell.

    Attributes:
        cell: Which.
        scores: Test set -> points (x 100).
        run: Its folder; None for a model that was not trained.
    """

    cell: Cell
    scores: Mapping[str, float]
    run: Run | None

    @cached_property
    def trajectory(self) -> list[tuple[int, Mixture]]:
        """The mixture at the start and whenever it changed, with its step; a run that never changes it has one."""
        if self.run is None:
            return []
        lines = [line for line in self.run.trace if "weights" in line]
        if not lines or not set(lines[0]["weights"]) <= set(self.cell.recipe.train):
            # Clusters are drawn; what they are in datasets is known for the end alone.
            return [(0, self.run.weights)]
        changed = [line for before, line in pairwise(lines) if line["weights"] != before["weights"]]
        return [(0, lines[0]["weights"]), *((line["step"], line["weights"]) for line in changed)]


@dataclass(frozen=True)
class Outcome:
    """A row of a study as far as it is finished.

    Attributes:
        row: As the study has it.
        label: As the table calls it.
        recipe: Of its first cell.
        done: Its finished cells.
        columns: The test sets that count.
        scores: Column -> points by seed, if there are any. Of runs for one target each, a column is that of the
            target's own runs.
        missing: How many cells are not finished.
    """

    row: Row
    label: str
    recipe: Recipe
    done: tuple[Done, ...]
    columns: tuple[str, ...]
    scores: Mapping[str, Score]
    missing: int

    @property
    def by_seed(self) -> dict[int, dict[str, float]]:
        """Points of each seed by column, as far as it has them."""
        found: dict[int, dict[str, float]] = {}
        for done in self.done:
            own = {name: points for name, points in done.scores.items() if name in self.columns}
            found.setdefault(done.cell.seed, {}).update(own)
        return found

    @property
    def average(self) -> Score | None:
        """The average over columns for every seed that has them all; None if none has."""
        whole = [points.values() for points in self.by_seed.values() if len(points) == len(self.columns)]
        return Score(tuple(map(fmean, whole))) if whole else None

    @property
    def runs(self) -> list[Run]:
        """The folders of its runs; none for a model that was not trained."""
        return [done.run for done in self.done if done.run]

    def hours(self, on_gpu: bool) -> dict[str, float] | None:
        """Return the mean hours of a run by part, None if nothing was trained."""
        parts = [run.hours(on_gpu) for run in self.runs]
        return {part: fmean(hours[part] for hours in parts) for part in PARTS} if parts else None


def read_outcomes(cells: Sequence[Cell], columns: Sequence[str], measure: str) -> list[Outcome]:
    """Return the rows of a study, those without a finished cell left out.

    Args:
        cells: All of the study.
        columns: The test sets that count.
        measure: Which measure.
    """
    rows: dict[str, list[Cell]] = {}
    for cell in cells:
        rows.setdefault(cell.title, []).append(cell)
    outcomes = [_outcome(own, columns, measure) for own in rows.values()]
    return [outcome for outcome in outcomes if outcome.done]


def _outcome(cells: Sequence[Cell], columns: Sequence[str], measure: str) -> Outcome:
    done = tuple(_read(cell, measure) for cell in cells if state_of(cell) is State.FINISHED)
    scores = {name: tuple(one.scores[name] for one in done if name in one.scores) for name in columns}
    found = {name: Score(values) for name, values in scores.items() if values}
    return Outcome(cells[0].row, cells[0].title, cells[0].recipe, done, tuple(columns), found, len(cells) - len(done))


def _read(cell: Cell, measure: str) -> Done:
    record: dict[str, Any] = json.loads((cell.folder / RECORD_FILE).read_text(encoding="utf-8"))
    scores = {name: 100 * summary[measure] for name, summary in record["scores"].items()}
    return Done(cell, scores, None if cell.row.reference else read_run(cell.folder))

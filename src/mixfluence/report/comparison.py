"""Runs side by side: seeds of one recipe in a row, what each scored and cost, and two rows tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from mixfluence.errors import RecipeError
from mixfluence.recipe import Recipe
from mixfluence.report.contrast import Contrast, TestName, contrast
from mixfluence.report.fairness import Labelled, common_tests, differences
from mixfluence.report.folders import RunFolder, seeds_together
from mixfluence.report.labels import guides, initial_label, run_labels, sampler_label

PARTS = ("training", "probing", "stages", "clustering")
# What costs less, costs nothing.
LEAST_HOURS = 1e-9
_PART_OF = {"train": "training", "probe": "probing", "cluster": "clustering"}


@dataclass(frozen=True)
class Score:
    """A measure in points (x 100), once per seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return fmean(self.values)

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; None if there is only one."""
        return stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Row:
    """One run, or several that differ in their seed alone.

    Attributes:
        names: Names of the runs; the first stands for the row.
        runs: What they left behind.
        average: Over test sets, each of them counting alike.
        scores: Of each test set.
        hours: Mean hours of a run by part, those of `PARTS`. Reading data and testing, the same for every sampler,
            are left out.
    """

    names: tuple[str, ...]
    runs: tuple[RunFolder, ...]
    average: Score
    scores: Mapping[str, Score]
    hours: Mapping[str, float]

    @property
    def name(self) -> str:
        """What the row is called."""
        return self.names[0]

    @property
    def recipe(self) -> Recipe:
        """The recipe of all its runs, but for seed, output and name."""
        return self.runs[0].recipe

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, in the order of the runs."""
        return tuple(run.recipe.seed for run in self.runs)

    @property
    def sampler(self) -> str:
        """The method, as a table says it."""
        return sampler_label(self.recipe)

    @property
    def initial(self) -> str:
        """Where its probabilities start."""
        return initial_label(self.recipe)

    @property
    def train(self) -> tuple[str, ...]:
        """Names of the training sets."""
        return tuple(self.recipe.train)

    @property
    def dev(self) -> tuple[str, ...]:
        """Names of the dev sets that guide sampling."""
        return guides(self.recipe)

    @property
    def total_hours(self) -> float:
        """Hours of all parts."""
        return sum(self.hours.values())


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes:
        measure: One of `mixfluence.evaluation.MEASURES`.
        tests: Names of the test sets.
        rows: In the order in which their first runs were given.
        contrast: Two of the rows tested against each other; None if there is one row only.
        on_gpu: Whether hours are GPU-hours, as they are if every run had a GPU.
        differences: What is not equal besides the sampler, a sentence each.
    """

    measure: str
    tests: tuple[str, ...]
    rows: tuple[Row, ...]
    contrast: Contrast | None
    on_gpu: bool
    differences: tuple[str, ...]

    @property
    def static(self) -> Row | None:
        """The row that costs are relative to: the first that samples statically and cost anything."""
        paid = (row for row in self.rows if row.total_hours > LEAST_HOURS)
        return next((row for row in paid if row.recipe.strategy.name == "static"), None)

    def relative_cost(self, row: Row) -> float | None:
        """Return a row's hours divided by those of the static one; None if there is none."""
        return row.total_hours / self.static.total_hours if self.static else None


def compare(
    runs: Sequence[RunFolder],
    *,
    measure: str = "ndcg@10",
    between: tuple[str, str] | None = None,
    test: TestName = "t",
    bootstrap: bool = False,
) -> Comparison:
    """Put finished runs side by side and test two rows against each other.

    Args:
        runs: What to compare. Those with equal recipes but for seed, output and name share a row; a seed that is
            there twice, as in a copy of a run, gets a row of its own.
        measure: One of `mixfluence.evaluation.MEASURES`.
        between: The two rows to test, each by the name of one of its runs or by its position, from 1 on; the two
            with the best averages if None.
        test: Which test on the per-query scores: paired t-test or randomisation test.
        bootstrap: Add intervals of the differences.

    Raises:
        DataError: If a run has not finished, or runs were not judged on the same test sets.
        RecipeError: If `between` does not name two rows.
    """
    labelled = list(zip(run_labels([run.path for run in runs]), runs, strict=True))
    tests = common_tests(labelled)
    on_gpu = all(any(run.record["gpu_hours"].values()) for run in runs)
    groups = [[labelled[number] for number in group] for group in seeds_together(runs)]
    rows = tuple(_row(group, tests, measure, on_gpu) for group in groups)
    pair = _pair(rows, between)
    tested = contrast([row.runs for row in rows], pair, tests, measure, test, bootstrap) if pair else None
    return Comparison(measure, tests, rows, tested, on_gpu, tuple(differences(labelled, groups)))


def hours_by_part(run: RunFolder, on_gpu: bool) -> dict[str, float]:
    """Return what the parts of a finished run took, those of `PARTS`, in GPU-hours or in hours."""
    record = run.record
    spent = record["gpu_hours"] if on_gpu else {part: value / 3600 for part, value in record["seconds"].items()}
    hours = dict.fromkeys(PARTS, 0.0)
    for part, value in spent.items():
        if name := "stages" if part.startswith("stage ") else _PART_OF.get(part):
            hours[name] += value
    return hours


def _row(group: Sequence[Labelled], tests: Sequence[str], measure: str, on_gpu: bool) -> Row:
    names, runs = zip(*group, strict=True)
    scores = {name: Score(tuple(100 * run.scores[name].mean(measure) for run in runs)) for name in tests}
    average = Score(tuple(map(fmean, zip(*(score.values for score in scores.values()), strict=True))))
    parts = [hours_by_part(run, on_gpu) for run in runs]
    return Row(names, runs, average, scores, {part: fmean(hours[part] for hours in parts) for part in PARTS})


def _pair(rows: Sequence[Row], between: tuple[str, str] | None) -> tuple[int, int] | None:
    """Return the positions of the rows to test."""
    if between is not None:
        first, second = (_position(rows, word) for word in between)
        if first == second:
            raise RecipeError(f"--between {between[0]} {between[1]}: both are row {first + 1}, expected two rows")
        return first, second
    best = sorted(range(len(rows)), key=lambda place: -rows[place].average.mean)
    return (best[0], best[1]) if len(rows) > 1 else None


def _position(rows: Sequence[Row], word: str) -> int:
    named = [place for place, row in enumerate(rows) if word in row.names]
    numbered = [place for place in range(len(rows)) if word == str(place + 1)]
    if not named + numbered:
        known = ", ".join(f"{place} {row.name}" for place, row in enumerate(rows, start=1))
        raise RecipeError(f"--between: no row is called {word!r}; the rows are {known}")
    return (named + numbered)[0]

"""Compare runs: scores and cost of each group of seeds, and paired tests between two groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mixfluence.errors import RecipeError
from mixfluence.evaluation.significance import (
    ROUNDS,
    Vector,
    average_difference,
    bootstrap_interval,
    holm,
    randomisation_test,
    t_test,
)
from mixfluence.report.fairness import check_same_tests, differences, notes_on_tests
from mixfluence.runs import MEASURE, Group, Run, Score, group_by_seed

LEVEL = 0.05
TestName = Literal["t", "randomisation"]
TESTS = {"t": t_test, "randomisation": randomisation_test}
TEST_TITLES = {"t": "paired t-test", "randomisation": f"paired randomisation test with {ROUNDS:,} rounds"}
# Less is not a cost to divide by.
LEAST_HOURS = 1e-9
_UNITS = {"hours": 1, "minutes": 60, "seconds": 3600}


@dataclass(frozen=True)
class Difference:
    """Result of one paired test.

    Attributes:
        queries: Number of queries.
        difference: First minus second, in points.
        p: The p-value.
        p_holm: The p-value after Holm's correction over test sets; equal to `p` for the average, a single test.
        interval: 95% bootstrap interval of the difference in points, if requested.
    """

    queries: int
    difference: float
    p: float
    p_holm: float
    interval: tuple[float, float] | None

    @property
    def significant(self) -> bool:
        """Whether the corrected p-value is below `LEVEL`."""
        return self.p_holm < LEVEL


@dataclass(frozen=True)
class Contrast:
    """Paired tests between two groups.

    Attributes:
        first: Position of one group.
        second: Position of the other.
        test: Name of the test.
        average: Test of the average over test sets, all weighted equally.
        tests: Test of each test set.
    """

    first: int
    second: int
    test: TestName
    average: Difference
    tests: Mapping[str, Difference]


@dataclass(frozen=True)
class Comparison:
    """Groups of runs side by side.

    Attributes:
        measure: One of `mixfluence.evaluation.MEASURES`.
        groups: Groups in the order of their first run.
        tests: Names of all test sets.
        averaged: Test sets that every finished group has; averages are over these.
        contrast: Paired tests between two groups, if there are any.
        notes: Sentences about what differs besides the sampler.
    """

    measure: str
    groups: tuple[Group, ...]
    tests: tuple[str, ...]
    averaged: tuple[str, ...]
    contrast: Contrast | None
    notes: tuple[str, ...]

    @property
    def on_gpu(self) -> bool:
        """Whether costs are GPU-hours: every training run used a GPU."""
        runs = [run for group in self.groups for run in group.runs if run.finished and not run.untrained]
        return bool(runs) and all(run.on_gpu for run in runs)

    @property
    def unit(self) -> tuple[str, int]:
        """The largest unit of time in which the most expensive group costs at least 1, and its number in an hour."""
        most = max((self.cost(group) or 0.0 for group in self.groups), default=0.0)
        word = next((word for word, factor in _UNITS.items() if most * factor >= 1), "seconds")
        return f"GPU-{word}" if self.on_gpu else word, _UNITS[word]

    @property
    def static(self) -> Group | None:
        """The group that costs are relative to: the first one with static sampling."""
        paid = (group for group in self.groups if (self.cost(group) or 0.0) > LEAST_HOURS)
        return next((group for group in paid if group.recipe.strategy.name == "static"), None)

    def average(self, group: Group) -> Score | None:
        """Return the average over test sets; None if the group lacks one of them."""
        return group.average(self.averaged, self.measure)

    def cost(self, group: Group) -> float | None:
        """Return the mean hours of a run; None if nothing was trained or the run has not finished."""
        hours = group.hours(self.on_gpu)
        return sum(hours.values()) if hours else None

    def relative_cost(self, group: Group) -> float | None:
        """Return the cost divided by that of the static group; None if either is missing."""
        own, base = self.cost(group), self.cost(self.static) if self.static else None
        return own / base if own is not None and base else None


def compare(
    runs: Sequence[Run],
    *,
    measure: str = MEASURE,
    between: tuple[str, str] | None = None,
    test: TestName = "t",
    bootstrap: bool = False,
) -> Comparison:
    """Compare finished runs and test two groups against each other; `overview` accepts any runs and tests nothing.

    Args:
        runs: Runs to compare. Those that differ only in their seed form one group.
        measure: One of `mixfluence.evaluation.MEASURES`.
        between: The two groups to test, each by the name of one of its runs or by its position, starting at 1;
            by default the two with the highest averages.
        test: Paired test on per-query scores.
        bootstrap: Add bootstrap intervals of the differences.

    Raises:
        DataError: If a run has not finished, or runs have different test sets.
        RecipeError: If `between` does not name two groups.
    """
    groups = group_by_seed(runs)
    tests = check_same_tests(groups)
    found = Comparison(measure, tuple(groups), tests, tests, None, tuple(differences(groups)))
    pair = _pair(found, between)
    contrast = _contrast(found, pair, test, bootstrap) if pair else None
    return Comparison(measure, found.groups, tests, tests, contrast, found.notes)


def overview(runs: Sequence[Run]) -> Comparison:
    """Put any runs side by side, finished or not, on whatever test sets; notes say what must not be compared."""
    groups = group_by_seed(runs)
    finished = [group for group in groups if group.finished]
    scores = [group.scores() for group in finished]
    tests = tuple(dict.fromkeys(test for own in scores for test in own))
    averaged = tuple(test for test in tests if all(test in own for own in scores))
    notes = (*notes_on_tests(finished, tests, averaged), *differences(finished))
    return Comparison(MEASURE, tuple(groups), tests, averaged, None, notes)


def _pair(comparison: Comparison, between: tuple[str, str] | None) -> tuple[int, int] | None:
    """Return the positions of the groups to test."""
    groups = comparison.groups
    if between is not None:
        first, second = (_position(groups, word) for word in between)
        if first == second:
            raise RecipeError(f"--between {between[0]} {between[1]}: both are row {first + 1}, expected two rows")
        return first, second
    averages = [comparison.average(group) for group in groups]
    best = sorted(range(len(groups)), key=lambda place: -(score.mean if (score := averages[place]) else 0.0))
    return (best[0], best[1]) if len(groups) > 1 else None


def _position(groups: Sequence[Group], word: str) -> int:
    named = [place for place, group in enumerate(groups) if word in group.labels]
    numbered = [place for place in range(len(groups)) if word == str(place + 1)]
    if not named + numbered:
        known = ", ".join(f"{place} {group.label}" for place, group in enumerate(groups, start=1))
        raise RecipeError(f"--between: no row named {word!r}; the rows are {known}")
    return (named + numbered)[0]


def _contrast(comparison: Comparison, pair: tuple[int, int], test: TestName, bootstrap: bool) -> Contrast:
    """Test the per-query scores of two groups, paired by query, each score the mean over the group's seeds."""
    first, second = (comparison.groups[place] for place in pair)
    found = {
        name: _per_query(first, name, comparison.measure) - _per_query(second, name, comparison.measure)
        for name in comparison.tests
    }
    p_values = [TESTS[test]([values]) for values in found.values()]
    by_test = zip(found.items(), p_values, holm(p_values), strict=True)
    results = {name: _difference([values], p, p_holm, bootstrap) for (name, values), p, p_holm in by_test}
    p = TESTS[test](list(found.values()))
    return Contrast(*pair, test, _difference(list(found.values()), p, p, bootstrap), results)


def _per_query(group: Group, dataset: str, measure: str) -> Vector:
    """Return the mean over seeds of each query's score in points, ordered by query id."""
    tables = [run.scores[dataset].per_query for run in group.runs]
    points = [[100 * table[query][measure] for query in sorted(tables[0])] for table in tables]
    mean: Vector = np.mean(points, axis=0)
    return mean


def _difference(values: Sequence[Vector], p: float, p_holm: float, bootstrap: bool) -> Difference:
    interval = bootstrap_interval(values) if bootstrap else None
    return Difference(sum(map(len, values)), average_difference(values), p, p_holm, interval)

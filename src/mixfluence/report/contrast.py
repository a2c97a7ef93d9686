"""Two rows against each other, query by query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mixfluence.evaluation.significance import (
    ROUNDS,
    Vector,
    average_difference,
    bootstrap_interval,
    holm,
    randomisation_test,
    t_test,
)
from mixfluence.report.folders import RunFolder

LEVEL = 0.05
TestName = Literal["t", "randomisation"]
TESTS = {"t": t_test, "randomisation": randomisation_test}
WORDS = {"t": "paired t-test", "randomisation": f"paired randomisation test of {ROUNDS:,} rounds"}


@dataclass(frozen=True)
class Outcome:
    """What came of one test.

    Attributes:
        queries: How many were asked.
        difference: First minus second, in points.
        p: The p-value.
        corrected: The p-value after Holm's correction over test sets; the same for the average, which is one test.
        interval: Where 95 of 100 bootstrap draws of the difference lie, in points, if they were wanted.
    """

    queries: int
    difference: float
    p: float
    corrected: float
    interval: tuple[float, float] | None

    @property
    def significant(self) -> bool:
        """Whether the corrected p-value is below `LEVEL`."""
        return self.corrected < LEVEL


@dataclass(frozen=True)
class Contrast:
    """The tests between two rows.

    Attributes:
        first: Position of one row.
        second: Position of the other.
        test: Which test.
        average: The test of the average over test sets, each of them counting alike.
        tests: Those of each test set.
    """

    first: int
    second: int
    test: TestName
    average: Outcome
    tests: dict[str, Outcome]


def contrast(
    rows: Sequence[Sequence[RunFolder]],
    pair: tuple[int, int],
    tests: Sequence[str],
    measure: str,
    test: TestName,
    bootstrap: bool,
) -> Contrast:
    """Test the per-query scores of two rows, paired by query; a row of several seeds has the mean of its seeds.

    Args:
        rows: The runs of each row.
        pair: Positions of the two rows.
        tests: Names of the test sets; every run must have scored the same queries of each.
        measure: One of `mixfluence.evaluation.MEASURES`.
        test: Which test.
        bootstrap: Add intervals.
    """
    first, second = (rows[place] for place in pair)
    found = {name: _scores(first, name, measure) - _scores(second, name, measure) for name in tests}
    p_values = [TESTS[test]([values]) for values in found.values()]
    by_test = zip(found.items(), p_values, holm(p_values), strict=True)
    outcomes = {name: _outcome([values], p, corrected, bootstrap) for (name, values), p, corrected in by_test}
    p = TESTS[test](list(found.values()))
    return Contrast(*pair, test, _outcome(list(found.values()), p, p, bootstrap), outcomes)


def _scores(runs: Sequence[RunFolder], dataset: str, measure: str) -> Vector:
    """Return the mean over runs of each query's score in points, in the order of the query ids."""
    tables = [run.scores[dataset].per_query for run in runs]
    points = [[100 * table[query][measure] for query in sorted(tables[0])] for table in tables]
    mean: Vector = np.mean(points, axis=0)
    return mean


def _outcome(differences: Sequence[Vector], p: float, corrected: float, bootstrap: bool) -> Outcome:
    queries = sum(map(len, differences))
    interval = bootstrap_interval(differences) if bootstrap else None
    return Outcome(queries, average_difference(differences), p, corrected, interval)

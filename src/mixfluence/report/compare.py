"""Compare runs: scores and cost of each group of seeds, paired tests between two groups, and what else differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np

from mixfluence.errors import DataError, RecipeError
from mixfluence.evaluation import significance
from mixfluence.evaluation.significance import ROUNDS, Vector
from mixfluence.report.curves import step_equivalents
from mixfluence.runs import MEASURE, REFERENCES, Group, Run, Score, group_by_seed

LEVEL = 0.05
TestName = Literal["t", "randomisation"]
TESTS = {"t": significance.t_test, "randomisation": significance.randomisation_test}
TEST_TITLES = {"t": "paired t-test", "randomisation": f"paired randomisation test with {ROUNDS:,} rounds"}
_UNITS = {"hours": 1, "minutes": 60, "seconds": 3600}
# Keys that affect neither results nor cost.
_INCIDENTAL = {"training.log_every", "training.save_every"}


@dataclass(frozen=True)
class Difference:
    """Result of one paired test: first minus second in points, with its 95% bootstrap interval if requested.

    `p_holm` is the p-value after Holm's correction over test sets; the average is a single test and needs none.
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
    """Paired tests between two rows, given by their positions: of the average over test sets, and of each."""

    first: int
    second: int
    test: TestName
    average: Difference
    tests: Mapping[str, Difference]


@dataclass(frozen=True)
class Comparison:
    """Groups of runs side by side.

    Attributes:
        tests: Names of all test sets.
        averaged: Test sets that every finished group has; averages are over these.
        notes: Sentences about what differs besides the sampler.
    """

    measure: str
    groups: tuple[Group, ...]
    tests: tuple[str, ...]
    averaged: tuple[str, ...]
    notes: tuple[str, ...]
    contrast: Contrast | None = None

    @cached_property
    def rows(self) -> tuple[Group, ...]:
        """The groups, then the references of their runs: zero-shot, BM25, and the fusion of BM25 with each group."""
        return *self.groups, *_references(self.groups)

    @property
    def on_gpu(self) -> bool:
        """Whether costs are GPU-hours: every training run used a GPU."""
        runs = [run for group in self.groups for run in group.runs if run.finished and not run.untrained]
        return bool(runs) and all(any(run.record["gpu_hours"].values()) for run in runs)

    @property
    def unit(self) -> tuple[str, int]:
        """The largest unit of time in which the most expensive group costs at least 1, and its number in an hour."""
        most = max((self.cost(group) or 0.0 for group in self.groups), default=0.0)
        word = next((word for word, factor in _UNITS.items() if most * factor >= 1), "seconds")
        return f"GPU-{word}" if self.on_gpu else word, _UNITS[word]

    @property
    def statics(self) -> list[Group]:
        """The groups with static sampling; costs are relative to the first."""
        return [group for group in self.groups if group.recipe.strategy.baseline and self.cost(group)]

    @property
    def static(self) -> Group | None:
        """The group that costs are relative to."""
        return next(iter(self.statics), None)

    @cached_property
    def points(self) -> dict[int, list[Vector]]:
        """Scores per query of each averaged set, by the position of the row: means over seeds, ordered by query id.

        A row without an average, or whose runs were tested on different queries, is missing.
        """
        found = {}
        for place, row in enumerate(self.rows):
            if not self.average(row):
                continue
            by_test = [[run.scores[name].per_query for run in row.runs] for name in self.averaged]
            if all(table.keys() == tables[0].keys() for tables in by_test for table in tables):
                seeds = ([_in_points(table, self.measure) for table in tables] for tables in by_test)
                found[place] = [np.mean(values, axis=0) for values in seeds]
        return found

    def average(self, group: Group) -> Score | None:
        """Return the average over test sets; None if the group lacks one of them."""
        return group.average(self.averaged, self.measure)

    def kept(self, group: Group) -> float | None:
        """Return the mean score on test sets that a group guards, minus that of the start; negative if it forgot."""
        model = group.recipe.model.name
        starts = (row for row in self.rows if row.runs[0].untrained == "zero-shot" and row.recipe.model.name == model)
        start = next(starts, None)
        if start is None or group.runs[0].untrained:
            return None
        names = {name for group in self.groups for name in group.recipe.strategy.guards}
        guards = [test for test in self.averaged if test in names]
        before, after = (row.average(guards, self.measure) for row in (start, group))
        return after.mean - before.mean if before and after else None

    def cost(self, group: Group) -> float | None:
        """Return the mean hours of a run; None if nothing was trained or the run has not finished."""
        hours = group.hours(self.on_gpu)
        return sum(hours.values()) if hours else None

    def steps(self, group: Group) -> float | None:
        """Return the mean work of a run in training steps; None if nothing was trained or it has not finished."""
        return fmean(map(step_equivalents, group.runs)) if group.hours(self.on_gpu) else None

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
    """Compare finished runs with the same test sets, and test two groups against each other.

    Runs that differ only in their seed form one group. `between` names the two groups to test, each by one of its
    runs or by its position, starting at 1; by default they are the two with the highest averages. `overview` accepts
    any runs and tests nothing.
    """
    found = replace(overview(runs), measure=measure)
    _refuse_other_tests(found.groups)
    if not (pair := _pair(found, between)):
        return found
    return replace(found, contrast=contrast_between(found, *pair, test=test, bootstrap=bootstrap))


def overview(runs: Sequence[Run]) -> Comparison:
    """Compare any runs, finished or not, on any test sets; notes say which scores cannot be compared."""
    groups = tuple(group_by_seed(runs))
    finished = [group for group in groups if group.finished]
    scores = [group.scores() for group in finished]
    tests = tuple(dict.fromkeys(test for own in scores for test in own))
    averaged = tuple(test for test in tests if all(test in own for own in scores))
    notes = list(_differences(finished))
    if tests != averaged:
        notes.append(f"runs have different test sets; averages are over {', '.join(averaged) or 'none'}")
    for test in tests:
        if _changed(test, [run for _, run in labelled(finished)]):
            notes.append(f"queries, passages or judgements of {test} differ, so that its scores cannot be compared")
    return Comparison(MEASURE, groups, tests, averaged, tuple(notes))


def _pair(comparison: Comparison, between: tuple[str, str] | None) -> tuple[int, int] | None:
    """Return the positions of the groups to test."""
    groups = comparison.groups
    if between is not None:
        if not comparison.tests:
            raise RecipeError("--between: the runs have no test results")
        first, second = (_position(comparison.rows, word) for word in between)
        if first == second:
            raise RecipeError(f"--between {between[0]} {between[1]}: both are row {first + 1}, expected two rows")
        return first, second
    means = [score.mean for group in groups if (score := comparison.average(group))]
    best = sorted(range(len(means)), key=lambda place: -means[place])
    return (best[0], best[1]) if len(best) > 1 else None


def _position(groups: Sequence[Group], word: str) -> int:
    """Return the position of the group with a run of that name, or else the position that the word is."""
    for place, group in enumerate(groups):
        if word in (group.label, *group.labels):
            return place
    if word.isdecimal() and 1 <= int(word) <= len(groups):
        return int(word) - 1
    known = ", ".join(f"{place} {group.label}" for place, group in enumerate(groups, start=1))
    raise RecipeError(f"--between: no row named {word!r}; the rows are {known}")


def contrast_between(
    comparison: Comparison, first: int, second: int, *, test: TestName = "t", bootstrap: bool = False
) -> Contrast:
    """Test two rows, given by their positions, against each other; both need the same queries."""

    def difference(values: Sequence[Vector], p: float, p_holm: float) -> Difference:
        interval = significance.bootstrap_interval(values) if bootstrap else None
        return Difference(sum(map(len, values)), significance.average_difference(values), p, p_holm, interval)

    found = [one - other for one, other in zip(comparison.points[first], comparison.points[second], strict=True)]
    p_values = [TESTS[test]([values]) for values in found]
    by_test = zip(comparison.averaged, found, p_values, significance.holm(p_values), strict=True)
    results = {name: difference([values], p, p_holm) for name, values, p, p_holm in by_test}
    p = TESTS[test](found)
    return Contrast(first, second, test, difference(found, p, p), results)


def all_contrasts(comparison: Comparison) -> dict[int, dict[int, Contrast]]:
    """Return t-tests of rows against each row as baseline, where both have the same queries of all averaged sets."""
    scores = {place: comparison.rows[place].runs[0].scores for place in comparison.points}
    queries = {
        place: [hash(frozenset(own[name].per_query)) for name in comparison.averaged] for place, own in scores.items()
    }
    return {
        base: {
            place: contrast_between(comparison, place, base)
            for place in queries
            if place != base and queries[place] == queries[base]
        }
        for base in queries
    }


def _in_points(per_query: Mapping[str, Mapping[str, float]], measure: str) -> list[float]:
    return [100 * per_query[query][measure] for query in sorted(per_query)]


def _refuse_other_tests(groups: Sequence[Group]) -> None:
    """Refuse runs that have not finished, or that differ in their test sets."""
    runs = list(labelled(groups))
    for name, run in runs:
        if not run.finished:
            raise DataError(f"{name}: the run has not finished")
    (first, run), *others = runs
    for name, other in others:
        both = f"{first} and {name} cannot be compared"
        if unshared := run.scores.keys() ^ other.scores.keys():
            raise DataError(f"{both}: only one of them was tested on {', '.join(sorted(unshared))}")
        for test, scores in run.scores.items():
            if _changed(test, [run, other]) or scores.per_query.keys() != other.scores[test].per_query.keys():
                raise DataError(f"{both}: queries, passages or judgements of {test} differ")


def _references(groups: Sequence[Group]) -> list[Group]:
    """Return the references that runs were tested with, each once, except those that are groups themselves."""
    given = {run.untrained for _, run in labelled(groups)}
    found: dict[tuple[str, str], Group] = {}
    for group in groups:
        first, model = group.runs[0], group.recipe.model.name
        labels = {"zero-shot": (model, f"zero-shot {Path(model).name}"), "bm25": ("", "BM25")}
        for name in set.intersection(*(set(run.references) for run in group.runs)) - given:
            if name in labels:
                key, label = labels[name]
                found.setdefault((name, key), Group((label,), (_reference(first, name),)))
            else:
                fused = tuple(_reference(run, name) for run in group.runs)
                found[name, group.label] = Group(tuple(f"{label} + BM25" for label in group.labels), fused)
    return [found[key] for key in sorted(found, key=lambda key: REFERENCES.index(key[0]))]


def _reference(run: Run, name: str) -> Run:
    scores = run.references[name]
    summaries = {test: found.summary() for test, found in scores.items()}
    record = {"kind": "test", "reference": name, "scores": summaries, "tests": run.record["tests"]}
    return Run(run.path, run.recipe, record, scores=scores)


def _differences(groups: Sequence[Group]) -> Iterator[str]:
    """Yield a sentence for everything but the sampler that differs: model, training, selection, GPUs, data."""
    budgets = {group.label: _budget(group.runs[0]) for group in groups if not group.runs[0].untrained}
    for key in dict.fromkeys(key for budget in budgets.values() for key in budget):
        holders: dict[str, list[str]] = {}
        for name, budget in budgets.items():
            holders.setdefault(budget.get(key, "none"), []).append(name)
        if len(holders) > 1:
            yield f"{key} differs: " + "; ".join(f"{value} in {', '.join(names)}" for value, names in holders.items())
    # Records of runs that draw clusters list clusters, not datasets.
    runs = [run for _, run in labelled(groups) if not run.recipe.strategy.clusters]
    for dataset in dict.fromkeys(name for run in runs for name in run.record.get("datasets", {})):
        if _changed(dataset, runs, "datasets"):
            yield f"training rows of {dataset} differ between runs"


def _budget(run: Run) -> dict[str, str]:
    recipe = run.recipe.model_dump(mode="json", include={"model", "training", "selection"}, exclude_none=True)
    keys = {f"{section}.{key}": value for section, own in recipe.items() for key, value in own.items()}
    keys["train"] = ", ".join(run.recipe.train)
    hours, seconds = (sum(run.record[unit].values()) for unit in ("gpu_hours", "seconds"))
    keys["number of GPUs"] = f"{3600 * hours / seconds if seconds else 0:.0f}"
    return {key: v if isinstance(v, str) else json.dumps(v) for key, v in keys.items() if key not in _INCIDENTAL}


def _changed(name: str, runs: Sequence[Run], kind: Literal["tests", "datasets"] = "tests") -> bool:
    """Whether the contents of a set differ; a model tested by version 0.1.0 has no fingerprints."""
    known = [run.record.get(kind, {}) for run in runs]
    return len({facts[name]["fingerprint"] for facts in known if name in facts}) > 1


def labelled(groups: Sequence[Group]) -> Iterator[tuple[str, Run]]:
    """Yield every run with its label."""
    for group in groups:
        yield from zip(group.labels, group.runs, strict=True)

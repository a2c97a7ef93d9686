"""Which runs may stand in one table, and what a reader must know of those that do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mixfluence.errors import DataError
from mixfluence.report.folders import RunFolder

Labelled = tuple[str, RunFolder]
# What changes neither the result nor what it costs.
_INCIDENTAL = {"training.log_every", "training.save_every"}


def common_tests(runs: Sequence[Labelled]) -> tuple[str, ...]:
    """Return the test sets of runs that may be compared.

    Raises:
        DataError: If a run has not finished, or two were not judged on the same queries, passages and judgements.
    """
    for name, run in runs:
        if not run.finished:
            raise DataError(f"{name}: the run has not finished, so it has no scores to compare")
        if not run.record.get("tests"):
            raise DataError(f"{name}: the run was tested on nothing, so it has no scores to compare")
    (first, run), *others = runs
    tests: Mapping[str, Mapping[str, Any]] = run.record["tests"]
    for name, other in others:
        _refuse_other_tests((first, tests), (name, other.record["tests"]))
    for dataset in tests:
        _refuse_other_queries(dataset, runs)
    return tuple(tests)


def differences(runs: Sequence[Labelled], rows: Sequence[Sequence[Labelled]]) -> Iterator[str]:
    """Yield a sentence for everything but the sampler that runs do not share: model, training, selection, data.

    Args:
        runs: All runs.
        rows: The same, those of a row together; sentences name a row by its first run.
    """
    budgets = {row[0][0]: _budget(row[0][1]) for row in rows}
    for key in dict.fromkeys(key for budget in budgets.values() for key in budget):
        holders: dict[str, list[str]] = {}
        for name, budget in budgets.items():
            holders.setdefault(budget.get(key, "none"), []).append(name)
        if len(holders) > 1:
            yield f"{key} differs: " + "; ".join(f"{value} in {', '.join(names)}" for value, names in holders.items())
    yield from _changed_datasets(runs)


def _refuse_other_tests(one: tuple[str, Mapping[str, Any]], other: tuple[str, Mapping[str, Any]]) -> None:
    for (name, tests), (absent, others) in ((one, other), (other, one)):
        if missing := [dataset for dataset in tests if dataset not in others]:
            raise DataError(
                f"{one[0]} and {other[0]} cannot be compared: {name} was tested on {', '.join(missing)}, "
                f"{absent} was not"
            )
    for dataset, facts in one[1].items():
        if facts["fingerprint"] != other[1][dataset]["fingerprint"]:
            raise DataError(
                f"{one[0]} and {other[0]} cannot be compared: their test sets {dataset} do not have the same queries, "
                "passages and judgements"
            )


def _refuse_other_queries(dataset: str, runs: Sequence[Labelled]) -> None:
    """Refuse a file of scores that somebody has cut or mixed up."""
    first, queries = runs[0][0], set(runs[0][1].scores[dataset].per_query)
    for name, run in runs[1:]:
        if queries != set(run.scores[dataset].per_query):
            raise DataError(f"{first} and {name} cannot be compared: their scores of {dataset} are of other queries")


def _budget(run: RunFolder) -> dict[str, str]:
    recipe = run.recipe.model_dump(mode="json", include={"model", "training", "selection"})
    keys = dict(_flat(recipe))
    hours, seconds = (sum(run.record[unit].values()) for unit in ("gpu_hours", "seconds"))
    keys["number of GPUs"] = f"{3600 * hours / seconds if seconds else 0:.0f}"
    return {key: v if isinstance(v, str) else json.dumps(v) for key, v in keys.items() if key not in _INCIDENTAL}


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield prefix + key, value


def _changed_datasets(runs: Sequence[Labelled]) -> Iterator[str]:
    """Yield a sentence for each training set whose rows changed between runs. Clusters are no datasets."""
    seen: dict[str, tuple[str, str]] = {}
    told = set()
    for name, run in runs:
        datasets = {} if run.recipe.strategy.clusters else run.record["datasets"]
        for dataset, facts in datasets.items():
            holder, fingerprint = seen.setdefault(dataset, (name, facts["fingerprint"]))
            if fingerprint != facts["fingerprint"] and dataset not in told:
                told.add(dataset)
                yield f"training rows of {dataset} are not the same in {holder} and {name}"

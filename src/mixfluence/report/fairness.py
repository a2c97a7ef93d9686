"""Which runs may be compared, and what differs between those that are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mixfluence.errors import DataError
from mixfluence.runs import Group, Run

# Keys that affect neither results nor cost.
_INCIDENTAL = {"training.log_every", "training.save_every"}


def check_same_tests(groups: Sequence[Group]) -> tuple[str, ...]:
    """Return the test sets of runs that may be compared.

    Raises:
        DataError: If a run has not finished or has no test results, or two runs have different queries, passages or
            judgements.
    """
    runs = list(_labelled(groups))
    for name, run in runs:
        if not run.finished:
            raise DataError(f"{name}: the run has not finished and has no scores to compare")
        if not run.scores:
            raise DataError(f"{name}: the run has no test results to compare")
    (first, run), *others = runs
    for name, other in others:
        if reason := _why_not_comparable(first, run, name, other):
            raise DataError(f"{first} and {name} cannot be compared: {reason}")
    return tuple(run.scores)


def differences(groups: Sequence[Group]) -> Iterator[str]:
    """Yield a sentence for everything but the sampler that differs: model, training, selection, GPUs, data."""
    budgets = {group.label: _budget(group.runs[0]) for group in groups if not group.runs[0].untrained}
    for key in dict.fromkeys(key for budget in budgets.values() for key in budget):
        holders: dict[str, list[str]] = {}
        for name, budget in budgets.items():
            holders.setdefault(budget.get(key, "none"), []).append(name)
        if len(holders) > 1:
            yield f"{key} differs: " + "; ".join(f"{value} in {', '.join(names)}" for value, names in holders.items())
    yield from _changed_datasets(groups)


def notes_on_tests(groups: Sequence[Group], tests: Sequence[str], averaged: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for test sets that runs do not share, or share in name only."""
    if list(tests) != list(averaged):
        yield f"runs have different test sets; averages are over {', '.join(averaged) or 'none'}"
    known = [run.record.get("tests", {}) for _, run in _labelled(groups)]
    for test in tests:
        if len({facts[test]["fingerprint"] for facts in known if test in facts}) > 1:
            yield f"queries, passages or judgements of {test} differ between runs, so its scores cannot be compared"


def _labelled(groups: Sequence[Group]) -> Iterator[tuple[str, Run]]:
    for group in groups:
        yield from zip(group.labels, group.runs, strict=True)


def _why_not_comparable(one: str, run: Run, other: str, other_run: Run) -> str | None:
    pairs = ((one, run.scores), (other, other_run.scores))
    for (name, own), (absent, others) in (pairs, pairs[::-1]):
        if missing := [dataset for dataset in own if dataset not in others]:
            return f"{name} was tested on {', '.join(missing)}, {absent} was not"
    # A model tested by version 0.1.0 has no fingerprints.
    contents = [found.record.get("tests", {}) for found in (run, other_run)]
    for dataset, scores in run.scores.items():
        if len({tests[dataset]["fingerprint"] for tests in contents if dataset in tests}) > 1:
            return f"their test sets {dataset} differ in queries, passages or judgements"
        if scores.per_query.keys() != other_run.scores[dataset].per_query.keys():
            return f"their scores of {dataset} are of different queries"
    return None


def _budget(run: Run) -> dict[str, str]:
    keys = dict(_flat(run.recipe.model_dump(mode="json", include={"model", "training", "selection"})))
    hours, seconds = (sum(run.record[unit].values()) for unit in ("gpu_hours", "seconds"))
    keys["number of GPUs"] = f"{3600 * hours / seconds if seconds else 0:.0f}"
    return {key: v if isinstance(v, str) else json.dumps(v) for key, v in keys.items() if key not in _INCIDENTAL}


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield prefix + key, value


def _changed_datasets(groups: Sequence[Group]) -> Iterator[str]:
    """Yield a sentence for each training set whose rows differ between runs."""
    seen: dict[str, tuple[str, str]] = {}
    told = set()
    for name, run in _labelled(groups):
        # Records of runs that draw clusters list clusters, not datasets.
        datasets = {} if run.recipe.strategy.clusters else run.record.get("datasets", {})
        for dataset, facts in datasets.items():
            holder, fingerprint = seen.setdefault(dataset, (name, facts["fingerprint"]))
            if fingerprint != facts["fingerprint"] and dataset not in told:
                told.add(dataset)
                yield f"training rows of {dataset} differ between {holder} and {name}"

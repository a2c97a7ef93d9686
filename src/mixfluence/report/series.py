"""Run folders as plain series, for the page and the figures alike. One training is in `report.curves`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from mixfluence.errors import DataError
from mixfluence.recipe_yaml import dump_recipe
from mixfluence.report.curves import Curves, curves, limit_of, rows_trained
from mixfluence.report.fairness import Labelled, differences
from mixfluence.report.folders import RunFolder, seeds_together
from mixfluence.report.labels import guides, initial_label, run_labels, sampler_label
from mixfluence.report.queries import Extremes, extremes, longest_text
from mixfluence.run_folder import CHECKPOINTS_FOLDER, read_looks

MEASURE = "ndcg@10"
# Seconds that say nothing of a sampler: every run of an experiment spends them alike.
COMMON_PARTS = {"data", "tokenise", "evaluate"}


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        label: What it is called: its folder, as much of the path as tells it from others.
        sampler: The method.
        start: Where its probabilities start, in words.
        seed: Its seed.
        finished: Whether it came to its end.
        steps: How many steps it was to take.
        reached: How many it took.
        selected: The step whose model was kept, if a run that finished chose one.
        targets: The dev sets that guided it; none for a sampler that looks at none.
        trained_on: Its training sets.
        weights: The probability of each dataset at the end, or as far as it came.
        epochs: How often the rows of each dataset were trained on.
        selection: Dev set, and "mean" of several -> (step, NDCG@10 in points) of every checkpoint that was looked at.
        queries: Dev set -> its best and worst queries; empty if the run did not look at them.
        scores: Test set -> NDCG@10 in points.
        cost: Part -> time in the unit of the report.
        trainings: Its own training, and before it those of its stages.
        recipe: The resolved recipe as YAML.
        versions: What it ran with.
        device: What it ran on.
    """

    label: str
    sampler: str
    start: str
    seed: int
    finished: bool
    steps: int
    reached: int
    selected: int | None
    targets: list[str]
    trained_on: list[str]
    weights: dict[str, float]
    epochs: dict[str, float]
    selection: dict[str, list[tuple[int, float]]]
    queries: dict[str, Extremes]
    scores: dict[str, float]
    cost: dict[str, float]
    trainings: list[Curves]
    recipe: str
    versions: dict[str, str]
    device: str


@dataclass(frozen=True)
class Group:
    """Finished runs that differ in nothing but their seed, with means as numbers; or one that has not finished.

    Attributes:
        label: The label of the first run.
        runs: Their positions in the report.
        scores: Test set -> mean.
        average: Mean over the test sets that all runs of the report have; None if none finished.
        spread: Standard deviation of the average over seeds; None with fewer than two.
        cost: Part -> mean.
        own_cost: Mean of what the sampler and its training took; reading, tokenising and testing are left out.
    """

    label: str
    runs: list[int]
    scores: dict[str, float]
    average: float | None
    spread: float | None
    cost: dict[str, float]
    own_cost: float | None


@dataclass(frozen=True)
class Report:
    """All there is to draw.

    Attributes:
        runs: Runs in the order given.
        groups: The same by seed, in the order of their first run.
        tests: All test sets.
        shared_tests: Those that every finished run has; averages are over them.
        unit: What costs are given in, such as "GPU-hours".
        notes: What a reader of the tables must know.
    """

    runs: list[Run]
    groups: list[Group]
    tests: list[str]
    shared_tests: list[str]
    unit: str
    notes: list[str] = field(default_factory=list)


def collect(folders: Sequence[RunFolder]) -> Report:
    """Turn run folders into series.

    Raises:
        DataError: If there is no run, or one is named twice.
    """
    if not folders:
        raise DataError("no run to report on")
    unit, factor = _unit(folders)
    limit = limit_of([trace for folder in folders for trace in (folder.trace, *folder.stages.values())])
    longest = longest_text(sum(len(folder.dev) for folder in folders))
    labels = run_labels([folder.path for folder in folders])
    if len(set(labels)) < len(labels):
        raise DataError(f"{folders[0].path}: a run is named twice")
    runs = [_run(folder, label, limit, longest, factor) for folder, label in zip(folders, labels, strict=True)]
    finished = [run for run in runs if run.finished]
    tests = list(dict.fromkeys(test for run in finished for test in run.scores))
    shared = [test for test in tests if all(test in run.scores for run in finished)]
    together = seeds_together(folders)
    groups = [_group(runs, members, tests, shared) for members in together]
    labelled = [[(labels[n], folders[n]) for n in members] for members in together if folders[members[0]].finished]
    return Report(runs, groups, tests, shared, unit, [*_test_notes(folders, tests, shared), *_budget_notes(labelled)])


def _run(folder: RunFolder, label: str, limit: int, longest: int, factor: float) -> Run:
    recipe, record = folder.recipe, folder.record
    traces = {**folder.stages, "training" if folder.stages else "": folder.trace}
    trainings = [curves(trace, name, limit) for name, trace in traces.items() if len(trace) > 1]
    drawn = rows_trained(folder.trace)
    sizes = {name: facts["rows"] for name, facts in folder.trace[0]["datasets"].items()} if drawn else {}
    last: dict[str, float] = next((line["weights"] for line in reversed(folder.trace) if "weights" in line), {})
    return Run(
        label=label,
        sampler=sampler_label(recipe),
        start=initial_label(recipe),
        seed=recipe.seed,
        finished=folder.finished,
        steps=recipe.training.steps,
        reached=folder.trace[-1]["step"] if folder.trace else 0,
        selected=record.get("selected_step") if recipe.selection else None,
        targets=list(guides(recipe)),
        trained_on=list(recipe.train),
        weights=folder.weights or (last if set(last) <= set(recipe.train) else {}),
        epochs={name: drawn.get(name, 0) / rows for name, rows in sizes.items()},
        selection=_selection(folder),
        queries={name: extremes(queries, longest) for name, queries in folder.dev.items()},
        scores={name: 100 * evaluation.mean(MEASURE) for name, evaluation in folder.scores.items()},
        cost={part: spent * factor for part, spent in _spent(record).items()},
        trainings=trainings,
        recipe=dump_recipe(recipe),
        versions=record.get("versions", {}),
        device=record.get("device", ""),
    )


def _group(runs: Sequence[Run], members: list[int], tests: Sequence[str], shared: Sequence[str]) -> Group:
    done = [runs[member] for member in members if runs[member].finished]
    averages = [fmean(run.scores[test] for test in shared) for run in done] if shared else []
    parts = dict.fromkeys(part for run in done for part in run.cost)
    cost = {part: fmean(run.cost.get(part, 0.0) for run in done) for part in parts}
    return Group(
        label=runs[members[0]].label,
        runs=members,
        scores={t: fmean(run.scores[t] for run in done) for t in tests if done and all(t in r.scores for r in done)},
        average=fmean(averages) if averages else None,
        spread=stdev(averages) if len(averages) > 1 else None,
        cost=cost,
        own_cost=sum(spent for part, spent in cost.items() if part not in COMMON_PARTS) if done else None,
    )


def _selection(folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    """Return the dev NDCG@10 of every checkpoint, which the host keeps in its newest checkpoint."""
    states = (folder.path / CHECKPOINTS_FOLDER).glob("checkpoint-*/trainer_state.json")
    # Of two numbers the longer one is greater.
    for path in sorted(states, key=lambda path: (len(path.parent.name), path.parent.name), reverse=True):
        try:
            looks = read_looks(path, MEASURE)
        except DataError:
            continue  # cut short when the run was killed; the one before it is whole
        names = {name: f"eval_{name}_{MEASURE}" for name in folder.recipe.dev}
        if len(names) > 1:
            names["mean"] = f"eval_{MEASURE}"
        found = {n: [(look["step"], 100 * look[key]) for look in looks if key in look] for n, key in names.items()}
        return {name: points for name, points in found.items() if points}
    return {}


def _spent(record: dict[str, Any]) -> dict[str, float]:
    """Return hours on a GPU by part, or hours of a run that had none."""
    on_gpu: dict[str, float] = record.get("gpu_hours", {})
    return (
        on_gpu if any(on_gpu.values()) else {part: spent / 3600 for part, spent in record.get("seconds", {}).items()}
    )


def _unit(folders: Sequence[RunFolder]) -> tuple[str, float]:
    """Return a unit in which the longest run is a number above 1 if there is one, and how many make an hour."""
    done = [folder.record for folder in folders if folder.finished]
    most = max((sum(_spent(record).values()) for record in done), default=0.0)
    factor, word = (1, "hours") if most >= 1 else (60, "minutes") if most * 60 >= 1 else (3600, "seconds")
    with_gpu = {any(record.get("gpu_hours", {}).values()) for record in done}
    if with_gpu == {True}:
        return f"GPU-{word}", factor
    return f"{word} (of some runs on GPUs, of others on CPU)" if True in with_gpu else f"{word} on CPU", factor


def _test_notes(folders: Sequence[RunFolder], tests: Sequence[str], shared: Sequence[str]) -> list[str]:
    notes = []
    if tests != shared:
        notes.append(f"Not all runs were tested on the same sets; averages are over {', '.join(shared) or 'none'}.")
    contents = [folder.record.get("tests", {}) for folder in folders]
    unlike = [test for test in tests if len({facts[test]["fingerprint"] for facts in contents if test in facts}) > 1]
    if unlike:
        notes.append(f"Queries, passages or judgements differ between runs, do not compare: {', '.join(unlike)}.")
    return notes


def _budget_notes(rows: Sequence[Sequence[Labelled]]) -> list[str]:
    sentences = differences([run for row in rows for run in row], rows)
    return [f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences]

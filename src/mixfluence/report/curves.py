"""Series over steps from the trace of a run, thinned so that a page of many runs stays small."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mixfluence.runs import CHECKPOINTS_FOLDER, MEASURE, Run, TraceLine

# More datasets than this, such as clusters, are indistinguishable: the rest is drawn as one line.
MOST_DATASETS = 24
MOST_POINTS, FEWEST_POINTS, POINTS_OF_FIGURE = 120, 12, 1200
# A window must hold several batches of each dataset, or its shares are noise.
FEWEST_BATCHES, BATCHES_PER_DATASET, MOST_WINDOWS = 8, 2, 24
Series = Mapping[str, Sequence[float | None]]


def thin(lines: Sequence[Any], series: int) -> list[Any]:
    """Return evenly spaced items, first and last included, so that all series of a figure stay small."""
    limit = max(FEWEST_POINTS, min(MOST_POINTS, POINTS_OF_FIGURE // max(series, 1)))
    if len(lines) <= limit:
        return list(lines)
    return [lines[round(place * (len(lines) - 1) / (limit - 1))] for place in range(limit)]


def sampling_states(trace: Sequence[TraceLine]) -> list[TraceLine]:
    """Return the last line of each step, preceded by the start at step 0, thinned."""
    by_step = {line["step"]: line for line in trace[1:]}
    return thin([{**trace[1], "step": 0}, *by_step.values()], min(MOST_DATASETS, len(trace[0]["datasets"])) * 2)


def by_dataset(
    lines: Sequence[Mapping[str, float]], datasets: Sequence[str], shown: Sequence[str] = ()
) -> tuple[list[str], Series]:
    """Return the names to draw and a series for each; of too many datasets, the highest and the sum of the rest."""
    names = list(shown)
    if not names:
        peak = {name: max(line.get(name, 0.0) for line in lines) for name in datasets}
        many = len(datasets) > MOST_DATASETS
        highest = set(sorted(datasets, key=lambda name: -peak[name])[: MOST_DATASETS - 1] if many else datasets)
        names = [name for name in datasets if name in highest]
        names += [f"{len(datasets) - len(names)} others"] if many else []
    series: dict[str, list[float | None]] = {name: [line.get(name) for line in lines] for name in names}
    if rest := set(datasets) - set(names):
        series[names[-1]] = [sum(value for name, value in line.items() if name in rest) for line in lines]
    return names, series


def drawn_shares(trace: Sequence[TraceLine]) -> tuple[list[int], list[dict[str, float]]]:
    """Split all batches into windows of equal length; return where each ends, and the share of rows by dataset."""
    names, batches = list(trace[0]["datasets"]), _batches(trace)
    count = min(MOST_WINDOWS, math.ceil(len(batches) / max(FEWEST_BATCHES, BATCHES_PER_DATASET * len(names))))
    ends = [round((number + 1) * len(batches) / count) for number in range(count)]
    shares = []
    for start, end in zip([0, *ends], ends, strict=False):
        rows = dict.fromkeys(names, 0.0)
        for dataset, size in batches[start:end]:
            rows[names[dataset]] += size
        total = sum(rows.values())
        shares.append({name: number / total for name, number in rows.items()})
    return [round(trace[-1]["step"] * end / len(batches)) for end in ends], shares


def _batches(trace: Sequence[TraceLine]) -> list[tuple[int, int]]:
    return [batch for x in trace for batch in zip(x.get("trained", []), x.get("rows", []), strict=False)]


def influences(trace: Sequence[TraceLine]) -> dict[str, list[Mapping[str, float]]]:
    """Return influences at updates by target, "all" first; a dataset that was not measured is missing.

    With a single target, "all" has the same values and stands alone.
    """
    updates = [line["update"] for line in updates_of(trace)]
    combined = [update.get("influence") or {} for update in updates]
    if not any(combined):
        return {}
    key = "influence_on" if any(update.get("influence_on") for update in updates) else "on_targets"
    by_target = [update.get(key) or {} for update in updates]
    targets: Mapping[str, Any] = next(filter(None, by_target), {})
    found = {"all": combined}
    if len(targets) > 1:
        found |= {target: [own.get(target, {}) for own in by_target] for target in targets}
    return found


def updates_of(trace: Sequence[TraceLine]) -> list[TraceLine]:
    """Return the lines at which datasets were measured, thinned."""
    updates = [line for line in trace if "update" in line]
    targets = len(updates[0]["update"].get("on_targets") or {}) if updates else 0
    return thin(updates, min(MOST_DATASETS, len(trace[0]["datasets"])) * (2 + targets))


def epochs(trace: Sequence[TraceLine]) -> dict[str, float]:
    """Return how often the rows of each dataset were trained on."""
    if not (batches := _batches(trace)):
        return {}
    datasets = trace[0]["datasets"]
    names, rows = list(datasets), dict.fromkeys(datasets, 0)
    for dataset, count in batches:
        rows[names[dataset]] += count
    return {name: rows[name] / facts["rows"] for name, facts in datasets.items()}


def final_weights(run: Run) -> dict[str, float]:
    """Return the final probability of each dataset, or the last one of an unfinished run; none for clusters."""
    last = run.trace[-1].get("weights", {}) if run.trace else {}
    return run.weights or (last if last.keys() <= run.recipe.train.keys() else {})


def dev_evals(run: Run) -> dict[str, list[tuple[int, float]]]:
    """Return (step, NDCG@10 in points) of every evaluated checkpoint by dev set, and "mean" of several sets.

    The trainer library logs them in its newest checkpoint; a run without checkpoints has none.
    """
    states = (run.path / CHECKPOINTS_FOLDER).glob("checkpoint-*/trainer_state.json")
    for path in sorted(states, key=lambda path: (len(path.parent.name), path.parent.name), reverse=True):
        try:
            history = json.loads(path.read_text(encoding="utf-8"))["log_history"]
        except (ValueError, KeyError):
            continue  # cut off when the run was killed; the checkpoint before it is complete
        keys = {name: f"eval_{name}_{MEASURE}" for name in run.recipe.dev}
        if len(keys) > 1:
            keys["mean"] = f"eval_{MEASURE}"
        found = {name: [(log["step"], 100 * log[key]) for log in history if key in log] for name, key in keys.items()}
        return {name: points for name, points in found.items() if points}
    return {}

"""Numbers from the trace of a run: series over steps, the matrix of influences, the work in training steps."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from mixfluence.display import thin
from mixfluence.influence.settings import FORWARD
from mixfluence.runs import MEASURE, Run, TraceLine, checkpoint_files
from mixfluence.strategies import FINAL

# More lines, such as those of clusters, cannot be told apart: the rest is drawn as one.
MOST_DATASETS = 32
# Points of a curve on the page, which keep it small.
MOST_POINTS = 150
# A curve of fewer points is not smoothed.
LEAST_SMOOTHED = 20
# Rounds that the matrix of influences is averaged over.
LAST_ROUNDS = 10
NATS = ("info-nce", "info-nce-hard", "distillation", "training-loss")
Points = list[tuple[int, float]]
States = list[tuple[int, Mapping[str, float | None]]]


def smoothed(points: Points) -> Points:
    """Return the moving average of a curve, over a twentieth of it around each point; none of a short curve."""
    if len(points) < LEAST_SMOOTHED:
        return []
    half = max(2, len(points) // 40)
    windows = (points[max(0, place - half) : place + half + 1] for place in range(len(points)))
    return [(step, fmean(value for _, value in own)) for (step, _), own in zip(points, windows, strict=True)]


def shown_datasets(trace: Sequence[TraceLine]) -> list[str]:
    """Return the datasets to draw; of too many, those whose probability was highest."""
    datasets = list(trace[0]["datasets"])
    if len(datasets) <= MOST_DATASETS:
        return datasets
    peak = {name: max(line["weights"].get(name, 0.0) for line in trace[1:]) for name in datasets}
    highest = sorted(datasets, key=lambda name: -peak[name])[: MOST_DATASETS - 1]
    return [name for name in datasets if name in highest]


def by_dataset(states: States, shown: Sequence[str], *, others: bool = True) -> dict[str, Points]:
    """Return the known values of each dataset shown, and the sum of all others if there are any."""
    series = {name: [(step, v) for step, own in states if (v := own.get(name)) is not None] for name in shown}
    rest = {name: None for _, own in states for name in own if name not in series}
    if rest and others:
        series[f"{len(rest)} others"] = [(step, sum(own.get(name) or 0.0 for name in rest)) for step, own in states]
    return series


def losses(trace: Sequence[TraceLine]) -> Points:
    """Return the training loss at every log."""
    return [(line["step"], line["loss"]) for line in trace if "loss" in line]


def sampling_states(trace: Sequence[TraceLine]) -> States:
    """Return the probabilities at the start, and after each step that has a line, thinned."""
    by_step = {line["step"]: line["weights"] for line in trace[1:]}
    return thin([(0, trace[1]["weights"]), *by_step.items()], MOST_POINTS)


def epochs(trace: Sequence[TraceLine]) -> dict[str, float]:
    """Return how often the rows of each dataset were trained on."""
    datasets = trace[0]["datasets"] if trace else {}
    rows: Counter[int] = Counter()
    for line in trace:
        for dataset, count in zip(line.get("trained", []), line.get("rows", []), strict=False):
            rows[dataset] += count
    return {name: rows[place] / facts["rows"] for place, (name, facts) in enumerate(datasets.items()) if rows}


def influences(trace: Sequence[TraceLine]) -> dict[str, States]:
    """Return influences at updates by target, "all" first; with a single target, "all" has the same values."""
    updates: list[tuple[int, dict[str, Any]]] = [(line["step"], line["update"]) for line in trace if "update" in line]
    found = {"all": [(step, update.get("influence") or {}) for step, update in updates]}
    if not any(values for _, values in found["all"]):
        return {}
    key = "influence_on" if any(update.get("influence_on") for _, update in updates) else "on_targets"
    targets: Mapping[str, Any] = next((update[key] for _, update in updates if update.get(key)), {})
    if len(targets) > 1:
        for target in targets:
            found[target] = [(step, (update.get(key) or {}).get(target, {})) for step, update in updates]
    return found


def final_weights(run: Run) -> dict[str, float]:
    """Return the final probability of each dataset, or the last one of an unfinished run; none for clusters."""
    last = run.trace[-1].get("weights", {}) if run.trace else {}
    return run.weights or (last if last.keys() <= run.recipe.train.keys() else {})


def dev_evals(run: Run) -> dict[str, Points]:
    """Return (step, NDCG@10 in points) of every evaluated checkpoint by dev set, and "mean" of several sets.

    The trainer library logs them in its newest checkpoint; a run without checkpoints has none.
    """
    for path in checkpoint_files(run.path, "trainer_state.json"):
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


def matrix(trace: Sequence[TraceLine]) -> dict[str, dict[str, list[float]]]:
    """Return target -> dataset -> influences in the last rounds; targets that are guards say so."""
    rounds = [update for line in trace if (update := line.get("update", {})).get("on_targets")]
    values: dict[str, dict[str, list[float]]] = {}
    for update in rounds[-LAST_ROUNDS:]:
        for target, own in update["on_targets"].items():
            name = f"{target} (guard)" if target in update.get("guards", {}) else target
            for dataset, value in own.items():
                values.setdefault(name, {}).setdefault(dataset, []).append(value)
    return values


def with_error(values: Sequence[float]) -> str:
    """Return the mean of values, with its standard error if there are several."""
    if not values:
        return ""
    error = f" ± {stdev(values) / len(values) ** 0.5:.1g}" if len(values) > 1 else ""
    return f"{fmean(values):+.2g}{error}"


def influence_unit(run: Run) -> str:
    """Return what influences of a run measure."""
    probing = run.recipe.strategy.probing
    if probing is None:
        return "influence"
    method = probing.method
    if score := getattr(method, "score", None):
        return f"{score} of gradients"
    metric = method.metric if isinstance(method.metric, str) else "metric"
    return f"improvement of dev {metric}{', nats' if metric in NATS else ''}"


def step_equivalents(run: Run) -> float:
    """Return the work of a run in training steps, which does not depend on how busy its machine was.

    A forward pass is a third of a step, as in `mixfluence plan`; rounds of probes are counted as the trace has them.
    Models that are scored on dev sets encode samples of the size that the strategy asks for.
    """
    training, probing, scoring = run.recipe.training, run.recipe.strategy.probing, run.recipe.strategy.scoring
    rows = training.rows_per_step
    texts = scoring.queries + scoring.passages if scoring else 0
    # A training row has two texts.
    scored = texts / (2 * rows) * FORWARD
    spent, hours = (sum(run.record.get(unit, {}).values()) for unit in ("seconds", "gpu_hours"))
    processes = max(1, round(3600 * hours / spent)) if spent else 1
    traces, work = {**run.stages, FINAL: run.trace}, 0.0
    for stage in run.recipe.strategy.stages(run.recipe):
        trace = traces.get(stage.name) or [{"step": 0}]
        steps, step_cost = trace[-1]["step"], stage.step_cost
        if stage.merges:
            steps, step_cost = run.record.get("encodings", steps), scored
        work += steps * step_cost + (scored if stage.scored else 0)
        for update in (line["update"] for line in trace if probing and "update" in line):
            assert probing is not None
            dev = sum(update.get("rows", {}).values()) / rows
            measured = len(next(iter(update.get("on_targets", {}).values()), {})) + len(update.get("failed", []))
            batch = (probing.method.batch_size or training.batch_size) / rows
            cost = probing.method.round_cost(measured, batch, probing.steps, dev, processes)
            work += cost if measured else dev * FORWARD
    if run.recipe.strategy.clusters:
        work += sum(facts["rows"] for facts in run.record["datasets"].values()) / rows * FORWARD
    selected = sum(int(facts["rows"]) for facts in run.record.get("select", {}).values())
    return float(work + selected / rows * FORWARD)

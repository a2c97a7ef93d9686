"""The trace of one training as series over steps, thinned so that a page of many runs stays small."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Line = Mapping[str, Any]
Values = list[float | None]

# More datasets than this (clusters, say) cannot be told apart in a chart: the rest is drawn as one.
MOST_DATASETS = 24
MOST_POINTS, FEWEST_POINTS, ALL_NUMBERS = 200, 12, 400_000
# A window must hold several batches of each dataset, or its shares are noise.
FEWEST_BATCHES, BATCHES_A_DATASET, MOST_WINDOWS = 8, 2, 24


@dataclass(frozen=True)
class Curves:
    """One training.

    Attributes:
        name: Which stage of its run; empty for a run of one stage.
        datasets: What is drawn from. If there are too many to draw, the last one stands for the rest.
        steps: Where probabilities are given; each holds from its step on.
        probability: One list per dataset.
        found: The same for the mixture looked for on the way; empty if the strategy looks for none.
        windows: The last step of each window of batches.
        share: The part of a window's rows that came from each dataset; one list per dataset.
        loss: (step, training loss).
        updates: The steps at which datasets were measured.
        influence: Target -> one list per dataset, a value per update; "all" is what the strategy made of all targets.
        error: Standard errors of "all", one list per dataset; empty if the strategy has none.
        dev: Target -> the measure on its dev rows, a value per update.
    """

    name: str
    datasets: list[str]
    steps: list[int]
    probability: list[Values]
    found: list[Values]
    windows: list[int]
    share: list[Values]
    loss: list[tuple[int, float | None]]
    updates: list[int]
    influence: dict[str, list[Values]]
    error: list[Values]
    dev: dict[str, Values]


def curves(trace: Sequence[Line], name: str, limit: int) -> Curves:
    """Return the series of a trace, at most `limit` points each."""
    names = list(trace[0]["datasets"])
    by_step = {line["step"]: line for line in trace if "weights" in line}
    first = next(line for line in trace if "weights" in line)
    states = _thin([{**first, "step": 0}, *by_step.values()], limit)
    updates = _thin([line for line in trace if "update" in line], limit)
    measured = [line["update"] for line in updates]
    shown = _most_drawn(states, names)
    datasets = shown if len(shown) == len(names) else [*shown, f"{len(names) - len(shown)} others"]
    windows, share = _windows(trace, names)
    outcomes = [line.get("outcome", {}) for line in states]
    return Curves(
        name=name,
        datasets=datasets,
        steps=[line["step"] for line in states],
        probability=_by_dataset([line["weights"] for line in states], shown, len(names)),
        found=_by_dataset(outcomes, shown, len(names)) if any(outcomes) else [],
        windows=windows,
        share=_by_dataset(share, shown, len(names)),
        loss=[(line["step"], finite(line["loss"])) for line in _thin([x for x in trace if "loss" in x], limit)],
        updates=[line["step"] for line in updates],
        influence=_influences(measured, shown),
        error=_columns(_facts(measured, "error"), shown) if any(_facts(measured, "error")) else [],
        dev={
            target: [finite(values.get(target)) for values in _facts(measured, "dev")]
            for target in (measured[0].get("dev", {}) if measured else {})
        },
    )


def limit_of(traces: Sequence[Sequence[Line]]) -> int:
    """Return how many points a series may have, so that all of them together make a page of a few megabytes."""
    series = 0
    for trace in traces:
        update: Line = next((line["update"] for line in trace if "update" in line), {})
        datasets = min(MOST_DATASETS, len(trace[0].get("datasets", {})) if trace else 0)
        series += datasets * (3 + len(update.get("on_targets", {})))
    return max(FEWEST_POINTS, min(MOST_POINTS, ALL_NUMBERS // max(series, 1)))


def rows_trained(trace: Sequence[Line]) -> dict[str, int]:
    """Return how many rows of each dataset were trained on; datasets without any are left out."""
    names = list(trace[0]["datasets"]) if trace else []
    rows: dict[str, int] = {}
    for dataset, count in _batches(trace):
        rows[names[dataset]] = rows.get(names[dataset], 0) + count
    return rows


def finite(value: Any) -> float | None:
    """Return a number to five digits, or None for what a page cannot hold: not-a-number, infinity, nothing."""
    return float(f"{value:.5g}") if value is not None and math.isfinite(value) else None


def _batches(trace: Sequence[Line]) -> list[tuple[int, int]]:
    return [batch for x in trace for batch in zip(x.get("trained", []), x.get("rows", []), strict=True)]


def _thin(lines: Sequence[Line], limit: int) -> list[Line]:
    """Return evenly spaced lines, the first and the last always among them."""
    if len(lines) <= limit:
        return list(lines)
    return [lines[round(i * (len(lines) - 1) / (limit - 1))] for i in range(limit)]


def _most_drawn(states: Sequence[Line], names: Sequence[str]) -> list[str]:
    """Return the datasets to show, in their own order: all, or those with the highest probabilities ever."""
    if len(names) <= MOST_DATASETS:
        return list(names)
    peak = {name: max(line["weights"].get(name, 0.0) for line in states) for name in names}
    highest = set(sorted(names, key=lambda name: -peak[name])[: MOST_DATASETS - 1])
    return [name for name in names if name in highest]


def _windows(trace: Sequence[Line], names: Sequence[str]) -> tuple[list[int], list[dict[str, float]]]:
    """Cut all batches into windows of about equal length; return where each ends, and the shares of rows in it."""
    batches = _batches(trace)
    count = min(MOST_WINDOWS, math.ceil(len(batches) / max(FEWEST_BATCHES, BATCHES_A_DATASET * len(names))))
    ends = [round((number + 1) * len(batches) / count) for number in range(count)]
    shares = []
    for start, end in zip([0, *ends], ends, strict=False):
        rows = dict.fromkeys(names, 0.0)
        for dataset, size in batches[start:end]:
            rows[names[dataset]] += size
        total = sum(rows.values())
        shares.append({name: number / total for name, number in rows.items()})
    last = trace[-1]["step"]
    return [round(last * end / len(batches)) for end in ends], shares


def _by_dataset(lines: Sequence[Mapping[str, float]], shown: Sequence[str], of: int) -> list[Values]:
    """Return one list per dataset shown, and one for the sum of those that are not."""
    columns = _columns(lines, shown)
    if len(shown) < of:
        shown_set = set(shown)
        columns.append([finite(sum(v for name, v in line.items() if name not in shown_set)) for line in lines])
    return columns


def _columns(lines: Sequence[Mapping[str, float]], shown: Sequence[str]) -> list[Values]:
    return [[finite(line.get(name)) for line in lines] for name in shown]


def _influences(measured: Sequence[Line], shown: Sequence[str]) -> dict[str, list[Values]]:
    """Return influences by target; a round without any (Aioli only looks, most times) leaves a gap."""
    combined = _facts(measured, "influence")
    if not any(combined):
        return {}
    found = {"all": _columns(combined, shown)}
    own = _facts(measured, "influence_on")
    by_target = own if any(own) else _facts(measured, "on_targets")
    targets = next(filter(None, by_target), {})
    # With one target they are the same.
    for target in targets if len(targets) > 1 else []:
        found[target] = _columns([facts.get(target, {}) for facts in by_target], shown)
    return found


def _facts(measured: Sequence[Line], key: str) -> list[Mapping[str, Any]]:
    return [update.get(key) or {} for update in measured]

"""Charts of runs as Plotly figures: plain data that `assets/page.js` draws.

Colours are names of CSS variables, so that they follow the colour scheme of the reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from statistics import fmean
from typing import Any, NamedTuple

from mixfluence.display import thin
from mixfluence.report import curves
from mixfluence.report.compare import Comparison, labelled
from mixfluence.report.curves import MOST_POINTS, Points, by_dataset
from mixfluence.runs import PARTS, Run

COLOURS, DASHES = 7, ("solid", "dash", "dot", "dashdot", "longdash")
INK = "--ink"
LONGEST_NAME, MOST_MARKERS = 40, 40
# A heat map with more cells has numbers only where the reader points.
MOST_TEXTS = 120
# Of more stages, such as experts or proxies, only the last is drawn.
MOST_STAGES = 4
Trace = dict[str, Any]


class Chart(NamedTuple):
    """A chart: its title, and traces and layout as Plotly defines them."""

    title: str
    data: list[Trace]
    layout: dict[str, Any]


def charts_of_all(comparison: Comparison) -> Iterator[Chart]:
    """Yield the charts that show all runs together; a chart without data is left out."""
    yield from _charts_of_groups(comparison)
    runs = {label: run for label, run in labelled(comparison.groups) if len(run.trace) > 1}
    dev = {label: next(reversed(curves.dev_evals(run).values()), []) for label, run in runs.items()}
    sampled = {
        label: by_dataset(curves.sampling_states(run.trace), list(run.recipe.train), others=False)
        for label, run in runs.items()
    }
    datasets = dict.fromkeys(name for own in sampled.values() for name in own)
    weights = {name: {label: own.get(name, []) for label, own in sampled.items()} for name in datasets}
    losses = {label: curves.losses(run.trace) for label, run in runs.items()}
    yield from _lines("Training loss", {"": losses}, "loss", smooth=True)
    yield from _lines("Mean dev NDCG@10 of checkpoints", {"": dev}, "NDCG@10 × 100")
    yield from _lines("Sampling probability of a dataset", weights, "probability", shape="hv")


def _charts_of_groups(comparison: Comparison) -> Iterator[Chart]:
    unit, factor = comparison.unit
    costs = {group.label: hours for group in comparison.groups if (hours := group.hours(comparison.on_gpu))}
    scores = {group.label: score for group in comparison.groups if (score := comparison.average(group))}
    points = []
    for number, label in enumerate(label for label in scores if label in costs):
        point = _trace(label, [factor * sum(costs[label].values())], [scores[label].mean], number)
        points.append(point | {"mode": "markers", "error_y": {"array": [scores[label].spread or 0.0]}})
    if len(points) > 1:
        layout = _axes(unit, "average NDCG@10 × 100")
        layout["xaxis"]["rangemode"] = "tozero"
        yield Chart(f"Average NDCG@10 against cost in {unit}", points, layout)
    parts = {part: {label: factor * own[part] for label, own in costs.items()} for part in PARTS}
    if parts := {part: own for part, own in parts.items() if any(own.values())}:
        yield _bars(f"Cost of a run by part, in {unit}", parts, unit)


def charts_of_run(run: Run) -> Iterator[Chart]:
    """Yield the charts of one run, stage by stage; a chart without data is left out."""
    stages = run.stages if len(run.stages) <= MOST_STAGES else {}
    traces = {**stages, "final" if run.stages else "": run.trace}
    unit = curves.influence_unit(run)
    losses: dict[str, Points] = {}
    dev: dict[str, Points] = {}
    for stage, trace in traces.items():
        if len(trace) < 2:
            continue
        prefix, shown = f"Stage {stage}: " if stage else "", curves.shown_datasets(trace)
        found = [(line["step"], line["outcome"]) for line in trace if "outcome" in line]
        merged = any("merged" in line.get("update", {}) for line in trace)
        sampled = "mixture that each merge stands for" if merged else "sampling probability"
        states = {sampled: curves.sampling_states(trace), "mixture found so far": found}
        for what, own in states.items():
            yield from _lines(prefix + what, {"": by_dataset(own, shown)}, "probability", shape="hv")
        measured = curves.influences(trace).items()
        by_target = {target: by_dataset(values, shown, others=False) for target, values in measured}
        errors = {line["step"]: line["update"].get("error") or {} for line in trace if "update" in line}
        title = f"{prefix}influence on dev sets, ± 1.96 standard errors where known"
        yield from _lines(title, by_target, unit, errors=errors, smooth=True)
        yield from _matrix(prefix, curves.matrix(trace), unit)
        losses[stage or "loss"] = curves.losses(trace)
        for line in trace:
            for target, value in (line.get("update", {}).get("dev") or {}).items():
                dev.setdefault(f"{stage}: {target}" if stage else target, []).append((line["step"], value))
    yield from _lines("Training loss", {"": losses}, "loss", ink=len(losses) == 1, smooth=True)
    yield from _lines("Dev metric of the sampler", {"": dev}, "dev metric")
    yield from _lines("Dev NDCG@10 of checkpoints", {"": curves.dev_evals(run)}, "NDCG@10 × 100")
    if own_epochs := curves.epochs(run.trace):
        yield _bars("Epochs of each dataset", {"": own_epochs}, "epochs")


def _lines(
    title: str,
    views: Mapping[str, Mapping[str, Points]],
    unit: str,
    *,
    shape: str = "linear",
    ink: bool = False,
    smooth: bool = False,
    errors: Mapping[int, Mapping[str, float | None]] | None = None,
) -> Iterator[Chart]:
    """Yield a chart of series over steps, unless it would be empty; of several views the reader chooses one.

    Only the first view has errors, which are by step and name. With `smooth`, long series are drawn as their moving
    average, with what was measured behind it.
    """
    views = {view: own for view, own in views.items() if any(own.values())}
    traces: dict[str, list[Trace]] = {view: [] for view in views}
    for place, (view, series) in enumerate(views.items()):
        for number, (name, points) in enumerate(series.items()):
            raw = _line(name, points, number, shape, ink)
            if errors and place == 0:
                known = [1.96 * (errors.get(step, {}).get(name) or 0.0) for step in raw["x"]]
                raw["error_y"] = {"array": list(map(_rounded, known)), "thickness": 0.7, "width": 0}
            own = [raw]
            if smooth and (calm := curves.smoothed(points)):
                raw |= {"opacity": 0.3, "showlegend": False, "mode": "lines"}
                own.append(_line(name, calm, number, shape, ink))
            # A click in the legend hides both.
            traces[view] += [trace | {"legendgroup": str(number), "visible": place == 0} for trace in own]
    buttons = [
        {"label": _text(view), "method": "restyle", "args": ["visible", [v == view for v in views for _ in traces[v]]]}
        for view in views
    ]
    layout = _axes("step", unit)
    layout["yaxis"]["rangemode"] = "tozero" if unit == "probability" else "normal"
    if len(views) > 1:
        layout["updatemenus"] = [{"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}]
    if views:
        yield Chart(_title(title), [trace for own in traces.values() for trace in own], layout)


def _line(name: str, points: Points, number: int, shape: str, ink: bool) -> Trace:
    shown = thin(points, MOST_POINTS)
    trace = _trace(name, [step for step, _ in shown], [value for _, value in shown], number)
    trace["line"]["shape"] = shape
    if ink:
        trace["line"]["color"] = trace["marker"]["color"] = INK
    return trace | {"mode": "lines" if len(shown) > MOST_MARKERS else "lines+markers"}


def _matrix(prefix: str, found: Mapping[str, Mapping[str, Sequence[float]]], unit: str) -> Iterator[Chart]:
    """Yield a heat map of the influence of datasets on targets, unless nothing was measured."""
    datasets = list(dict.fromkeys(dataset for own in found.values() for dataset in own))
    if not datasets:
        return
    cells = [[own.get(dataset, []) for own in found.values()] for dataset in datasets]
    largest = max(abs(fmean(values)) for row in cells for values in row if values)
    heat: Trace = {
        "type": "heatmap",
        "x": list(map(_text, found)),
        "y": list(map(_text, datasets)),
        "z": [[fmean(values) if values else None for values in row] for row in cells],
        "text": [list(map(curves.with_error, row)) for row in cells],
        "hovertemplate": "%{y} → %{x}: %{text}<extra></extra>",
        "zmin": -largest,
        "zmax": largest,
        "colorscale": [[0, "--c1"], [0.5, "--page"], [1, "--c0"]],
    }
    if len(datasets) * len(found) <= MOST_TEXTS:
        heat["texttemplate"] = "%{text}"
    layout = _axes("dev set", "dataset") | {"height": 260 + 24 * len(datasets)}
    layout["yaxis"]["autorange"] = "reversed"
    yield Chart(_title(f"{prefix}what helps whom: {unit}, mean of the last rounds"), [heat], layout)


def _bars(title: str, parts: Mapping[str, Mapping[str, float]], unit: str) -> Chart:
    """Return horizontal bars, stacked by part: part -> name -> value."""
    names = list(next(iter(parts.values())))
    # By position, because names that are cut off may be equal.
    places = list(range(len(names)))
    traces = [
        _trace(part, [values.get(name, 0.0) for name in names], places, number) | {"type": "bar", "orientation": "h"}
        for number, (part, values) in enumerate(parts.items())
    ]
    layout = _axes(unit, "") | {"barmode": "stack", "height": 170 + 22 * len(names)}
    layout["yaxis"] = {"tickvals": places, "ticktext": list(map(_text, names)), "autorange": "reversed"}
    return Chart(title, traces, layout)


def _trace(name: str, x: Sequence[float], y: Sequence[float], number: int) -> Trace:
    """Return a series whose colour and dash tell it apart from those of other numbers."""
    colour, dash = f"--c{number % COLOURS}", DASHES[number // COLOURS % len(DASHES)]
    look: Trace = {"marker": {"color": colour}, "line": {"color": colour, "dash": dash}}
    return {"name": _text(name), "x": list(map(_rounded, x)), "y": list(map(_rounded, y)), **look}


def _axes(x: str, y: str) -> dict[str, Any]:
    return {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}


def _title(text: str) -> str:
    return text[0].upper() + text[1:]


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _text(name: str) -> str:
    """Return a name, shortened if it is long, in which Plotly finds no markup."""
    return escape(name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…", quote=False)

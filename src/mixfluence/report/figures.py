"""Charts of runs, drawn once with matplotlib: inline SVG for the page, SVG and PDF files for papers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mixfluence.files import replacing
from mixfluence.report.compare import Comparison, overview
from mixfluence.report.curves import (
    Series,
    by_dataset,
    dev_evals,
    drawn_shares,
    epochs,
    final_weights,
    influences,
    sampling_states,
    thin,
    updates_of,
)
from mixfluence.report.labels import method_of
from mixfluence.runs import MEASURE, PARTS, Run, Score, TraceLine

ONE_COLUMN, TWO_COLUMNS = 3.3, 6.9
# Okabe and Ito's colours, darkened where they are too pale for a thin line. The page lightens them in dark mode.
COLOURS = ("#0072b2", "#d55e00", "#008a64", "#b9558f", "#a87400", "#2a8fc9", "#3d444b")
INK, PAPER = "#1d2329", "#fefefe"
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
MARKERS = ("o", "s", "^", "D", "P", "X")
LONGEST_NAME = 40
HATCHES = ("", "////", "||||", "----")
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "font.size": 8,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.titlesize": 8,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "hatch.linewidth": 0.5,
    "savefig.transparent": True,
    "text.parse_math": False,  # names may contain dollar signs
    "svg.fonttype": "none",  # text stays text
    "pdf.fonttype": 42,
    "svg.hashsalt": "mixfluence",  # the same runs give the same file
}


class Chart(NamedTuple):
    """A chart: unique file name, title, and a function that draws it."""

    name: str
    title: str
    draw: Callable[[], Figure]


def all_charts(runs: Sequence[Run]) -> list[Chart]:
    """Return every chart of some runs, with unique names."""
    found = overview(runs)
    charts = charts_of_all(found)
    for group in found.groups:
        charts += [chart for pair in zip(group.labels, group.runs, strict=True) for chart in charts_of_run(*pair)]
    return charts


def charts_of_all(comparison: Comparison) -> list[Chart]:
    """Return the charts that show all runs together; a chart without data is left out."""
    runs = [pair for group in comparison.groups for pair in zip(group.labels, group.runs, strict=True)]
    losses = {label: _logged(run.trace, "loss") for label, run in runs}
    dev = {label: next(reversed(dev_evals(run).values()), []) for label, run in runs}
    weights = {label: {name: 100 * value for name, value in final_weights(run).items()} for label, run in runs}
    alone = [(label, run) for label, run in runs if len(run.recipe.train) == 1 and run.finished and not run.untrained]
    tests = {
        f"{next(iter(run.recipe.train))} ({label})": {n: 100 * own[MEASURE] for n, own in run.record["scores"].items()}
        for label, run in alone
    }
    charts = list(_charts_of_groups(comparison))
    if any(losses.values()):
        charts.append(Chart("loss", "Training loss of all runs", partial(_overlay, losses, "training loss")))
    if any(dev.values()):
        charts.append(Chart("dev", "Dev NDCG@10 of checkpoints", partial(_overlay, dev, "mean dev NDCG@10")))
    if any(weights.values()):
        grid = {label: own for label, own in weights.items() if own}
        charts.append(Chart("weights", "Final sampling probabilities in percent", partial(_grid, grid, 160.0)))
    if any(tests.values()):
        charts.append(Chart("train-test", "NDCG@10 of runs trained on one dataset", partial(_grid, tests, 160.0)))
    return charts


def _charts_of_groups(comparison: Comparison) -> Iterator[Chart]:
    unit, factor = comparison.unit
    scores = {group.label: comparison.average(group) for group in comparison.groups}
    priced = {group.label: group.hours(comparison.on_gpu) for group in comparison.groups}
    priced = {label: hours for label, hours in priced.items() if hours}
    both = {label: score for label, score in scores.items() if score and label in priced}
    if len(both) > 1:
        points = {label: (factor * sum(priced[label].values()), score) for label, score in both.items()}
        yield Chart("cost-quality", f"Average NDCG@10 against cost in {unit}", partial(_cost_quality, points, unit))
    if priced:
        parts = {p: {label: factor * own[p] for label, own in priced.items()} for p in PARTS}
        parts = {part: own for part, own in parts.items() if any(own.values())}
        yield Chart("time", f"Cost of a run by part, in {unit}", partial(_bars, parts or {"": {}}, unit))
    if sum(map(bool, scores.values())) > 1:
        starts = {f"{method_of(group).start}: {group.label}": scores[group.label] for group in comparison.groups}
        bars = {name: score.mean for name, score in sorted(starts.items()) if score}
        yield Chart("start", "Average NDCG@10 by start", partial(_bars, {"": bars}, "average NDCG@10"))


def charts_of_run(label: str, run: Run) -> list[Chart]:
    """Return the charts of one run, stage by stage; a chart without data is left out."""
    traces = {**run.stages, "final" if run.stages else "": run.trace}
    traces = {stage: trace for stage, trace in traces.items() if len(trace) > 1}
    stem = re.sub(r"[^\w.-]+", "-", label).strip("-.") or "run"
    charts = []
    for stage, trace in traces.items():
        name, prefix = (f"{stem}-{stage}", f"Stage {stage}: ") if stage else (stem, "")
        charts.append(Chart(f"sampling-{name}", f"{prefix}Sampling", partial(_sampling, trace)))
        if influences(trace):
            title = f"{prefix}Influence on the dev sets, ± 1.96 standard errors where known"
            charts.append(Chart(f"influence-{name}", title, partial(_influence, trace)))
    if traces:
        charts.append(Chart(f"progress-{stem}", "Loss and dev scores", partial(_progress, run, traces)))
    if own := epochs(run.trace):
        charts.append(Chart(f"epochs-{stem}", "Epochs of each dataset", partial(_bars, {"": own}, "epochs")))
    return charts


def write_charts(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """Write charts as SVG and PDF; return the files."""
    return [path for chart in charts for path in write_figure(chart.draw, folder, chart.name)]


def write_figure(draw: Callable[[], Figure], folder: Path, name: str) -> list[Path]:
    """Draw a figure in this style and write it as SVG and PDF."""
    paths = []
    with rc_context(STYLE):
        figure = draw()
        for kind, date in {"svg": "Date", "pdf": "CreationDate"}.items():
            with replacing(folder / f"{name}.{kind}") as temporary:
                figure.savefig(temporary, format=kind, metadata={date: None})
            paths.append(folder / f"{name}.{kind}")
    return paths


def look(number: int) -> dict[str, Any]:
    """Return the look of a line, distinguishable without colour too."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markevery": 0.15,
    }


def short(names: Iterable[str]) -> list[str]:
    """Return names cut to the room that a chart has for them."""
    return [name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…" for name in names]


def _panels(count: int, labels: int, per_row: int = 3) -> tuple[Figure, list[Axes]]:
    """Return a figure of two columns' width with some panels and room for a legend below them."""
    rows = -(-count // per_row)
    figure = Figure(figsize=(TWO_COLUMNS, 2.2 * rows + 0.14 * -(-labels // 4)), layout="constrained")
    axes = list(figure.subplots(rows, min(count, per_row), squeeze=False).flat)
    for unused in axes[count:]:
        unused.set_visible(False)
    return figure, axes[:count]


def _lines(axes: Axes, xs: Sequence[float], series: Series, first: int = 0, **options: Any) -> None:
    for number, values in enumerate(series.values(), start=first):
        every = max(1, len(xs) // 3)
        # Markers of overlapping lines are shifted against each other.
        marked = {**look(number), "markevery": (number % every, every)}
        known = [(x, value) for x, value in zip(xs, values, strict=True) if value is not None]
        axes.plot([x for x, _ in known], [value for _, value in known], **marked, **options)


def _legend(figure: Figure, axes: Axes, names: Sequence[str]) -> None:
    # Names are given again, because a label that starts with an underscore would be left out.
    figure.legend(axes.get_lines()[: len(names)], short(names), loc="outside lower center", ncols=4)


def _sampling(trace: Sequence[TraceLine]) -> Figure:
    """Probability, share of rows drawn and, for a strategy that searches, the mixture found."""
    states = sampling_states(trace)
    names, probabilities = by_dataset([line["weights"] for line in states], list(trace[0]["datasets"]))
    steps = [line["step"] for line in states]
    found = [line.get("outcome", {}) for line in states]
    windows, shares = drawn_shares(trace)
    figure, (left, right, *more) = _panels(3 if any(found) else 2, len(names))
    _lines(left, steps, probabilities, drawstyle="steps-post")
    _lines(right, windows, by_dataset(shares, list(trace[0]["datasets"]), names)[1])
    left.set(title="probability", xlabel="step", ylim=(0, None))
    right.set(title="share of rows drawn", xlabel="step", ylim=(0, None), xlim=left.get_xlim())
    for axes in more:
        _lines(axes, steps, by_dataset(found, list(trace[0]["datasets"]), names)[1])
        axes.set(title="mixture found so far", xlabel="step", ylim=(0, None))
    _legend(figure, left, names)
    return figure


def _influence(trace: Sequence[TraceLine]) -> Figure:
    """Influence on all dev sets together, and on each of several."""
    found, updates = influences(trace), updates_of(trace)
    steps = [line["step"] for line in updates]
    shown = by_dataset([line["weights"] for line in updates], list(trace[0]["datasets"]))[0]
    shown = [name for name in shown if name in trace[0]["datasets"]]
    errors = [line["update"].get("error") or {} for line in updates]
    figure, panels = _panels(len(found), len(shown))
    for axes, (target, values) in zip(panels, found.items(), strict=True):
        _lines(axes, steps, {name: [own.get(name) for own in values] for name in shown})
        axes.set(title="all dev sets" if target == "all" else target, xlabel="step")
        for number, name in enumerate(shown if target == "all" and any(errors) else []):
            known = [(x, own.get(name), e.get(name)) for x, own, e in zip(steps, values, errors, strict=True)]
            band = [(x, v - 1.96 * e, v + 1.96 * e) for x, v, e in known if v is not None and e is not None]
            if band:
                xs, low, high = zip(*band, strict=True)
                axes.fill_between(xs, low, high, color=look(number)["color"], alpha=0.14, linewidth=0)
    _legend(figure, panels[0], shown)
    return figure


def _progress(run: Run, traces: Mapping[str, Sequence[TraceLine]]) -> Figure:
    """Training loss by stage, the measure on dev rows at updates, and dev NDCG@10 of checkpoints."""
    losses = {stage or "loss": _logged(trace, "loss") for stage, trace in traces.items()}
    dev: dict[str, list[tuple[int, float]]] = {}
    for stage, trace in traces.items():
        for line in updates_of(trace):
            for target, value in (line["update"].get("dev") or {}).items():
                dev.setdefault(f"{stage}: {target}" if stage else target, []).append((line["step"], value))
    panels = {
        "training loss": losses,
        "dev measure of the sampler": dev,
        "dev NDCG@10 of checkpoints": dev_evals(run),
    }
    panels = {title: own for title, own in panels.items() if any(own.values())}
    figure, drawn = _panels(len(panels) or 1, 0)
    for axes, (title, own) in zip(drawn, panels.items(), strict=False):
        _points(axes, own)
        axes.set(title=title, xlabel="step")
        if len(own) > 1:
            axes.legend(axes.get_lines(), short(own))
        if title.endswith("checkpoints") and run.finished:
            axes.axvline(run.record["selected_step"], color=INK, linewidth=0.6, linestyle=":")
    return figure


def _overlay(series: Mapping[str, Sequence[tuple[int, float]]], title: str) -> Figure:
    """One line per run."""
    known = {label: points for label, points in series.items() if points}
    figure, (axes,) = _panels(1, len(known))
    _points(axes, known)
    axes.set(xlabel="step", ylabel=title)
    _legend(figure, axes, list(known))
    return figure


def _points(axes: Axes, series: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    for number, points in enumerate(series.values()):
        if points:
            steps, values = zip(*thin(points, len(series)), strict=True)
            _lines(axes, steps, {"": values}, number)


def _logged(trace: Sequence[TraceLine], key: str) -> list[tuple[int, float]]:
    return [(line["step"], line[key]) for line in trace if key in line]


def _cost_quality(points: Mapping[str, tuple[float, Score]], unit: str) -> Figure:
    figure = Figure(figsize=(ONE_COLUMN, 2.4 + 0.14 * -(-len(points) // 2)), layout="constrained")
    axes: Axes = figure.subplots()
    drawn: list[Any] = [
        axes.errorbar(cost, score.mean, score.spread, fmt=look(number)["marker"], color=look(number)["color"])
        for number, (cost, score) in enumerate(points.values())
    ]
    axes.margins(x=0.1, y=0.15)
    axes.set(xlabel=unit, ylabel="average NDCG@10", xlim=(0, None))
    figure.legend(drawn, short(points), loc="outside lower center", ncols=2)
    return figure


def _bars(parts: Mapping[str, Mapping[str, float]], unit: str) -> Figure:
    """Horizontal bars, stacked by part: part -> name -> value."""
    names = list(next(iter(parts.values())))
    height = 0.8 + 0.2 * len(names) + 0.14 * -(-len(parts) // 3)
    figure = Figure(figsize=(ONE_COLUMN, height), layout="constrained")
    axes: Axes = figure.subplots()
    places, starts = range(len(names)), [0.0] * len(names)
    for number, (part, values) in enumerate(parts.items()):
        lengths = [values.get(name, 0.0) for name in names]
        hatch: dict[str, Any] = {"hatch": HATCHES[number % len(HATCHES)], "edgecolor": PAPER, "linewidth": 0}
        axes.barh(places, lengths, left=starts, color=COLOURS[number % len(COLOURS)], label=part, **hatch)
        starts = [start + length for start, length in zip(starts, lengths, strict=True)]
    for place, total in zip(places, starts, strict=True):
        offset: dict[str, Any] = {"xytext": (3, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(f"{total:.3g}", (total, place), size=7, **offset)
    axes.set_yticks(places, short(names))
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel(unit)
    if len(parts) > 1:
        figure.legend(loc="outside lower center", ncols=3)
    return figure


def _grid(rows: Mapping[str, Mapping[str, float]], darkest: float) -> Figure:
    """Numbers in a grid, shaded by value."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    width = ONE_COLUMN if len(names) <= 4 else TWO_COLUMNS
    figure = Figure(figsize=(width, 1.2 + 0.2 * len(rows)), layout="constrained")
    axes: Axes = figure.subplots()
    for row, values in enumerate(rows.values()):
        for column, name in enumerate(names):
            if (value := values.get(name)) is not None:
                shade: dict[str, Any] = {
                    "alpha": min(1.0, max(0.0, value / darkest)),
                    "linewidth": 0,
                    "color": COLOURS[0],
                }
                axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **shade))
                axes.text(column, row, f"{value:.1f}", ha="center", va="center", size=6)
    axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks(range(len(names)), short(names), rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(rows)), short(rows))
    return figure

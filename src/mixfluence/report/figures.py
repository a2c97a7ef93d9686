"""Charts of runs, drawn once with matplotlib: inline SVG for the page, SVG and PDF files for papers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mixfluence.files import replacing
from mixfluence.report import curves
from mixfluence.report.compare import Comparison, labelled, overview
from mixfluence.report.curves import Points, by_dataset, thin
from mixfluence.report.summary import method_of
from mixfluence.runs import MEASURE, PARTS, Run, Score, TraceLine

ONE_COLUMN, TWO_COLUMNS = 3.3, 6.9
# Okabe and Ito's colours, darkened where they are too pale for a thin line. The page lightens them in dark mode.
COLOURS = ("#0072b2", "#d55e00", "#008a64", "#b9558f", "#a87400", "#2a8fc9", "#3d444b")
INK, PAPER = "#1d2329", "#fefefe"
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
MARKERS = ("o", "s", "^", "D", "P", "X")
HATCHES = ("", "////", "||||", "----")
LONGEST_NAME = 40
# Of more stages, such as experts or proxies, only the last is drawn.
MOST_STAGES = 4
# The value that gets the full colour in a grid of percentages; text is readable on those below 100.
DARKEST = 160.0
STYLE = files("mixfluence.report") / "assets" / "charts.mplstyle"


class Chart(NamedTuple):
    """A chart: unique file name, title, and a function that draws it."""

    name: str
    title: str
    draw: Callable[[], Figure]


def all_charts(runs: Sequence[Run]) -> list[Chart]:
    """Return every chart of some runs, with unique names."""
    found = overview(runs)
    return charts_of_all(found) + [chart for pair in labelled(found.groups) for chart in charts_of_run(*pair)]


def charts_of_all(comparison: Comparison) -> list[Chart]:
    """Return the charts that show all runs together; a chart without data is left out."""
    runs = list(labelled(comparison.groups))
    alone = [(label, run) for label, run in runs if len(run.recipe.train) == 1 and run.finished and not run.untrained]
    losses = {label: _losses(run.trace) for label, run in runs}
    dev = {label: next(reversed(curves.dev_evals(run).values()), []) for label, run in runs}
    weights = {label: {name: 100 * value for name, value in curves.final_weights(run).items()} for label, run in runs}
    tests = {
        f"{next(iter(run.recipe.train))} ({label})": {n: 100 * own[MEASURE] for n, own in run.record["scores"].items()}
        for label, run in alone
    }
    every: list[tuple[str, str, Mapping[str, Any], Callable[..., Figure]]] = [
        ("loss", "Training loss of all runs", losses, partial(_overlay, "training loss")),
        ("dev", "Dev NDCG@10 of checkpoints", dev, partial(_overlay, "mean dev NDCG@10")),
        ("weights", "Final sampling probabilities in percent", weights, _grid),
        ("train-test", "NDCG@10 of runs trained on one dataset", tests, _grid),
    ]
    charts = list(_charts_of_groups(comparison))
    for name, title, data, draw in every:
        if known := {label: own for label, own in data.items() if own}:
            charts.append(Chart(name, title, partial(draw, known)))
    return charts


def _charts_of_groups(comparison: Comparison) -> Iterator[Chart]:
    unit, factor = comparison.unit
    scores = {group.label: score for group in comparison.groups if (score := comparison.average(group))}
    costs = {group.label: hours for group in comparison.groups if (hours := group.hours(comparison.on_gpu))}
    points = {label: (factor * sum(costs[label].values()), scores[label]) for label in scores if label in costs}
    if len(points) > 1:
        yield Chart("cost-quality", f"Average NDCG@10 against cost in {unit}", partial(_cost_quality, points, unit))
    if costs:
        parts = {part: {label: factor * own[part] for label, own in costs.items()} for part in PARTS}
        parts = {part: own for part, own in parts.items() if any(own.values())}
        yield Chart("time", f"Cost of a run by part, in {unit}", partial(_bars, parts or {"": {}}, unit))
    if len(scores) > 1:
        starts = {f"{method_of(group).start}: {group.label}": scores.get(group.label) for group in comparison.groups}
        bars = {name: score.mean for name, score in sorted(starts.items()) if score}
        yield Chart("start", "Average NDCG@10 by start", partial(_bars, {"": bars}, "average NDCG@10"))


def charts_of_run(label: str, run: Run) -> list[Chart]:
    """Return the charts of one run, stage by stage; a chart without data is left out."""
    shown = run.stages if len(run.stages) <= MOST_STAGES else {}
    traces = {**shown, "final" if run.stages else "": run.trace}
    traces = {stage: trace for stage, trace in traces.items() if len(trace) > 1}
    stem = re.sub(r"[^\w.-]+", "-", label).strip("-.") or "run"
    charts = []
    for stage, trace in traces.items():
        name, prefix = (f"{stem}-{stage}", f"Stage {stage}: ") if stage else (stem, "")
        charts.append(Chart(f"sampling-{name}", f"{prefix}Sampling", partial(_sampling, trace)))
        if curves.influences(trace):
            title = f"{prefix}Influence on the dev sets, ± 1.96 standard errors where known"
            charts.append(Chart(f"influence-{name}", title, partial(_influence, trace)))
    if traces:
        charts.append(Chart(f"progress-{stem}", "Loss and dev scores", partial(_progress, run, traces)))
    if own := curves.epochs(run.trace):
        charts.append(Chart(f"epochs-{stem}", "Epochs of each dataset", partial(_bars, {"": own}, "epochs")))
    return charts


def write_charts(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """Write charts as SVG and PDF; return the files."""
    paths = []
    for chart in charts:
        with rc_context(fname=str(STYLE)):
            figure = chart.draw()
            for kind, date in {"svg": "Date", "pdf": "CreationDate"}.items():
                paths.append(folder / f"{chart.name}.{kind}")
                with replacing(paths[-1]) as temporary:
                    figure.savefig(temporary, format=kind, metadata={date: None})
    return paths


def _losses(trace: Sequence[TraceLine]) -> Points:
    return [(line["step"], line["loss"]) for line in trace if "loss" in line]


def _short(names: Iterable[str]) -> list[str]:
    return [name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…" for name in names]


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _panels(count: int, labels: int) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels side by side, three in a row, and room for a legend below them."""
    rows = -(-count // 3)
    figure = Figure(figsize=(TWO_COLUMNS, 2.2 * rows + 0.14 * -(-labels // 4)), layout="constrained")
    axes = list(figure.subplots(rows, min(count, 3), squeeze=False).flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def _lines(axes: Axes, series: Mapping[str, Points], title: str = "", **options: Any) -> None:
    """Draw series as lines that can be told apart without colour too."""
    axes.set(title=title, xlabel="step")
    for number, points in enumerate(series.values()):
        thinned = thin(points, len(series) * len(axes.figure.axes))
        # Markers of overlapping lines are shifted against each other.
        every = max(1, len(thinned) // 3)
        axes.plot(
            [step for step, _ in thinned],
            [value for _, value in thinned],
            color=COLOURS[number % len(COLOURS)],
            linestyle=DASHES[number // len(COLOURS) % len(DASHES)],
            marker=MARKERS[number % len(MARKERS)],
            markevery=(number % every, every),
            **options,
        )


def _legend(figure: Figure, axes: Axes, names: Iterable[str]) -> None:
    # Names are given again, because a label that starts with an underscore would be left out.
    figure.legend(axes.get_lines(), _short(names), loc="outside lower center", ncols=4)


def _sampling(trace: Sequence[TraceLine]) -> Figure:
    """Probability, share of rows drawn and, for a strategy that searches, the mixture found."""
    shown = curves.shown_datasets(trace)
    probabilities = by_dataset(curves.sampling_states(trace), shown)
    found = [(line["step"], line["outcome"]) for line in trace if "outcome" in line]
    figure, (left, right, *more) = _panels(3 if found else 2, len(probabilities))
    _lines(left, probabilities, "probability", drawstyle="steps-post")
    _lines(right, by_dataset(curves.drawn_shares(trace), shown), "share of rows drawn")
    right.set_xlim(left.get_xlim())
    for axes in more:
        _lines(axes, by_dataset(found, shown), "mixture found so far")
    for axes in (left, right, *more):
        axes.set_ylim(0, None)
    _legend(figure, left, probabilities)
    return figure


def _influence(trace: Sequence[TraceLine]) -> Figure:
    """Influence on all dev sets together, and on each of several."""
    found, shown = curves.influences(trace), curves.shown_datasets(trace)
    errors = {line["step"]: line["update"].get("error") or {} for line in trace if "update" in line}
    figure, panels = _panels(len(found), len(shown))
    for axes, (target, values) in zip(panels, found.items(), strict=True):
        series = by_dataset(values, shown, others=False)
        _lines(axes, series, "all dev sets" if target == "all" else target)
        for number, (name, points) in enumerate(series.items() if target == "all" else ()):
            known = [(x, y, 1.96 * errors[x][name]) for x, y in points if errors[x].get(name) is not None]
            band = [(x, y - error, y + error) for x, y, error in thin(known, len(series) * len(panels))]
            if band:
                xs, low, high = zip(*band, strict=True)
                axes.fill_between(xs, low, high, color=COLOURS[number % len(COLOURS)], alpha=0.14, linewidth=0)
    _legend(figure, panels[0], shown)
    return figure


def _progress(run: Run, traces: Mapping[str, Sequence[TraceLine]]) -> Figure:
    """Training loss by stage, the measure on dev rows at updates, and dev NDCG@10 of checkpoints."""
    losses = {stage or "loss": _losses(trace) for stage, trace in traces.items()}
    dev: dict[str, Points] = {}
    for stage, trace in traces.items():
        for line in trace:
            for target, value in (line.get("update", {}).get("dev") or {}).items():
                dev.setdefault(f"{stage}: {target}" if stage else target, []).append((line["step"], value))
    checkpoints = "dev NDCG@10 of checkpoints"
    panels = {"training loss": losses, "dev measure of the sampler": dev, checkpoints: curves.dev_evals(run)}
    panels = {title: own for title, own in panels.items() if any(own.values())}
    figure, drawn = _panels(len(panels) or 1, 0)
    for axes, (title, own) in zip(drawn, panels.items(), strict=False):
        _lines(axes, own, title)
        if len(own) > 1:
            axes.legend(axes.get_lines(), _short(own))
        if title == checkpoints and run.finished:
            axes.axvline(run.record["selected_step"], color=INK, linewidth=0.6, linestyle=":")
    return figure


def _overlay(ylabel: str, series: Mapping[str, Points]) -> Figure:
    figure, (axes,) = _panels(1, len(series))
    _lines(axes, series)
    axes.set_ylabel(ylabel)
    _legend(figure, axes, series)
    return figure


def _cost_quality(points: Mapping[str, tuple[float, Score]], unit: str) -> Figure:
    figure, axes = _figure(ONE_COLUMN, 2.4 + 0.14 * -(-len(points) // 2))
    drawn: list[Any] = []
    for number, (cost, score) in enumerate(points.values()):
        marker, colour = MARKERS[number % len(MARKERS)], COLOURS[number % len(COLOURS)]
        drawn.append(axes.errorbar(cost, score.mean, score.spread, fmt=marker, color=colour))
    axes.margins(x=0.1, y=0.15)
    axes.set(xlabel=unit, ylabel="average NDCG@10", xlim=(0, None))
    figure.legend(drawn, _short(points), loc="outside lower center", ncols=2)
    return figure


def _bars(parts: Mapping[str, Mapping[str, float]], unit: str) -> Figure:
    """Horizontal bars, stacked by part: part -> name -> value."""
    names = list(next(iter(parts.values())))
    figure, axes = _figure(ONE_COLUMN, 0.8 + 0.2 * len(names) + 0.14 * -(-len(parts) // 3))
    places, totals = range(len(names)), [0.0] * len(names)
    for number, (part, values) in enumerate(parts.items()):
        lengths = [values.get(name, 0.0) for name in names]
        hatch: dict[str, Any] = {"hatch": HATCHES[number % len(HATCHES)], "edgecolor": PAPER, "linewidth": 0}
        axes.barh(places, lengths, left=totals, color=COLOURS[number % len(COLOURS)], label=part, **hatch)
        totals = [total + length for total, length in zip(totals, lengths, strict=True)]
    offset: dict[str, Any] = {"xytext": (3, 0), "textcoords": "offset points", "va": "center", "size": 7}
    for place, total in zip(places, totals, strict=True):
        axes.annotate(f"{total:.3g}", (total, place), **offset)
    axes.set_yticks(places, _short(names))
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel(unit)
    if len(parts) > 1:
        figure.legend(loc="outside lower center", ncols=3)
    return figure


def _grid(rows: Mapping[str, Mapping[str, float]]) -> Figure:
    """Percentages in a grid, shaded by value."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    figure, axes = _figure(ONE_COLUMN if len(names) <= 4 else TWO_COLUMNS, 1.2 + 0.2 * len(rows))
    for row, values in enumerate(rows.values()):
        for column, value in ((names.index(name), value) for name, value in values.items()):
            shade: dict[str, Any] = {"alpha": value / DARKEST, "linewidth": 0, "color": COLOURS[0]}
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **shade))
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", size=6)
    axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks(range(len(names)), _short(names), rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(rows)), _short(rows))
    return figure

"""The figures of a paper as files, SVG and PDF, in widths that fit a page of two columns.

The page of `mixfluence.report.page` is for looking; these are for printing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mixfluence.errors import DataError
from mixfluence.files import replacing
from mixfluence.report.curves import Curves
from mixfluence.report.series import Report

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise DataError("figures need matplotlib: pip install 'mixfluence[report]'") from error

ONE_COLUMN, TWO_COLUMNS = 3.3, 6.9
# Okabe and Ito's colours in the order of the page, darkened like there where they are too pale for a thin line.
COLOURS = ("#0072b2", "#d55e00", "#008a64", "#b9558f", "#a87400", "#2a8fc9", "#3d444b")
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
MARKERS = ("o", "s", "^", "D", "P", "X")
HATCHES = ("", "////", "||||", "....")
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "hatch.linewidth": 0.5,
    "svg.fonttype": "none",  # text stays text
    "pdf.fonttype": 42,
    "svg.hashsalt": "mixfluence",  # the same runs give the same file
}


def write_figures(report: Report, folder: Path) -> list[Path]:
    """Write every figure that there is data for, each as SVG and PDF.

    Files are `sampling-RUN` for every run, `cost-quality`, `time` and `weights`.

    Returns:
        What was written.
    """
    figures: dict[str, Callable[[], Figure]] = {}
    for run in report.runs:
        for training in run.trainings:
            stage = f"-{training.name}" if training.name else ""
            name = f"sampling-{_file_name(run.label)}{stage}"
            figures[name if name not in figures else f"{name}-{len(figures)}"] = partial(_trajectories, training)
    if sum(group.average is not None for group in report.groups) > 1:
        figures["cost-quality"] = partial(_cost_quality, report)
    if any(group.cost for group in report.groups):
        figures["time"] = partial(_time, report)
    if any(run.weights for run in report.runs):
        figures["weights"] = partial(_weights, report)
    return [path for name, draw in figures.items() for path in write_figure(draw, folder, name)]


def write_figure(draw: Callable[[], Figure], folder: Path, name: str) -> list[Path]:
    """Draw a figure in this style and write it as SVG and PDF."""
    # A name may hold dollar signs, which matplotlib would read as mathematics.
    with rc_context(STYLE | {"text.parse_math": False}):
        figure = draw()
        return [_save(figure, folder / f"{name}.{kind}") for kind in ("svg", "pdf")]


def look(number: int) -> Mapping[str, Any]:
    """Return how a line is drawn, so that many can be told apart without colour too."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markevery": 0.15,
    }


def _trajectories(training: Curves) -> Figure:
    """Probability and drawn share side by side, one legend below."""
    figure = Figure(figsize=(TWO_COLUMNS, 2.4 + 0.14 * -(-len(training.datasets) // 4)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for number, name in enumerate(training.datasets):
        own = look(number)
        left.plot(training.steps, _gaps(training.probability[number]), drawstyle="steps-post", label=name, **own)
        if training.windows:
            right.plot(training.windows, _gaps(training.share[number]), **own)
    left.set(xlabel="step", ylabel="probability", ylim=(0, None))
    right.set(xlabel="step", ylabel="drawn share of rows", xlim=left.get_xlim())
    # A label that starts with an underscore would be left out, so names are given again.
    figure.legend(left.get_lines(), training.datasets, loc="outside lower center", ncols=4)
    return figure


def _cost_quality(report: Report) -> Figure:
    figure = Figure(figsize=(ONE_COLUMN, 2.6), layout="constrained")
    axes: Axes = figure.subplots()
    for number, group in enumerate(report.groups):
        if group.average is None or group.own_cost is None:
            continue
        point = {"color": look(number)["color"], "marker": look(number)["marker"], "linestyle": "none"}
        axes.errorbar(group.own_cost, group.average, yerr=group.spread, **point)
        # Neighbours are often as good and as cheap: one has its name above, the next below.
        beside = (4, -9 if number % 2 else 3)
        axes.annotate(group.label, (group.own_cost, group.average), xytext=beside, textcoords="offset points", size=7)
    axes.set(xlabel=report.unit, ylabel="average NDCG@10", xlim=(0, None))
    axes.margins(x=0.25, y=0.15)
    return figure


def _time(report: Report) -> Figure:
    groups = [group for group in report.groups if group.cost]
    parts = list(dict.fromkeys(part for group in groups for part, spent in group.cost.items() if spent))
    figure = Figure(figsize=(ONE_COLUMN, 1.0 + 0.2 * len(groups) + 0.14 * len(parts) / 3), layout="constrained")
    axes: Axes = figure.subplots()
    places = range(len(groups))
    starts = [0.0] * len(groups)
    for number, part in enumerate(parts):
        spent = [group.cost.get(part, 0.0) for group in groups]
        colour, hatch = COLOURS[number % len(COLOURS)], HATCHES[number % len(HATCHES)]
        axes.barh(places, spent, left=starts, color=colour, hatch=hatch, edgecolor="white", linewidth=0, label=part)
        starts = [start + more for start, more in zip(starts, spent, strict=True)]
    axes.set_yticks(places, [group.label for group in groups])
    axes.invert_yaxis()
    axes.set_xlabel(report.unit)
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def _weights(report: Report) -> Figure:
    runs = [run for run in report.runs if run.weights]
    names = list(dict.fromkeys(name for run in runs for name in run.weights))
    width = ONE_COLUMN if len(names) <= 4 else TWO_COLUMNS
    figure = Figure(figsize=(width, 1.2 + 0.2 * len(runs)), layout="constrained")
    axes: Axes = figure.subplots()
    grid = [[100 * run.weights.get(name, 0.0) for name in names] for run in runs]
    axes.imshow(grid, cmap="Blues", vmin=0, vmax=160, aspect="auto")
    for row, values in enumerate(grid):
        for column, value in enumerate(values):
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", size=6)
    axes.set_xticks(range(len(names)), names, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(runs)), [run.label if run.finished else f"{run.label} (unfinished)" for run in runs])
    axes.set_title("probability at the end, %", size=8)
    return figure


def _gaps(values: list[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _file_name(label: str) -> str:
    return re.sub(r"[^\w.-]+", "-", label).strip("-.") or "run"


def _save(figure: Figure, path: Path) -> Path:
    kind = path.suffix[1:]
    with replacing(path) as temporary:
        figure.savefig(temporary, format=kind, metadata={"Date" if kind == "svg" else "CreationDate": None})
    return path

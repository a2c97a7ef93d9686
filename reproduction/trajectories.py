"""The tables and the figure of sampling trajectories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from reproduction.cells import title_of
from reproduction.outcomes import Outcome, Trajectory
from reproduction.stability import Mixture, disagreement, mean_mixture, mixture_at, wandering
from reproduction.tables import Table

MOMENTS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Of the figure, in inches: the width of a page with two columns, the height of a panel and of a line of the legend.
WIDTH, PANEL_HEIGHT, LABEL_HEIGHT = 6.9, 1.7, 0.14
PANELS_IN_A_ROW = LABELS_IN_A_ROW = 3
COLOURS = ("#0072b2", "#d55e00", "#008a64", "#b9558f", "#a87400", "#2a8fc9", "#3d444b")
DASHES = ("-", "--", ":", "-.")
# Most characters of a list of datasets; longer ones are counted.
WIDEST_POOL = 24
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "mixfluence",  # the same runs give the same file
    "text.parse_math": False,
}


class Line(NamedTuple):
    """The probability of a dataset over a run, mean over seeds.

    Attributes:
        targets: A target that is a training set, or all targets that are not.
        row: The title of the row.
        dataset: The target's own training set or, without one, the dataset with the highest final probability.
        runs: The trajectory of each seed.
    """

    targets: tuple[str, ...]
    row: str
    dataset: str
    runs: Sequence[Trajectory]

    def at(self, moment: float) -> float:
        """Return the probability in percent after this fraction of the steps."""
        mixtures = [mixture_at(run.mixtures, moment * run.steps) for run in self.runs]
        return 100 * fmean(mixture.get(self.dataset, 0.0) for mixture in mixtures)


def trajectory_tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Return the stability of every sampler whose mixture changes, and the targets' probabilities over time.

    Rows that differ only in their start are one sampler. The mixture of DoReMi, DoGE and CRISP is constant in the
    last run: the same probability at every moment.
    """
    samplers: dict[str, list[Outcome]] = {}
    for outcome in _sampled(outcomes):
        if any(len(run.mixtures) > 1 for run in outcome.trajectories):
            name = " ".join([str(outcome.row.sampler), *outcome.row.changes])
            samplers.setdefault(title_of(name, outcome.row, outcome.columns), []).append(outcome)
    tables = [_stability_table(samplers)] if samplers else []
    lines = trajectory_lines(outcomes)
    return [*tables, _line_table(lines)] if lines else tables


def trajectory_lines(outcomes: Sequence[Outcome]) -> list[Line]:
    """Return the lines of all rows that are not static, grouped by target."""
    lines = [line for outcome in _sampled(outcomes) for line in _lines(outcome)]
    order = list(dict.fromkeys(line.targets[0] for line in lines))
    return sorted(lines, key=lambda line: order.index(line.targets[0]))


def write_figure(lines: Sequence[Line], folder: Path, name: str) -> list[Path]:
    """Write the figure as SVG and PDF; needs matplotlib."""
    from matplotlib import rc_context

    paths = [folder / f"{name}.{kind}" for kind in ("svg", "pdf")]
    with rc_context(STYLE):
        figure = draw(lines)
        for path in paths:
            figure.savefig(path, metadata={"Date" if path.suffix == ".svg" else "CreationDate": None})
    return paths


def draw(lines: Sequence[Line]) -> Any:
    """Return a matplotlib figure with a panel for each target and a curve for each row."""
    from matplotlib.figure import Figure

    targets = list(dict.fromkeys(target for line in lines for target in line.targets))
    rows = list(dict.fromkeys(line.row for line in lines))
    height, width = -(-len(targets) // PANELS_IN_A_ROW), min(len(targets), PANELS_IN_A_ROW)
    legend = -(-len(rows) // LABELS_IN_A_ROW) * LABEL_HEIGHT
    figure = Figure(figsize=(WIDTH, height * PANEL_HEIGHT + legend + 0.3), layout="constrained")
    panels = figure.subplots(height, width, squeeze=False, sharex=True).flatten()
    moments = [moment / 100 for moment in range(101)]
    drawn = {}
    for panel, target in zip(panels, targets, strict=False):
        own = [line for line in lines if target in line.targets]
        for line in own:
            number = rows.index(line.row)
            look = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number // len(COLOURS) % len(DASHES)]}
            percent = [line.at(moment) for moment in moments]
            (drawn[line.row],) = panel.plot(moments, percent, drawstyle="steps-post", **look)
        panel.set(ylim=(0, None))
        panel.set_title(target if all(line.dataset == target for line in own) else f"{target}: highest dataset")
    for panel in panels[len(targets) :]:
        panel.set_visible(False)
    figure.supxlabel("fraction of the steps", size=8)
    figure.supylabel("probability, %", size=8)
    figure.legend([drawn[row] for row in rows], rows, loc="outside lower center", ncols=LABELS_IN_A_ROW)
    return figure


def _sampled(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.runs and not outcome.is_static]


def _stability_table(samplers: dict[str, list[Outcome]]) -> Table:
    rows = [_stability(outcomes) for outcomes in samplers.values()]
    heads = ("wandering", "disagreement over starts", "disagreement over seeds")
    numbers = {
        head: ["" if value is None else f"{value:.3f}" for value in values]
        for head, values in zip(heads, zip(*rows, strict=True), strict=True)
    }
    return Table("Stability: 0 is the most stable, see reproduction/README.md", {"sampler": list(samplers)} | numbers)


def _stability(outcomes: Sequence[Outcome]) -> tuple[float, float | None, float | None]:
    """Return wandering and disagreement over starts and over seeds, means over targets."""
    runs = [run for outcome in outcomes for run in outcome.trajectories]
    moved = fmean(wandering([mixture for _, mixture in run.mixtures]) for run in runs)
    targets = dict.fromkeys(run.target for run in runs)
    ends = [[_ends(outcome, target) for outcome in outcomes] for target in targets]
    over_starts = [disagreement([mean_mixture(seeds) for seeds in starts if seeds]) for starts in ends]
    over_seeds = [disagreement(seeds) for starts in ends for seeds in starts]
    return moved, _mean(over_starts), _mean(over_seeds)


def _ends(outcome: Outcome, target: str | None) -> list[Mixture]:
    return [run.final for run in outcome.trajectories if run.target == target]


def _lines(outcome: Outcome) -> Iterator[Line]:
    """Yield a line for each target that is a training set, and one for all others together."""
    for target in outcome.groups:
        own = [run for run in outcome.trajectories if run.target == target]
        targets = [target] if target else list(outcome.recipe.dev)
        for name in (name for name in targets if name in outcome.recipe.train):
            yield Line((name,), outcome.label, name, own)
        if others := tuple(name for name in targets if name not in outcome.recipe.train):
            ends = mean_mixture(_ends(outcome, target))
            yield Line(others, outcome.label, max(ends, key=ends.__getitem__), own)


def _line_table(lines: Sequence[Line]) -> Table:
    columns = {
        "target": pool_labels([line.targets for line in lines]),
        "row": [line.row for line in lines],
        "dataset": [line.dataset for line in lines],
    }
    moments = {f"{moment:.0%} of the steps": [f"{line.at(moment):.1f}" for line in lines] for moment in MOMENTS}
    what = "the target's own training set or, without one, of the dataset with the highest final probability"
    return Table(f"Probability of {what}, in percent, mean over seeds", columns | moments, len(columns))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def pool_labels(pools: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the datasets of each pool if they are few, else their number; a letter tells equal numbers apart."""
    long = [pool for pool in dict.fromkeys(pools) if len(", ".join(pool)) > WIDEST_POOL]
    labels = {pool: ", ".join(pool) or "-" for pool in pools if pool not in long}
    for pool in long:
        alike = [other for other in long if len(other) == len(pool)]
        letter = f" ({chr(ord('a') + alike.index(pool))})" if len(alike) > 1 else ""
        labels[pool] = f"{len(pool)} set{'s' if len(pool) > 1 else ''}{letter}"
    return [labels[pool] for pool in pools]

"""The tables of a study: scores with the paper's beside them, cost, heat map, weights, trajectories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from mixfluence.paper import PaperTable
from mixfluence.report.tables import Cell, Column, Sheet
from mixfluence.runs import PARTS, Score
from mixfluence.study.arithmetic import Mixture, mean_mixture, undominated, z_scores
from mixfluence.study.beside import AVERAGE, paper_cell
from mixfluence.study.outcomes import Outcome
from mixfluence.study.schema import Study
from mixfluence.study.stability import stability_sheets

NOTHING = Cell("")


@dataclass(frozen=True)
class Results:
    """What a study found in one setting.

    Attributes:
        study: Which.
        columns: Test sets.
        outcomes: Its rows.
        tables: The paper's.
    """

    study: Study
    columns: Sequence[str]
    outcomes: Sequence[Outcome]
    tables: Sequence[PaperTable]

    @property
    def on_gpu(self) -> bool:
        """Whether every run had a GPU, so that hours are GPU-hours."""
        runs = [run for outcome in self.outcomes for run in outcome.runs]
        return bool(runs) and all(any(run.record["gpu_hours"].values()) for run in runs)


def make_sheets(results: Results) -> list[Sheet]:
    """Return the tables that a study asks for."""
    return [sheet for view in results.study.views for sheet in _VIEWS[view](results)] if results.outcomes else []


def final_weights(outcome: Outcome) -> dict[str | None, dict[str, float]]:
    """Return where the runs of a row ended, by target: the mean over seeds of each dataset's probability."""
    found: dict[str | None, list[Mixture]] = {}
    for done in outcome.done:
        if done.run:
            found.setdefault(done.cell.target, []).append(done.run.weights)
    return {target: mean_mixture(mixtures) for target, mixtures in found.items()}


def _scores(results: Results) -> list[Sheet]:
    outcomes = results.outcomes
    several = any(len(outcome.done) > 1 for outcome in outcomes)
    columns = [_labels(outcomes)]
    if len(results.columns) > 1:
        columns.append(_score_column(AVERAGE, [outcome.average for outcome in outcomes]))
    columns += [_score_column(name, [outcome.scores.get(name) for outcome in outcomes]) for name in results.columns]
    if several:
        columns.append(Column("runs", tuple(Cell(_count(outcome)) for outcome in outcomes)))
    if results.tables and any(row.paper for row in results.study.rows):
        beside = [paper_cell(results.tables, outcome.row) for outcome in outcomes]
        columns.append(Column("the paper", tuple(beside)))
    spread = ", mean ± standard deviation over seeds" if several else ""
    sheet = Sheet(f"{_measure(results)}{spread}", tuple(columns), 1)
    # Where a seed draws the training set, each is a result of its own.
    return [sheet, _by_seed(results)] if any(outcome.row.resampled for outcome in outcomes) else [sheet]


def _by_seed(results: Results) -> Sheet:
    lines: dict[str, dict[str, float]] = {}
    for outcome in results.outcomes:
        for seed, points in sorted(outcome.by_seed.items()):
            whole = len(points) == len(results.columns)
            lines[f"{outcome.label}, seed {seed}"] = points | ({AVERAGE: fmean(points.values())} if whole else {})
    heads = [AVERAGE, *results.columns] if len(results.columns) > 1 else results.columns
    columns = [Column("row", tuple(map(Cell, lines)), numeric=False)]
    for head in heads:
        cells = [Cell(f"{points[head]:.1f}") if head in points else NOTHING for points in lines.values()]
        columns.append(Column(head, tuple(cells)))
    return Sheet(f"{_measure(results)} by seed", tuple(columns), 1)


def _cost(results: Results) -> list[Sheet]:
    priced = [(outcome, hours) for outcome in results.outcomes if (hours := outcome.hours(results.on_gpu))]
    if not priced:
        return []
    totals = [sum(hours.values()) for _, hours in priced]
    averages = [outcome.average for outcome, _ in priced]
    static = next((total for (outcome, _), total in zip(priced, totals, strict=True) if _is_static(outcome)), None)
    judged = [(total, average.mean) for total, average in zip(totals, averages, strict=True) if average]
    best = dict(zip(judged, undominated(judged), strict=True))
    shown = [
        Cell(_points(average), bold=best[total, average.mean]) if average else NOTHING
        for total, average in zip(totals, averages, strict=True)
    ]
    parts = [part for part in PARTS if any(hours[part] for _, hours in priced)]
    columns = [_labels([outcome for outcome, _ in priced]), Column(AVERAGE, tuple(shown))]
    columns += [_numbers(part, [60 * hours[part] for _, hours in priced]) for part in parts]
    columns.append(_numbers("total", [60 * total for total in totals]))
    if static:
        columns.append(_numbers("× static", [total / static for total in totals]))
    unit = "GPU-minutes" if results.on_gpu else "minutes"
    # How many runs were side by side is nowhere written.
    shared = "of runs side by side, which share a device, costs compare with each other only"
    return [Sheet(f"Cost of a run in {unit} ({shared}); bold: no row is both cheaper and better", tuple(columns), 1)]


def _heat_map(results: Results) -> list[Sheet]:
    rows = [outcome for outcome in results.outcomes if set(outcome.scores) == set(results.columns) and outcome.runs]
    points = [[outcome.scores[name].mean for name in results.columns] for outcome in rows]
    if not points:
        return []
    by_row = [z_scores(line) for line in points]
    by_column = list(zip(*(z_scores(column) for column in zip(*points, strict=True)), strict=True))
    return [
        _z_sheet("over the test sets of a row, as the paper has them", rows, results.columns, by_row),
        _z_sheet("over the rows, for each test set: what helps it most is highest", rows, results.columns, by_column),
    ]


def _weights(results: Results) -> list[Sheet]:
    lines = {
        f"{outcome.label} for {target}" if target else outcome.label: weights
        for outcome in results.outcomes
        if not _is_static(outcome)
        for target, weights in final_weights(outcome).items()
    }
    names = list(dict.fromkeys(name for weights in lines.values() for name in weights))
    columns = [Column("row", tuple(map(Cell, lines)), numeric=False)]
    columns += [_numbers(name, [100 * weights.get(name, 0.0) for weights in lines.values()], 1) for name in names]
    return [Sheet("Weights learned, in percent, at the end of the run", tuple(columns), 1)] if lines else []


def _trajectories(results: Results) -> list[Sheet]:
    return stability_sheets(results.outcomes)


_VIEWS: dict[str, Callable[[Results], list[Sheet]]] = {
    "scores": _scores,
    "cost": _cost,
    "heat-map": _heat_map,
    "weights": _weights,
    "trajectories": _trajectories,
}


def _measure(results: Results) -> str:
    return f"{results.study.measure.upper()} × 100"


def _labels(outcomes: Sequence[Outcome]) -> Column:
    return Column("row", tuple(Cell(outcome.label) for outcome in outcomes), numeric=False)


def _score_column(head: str, scores: Sequence[Score | None]) -> Column:
    # What prints the same is as good.
    shown = [round(score.mean, 1) if score else None for score in scores]
    best = max((value for value in shown if value is not None), default=None)
    cells = [
        Cell(_points(score), bold=value == best) if score else NOTHING
        for score, value in zip(scores, shown, strict=True)
    ]
    return Column(head, tuple(cells))


def _points(score: Score) -> str:
    return f"{score.mean:.1f}" if score.spread is None else f"{score.mean:.1f} ± {score.spread:.1f}"


def _count(outcome: Outcome) -> str:
    done = len(outcome.done)
    return f"{done} of {done + outcome.missing}" if outcome.missing else str(done)


def _numbers(head: str, values: Sequence[float], digits: int = 2) -> Column:
    return Column(head, tuple(Cell(f"{value:.{digits}f}") for value in values))


def _z_sheet(over: str, rows: Sequence[Outcome], names: Sequence[str], values: Sequence[Sequence[float]]) -> Sheet:
    columns = zip(names, zip(*values, strict=True), strict=True)
    return Sheet(f"Heat map: z-scores {over}", (_labels(rows), *(_numbers(name, found) for name, found in columns)), 1)


def _is_static(outcome: Outcome) -> bool:
    return outcome.recipe.strategy.name == "static"

"""The tables of a study: scores beside the paper's, cost, heat map, weights, trajectories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from mixfluence.runs import PARTS, Score
from reproduction.beside import paper_value
from reproduction.outcomes import Outcome
from reproduction.paper import AVERAGE, PaperTable
from reproduction.schema import Study
from reproduction.tables import Table, bold, points
from reproduction.trajectories import trajectory_tables


@dataclass(frozen=True)
class Results:
    """The results of a study in one setting.

    Attributes:
        study: The study.
        columns: The test sets.
        outcomes: Its rows.
        tables: The paper's tables.
    """

    study: Study
    columns: Sequence[str]
    outcomes: Sequence[Outcome]
    tables: Sequence[PaperTable]

    @property
    def on_gpu(self) -> bool:
        """Whether every run used a GPU, so that hours are GPU-hours."""
        runs = [run for outcome in self.outcomes for run in outcome.runs]
        return bool(runs) and all(any(run.record["gpu_hours"].values()) for run in runs)

    @property
    def measure(self) -> str:
        """The measure as tables print it."""
        return f"{self.study.measure.upper()} × 100"

    @property
    def views(self) -> list[Table]:
        """The tables that the study asks for."""
        return [table for view in self.study.views for table in VIEWS[view](self)] if self.outcomes else []


def z_scores(values: Sequence[float]) -> list[float]:
    """Return (x - mean) / population standard deviation; 0 for equal values."""
    mean, spread = fmean(values), pstdev(values)
    return [0.0 if spread == 0 else (value - mean) / spread for value in values]


def undominated(pairs: Sequence[tuple[float, float]]) -> list[bool]:
    """Return for each (cost, quality) whether no other is at least as cheap and as good, and better in one."""
    return [
        not any(c <= cost and q >= quality and (c, q) != (cost, quality) for c, q in pairs) for cost, quality in pairs
    ]


def _scores(results: Results) -> list[Table]:
    outcomes = results.outcomes
    several = any(len(outcome.all_runs) > 1 for outcome in outcomes)
    columns = {"row": _labels(outcomes)}
    if len(results.columns) > 1:
        columns[AVERAGE] = _score_column([outcome.average for outcome in outcomes])
    for name in results.columns:
        columns[name] = _score_column([outcome.scores.get(name) for outcome in outcomes])
    if several:
        columns["runs"] = [_count(outcome) for outcome in outcomes]
    if results.tables and any(row.paper for row in results.study.rows):
        columns["the paper"] = [paper_value(results.tables, outcome.row) for outcome in outcomes]
    spread = ", mean ± standard deviation over seeds" if several else ""
    table = Table(f"{results.measure}{spread}", columns)
    # A seed that draws the training set is a result of its own.
    return [table, _by_seed(results)] if any(outcome.row.resampled for outcome in outcomes) else [table]


def _by_seed(results: Results) -> Table:
    lines: dict[str, dict[str, float]] = {}
    for outcome in results.outcomes:
        for seed, own in sorted(outcome.by_seed.items()):
            average = {AVERAGE: fmean(own.values())} if len(own) == len(results.columns) else {}
            lines[f"{outcome.label}, seed {seed}"] = own | average
    heads = [AVERAGE, *results.columns] if len(results.columns) > 1 else results.columns
    columns = {head: [f"{own[head]:.1f}" if head in own else "" for own in lines.values()] for head in heads}
    return Table(f"{results.measure} by seed", {"row": list(lines)} | columns)


def _cost(results: Results) -> list[Table]:
    costs = [(outcome, hours) for outcome in results.outcomes if (hours := outcome.hours(results.on_gpu))]
    if not costs:
        return []
    outcomes, totals = [outcome for outcome, _ in costs], [sum(hours.values()) for _, hours in costs]
    averages = [outcome.average for outcome in outcomes]
    known = [(total, own.mean) for total, own in zip(totals, averages, strict=True) if own]
    best = dict(zip(known, undominated(known), strict=True))
    columns = {"row": _labels(outcomes)}
    columns[AVERAGE] = [
        "" if not own else bold(points(own)) if best[total, own.mean] else points(own)
        for total, own in zip(totals, averages, strict=True)
    ]
    for part in PARTS:
        if any(hours[part] for _, hours in costs):
            columns[part] = _numbers([60 * hours[part] for _, hours in costs])
    columns["total"] = _numbers([60 * total for total in totals])
    static = next((total for outcome, total in zip(outcomes, totals, strict=True) if outcome.is_static), None)
    if static:
        columns["× static"] = _numbers([total / static for total in totals])
    unit = "GPU-minutes" if results.on_gpu else "minutes"
    # The number of processes is not recorded.
    shared = "runs at the same time share a device: compare only within this table"
    return [Table(f"Cost of a run in {unit} ({shared}); bold: no row is both cheaper and better", columns)]


def _heat_map(results: Results) -> list[Table]:
    rows = [outcome for outcome in results.outcomes if len(outcome.scores) == len(results.columns) and outcome.runs]
    means = [[outcome.scores[name].mean for name in results.columns] for outcome in rows]
    if not means:
        return []
    by_row = zip(*map(z_scores, means), strict=True)
    by_column = map(z_scores, zip(*means, strict=True))
    titles = {
        "over the test sets of a row, as in the paper": by_row,
        "over the rows, for each test set: what helps it most is highest": by_column,
    }
    return [
        Table(
            f"Heat map: z-scores {over}",
            {"row": _labels(rows)} | dict(zip(results.columns, map(_numbers, values), strict=True)),
        )
        for over, values in titles.items()
    ]


def _weights(results: Results) -> list[Table]:
    lines = {
        f"{outcome.label} for {target}" if target else outcome.label: weights
        for outcome in results.outcomes
        if not outcome.is_static
        for target, weights in outcome.final_weights.items()
    }
    names = dict.fromkeys(name for weights in lines.values() for name in weights)
    columns = {name: [f"{100 * weights.get(name, 0.0):.1f}" for weights in lines.values()] for name in names}
    return [Table("Final weights in percent", {"row": list(lines)} | columns)] if lines else []


VIEWS: dict[str, Callable[[Results], list[Table]]] = {
    "scores": _scores,
    "cost": _cost,
    "heat-map": _heat_map,
    "weights": _weights,
    "trajectories": lambda results: trajectory_tables(results.outcomes),
}


def _labels(outcomes: Sequence[Outcome]) -> list[str]:
    return [outcome.label for outcome in outcomes]


def _score_column(scores: Sequence[Score | None]) -> list[str]:
    # Values that print the same are equally good.
    shown = [round(score.mean, 1) if score else None for score in scores]
    best = max((value for value in shown if value is not None), default=None)
    return [
        "" if score is None else bold(points(score)) if value == best else points(score)
        for score, value in zip(scores, shown, strict=True)
    ]


def _count(outcome: Outcome) -> str:
    done = len(outcome.all_runs)
    return f"{done} of {done + outcome.missing}" if outcome.missing else str(done)


def _numbers(values: Sequence[float]) -> list[str]:
    return [f"{value:.2f}" for value in values]

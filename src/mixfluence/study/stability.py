"""How a sampler's trajectories look, and how stable they are.

Two numbers, both 0 for the most stable: **wandering**, how much further a run's mixture went than it came, the mean
over runs; and **disagreement**, the mean distance of the mixtures in which runs of one target end, over starts (of
the mean over seeds) and over seeds (of one start). `mixfluence.study.arithmetic` has the formulas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from mixfluence.report.labels import pool_labels
from mixfluence.report.tables import Cell, Column, Sheet
from mixfluence.study.arithmetic import Mixture, disagreement, mean_mixture, wandering
from mixfluence.study.grid import title_of
from mixfluence.study.outcomes import Done, Outcome

MOMENTS = (0.0, 0.25, 0.5, 0.75, 1.0)


class Line(NamedTuple):
    """How the probability of a dataset moves, for the sake of some targets, mean over seeds.

    Attributes:
        targets: One that is a training set, or those that are none.
        row: As tables call it.
        dataset: The target's own training set or, for those that have none, the dataset that ends highest.
        runs: One for each seed.
    """

    targets: tuple[str, ...]
    row: str
    dataset: str
    runs: Sequence[Done]

    def at(self, moment: float) -> float:
        """Return the probability in percent when this part of the steps is done."""
        mixtures = [mixture_at(run.trajectory, moment * run.cell.recipe.training.steps) for run in self.runs]
        return 100 * fmean(mixture.get(self.dataset, 0.0) for mixture in mixtures)


def stability_sheets(outcomes: Sequence[Outcome]) -> list[Sheet]:
    """Return the stability of every sampler whose mixture moves, and the targets' probabilities on the way.

    Rows that differ in their start alone are one sampler. Lines of a target stand together, whatever their row. A
    method whose last run draws by what was found before it has a line: the same probability at every moment.
    """
    samplers: dict[str, list[Outcome]] = {}
    for outcome in _sampled(outcomes):
        if any(len(done.trajectory) > 1 for done in outcome.done):
            samplers.setdefault(_sampler(outcome), []).append(outcome)
    sheets = [_stability(samplers)] if samplers else []
    lines = trajectory_lines(outcomes)
    return [*sheets, _trajectories(lines)] if lines else sheets


def trajectory_lines(outcomes: Sequence[Outcome]) -> list[Line]:
    """Return the lines of all rows but static ones, those of a target together."""
    lines = [line for outcome in _sampled(outcomes) for line in _lines(outcome)]
    order = list(dict.fromkeys(line.targets[0] for line in lines))
    return sorted(lines, key=lambda line: order.index(line.targets[0]))


def mixture_at(trajectory: Sequence[tuple[int, Mixture]], step: float) -> Mixture:
    """Return the mixture in force at a step."""
    return [mixture for since, mixture in trajectory if since <= step][-1]


def _sampled(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.runs and outcome.recipe.strategy.name != "static"]


def _sampler(outcome: Outcome) -> str:
    row = outcome.row
    return title_of(" ".join([str(row.sampler), *row.changes]), row, outcome.columns)


def _stability(samplers: dict[str, list[Outcome]]) -> Sheet:
    figures = {name: _figures(outcomes) for name, outcomes in samplers.items()}
    columns = [Column("sampler", tuple(map(Cell, figures)), numeric=False)]
    heads = ("wandering", "disagreement over starts", "disagreement over seeds")
    for place, head in enumerate(heads):
        columns.append(Column(head, tuple(Cell(_number(values[place])) for values in figures.values())))
    return Sheet("Stability: 0 is the most stable, see docs/STUDIES.md", tuple(columns), 1)


def _figures(outcomes: Sequence[Outcome]) -> tuple[float, float | None, float | None]:
    """Return wandering and disagreement over starts and over seeds, means over targets."""
    runs = [done for outcome in outcomes for done in outcome.done]
    moved = fmean(wandering([mixture for _, mixture in done.trajectory]) for done in runs)
    targets = dict.fromkeys(done.cell.target for done in runs)
    ends = [[_ends(outcome, target) for outcome in outcomes] for target in targets]
    over_starts = [disagreement([mean_mixture(seeds) for seeds in starts if seeds]) for starts in ends]
    over_seeds = [disagreement(seeds) for starts in ends for seeds in starts]
    return moved, _mean_of(over_starts), _mean_of(over_seeds)


def _ends(outcome: Outcome, target: str | None) -> list[Mixture]:
    return [done.trajectory[-1][1] for done in outcome.done if done.cell.target == target]


def _lines(outcome: Outcome) -> Iterator[Line]:
    """Yield a line for each target that is a training set, and one for those that are not, if there are any."""
    for target in dict.fromkeys(done.cell.target for done in outcome.done):
        own = [done for done in outcome.done if done.cell.target == target]
        targets = [target] if target else list(outcome.recipe.dev)
        for name in (name for name in targets if name in outcome.recipe.train):
            yield Line((name,), outcome.label, name, own)
        if others := tuple(name for name in targets if name not in outcome.recipe.train):
            ends = mean_mixture(_ends(outcome, target))
            highest = max(ends, key=ends.__getitem__)
            yield Line(others, outcome.label, highest, own)


def _trajectories(lines: Sequence[Line]) -> Sheet:
    texts = {
        "target": pool_labels([line.targets for line in lines]),
        "row": [line.row for line in lines],
        "dataset": [line.dataset for line in lines],
    }
    columns = [Column(head, tuple(map(Cell, words)), numeric=False) for head, words in texts.items()]
    for moment in MOMENTS:
        columns.append(Column(f"{moment:.0%} of the steps", tuple(Cell(f"{line.at(moment):.1f}") for line in lines)))
    what = "the target's own training set or, if it has none, of the dataset that ends highest"
    return Sheet(f"Probability of {what}, in percent, mean over seeds", tuple(columns), len(texts))


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"

"""A comparison as the tables people read: scores as papers print them, the test of two rows, and the cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mixfluence.report.comparison import PARTS, Comparison, Score
from mixfluence.report.contrast import LEVEL, WORDS, Contrast, Outcome
from mixfluence.report.labels import pool_labels

FIRST, SECOND, SIGNIFICANT = "†", "‡", "*"
_UNITS = {"hours": 1, "minutes": 60, "seconds": 3600}


@dataclass(frozen=True)
class Cell:
    """A text, which may hold any character, and how it is to look; a mark stands behind it."""

    text: str
    bold: bool = False
    mark: str = ""


@dataclass(frozen=True)
class Column:
    """A column; numbers stand to the right."""

    head: str
    cells: tuple[Cell, ...]
    numeric: bool = True


@dataclass(frozen=True)
class Sheet:
    """A table. Its first columns, `keys` of them, say what a line is about."""

    title: str
    columns: tuple[Column, ...]
    keys: int


def make_sheets(comparison: Comparison, *, for_print: bool) -> list[Sheet]:
    """Return the tables of a comparison: scores, the test of two rows if there are two, and the cost.

    Args:
        comparison: What to show.
        for_print: Leave out positions, and the names of runs too if sampler and start tell all rows apart. On a
            screen the next command may need them.
    """
    keys = _keys(comparison, for_print)
    sheets = [_score_sheet(comparison, keys)]
    if comparison.contrast:
        sheets.append(_test_sheet(comparison, comparison.contrast, named=bool(keys)))
    return [*sheets, _cost_sheet(comparison, keys)]


def make_notes(comparison: Comparison) -> list[str]:
    """Return the sentences that belong below the tables."""
    notes = list(_test_notes(comparison, comparison.contrast)) if comparison.contrast else []
    for section in ("train", "dev"):
        pools = [getattr(row, section) for row in comparison.rows]
        names = {label: ", ".join(pool) for label, pool in zip(pool_labels(pools), pools, strict=True) if pool}
        notes += [f"{section}, {label}: {sets}." for label, sets in names.items() if label != sets]
    notes.append("Costs leave out reading data and testing, which are the same for every sampler.")
    if comparison.static and sum(row.recipe.strategy.name == "static" for row in comparison.rows) > 1:
        notes.append(f"Of several static rows, costs are relative to {comparison.static.name}.")
    return notes + [f"Not equal: {sentence}." for sentence in comparison.differences]


def _measured(comparison: Comparison) -> list[tuple[str, list[Score], Outcome | None]]:
    """Return heading, scores of the rows and outcome of the test: of the average, if there is one, and of each set."""
    tested = comparison.contrast
    average = ("average", [row.average for row in comparison.rows], tested.average if tested else None)
    sets = [
        (name, [row.scores[name] for row in comparison.rows], tested.tests[name] if tested else None)
        for name in comparison.tests
    ]
    return [average, *sets] if len(sets) > 1 else [*sets]


def _keys(comparison: Comparison, for_print: bool) -> list[Column]:
    rows = comparison.rows
    if not for_print:
        return [_words("#", [str(place + 1) for place in range(len(rows))]), _words("run", [row.name for row in rows])]
    distinct = len({(row.sampler, row.initial) for row in rows}) == len(rows)
    return [] if distinct else [_words("run", [row.name for row in rows])]


def _methods(comparison: Comparison) -> list[Column]:
    tested = comparison.contrast
    marks = {tested.first: FIRST, tested.second: SECOND} if tested else {}
    samplers = tuple(Cell(row.sampler, mark=marks.get(place, "")) for place, row in enumerate(comparison.rows))
    return [Column("sampler", samplers, numeric=False), _words("init", [row.initial for row in comparison.rows])]


def _score_sheet(comparison: Comparison, keys: Sequence[Column]) -> Sheet:
    rows = comparison.rows
    about = [
        *_methods(comparison),
        _words("train", pool_labels([row.train for row in rows])),
        _words("dev", pool_labels([row.dev for row in rows])),
    ]
    spread = ""
    if any(len(row.runs) > 1 for row in rows):
        spread = ", mean ± standard deviation over seeds"
        about.append(Column("seeds", tuple(Cell(str(len(row.runs))) for row in rows)))
    scores = [_score_column(head, scores, comparison.contrast, found) for head, scores, found in _measured(comparison)]
    title = f"{comparison.measure.upper()} × 100{spread}"
    return Sheet(title, (*keys, *about, *scores), len(keys) or 2)


def _score_column(head: str, scores: Sequence[Score], tested: Contrast | None, found: Outcome | None) -> Column:
    # What prints the same is as good, and if all rows do, none stands out.
    shown = [round(score.mean, 1) for score in scores]
    best = max(shown) if len(set(shown)) > 1 else None
    starred = None
    if tested and found and found.significant:
        starred = tested.first if found.difference > 0 else tested.second
    marks = [SIGNIFICANT if place == starred else "" for place in range(len(scores))]
    cells = zip(scores, shown, marks, strict=True)
    return Column(head, tuple(Cell(_points(score), value == best, mark) for score, value, mark in cells))


def _test_sheet(comparison: Comparison, tested: Contrast, *, named: bool) -> Sheet:
    found = [(head, outcome) for head, _, outcome in _measured(comparison) if outcome]
    outcomes = [outcome for _, outcome in found]
    columns = [
        _words("test set", [head for head, _ in found]),
        _numbers("queries", [str(outcome.queries) for outcome in outcomes]),
        _numbers("difference", [_signed(outcome.difference) for outcome in outcomes]),
    ]
    if intervals := [outcome.interval for outcome in outcomes if outcome.interval]:
        columns.append(_numbers("95% interval", [f"{_signed(low)} to {_signed(high)}" for low, high in intervals]))
    columns.append(_numbers("p", [_p(outcome.p) for outcome in outcomes]))
    if len(comparison.tests) > 1:
        # The average is one test and needs no correction.
        corrected = ["", *(_p(outcome.corrected) for outcome in outcomes[1:])]
        columns.append(_numbers("p, Holm", corrected))
    rows = [comparison.rows[place] for place in (tested.first, tested.second)]
    first, second = (row.name if named else f"{row.sampler} ({row.initial})" for row in rows)
    return Sheet(f"{first} {FIRST} minus {second} {SECOND}: {WORDS[tested.test]} on per-query scores", (*columns,), 1)


def _cost_sheet(comparison: Comparison, keys: Sequence[Column]) -> Sheet:
    rows = comparison.rows
    most = max(row.total_hours for row in rows)
    # The largest unit in which the dearest row is at least 1.
    unit = next((unit for unit, factor in _UNITS.items() if most * factor >= 1), "seconds")
    parts = {part: [row.hours[part] for row in rows] for part in PARTS if any(row.hours[part] for row in rows)}
    parts["total"] = [row.total_hours for row in rows]
    columns = [_numbers(part, [_amount(value * _UNITS[unit]) for value in values]) for part, values in parts.items()]
    if comparison.static:
        columns.append(_numbers("× static", [f"{comparison.relative_cost(row):.2f}" for row in rows]))
    methods = [] if keys else _methods(comparison)
    unit = f"GPU-{unit}" if comparison.on_gpu else unit
    return Sheet(f"Cost of a run in {unit}", (*keys, *methods, *columns), len(keys) or 2)


def _test_notes(comparison: Comparison, tested: Contrast) -> Iterator[str]:
    count = len(comparison.tests)
    holm = f" after Holm's correction over the {count} test sets" if count > 1 else ""
    yield f"{FIRST} and {SECOND} are the rows tested; {SIGNIFICANT} marks the better one where p < {LEVEL:g}{holm}."
    if count > 1:
        yield "The average is one test of its own, in which every test set counts alike."
    if any(len(comparison.rows[place].runs) > 1 for place in (tested.first, tested.second)):
        yield (
            "Of several seeds, each query's mean score is tested: whether the difference would hold for other "
            "queries, not for other seeds."
        )


def _words(head: str, texts: Sequence[str]) -> Column:
    return Column(head, tuple(map(Cell, texts)), numeric=False)


def _numbers(head: str, texts: Sequence[str]) -> Column:
    return Column(head, tuple(map(Cell, texts)))


def _points(score: Score) -> str:
    return f"{score.mean:.1f}" if score.spread is None else f"{score.mean:.1f} ± {score.spread:.1f}"


def _signed(value: float) -> str:
    return f"{value:+z.1f}".replace("-", "−")


def _amount(value: float) -> str:
    return f"{value:.2f}" if value else "-"


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"

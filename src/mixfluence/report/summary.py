"""Tables, notes and files of a comparison."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from mixfluence.report.compare import LEVEL, TEST_TITLES, Comparison, Contrast, Difference
from mixfluence.report.labels import method_of, pool_labels
from mixfluence.report.tables import (
    Cell,
    Column,
    Screen,
    Sheet,
    latex_table,
    markdown_table,
    markdown_text,
    numbers,
    printable,
    words,
)
from mixfluence.runs import PARTS, Group, Score

FIRST, SECOND, SIGNIFICANT, MISSING = "†", "‡", "*", "-"


def make_sheets(comparison: Comparison, *, for_print: bool) -> list[Sheet]:
    """Return the tables of a comparison: scores, tests between two groups if there are any, and cost.

    Args:
        comparison: What to show.
        for_print: Leave out positions, and names of runs if sampler and start identify every row. On a terminal the
            next command may need them.
    """
    groups = comparison.groups
    methods = {(method_of(group).sampler, method_of(group).start) for group in groups}
    names = [words("run", [run_label(group) for group in groups])]
    places = [] if for_print else [words("#", [str(place + 1) for place in range(len(groups))])]
    keys = [] if for_print and len(methods) == len(groups) else [*places, *names]
    tests = [_test_sheet(comparison, comparison.contrast, named=bool(keys))] if comparison.contrast else []
    return [score_sheet(comparison, keys), *tests, *_cost_sheet(comparison, keys)]


def make_notes(comparison: Comparison) -> list[str]:
    """Return the sentences to print below the tables."""
    notes = list(_test_notes(comparison, comparison.contrast)) if comparison.contrast else []
    methods = [method_of(group) for group in comparison.groups]
    for section, pools in {"train": [own.train for own in methods], "dev": [own.dev for own in methods]}.items():
        names = {label: ", ".join(pool) for label, pool in zip(pool_labels(pools), pools, strict=True) if pool}
        notes += [f"{section}, {label}: {sets}." for label, sets in names.items() if label != sets]
    notes.append("Cost excludes reading data and testing, which are the same for every sampler.")
    if comparison.static and sum(group.recipe.strategy.name == "static" for group in comparison.groups) > 1:
        notes.append(f"Cost is relative to {comparison.static.label}, the first of several static rows.")
    return notes + [f"Not equal: {sentence}." for sentence in comparison.notes]


def score_sheet(comparison: Comparison, keys: Sequence[Column]) -> Sheet:
    """Return samplers and scores, the best of each column in bold, with the given columns first."""
    groups = comparison.groups
    methods = [method_of(group) for group in groups]
    about = [
        *_method_columns(comparison),
        words("train", pool_labels([method.train for method in methods])),
        words("dev", pool_labels([method.dev for method in methods])),
    ]
    spread = ""
    if any(len(group.runs) > 1 for group in groups):
        spread = ", mean ± standard deviation over seeds"
        about.append(numbers("seeds", [str(len(group.runs)) for group in groups]))
    scores = [_score_column(comparison, *measured) for measured in _measured(comparison)]
    return Sheet(f"{comparison.measure.upper()} × 100{spread}", (*keys, *about, *scores), len(keys) or 2)


def _measured(comparison: Comparison) -> list[tuple[str, list[Score | None], Difference | None]]:
    """Return heading, scores of the groups and test result: of the average, if there is one, and of each test set."""
    groups, tested = comparison.groups, comparison.contrast
    own = [group.scores(comparison.measure) for group in groups]
    average = ("average", [comparison.average(group) for group in groups], tested.average if tested else None)
    sets = [(name, [s.get(name) for s in own], tested.tests[name] if tested else None) for name in comparison.tests]
    return [average, *sets] if len(comparison.averaged) > 1 else [*sets]


def _method_columns(comparison: Comparison) -> list[Column]:
    tested = comparison.contrast
    marks = {tested.first: FIRST, tested.second: SECOND} if tested else {}
    methods = [method_of(group) for group in comparison.groups]
    samplers = tuple(Cell(method.sampler, mark=marks.get(place, "")) for place, method in enumerate(methods))
    return [Column("sampler", samplers, numeric=False), words("init", [method.start for method in methods])]


def _score_column(
    comparison: Comparison, head: str, scores: Sequence[Score | None], found: Difference | None
) -> Column:
    # Scores that print the same are equally good; if all do, none is bold.
    shown = [round(score.mean, 1) if score else None for score in scores]
    known = {value for value in shown if value is not None}
    best = max(known) if len(known) > 1 else None
    tested, starred = comparison.contrast, None
    if tested and found and found.significant:
        starred = tested.first if found.difference > 0 else tested.second
    cells = [
        Cell(points(score), value == best, SIGNIFICANT if place == starred else "") if score else Cell(MISSING)
        for place, (score, value) in enumerate(zip(scores, shown, strict=True))
    ]
    return Column(head, tuple(cells))


def _test_sheet(comparison: Comparison, tested: Contrast, *, named: bool) -> Sheet:
    found = [(head, result) for head, _, result in _measured(comparison) if result]
    results = [result for _, result in found]
    columns = [
        words("test set", [head for head, _ in found]),
        numbers("queries", [str(result.queries) for result in results]),
        numbers("difference", [_signed(result.difference) for result in results]),
    ]
    if intervals := [result.interval for result in results if result.interval]:
        columns.append(numbers("95% interval", [f"{_signed(low)} to {_signed(high)}" for low, high in intervals]))
    columns.append(numbers("p", [_p(result.p) for result in results]))
    if len(comparison.tests) > 1:
        # The average is one test and needs no correction.
        columns.append(numbers("p, Holm", ["", *(_p(result.p_holm) for result in results[1:])]))
    groups = [comparison.groups[place] for place in (tested.first, tested.second)]
    methods = [method_of(group) for group in groups]
    first, second = (
        group.label if named else f"{method.sampler} ({method.start})"
        for group, method in zip(groups, methods, strict=True)
    )
    title = f"{first} {FIRST} minus {second} {SECOND}: {TEST_TITLES[tested.test]} on per-query scores"
    return Sheet(title, (*columns,), 1)


def _cost_sheet(comparison: Comparison, keys: Sequence[Column]) -> list[Sheet]:
    """Return the cost by part; no table if nothing was trained."""
    hours = [group.hours(comparison.on_gpu) for group in comparison.groups]
    if not any(hours):
        return []
    unit, factor = comparison.unit
    parts = [part for part in PARTS if any(own.get(part) for own in hours)]
    columns = [numbers(part, [_amount(own.get(part, 0.0) * factor) for own in hours]) for part in parts]
    columns.append(numbers("total", [_amount(sum(own.values()) * factor) for own in hours]))
    if comparison.static:
        relative = [comparison.relative_cost(group) for group in comparison.groups]
        columns.append(numbers("× static", [MISSING if value is None else f"{value:.2f}" for value in relative]))
    methods = [] if keys else _method_columns(comparison)
    return [Sheet(f"Cost of a run in {unit}", (*keys, *methods, *columns), len(keys) or 2)]


def _test_notes(comparison: Comparison, tested: Contrast) -> Iterator[str]:
    count = len(comparison.tests)
    holm = f" after Holm's correction over the {count} test sets" if count > 1 else ""
    yield f"{FIRST} and {SECOND} are the rows tested; {SIGNIFICANT} marks the better one where p < {LEVEL:g}{holm}."
    if count > 1:
        yield "The average is a single test in which all test sets have the same weight."
    if any(len(comparison.groups[place].runs) > 1 for place in (tested.first, tested.second)):
        yield (
            "With several seeds each query's mean score is tested: whether the difference would hold for other "
            "queries, not for other seeds."
        )


def to_terminal(comparison: Comparison) -> Screen:
    """Return tables and notes for a terminal."""
    return Screen(make_sheets(comparison, for_print=False), make_notes(comparison))


def to_markdown(comparison: Comparison) -> str:
    """Return tables and notes as GitHub Markdown."""
    tables = [markdown_table(sheet) for sheet in make_sheets(comparison, for_print=True)]
    return "\n".join([*tables, "".join(f"- {markdown_text(note)}\n" for note in make_notes(comparison))])


def to_latex(comparison: Comparison) -> str:
    """Return tables for `booktabs`, with the notes as comments."""
    scores, *others = make_sheets(comparison, for_print=True)
    notes = make_notes(comparison)
    if comparison.contrast:
        # The meaning of the marks belongs in the caption.
        scores = replace(scores, title=f"{scores.title}. {notes.pop(0)}")
    comments = [f"% {printable(note)}" for note in notes]
    return "\n".join([r"% \usepackage{booktabs}", *comments, *map(latex_table, [scores, *others])]) + "\n"


def to_csv(comparison: Comparison) -> str:
    """Return a line per group with full precision. The two groups tested have p-values, corrected over test sets."""
    lines = [_csv_line(comparison, place, group) for place, group in enumerate(comparison.groups)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]))
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _csv_line(comparison: Comparison, place: int, group: Group) -> dict[str, Any]:
    facts, tested = _group(comparison, group), comparison.contrast
    # Prefixed, so that a test set called "average" is not confused with it.
    scores = {"average": facts["average"], **{f"test {name}": own for name, own in facts["tests"].items()}}
    unit = "GPU-hours" if comparison.on_gpu else "hours"
    line = {
        "run": facts["name"],
        **{name: facts[name] for name in ("sampler", "init")},
        **{name: ", ".join(facts[name]) for name in ("train", "dev")},
        "seeds": len(group.runs),
        **{name: own["mean"] for name, own in scores.items()},
        **{f"sd of {name}": own["sd"] for name, own in scores.items()},
        **{f"{unit} of {part}": facts["cost"].get(part) for part in (*PARTS, "total")},
        "cost relative to static": facts["cost"]["relative_to_static"],
    }
    if tested:
        role = {tested.first: "first", tested.second: "second"}.get(place)
        results = {"average": tested.average, **{f"test {name}": found for name, found in tested.tests.items()}}
        line |= {"tested": role, **{f"p of {name}": r.p_holm if role else None for name, r in results.items()}}
    return line


def to_json(comparison: Comparison) -> str:
    """Return everything a comparison holds with full precision, scores in points."""
    tested = comparison.contrast
    facts = {
        "measure": comparison.measure,
        "points": 100,
        "unit_of_cost": "GPU-hours" if comparison.on_gpu else "hours",
        "rows": [_group(comparison, group) for group in comparison.groups],
        "contrast": tested
        and {
            "first": comparison.groups[tested.first].label,
            "second": comparison.groups[tested.second].label,
            "test": tested.test,
            "average": _result(tested.average),
            "tests": {name: _result(found) for name, found in tested.tests.items()},
        },
        "differences": list(comparison.notes),
    }
    return json.dumps(facts, indent=1, allow_nan=False) + "\n"


def _group(comparison: Comparison, group: Group) -> dict[str, Any]:
    method = method_of(group)
    cost = {"total": comparison.cost(group), "relative_to_static": comparison.relative_cost(group)}
    return {
        "name": group.label,
        "runs": [str(run.path) for run in group.runs],
        "seeds": group.seeds,
        "sampler": method.sampler,
        "init": method.start,
        "train": method.train,
        "dev": method.dev,
        "average": _score(comparison.average(group)),
        "tests": {name: _score(score) for name, score in group.scores(comparison.measure).items()},
        "cost": {**group.hours(comparison.on_gpu), **cost},
    }


def _score(score: Score | None) -> dict[str, Any]:
    return {"mean": score.mean, "sd": score.spread, "by_seed": score.values} if score else {"mean": None, "sd": None}


def _result(result: Difference) -> dict[str, Any]:
    return asdict(result) | {"significant": result.significant}


def run_label(group: Group) -> str:
    """Return the label of a group, with its progress if it has not finished."""
    run = group.runs[0]
    reached = run.trace[-1]["step"] if run.trace else 0
    return (
        group.label if run.finished else f"{group.label} (unfinished: step {reached} of {run.recipe.training.steps})"
    )


def points(score: Score) -> str:
    """Return a score with one decimal, and its spread if there is one."""
    return f"{score.mean:.1f}" if score.spread is None else f"{score.mean:.1f} ± {score.spread:.1f}"


def _signed(value: float) -> str:
    return f"{value:+z.1f}".replace("-", "−")


def _amount(value: float) -> str:
    return f"{value:.2f}" if value else MISSING


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


FORMATS: dict[str, Callable[[Comparison], str]] = {
    "markdown": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
    "json": to_json,
}

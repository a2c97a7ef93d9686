"""Tables, notes and files of a comparison."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from io import StringIO
from typing import Any

from rich.console import Console

from mixfluence.display import printable
from mixfluence.report import tables
from mixfluence.report.compare import LEVEL, TEST_TITLES, Comparison, Contrast, Difference
from mixfluence.report.tables import Cell, Column, Sheet, numbers, words
from mixfluence.runs import PARTS, Group, Score

FIRST, SECOND, SIGNIFICANT, MISSING = "†", "‡", "*", "-"


def make_sheets(comparison: Comparison) -> list[Sheet]:
    """Return the tables of a comparison: scores, tests between two groups if there are any, and cost."""
    places = [str(place + 1) for place in range(len(comparison.rows))]
    keys = [words("#", places), words("run", list(map(run_label, comparison.rows)))]
    tests = [_test_sheet(comparison, comparison.contrast)] if comparison.contrast else []
    return [_score_sheet(comparison, keys), *tests, *_cost_sheet(comparison)]


def make_notes(comparison: Comparison) -> list[str]:
    """Return the sentences to print below the tables."""
    notes = list(_test_notes(comparison, comparison.contrast)) if comparison.contrast else []
    if not comparison.tests:
        notes.append("No test results: give the runs test sets, or score their models with mixfluence evaluate.")
    if any(group.hours(comparison.on_gpu) for group in comparison.groups):
        notes.append("Cost excludes reading data and testing, which are the same for every sampler.")
        notes.append("Step-equivalents are the work in training steps, whatever else the machine did.")
    if len(comparison.statics) > 1:
        notes.append(f"Cost is relative to {comparison.statics[0].label}, the first of several static rows.")
    return notes + [f"Caution: {sentence}." for sentence in comparison.notes]


def _score_sheet(comparison: Comparison, keys: Sequence[Column]) -> Sheet:
    groups, tested = comparison.rows, comparison.contrast
    samplers, starts = zip(*map(method_of, groups), strict=True)
    marks = {tested.first: FIRST, tested.second: SECOND} if tested else {}
    marked = tuple(Cell(sampler, mark=marks.get(place, "")) for place, sampler in enumerate(samplers))
    columns = [*keys, Column("sampler", marked, numeric=False), words("init", starts)]
    spread = ""
    if any(len(group.runs) > 1 for group in groups):
        spread = ", mean ± standard deviation over seeds"
        columns.append(numbers("seeds", [str(len(group.runs)) for group in groups]))
    for head, result in _results(comparison):
        better = None
        if tested and result and result.significant:
            better = tested.first if result.difference > 0 else tested.second
        scores = [_score(comparison, group, head) for group in groups]
        # Scores that print the same are equally good; if all do, none is bold.
        shown = {round(score.mean, 1) for score in scores if score}
        best = max(shown) if len(shown) > 1 else None
        cells = []
        for place, score in enumerate(scores):
            mark = SIGNIFICANT if place == better else ""
            text = f"{score.mean:.1f}" if score else MISSING
            text += f" ± {score.spread:.1f}" if score and score.spread is not None else ""
            cells.append(Cell(text, score is not None and round(score.mean, 1) == best, mark))
        columns.append(Column(head or "average", tuple(cells)))
    kept = [comparison.kept(group) for group in groups]
    if any(value is not None for value in kept):
        columns.append(numbers("guards vs start", [MISSING if value is None else _signed(value) for value in kept]))
    return Sheet(f"{comparison.measure.upper()} × 100{spread}", tuple(columns), len(keys))


def _results(comparison: Comparison) -> list[tuple[str | None, Difference | None]]:
    """Return the test sets with their results; None stands for the average over several."""
    tested = comparison.contrast
    tests = [(name, tested.tests[name] if tested else None) for name in comparison.tests]
    return [(None, tested.average if tested else None), *tests] if len(comparison.averaged) > 1 else [*tests]


def _score(comparison: Comparison, group: Group, test: str | None) -> Score | None:
    return comparison.average(group) if test is None else group.scores(comparison.measure).get(test)


def _test_sheet(comparison: Comparison, tested: Contrast) -> Sheet:
    found = [(head or "average", result) for head, result in _results(comparison) if result]
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
    first, second = (comparison.rows[place].label for place in (tested.first, tested.second))
    pair = f"{first} {FIRST} minus {second} {SECOND}"
    return Sheet(f"{pair}: {TEST_TITLES[tested.test]} on per-query scores", tuple(columns), 1)


def _cost_sheet(comparison: Comparison) -> list[Sheet]:
    """Return the cost by part of everything that was trained; no table if nothing was."""
    groups = {place: group for place, group in enumerate(comparison.groups, 1) if group.hours(comparison.on_gpu)}
    if not groups:
        return []
    unit, factor = comparison.unit
    hours = [group.hours(comparison.on_gpu) for group in groups.values()]
    amounts = {part: [factor * own[part] for own in hours] for part in PARTS}
    amounts = {part: own for part, own in amounts.items() if any(own)}
    amounts["total"] = [factor * sum(own.values()) for own in hours]
    steps = [comparison.steps(group) or 0.0 for group in groups.values()]
    if comparison.static:
        base = comparison.steps(comparison.static) or 1.0
        amounts["× static"] = [comparison.relative_cost(group) or 0.0 for group in groups.values()]
        amounts["steps × static"] = [own / base for own in steps]
    keys = words("#", list(map(str, groups))), words("run", [group.label for group in groups.values()])
    columns = [numbers(head, [f"{v:.2f}" if v else MISSING for v in own]) for head, own in amounts.items()]
    columns.append(numbers("step-equivalents", [f"{own:,.0f}" for own in steps]))
    return [Sheet(f"Cost of a run in {unit}", (*keys, *columns), len(keys))]


def contrast_sheet(comparison: Comparison, base: int, found: Mapping[int, Contrast]) -> Sheet:
    """Return the differences of other rows to one, with p-values."""
    labels = [comparison.rows[place].label for place in found]
    heads = {name: [own.tests[name] for own in found.values()] for name in comparison.averaged}
    if len(heads) > 1:
        heads = {"average": [own.average for own in found.values()], **heads}
    columns = [
        Column(head, tuple(Cell(f"{_signed(own.difference)} ({_p(own.p_holm)})", own.significant) for own in results))
        for head, results in heads.items()
    ]
    holm = ", after Holm's correction over test sets" if len(heads) > 1 else ""
    title = f"Difference to {comparison.rows[base].label} (p of a paired t-test{holm})"
    return Sheet(title, (words("run", labels), *columns), 1)


def _test_notes(comparison: Comparison, tested: Contrast) -> Iterator[str]:
    count = len(comparison.tests)
    holm = f" after Holm's correction over the {count} test sets" if count > 1 else ""
    yield f"{FIRST} and {SECOND} are the rows tested; {SIGNIFICANT} marks the better one where p < {LEVEL:g}{holm}."
    if count > 1:
        yield "The average is a single test in which all test sets have the same weight."
    if any(len(comparison.rows[place].runs) > 1 for place in (tested.first, tested.second)):
        yield "Each query's mean over seeds is tested: the result is valid for other queries, not for other seeds."


def to_terminal(comparison: Comparison) -> tables.Screen:
    """Return tables and notes for a terminal."""
    return tables.Screen(make_sheets(comparison), make_notes(comparison))


def to_text(comparison: Comparison) -> str:
    """Return tables and notes as a terminal of 120 columns shows them."""
    file = StringIO()
    Console(file=file, width=120).print(to_terminal(comparison))
    return file.getvalue()


def to_markdown(comparison: Comparison) -> str:
    """Return tables and notes as GitHub Markdown."""
    parts = map(tables.markdown_table, make_sheets(comparison))
    return "\n".join([*parts, "".join(f"- {tables.markdown_text(note)}\n" for note in make_notes(comparison))])


def to_latex(comparison: Comparison) -> str:
    """Return tables for `booktabs`, with titles and notes as comments."""
    notes = [f"% {printable(note)}" for note in make_notes(comparison)]
    return "\n".join([r"% \usepackage{booktabs}", *notes, *map(tables.latex_table, make_sheets(comparison))])


def to_csv(comparison: Comparison) -> str:
    """Return the rows of `to_json`, a line per group and a column per number, such as `tests.NAME.mean`.

    Lists are JSON.
    """
    import pandas

    def harmless(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return json.dumps(value, ensure_ascii=False)
        if not isinstance(value, str):
            return value
        # A spreadsheet would execute it.
        return printable(f"'{value}" if len(value) > 1 and value[0] in "=+-@\t\r" else value)

    rows = [_group(comparison, group) | {"unit_of_cost": _unit(comparison)} for group in comparison.rows]
    text: str = pandas.json_normalize(rows).map(harmless).rename(columns=printable).to_csv(index=False)
    return text


def to_json(comparison: Comparison) -> str:
    """Return everything a comparison holds with full precision, scores in points."""
    contrast = None
    if tested := comparison.contrast:
        names = {role: comparison.rows[getattr(tested, role)].label for role in ("first", "second")}
        contrast = asdict(tested) | names
    facts = {
        "measure": comparison.measure,
        "points": 100,
        "unit_of_cost": _unit(comparison),
        "rows": [_group(comparison, group) for group in comparison.rows],
        "contrast": contrast,
        "differences": comparison.notes,
    }
    return json.dumps(facts, indent=1, allow_nan=False) + "\n"


def _unit(comparison: Comparison) -> str:
    return "GPU-hours" if comparison.on_gpu else "hours"


def _group(comparison: Comparison, group: Group) -> dict[str, Any]:
    def facts(score: Score | None) -> dict[str, Any] | None:
        return {"mean": score.mean, "sd": score.spread, "by_seed": score.values} if score else None

    sampler, start = method_of(group)
    cost = {"total": comparison.cost(group), "relative_to_static": comparison.relative_cost(group)}
    cost["step_equivalents"] = comparison.steps(group)
    return {
        "name": group.label,
        "runs": [str(run.path) for run in group.runs],
        "seeds": [run.recipe.seed for run in group.runs],
        "sampler": sampler,
        "init": start,
        "train": list(group.recipe.train),
        "dev": list(group.recipe.dev),
        "average": facts(comparison.average(group)),
        "guards_vs_start": comparison.kept(group),
        "tests": {name: facts(score) for name, score in group.scores(comparison.measure).items()},
        "cost": {**group.hours(comparison.on_gpu), **cost},
    }


FORMATS = {"terminal": to_text, "markdown": to_markdown, "latex": to_latex, "csv": to_csv, "json": to_json}


def run_label(group: Group) -> str:
    """Return the label of a group, with its progress if it has not finished."""
    if group.finished:
        return group.label
    reached = group.runs[0].trace[-1]["step"] if group.runs[0].trace else 0
    return f"{group.label} (unfinished: step {reached} of {group.recipe.training.steps})"


def _signed(value: float) -> str:
    return f"{value:+z.1f}".replace("-", "−")


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def method_of(group: Group) -> tuple[str, str]:
    """Return sampler and start of a group; a model that was only tested has a name and no start."""
    strategy, name = group.recipe.strategy, group.runs[0].untrained
    if name == "fusion":
        return f"{strategy.label} + BM25", strategy.start_label
    if name:
        return "BM25" if name == "bm25" else name, MISSING
    selected = group.recipe.select
    return strategy.label + (f", {selected.keep:.0%} of rows" if selected else ""), strategy.start_label

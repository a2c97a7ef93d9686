"""Comparisons as text for other programs. Names of runs and datasets are data, and each format escapes them."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from mixfluence.report.comparison import Comparison, Row, Score
from mixfluence.report.contrast import Contrast, Outcome
from mixfluence.report.sheets import Cell, Sheet, make_notes, make_sheets

_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # At the start of a line these would be taken for an argument of the line before.
    "[": "{[}",
    "*": "{*}",
    "τ": r"$\tau$",
    "∞": r"$\infty$",
    "→": r"$\to$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "†": r"$^{\dagger}$",
    "‡": r"$^{\ddagger}$",
}
# Wider tables span both columns of a page.
_ONE_COLUMN = 7


def printable(text: str) -> str:
    """Return a text on one line, with nothing in it that a terminal would obey."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def to_markdown(comparison: Comparison) -> str:
    """Return tables and notes in the Markdown of GitHub."""
    tables = [markdown_table(sheet) for sheet in make_sheets(comparison, for_print=True)]
    notes = "".join(f"- {_markdown(note)}\n" for note in make_notes(comparison))
    return "\n".join([*tables, notes])


def to_latex(comparison: Comparison) -> str:
    """Return tables for `booktabs`, with the notes as comments."""
    scores, *others = make_sheets(comparison, for_print=True)
    notes = make_notes(comparison)
    if comparison.contrast:
        # What the marks in a table mean belongs below it.
        scores = replace(scores, title=f"{scores.title}. {notes.pop(0)}")
    comments = [f"% {printable(note)}" for note in notes]
    return "\n".join([r"% \usepackage{booktabs}", *comments, *map(_latex_table, [scores, *others])]) + "\n"


def to_csv(comparison: Comparison) -> str:
    """Return a line per row, numbers in full. The two rows tested have the p-values, corrected over test sets."""
    lines = [_csv_line(comparison, row) | _csv_test(comparison, place) for place, row in enumerate(comparison.rows)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]))
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def to_json(comparison: Comparison) -> str:
    """Return everything a comparison holds, numbers in full, scores in points."""
    facts = {
        "measure": comparison.measure,
        "points": 100,
        "unit_of_cost": _unit(comparison),
        "rows": [_row(comparison, row) for row in comparison.rows],
        "contrast": _contrast(comparison, comparison.contrast) if comparison.contrast else None,
        "differences": list(comparison.differences),
    }
    return json.dumps(facts, indent=1, allow_nan=False) + "\n"


def markdown_table(sheet: Sheet) -> str:
    """Return a sheet as a Markdown table under its title. Names in it are data and mean nothing to Markdown."""
    heads = [_markdown(column.head) for column in sheet.columns]
    rules = ["---:" if column.numeric else ":---" for column in sheet.columns]
    lines = [[_markdown_cell(cell) for cell in line] for line in _lines(sheet)]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, rules, *lines))
    return f"**{_markdown(sheet.title)}**\n\n{table}"


def _markdown_cell(cell: Cell) -> str:
    text = _markdown(cell.text)
    return (f"**{text}**" if cell.bold else text) + _markdown(cell.mark)


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", html.escape(printable(text), quote=False))


def _latex_table(sheet: Sheet) -> str:
    environment = "table" if len(sheet.columns) <= _ONE_COLUMN else "table*"
    heads = [_latex(column.head) for column in sheet.columns]
    lines = [[_latex_cell(cell) for cell in line] for line in _lines(sheet)]
    return "\n".join(
        [
            f"\\begin{{{environment}}}[t]",
            "\\centering",
            f"\\begin{{tabular}}{{{''.join('r' if column.numeric else 'l' for column in sheet.columns)}}}",
            "\\toprule",
            _latex_line(heads),
            "\\midrule",
            *map(_latex_line, lines),
            "\\bottomrule",
            "\\end{tabular}",
            f"\\caption{{{_latex(sheet.title)}}}",
            f"\\end{{{environment}}}",
        ]
    )


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_cell(cell: Cell) -> str:
    text = _latex(cell.text)
    mark = "$^{*}$" if cell.mark == "*" else _latex(cell.mark)
    return (f"\\textbf{{{text}}}" if cell.bold else text) + mark


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in printable(text))


def _lines(sheet: Sheet) -> list[tuple[Cell, ...]]:
    return list(zip(*(column.cells for column in sheet.columns), strict=True))


def _csv_line(comparison: Comparison, row: Row) -> dict[str, Any]:
    # Sets have a word before their name, so that one called "average" is not taken for it.
    scores = {"average": row.average, **{f"test {name}": score for name, score in row.scores.items()}}
    spreads = {f"sd of {name}": score.spread for name, score in scores.items()}
    unit = _unit(comparison)
    return {
        "run": row.name,
        "sampler": row.sampler,
        "init": row.initial,
        "train": ", ".join(row.train),
        "dev": ", ".join(row.dev),
        "seeds": len(row.runs),
        **{name: score.mean for name, score in scores.items()},
        **spreads,
        **{f"{unit} of {part}": value for part, value in row.hours.items()},
        f"{unit} in all": row.total_hours,
        "cost relative to static": comparison.relative_cost(row),
    }


def _csv_test(comparison: Comparison, place: int) -> dict[str, Any]:
    tested = comparison.contrast
    if not tested:
        return {}
    outcomes = {"average": tested.average, **{f"test {name}": outcome for name, outcome in tested.tests.items()}}
    role = {tested.first: "first", tested.second: "second"}.get(place)
    return {
        "tested": role,
        **{f"p of {name}": outcome.corrected if role else None for name, outcome in outcomes.items()},
    }


def _row(comparison: Comparison, row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "runs": [str(run.path) for run in row.runs],
        "seeds": row.seeds,
        "sampler": row.sampler,
        "init": row.initial,
        "train": row.train,
        "dev": row.dev,
        "average": _score(row.average),
        "tests": {name: _score(score) for name, score in row.scores.items()},
        "cost": {**row.hours, "total": row.total_hours, "relative_to_static": comparison.relative_cost(row)},
    }


def _score(score: Score) -> dict[str, Any]:
    return {"mean": score.mean, "sd": score.spread, "by_seed": score.values}


def _contrast(comparison: Comparison, tested: Contrast) -> dict[str, Any]:
    return {
        "first": comparison.rows[tested.first].name,
        "second": comparison.rows[tested.second].name,
        "test": tested.test,
        "average": _outcome(tested.average),
        "tests": {name: _outcome(outcome) for name, outcome in tested.tests.items()},
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "queries": outcome.queries,
        "difference": outcome.difference,
        "p": outcome.p,
        "p_holm": outcome.corrected,
        "significant": outcome.significant,
        "interval": outcome.interval,
    }


def _unit(comparison: Comparison) -> str:
    return "GPU-hours" if comparison.on_gpu else "hours"


FORMATS: dict[str, Callable[[Comparison], str]] = {
    "markdown": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
    "json": to_json,
}
"""What a comparison can be written as, beside the terminal's own table."""

"""One page for a browser, in one file: it needs no network and no other file.

Names of datasets and runs, and recipes, are data. They reach the page in two ways only: escaped by `html.escape` in
the table written here, and as JSON in a block that nothing executes, which the script puts into text nodes and
attributes.
A content security policy lets the page run the one script and use the one style sheet it was written with, and load
nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from string import Template

from mixfluence.errors import DataError
from mixfluence.report.series import Group, Report

MOST_BYTES = 6_000_000
ASSETS = files("mixfluence.report") / "assets"


def render_page(report: Report) -> str:
    """Return the page as HTML.

    Raises:
        DataError: If there are so many runs that the page would be slow to open.
    """
    style, script = _asset("page.css"), _asset("charts.js") + _asset("page.js")
    names = ", ".join(group.label for group in report.groups)
    text = Template(_asset("page.html")).substitute(
        policy=escape(_policy(style, script)),
        title=escape(names if len(names) <= 80 else f"{len(report.runs)} runs"),
        style=style,
        script=script,
        data=_json(report),
        lead=escape(_lead(report)),
        notes="".join(f'<p class="note">{escape(note)}</p>' for note in report.notes),
        unit=escape(report.unit),
        table=_headline(report),
    )
    if len(text.encode()) > MOST_BYTES:
        size = len(text.encode()) / 1e6
        raise DataError(f"a page of these {len(report.runs)} runs would have {size:.1f} MB; report fewer at once")
    return text


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    style_hash, script_hash = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)
    )
    return (
        f"default-src 'none'; style-src 'sha256-{style_hash}'; script-src 'sha256-{script_hash}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _json(report: Report) -> str:
    """Return all series as JSON without any character that could end the block it stands in."""
    text = json.dumps(asdict(report), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _lead(report: Report) -> str:
    """Return what a reader wants first: which is best and what it cost."""
    scored = [group for group in report.groups if group.average is not None]
    if len(scored) < 2:
        return "Fewer than two finished runs with a test set in common: nothing to compare yet."
    best, second = sorted(scored, key=lambda group: -(group.average or 0.0))[:2]
    by = (best.average or 0.0) - (second.average or 0.0)
    times = (best.own_cost or 0.0) / (second.own_cost or float("inf"))
    return (
        f"{best.label} has the highest average, {by:.1f} points above {second.label}, "
        f"for {times:.1f} times its training time. Whether that is more than chance: mixfluence compare."
    )


def _headline(report: Report) -> str:
    """Return the table of groups and test sets, the best of each column in bold."""
    averaged = len(report.shared_tests) > 1
    columns = [*(["average"] if averaged else []), *report.tests]
    values = [
        [*([group.average] if averaged else []), *(group.scores.get(test) for test in report.tests)]
        for group in report.groups
    ]
    best = [max((v for v in column if v is not None), default=None) for column in zip(*values, strict=True)]
    head = ["run", *columns, report.unit, "sampler", "start"]
    lines = [_headline_row(report, group, line, best) for group, line in zip(report.groups, values, strict=True)]
    cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _headline_row(report: Report, group: Group, values: Sequence[float | None], best: Sequence[float | None]) -> str:
    run = report.runs[group.runs[0]]
    label = escape(group.label)
    if len(group.runs) > 1:
        label += f' <span class="dim">{len(group.runs)} seeds</span>'
    if not run.finished:
        label += f' <span class="mark">unfinished: step {run.reached} of {run.steps}</span>'
    cells = [f'<th scope="row">{label}</th>']
    for place, (value, top) in enumerate(zip(values, best, strict=True)):
        text = "–" if value is None else f"{value:.1f}"
        spread = group.spread is not None and place == 0
        text += f' <span class="dim">± {group.spread:.1f}</span>' if spread else ""
        bold = value is not None and value == top and len(report.groups) > 1
        cells.append(f'<td class="number">{f"<b>{text}</b>" if bold else text}</td>')
    cost = "–" if group.own_cost is None else f"{group.own_cost:.3g}"
    cells.append(f'<td class="number">{cost}</td><td>{escape(run.sampler)}</td><td>{escape(run.start)}</td>')
    return f"<tr>{''.join(cells)}</tr>"

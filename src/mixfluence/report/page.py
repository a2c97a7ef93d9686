"""The report: one HTML file with interactive charts that needs no network.

Everything that comes from runs is escaped; the content security policy lets the page load nothing, and execute
nothing but Plotly and `assets/page.js`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from statistics import fmean
from string import Template

from mixfluence.errors import DataError
from mixfluence.evaluation.results import DevQuery
from mixfluence.recipe_yaml import dump_recipe
from mixfluence.report.compare import Comparison, all_contrasts, labelled, overview
from mixfluence.report.curves import final_weights
from mixfluence.report.figures import Chart, charts_of_all, charts_of_run
from mixfluence.report.summary import MISSING, contrast_sheet, make_notes, make_sheets, method_of, run_label
from mixfluence.report.tables import Sheet, html_table, numbers, words
from mixfluence.runs import Group, Run

MOST_QUERIES = 10
ASSETS = files("mixfluence.report") / "assets"


def render_page(runs: Sequence[Run]) -> str:
    """Return the report of some runs, finished or not, as HTML."""
    if len({run.path.resolve() for run in runs}) < max(len(runs), 1):
        raise DataError("expected at least one run, and none twice")
    found = overview(runs)
    links = [f'<a href="#run-{number}">{escape(group.label)}</a>' for number, group in enumerate(found.groups)]
    title = ", ".join(group.label for group in found.groups)
    template, style, script = ((ASSETS / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    # Imported late, because it takes a moment.
    from plotly.offline import get_plotlyjs

    plotly: str = get_plotlyjs()
    return Template(template).substitute(
        hashes=" ".join(map(_hash, (plotly, script))),
        title=escape(title if len(title) <= 80 else f"{len(runs)} runs"),
        style=style,
        links="".join(links),
        tables="".join(map(_table, make_sheets(found))) + _contrasts(found) + "".join(map(_table, _weights(found))),
        notes="".join(f"<li>{escape(note)}</li>" for note in make_notes(found)),
        charts=_figures(charts_of_all(found)),
        runs="".join(_section(number, group) for number, group in enumerate(found.groups)),
        plotly=plotly,
        script=script,
    )


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _contrasts(found: Comparison) -> str:
    """Return a table of differences for every row as baseline; the reader chooses one."""
    sheets = {base: contrast_sheet(found, base, own) for base, own in all_contrasts(found).items() if own}
    if not sheets:
        return ""
    first = next((place for place in sheets if found.rows[place] is found.static), next(iter(sheets)))
    options, tables = "", ""
    for place, sheet in sheets.items():
        chosen = place == first
        label = escape(found.rows[place].label)
        options += f'<option value="{place}"{" selected" if chosen else ""}>{label}</option>'
        tables += f'<div class="contrast" data-base="{place}"{"" if chosen else " hidden"}>{_table(sheet)}</div>'
    return f'<p><label>Baseline <select id="baseline">{options}</select></label></p>{tables}'


def _weights(found: Comparison) -> list[Sheet]:
    """Return the table of final probabilities; none if no run has any."""
    weights = {label: own for label, run in labelled(found.groups) if (own := final_weights(run))}
    names = dict.fromkeys(name for own in weights.values() for name in own)
    columns = [
        numbers(name, [f"{100 * own[name]:.1f}" if name in own else MISSING for own in weights.values()])
        for name in names
    ]
    return [Sheet("Final sampling probabilities in percent", (words("run", list(weights)), *columns), 1)] * bool(names)


def best_and_worst(queries: Sequence[DevQuery]) -> tuple[list[DevQuery], list[DevQuery]]:
    """Return the best queries by rank and margin, best first, and the worst, worst first; no query is in both."""
    order = sorted(queries, key=lambda query: (query.rank, -query.margin))
    half = (len(order) + 1) // 2
    return order[:half][:MOST_QUERIES], order[half:][::-1][:MOST_QUERIES]


def _section(number: int, group: Group) -> str:
    """Return the section of a group: charts, dev queries, recipe and versions of its runs."""
    sampler, start = method_of(group)
    inside = list(map(_run, group.runs))
    if len(inside) > 1:
        inside = [f"<h3>{escape(label)}</h3>{text}" for label, text in zip(group.labels, inside, strict=True)]
    summary = f'{escape(run_label(group))} <span class="dim">{escape(sampler)}, {escape(start)}</span>'
    is_open = " open" if number == 0 else ""
    return f'<details class="run" id="run-{number}"{is_open}><summary>{summary}</summary>{"".join(inside)}</details>'


def _run(run: Run) -> str:
    facts = {"seed": str(run.recipe.seed), "device": run.record.get("device", ""), **run.record.get("versions", {})}
    if run.recipe.selection and "selected_step" in run.record:
        facts["selected step"] = str(run.record["selected_step"])
    facts |= {f"note {place}": note for place, note in enumerate(run.record.get("notes", []), start=1)}
    versions = Sheet("Seed, device and versions", (words("", list(facts)), words("", list(facts.values()))), 1)
    about = "Each query is ranked against the passages of the first dev rows, far fewer than a corpus has."
    parts = [
        f'<div class="charts">{_figures(charts_of_run(run))}</div>',
        f'<h3>Best and worst dev queries</h3><p class="dim">{about}</p>' if run.dev else "",
        *(_queries(name, queries) for name, queries in run.dev.items()),
        f"<details><summary>Recipe and versions</summary>{_table(versions)}",
        f'<pre tabindex="0">{escape(dump_recipe(run.recipe))}</pre></details>',
    ]
    return "".join(parts)


def _queries(name: str, queries: Sequence[DevQuery]) -> str:
    best, worst = best_and_worst(queries)
    tables = [_query_table(title, own) for title, own in (("Best", best), ("Worst", worst)) if own]
    ndcg = 100 * fmean(query.ndcg for query in queries)
    summary = f"<b>{escape(name)}</b>: {len(queries)} queries, NDCG@10 {ndcg:.1f}"
    return f'<details class="texts"><summary>{summary}</summary>{"".join(tables)}</details>'


def _query_table(title: str, queries: Sequence[DevQuery]) -> str:
    columns = (
        words("query", [query.query for query in queries]),
        numbers("rank", [f"{query.rank} of {query.among}" for query in queries]),
        words("its passage", [query.positive for query in queries]),
        words("highest-ranked other passage", [query.other or "-" for query in queries]),
    )
    return _table(Sheet(f"{title} {len(queries)}", columns, 1))


def _figures(charts: Iterable[Chart]) -> str:
    parts = []
    for chart in charts:
        # No text of a run may end the script element.
        data = json.dumps({"data": chart.data, "layout": chart.layout}).replace("<", "\\u003c")
        figure = f'<div class="chart"><script type="application/json">{data}</script><div class="plot"></div></div>'
        parts.append(f"<figure><figcaption>{escape(chart.title)}</figcaption>{figure}</figure>")
    return "".join(parts)


def _table(sheet: Sheet) -> str:
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Table">{html_table(sheet)}</div>'

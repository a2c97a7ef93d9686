"""The report: one HTML file with interactive charts that needs no network.

The templates escape everything that comes from runs; the content security policy lets the page load nothing, and
execute nothing but Plotly and `assets/page.js`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from statistics import fmean
from typing import Any

from jinja2 import Environment, PackageLoader

from mixfluence.errors import DataError
from mixfluence.evaluation.results import DevQuery
from mixfluence.recipe_yaml import dump_recipe
from mixfluence.report.compare import Comparison, all_contrasts, labelled, overview
from mixfluence.report.curves import final_weights
from mixfluence.report.figures import charts_of_all, charts_of_run
from mixfluence.report.summary import MISSING, contrast_sheet, make_notes, make_sheets, method_of, run_label
from mixfluence.report.tables import Sheet, numbers, words
from mixfluence.runs import Group, Run

MOST_QUERIES = 10
ASSETS = files("mixfluence.report") / "assets"
TEMPLATES = Environment(
    loader=PackageLoader("mixfluence.report", "assets"), autoescape=True, trim_blocks=True, lstrip_blocks=True
)


def render_page(runs: Sequence[Run]) -> str:
    """Return the report of some runs, finished or not, as HTML."""
    if len({run.path.resolve() for run in runs}) < max(len(runs), 1):
        raise DataError("expected at least one run, and none twice")
    # Imported late, because it takes a moment.
    from plotly.offline import get_plotlyjs

    found = overview(runs)
    title = ", ".join(group.label for group in found.groups)
    plotly, script = get_plotlyjs(), (ASSETS / "page.js").read_text(encoding="utf-8")
    contrasts = {base: contrast_sheet(found, base, own) for base, own in all_contrasts(found).items() if own}
    return TEMPLATES.get_template("page.html").render(
        title=title if len(title) <= 80 else f"{len(runs)} runs",
        hashes=" ".join(map(_hash, (plotly, script))),
        style=(ASSETS / "page.css").read_text(encoding="utf-8"),
        plotly=plotly,
        script=script,
        sheets=make_sheets(found),
        contrasts=[(place, found.rows[place].label, sheet) for place, sheet in contrasts.items()],
        baseline=next(
            (place for place in contrasts if found.rows[place] is found.static), next(iter(contrasts), None)
        ),
        weights=_weights(found),
        notes=make_notes(found),
        charts=charts_of_all(found),
        groups=list(map(_group, found.groups)),
    )


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _weights(found: Comparison) -> Sheet | None:
    """Return the table of final probabilities; None if no run has any."""
    weights = {label: own for label, run in labelled(found.groups) if (own := final_weights(run))}
    names = dict.fromkeys(name for own in weights.values() for name in own)
    columns = [
        numbers(name, [f"{100 * own[name]:.1f}" if name in own else MISSING for own in weights.values()])
        for name in names
    ]
    title = "Final sampling probabilities in percent"
    return Sheet(title, (words("run", list(weights)), *columns), 1) if names else None


def _group(group: Group) -> dict[str, Any]:
    """Return what the page shows of a group: charts, dev queries, recipe and versions of its runs."""
    runs = [_run(label, run) for label, run in zip(group.labels, group.runs, strict=True)]
    return {"name": group.label, "label": run_label(group), "method": method_of(group), "runs": runs}


def _run(label: str, run: Run) -> dict[str, Any]:
    facts = {"seed": str(run.recipe.seed), "device": run.record.get("device", ""), **run.record.get("versions", {})}
    if run.recipe.selection and "selected_step" in run.record:
        facts["selected step"] = str(run.record["selected_step"])
    facts |= {f"note {place}": note for place, note in enumerate(run.record.get("notes", []), start=1)}
    versions = Sheet("Seed, device and versions", (words("", list(facts)), words("", list(facts.values()))), 1)
    dev = [_dev_queries(name, queries) for name, queries in run.dev.items()]
    recipe = dump_recipe(run.recipe)
    return {"label": label, "charts": charts_of_run(run), "dev": dev, "versions": versions, "recipe": recipe}


def _dev_queries(name: str, queries: Sequence[DevQuery]) -> dict[str, Any]:
    best, worst = best_and_worst(queries)
    sheets = [_query_sheet(title, own) for title, own in (("Best", best), ("Worst", worst)) if own]
    ndcg = f"{100 * fmean(query.ndcg for query in queries):.1f}"
    return {"name": name, "count": len(queries), "ndcg": ndcg, "sheets": sheets}


def best_and_worst(queries: Sequence[DevQuery]) -> tuple[list[DevQuery], list[DevQuery]]:
    """Return the best queries by rank and margin, best first, and the worst, worst first; no query is in both."""
    order = sorted(queries, key=lambda query: (query.rank, -query.margin))
    half = (len(order) + 1) // 2
    return order[:half][:MOST_QUERIES], order[half:][::-1][:MOST_QUERIES]


def _query_sheet(title: str, queries: Sequence[DevQuery]) -> Sheet:
    columns = (
        words("query", [query.query for query in queries]),
        numbers("rank", [f"{query.rank} of {query.among}" for query in queries]),
        words("its passage", [query.positive for query in queries]),
        words("highest-ranked other passage", [query.other or "-" for query in queries]),
    )
    return Sheet(f"{title} {len(queries)}", columns, 1)

"""What a study found, as tables to print and to keep: Markdown to read, JSON with every number in full."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixfluence.paper import PaperRow, PaperTable, read_table
from mixfluence.report.tables import Sheet
from mixfluence.report.tables import markdown_table as markdown_table
from mixfluence.runs import Score
from mixfluence.study.beside import paper_cell, paper_notes, paper_sheet
from mixfluence.study.grid import Cell, columns_of, rows_left_out
from mixfluence.study.outcomes import Outcome, read_outcomes
from mixfluence.study.schema import Row, Study, load_setting
from mixfluence.study.views import Results, final_weights, make_sheets


@dataclass(frozen=True)
class Findings:
    """A study's tables and notes, and what they were made of."""

    results: Results
    setting: str
    sheets: Sequence[Sheet]
    notes: Sequence[str]


def find(study: Study, setting: str, cells: Sequence[Cell], failed: Mapping[str, str]) -> Findings:
    """Read what the cells of a study left behind and make its tables.

    Args:
        study: Which.
        setting: In which of its settings.
        cells: All its cells, finished or not.
        failed: Names of cells that failed, and why.
    """
    place = study.place(setting)
    tables = [read_table(name) for name in place.paper]
    columns = columns_of(place, cells)
    results = Results(study, columns, read_outcomes(cells, columns, study.measure), tables)
    sheets = [*make_sheets(results), *map(paper_sheet, tables)]
    notes = [study.purpose, *_own_notes(setting, results), *(note for table in tables for note in paper_notes(table))]
    notes += [f"Failed: {name}: {error}" for name, error in failed.items()]
    return Findings(results, setting, sheets, notes)


def to_markdown(findings: Findings) -> str:
    """Return tables and notes in the Markdown of GitHub."""
    tables = [markdown_table(sheet) for sheet in findings.sheets]
    notes = "".join(f"- {note}\n" for note in findings.notes)
    return "\n".join([f"# {findings.results.study.name}, {findings.setting}\n", *tables, notes])


def to_json(findings: Findings) -> str:
    """Return every number in full: scores in points by seed, cost, weights and trajectories, and the paper's rows."""
    results = findings.results
    facts = {
        "study": results.study.name,
        "setting": findings.setting,
        "measure": results.study.measure,
        "columns": list(results.columns),
        "rows": [_row(outcome, results.on_gpu) for outcome in results.outcomes],
        "paper": {table.name: [_paper_row(row) for row in table.rows] for table in results.tables},
        "notes": list(findings.notes),
    }
    return json.dumps(facts, indent=1, default=dict, allow_nan=False) + "\n"


def _own_notes(setting: str, results: Results) -> list[str]:
    place = results.study.place(setting)
    notes = [f"Setting {setting}: recipe {load_setting(place.setting).recipe}."]
    if load_setting(place.setting).teacher:
        notes.append(
            "Negatives and the teacher's scores are by BM25 over character trigrams, not by a neural teacher."
        )
    if rows := rows_left_out(results.study, place):
        notes.append(f"Not in this setting: {', '.join(_left_out(row, results.tables) for row in rows)}.")
    if missing := sum(outcome.missing for outcome in results.outcomes):
        notes.append(f"{missing} cells are not finished; means are over those that are.")
    records = [run.record for outcome in results.outcomes for run in outcome.runs]
    return [*notes, *dict.fromkeys(note for record in records for note in record.get("notes", []))]


def _left_out(row: Row, tables: Sequence[PaperTable]) -> str:
    paper = paper_cell(tables, row).text
    return f"{row.label} ({paper} in the paper)" if paper else row.label


def _row(outcome: Outcome, on_gpu: bool) -> dict[str, Any]:
    return {
        "label": outcome.label,
        "average": _score(outcome.average) if outcome.average else None,
        "scores": {name: _score(score) for name, score in outcome.scores.items()},
        "hours": outcome.hours(on_gpu),
        "weights": {target or "all": weights for target, weights in final_weights(outcome).items()},
        "trajectories": [
            {"target": done.cell.target, "seed": done.cell.seed, "mixtures": done.trajectory}
            for done in outcome.done
            if done.run
        ],
    }


def _score(score: Score) -> dict[str, Any]:
    return {"mean": score.mean, "sd": score.spread, "by_seed": score.values}


def _paper_row(row: PaperRow) -> dict[str, Any]:
    # JSON has no infinity, which a temperature may be.
    labels = {name: str(value) for name, value in row.labels.items()}
    return {"labels": labels, "cells": dict(row.cells), "average": row.average, "significant": row.significant}

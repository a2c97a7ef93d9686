"""The tables and notes of a study as Markdown, and every number in full as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixfluence.runs import Score
from reproduction.beside import paper_notes, paper_table, paper_value
from reproduction.cells import Cell, rows_left_out
from reproduction.outcomes import Outcome, read_outcomes
from reproduction.paper import PaperRow, read_table
from reproduction.schema import Study, load_setting
from reproduction.tables import Table
from reproduction.views import Results


@dataclass(frozen=True)
class Findings:
    """Tables and notes of a study, and the results they show."""

    results: Results
    setting: str
    tables: Sequence[Table]
    notes: Sequence[str]

    def to_markdown(self) -> str:
        """Return tables and notes in GitHub's Markdown."""
        notes = "".join(f"- {note}\n" for note in self.notes)
        tables = [table.to_markdown() for table in self.tables]
        return "\n".join([f"# {self.results.study.name}, {self.setting}\n", *tables, notes])

    def to_json(self) -> str:
        """Return scores in points by seed, cost, weights, trajectories and the paper's rows."""
        results = self.results
        facts = {
            "study": results.study.name,
            "setting": self.setting,
            "measure": results.study.measure,
            "columns": list(results.columns),
            "rows": [_row(outcome, results.on_gpu) for outcome in results.outcomes],
            "paper": {table.name: [_paper_row(row) for row in table.rows] for table in results.tables},
            "notes": list(self.notes),
        }
        return json.dumps(facts, indent=1, default=dict, allow_nan=False) + "\n"


def find(study: Study, setting: str, cells: Sequence[Cell], failed: Mapping[str, str]) -> Findings:
    """Read the finished cells of a study and make its tables.

    Args:
        study: The study.
        setting: One of its settings.
        cells: All its cells, finished or not.
        failed: Names of failed cells, and why.
    """
    place = study.place(setting)
    paper = [read_table(name) for name in place.paper]
    columns = place.targets or list(dict.fromkeys(name for cell in cells for name in cell.recipe.test))
    results = Results(study, columns, read_outcomes(cells, columns, study.measure), paper)
    notes = [study.purpose, *_notes(setting, results), *(note for table in paper for note in paper_notes(table))]
    notes += [f"Failed: {name}: {cause}" for name, cause in failed.items()]
    return Findings(results, setting, [*results.views, *map(paper_table, paper)], notes)


def _notes(setting: str, results: Results) -> list[str]:
    place = results.study.place(setting)
    notes = [f"Setting {setting}: {place.setting}."]
    if load_setting(place.setting).teacher:
        notes.append("Negatives and teacher scores are by BM25 over character trigrams, not by a neural teacher.")
    if rows := rows_left_out(results.study, place):
        values = [(row.label, paper_value(results.tables, row)) for row in rows]
        names = [f"{label} ({value} in the paper)" if value else label for label, value in values]
        notes.append(f"Not in this setting: {', '.join(names)}.")
    if missing := sum(outcome.missing for outcome in results.outcomes):
        notes.append(f"{missing} runs are not finished; means are over the finished ones.")
    records = [run.record for outcome in results.outcomes for run in outcome.runs]
    return [*notes, *dict.fromkeys(note for record in records for note in record.get("notes", []))]


def _row(outcome: Outcome, on_gpu: bool) -> dict[str, Any]:
    return {
        "label": outcome.label,
        "average": _score(outcome.average) if outcome.average else None,
        "scores": {name: _score(score) for name, score in outcome.scores.items()},
        "hours": outcome.hours(on_gpu),
        "weights": {target or "all": weights for target, weights in outcome.final_weights.items()},
        "trajectories": [
            {"target": found.target, "seed": found.seed, "mixtures": found.mixtures} for found in outcome.trajectories
        ],
    }


def _score(score: Score) -> dict[str, Any]:
    return {"mean": score.mean, "sd": score.spread, "by_seed": score.values}


def _paper_row(row: PaperRow) -> dict[str, Any]:
    # JSON has no infinity, which a temperature may be.
    labels = {name: str(value) for name, value in row.labels.items()}
    return {"labels": labels, "cells": dict(row.cells), "average": row.average, "significant": row.significant}

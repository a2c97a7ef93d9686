"""The paper's numbers.

- Averages are the mean of their columns and totals the sum of their rows, as far as rounding allows, unless the number
  is marked as a misprint; and what is marked as one could not stand.
- The same run has the same numbers in every table, and the percentages are those of the weights.
"""

from __future__ import annotations

import math
import statistics

import pytest

from mixfluence import DataError
from mixfluence.data.bge_m3 import published_sources
from reproduction.paper import PaperRow, PaperTable, read_table, table_names

NAMES = [
    "beir5-individual",
    "beir5-joint",
    "fever",
    "inner-steps",
    "leakage-beir",
    "leakage-mldr",
    "mldr13",
    "reptile",
    "sentence-transformers",
    "sizes-beir-dev",
    "sizes-beir-train",
    "weights-bge-m3",
    "weights-sentence-transformers",
]
# Averages are of numbers before rounding: both may be off by half a unit of the last place.
ROUNDING = 0.1 + 1e-9


def averaged(table: PaperTable) -> list[PaperRow]:
    return [row for row in table.rows if row.average is not None and row.labels.get("trained_on") != "deviation"]


def test_all_tables_are_there() -> None:
    assert table_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_averages_are_the_mean_of_their_columns(name: str) -> None:
    table = read_table(name)
    for row in averaged(table):
        cells = dict(row.cells)
        wrong = [found for column in (*table.columns, "average") if (found := table.misprint(row, column))]
        holds = abs(statistics.mean(cells.values()) - (row.average or 0)) <= ROUNDING
        assert holds != bool(wrong), row
        for misprint in wrong:
            cells[misprint.cell] = misprint.likely
            average = cells.pop("average", row.average)
            assert average is not None
            assert abs(statistics.mean(cells.values()) - average) <= ROUNDING


@pytest.mark.parametrize("name", NAMES)
def test_totals_are_the_sum_of_their_rows(name: str) -> None:
    table = read_table(name)
    for column, total in table.totals.items():
        rounding = 0.0 if isinstance(total, int) else 0.005 * len(table.rows)
        found = sum(row.cells[column] for row in table.rows)
        misprint = table.misprint(None, column)
        assert (abs(found - total) <= rounding) != bool(misprint), column
        if misprint:
            assert abs(found - misprint.likely) <= rounding + 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_every_mark_is_on_something_that_is_there(name: str) -> None:
    table = read_table(name)
    for misprint in table.misprints:
        assert misprint.cell in (*table.columns, "average")
        assert misprint.row == "total" or sum(row.labels == misprint.row for row in table.rows) == 1
        assert misprint.reason.endswith(".")
    for row in table.rows:
        assert set(row.significant) <= set(table.columns)
    assert len({tuple(row.labels.items()) for row in table.rows}) == len(table.rows)


def test_the_slips_we_know_of_are_marked() -> None:
    table = read_table("sentence-transformers")
    quora = table.misprint(table.row(sampling="static", init=math.inf), "Quora")
    assert quora is not None
    assert quora.likely == 87.9
    assert table.misprint(table.row(sampling="doremi", init=math.inf), "Quora") is None
    assert [found.likely for found in read_table("sizes-beir-dev").misprints] == [33_510]
    weights = {found.cell: found.likely for found in read_table("weights-sentence-transformers").misprints}
    assert (weights["rows"], weights["weight"]) == (444_643_569, 3_727)


@pytest.mark.parametrize("name", ["leakage-beir", "leakage-mldr"])
def test_mean_and_deviation_are_of_the_five_draws(name: str) -> None:
    table = read_table(name)
    draws = [table.row(trained_on=f"mix{number}") for number in range(1, 6)]
    mean, deviation = table.row(trained_on="mean"), table.row(trained_on="deviation")
    for column in table.columns:
        cells = [row.cells[column] for row in draws]
        assert abs(statistics.mean(cells) - mean.cells[column]) < 0.006
        assert abs(statistics.stdev(cells) - deviation.cells[column]) < 0.06


def test_tables_that_show_the_same_run_agree() -> None:
    individual, joint, fever = map(read_table, ("beir5-individual", "beir5-joint", "fever"))
    for labels in (
        {"sampling": "static", "init": 1},
        {"sampling": "static", "init": math.inf},
        {"sampling": "doremi"},
    ):
        assert individual.row(**labels).cells == joint.row(**labels).cells
    for row in individual.rows:
        assert fever.row(**row.labels).cells["FEVER"] == row.cells["FEVER"]
    reptile = read_table("reptile").row(reptile="on")
    ours = individual.row(sampling="inf-dds", init=1)
    assert all(reptile.cells[column] == ours.cells[column] for column in reptile.cells)
    steps = read_table("inner-steps")
    assert steps.row(inner_steps=3).cells["FEVER"] == fever.row(sampling="inf-dds", init=0.3).cells["FEVER"]
    assert steps.row(inner_steps=0).cells["FEVER"] == fever.row(sampling="static", init=0.3).cells["FEVER"]


def test_percentages_are_those_of_the_printed_totals() -> None:
    table = read_table("weights-sentence-transformers")
    for row in table.rows:
        shares = {
            "proportional": row.cells["rows"] / table.totals["rows"],
            "expert": row.cells["weight"] / table.totals["weight"],
        }
        for column, share in shares.items():
            assert abs(100 * share - row.cells[column]) < 0.0075, row


def test_the_languages_of_bge_m3_start_from_whole_numbers_over_340() -> None:
    table = read_table("weights-bge-m3")
    weights = {str(row.labels["language"]): row.cells["percent"] * 3.4 for row in table.rows}
    assert sum(map(round, weights.values())) == 340
    assert all(abs(weight - round(weight)) < 0.0051 * 3.4 for weight in weights.values())
    assert weights.keys() == {source.language for source in published_sources().values()}


def test_a_row_is_found_by_labels_that_only_it_has() -> None:
    table = read_table("fever")
    assert table.row(sampling="crisp", clusters=1024).cells == {"FEVER": 62.9}
    with pytest.raises(DataError, match="fever: 4 rows"):
        table.row(sampling="static")
    with pytest.raises(DataError, match=r"'nothing'.*beir5-individual"):
        read_table("nothing")

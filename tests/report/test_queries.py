"""The ends of a dev set: in order, no query at both, and never too much text for a page."""

from __future__ import annotations

import random
from dataclasses import replace
from importlib.resources import files

import pytest
from mixfluence.report.queries import LONGEST_TEXT, SHORTEST_TEXT, extremes, longest_text

from mixfluence.evaluation.dev_queries import DevQuery
from mixfluence.evaluation.dev_ranks import MOST_ROWS
from mixfluence.report.page import MOST_BYTES, render_page
from tests.report.test_page import small_report


def some_queries(count: int, text: str = "") -> list[DevQuery]:
    """Queries of all ranks, named after it and their margin, shuffled."""
    made = [
        DevQuery(f"{rank} {tie} {text}", text, text, rank, count, margin=tie / 10 - (rank > 1), ndcg=float(rank == 1))
        for rank in range(1, count // 4 + 1)
        for tie in range(4)
    ]
    random.Random(0).shuffle(made)
    return made


def test_the_best_and_the_worst_come_first_in_their_lists() -> None:
    found = extremes(some_queries(40), LONGEST_TEXT)
    assert [(query.rank, query.margin) for query in found.best[:5]] == [
        (1, 0.3), (1, 0.2), (1, 0.1), (1, 0.0), (2, pytest.approx(-0.7)),
    ]  # fmt: skip
    assert [query.query.split() for query in found.worst[:5]] == [
        ["10", "0"], ["10", "1"], ["10", "2"], ["10", "3"], ["9", "0"],
    ]  # fmt: skip
    assert (len(found.best), len(found.worst), found.looked_at) == (10, 10, 40)
    assert found.ndcg == pytest.approx(10.0)


@pytest.mark.parametrize("count", [1, 2, 3, 15, 20])
def test_no_query_is_both_and_none_of_a_few_is_left_out(count: int) -> None:
    queries = some_queries(40)[:count]
    found = extremes(queries, LONGEST_TEXT)
    assert sorted(query.query for query in found.best + found.worst) == sorted(query.query for query in queries)


def test_texts_are_cut_as_short_as_the_number_of_sets_demands() -> None:
    assert longest_text(0) == longest_text(1) == LONGEST_TEXT
    assert LONGEST_TEXT > longest_text(100) > SHORTEST_TEXT == longest_text(100_000)
    cut = extremes([replace(query, positive="x" * 300) for query in some_queries(20)], 60).best[0]
    assert cut.positive == "x" * 60 + "…"


def test_the_longest_texts_of_many_runs_fit_on_a_page() -> None:
    runs, sets = 20, 13
    chinese = extremes(some_queries(40, "字" * LONGEST_TEXT), longest_text(runs * sets))
    report = small_report(["a"])
    run = replace(report.runs[0], queries={f"d{number}": chinese for number in range(sets)})
    assert len(render_page(replace(report, runs=[run] * runs)).encode()) < MOST_BYTES


def test_the_page_says_how_many_rows_were_looked_at() -> None:
    assert f"({MOST_ROWS:,} at most)" in (files("mixfluence.report") / "assets" / "page.js").read_text(
        encoding="utf-8"
    )

"""Comparisons of runs.

- Seeds of one recipe form a group with mean and spread; a copy of a run does not join it.
- A copy of a run does not differ from it; a difference in every query is significant.
- Runs with different test sets, or without any, are refused by name; differences in budget are noted.
- Cost is counted by part and relative to static; a model that was only tested has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mixfluence.errors import DataError, RecipeError
from mixfluence.evaluation import MEASURES, Evaluation
from mixfluence.recipe import Recipe
from mixfluence.report.compare import all_contrasts, compare, overview
from mixfluence.report.summary import contrast_sheet, method_of, to_markdown
from mixfluence.runs import PARTS, Run

Scores = Mapping[str, Sequence[float]]
SCORES = {"big": [0.1, 0.5, 0.3, 0.9], "small": [0.2, 0.8]}


def made_run(
    name: str,
    scores: Scores = SCORES,
    *,
    seed: int = 0,
    strategy: Any = "static",
    seconds: Mapping[str, float] | None = None,
    gpus: int = 0,
    **changes: Any,
) -> Run:
    """A finished run in memory, with a score per query of each test set."""
    pool = {dataset: {"format": "pairs", "path": dataset} for dataset in ("msmarco", "nq")}
    recipe = {
        "name": name,
        "seed": seed,
        "output": Path(f"runs/{name}"),
        "model": {"name": "minilm"},
        "training": {"steps": 10, "batch_size": 4},
        "strategy": strategy,
        "train": pool,
        "dev": pool,
    }
    spent = {"data": 40.0, "train": 1800.0, "probe": 0.0, "evaluate": 900.0, **(seconds or {})}
    record = {
        "tests": {test: {"queries": len(values), "fingerprint": f"of {test}"} for test, values in scores.items()},
        "datasets": {dataset: {"fingerprint": f"of {dataset}"} for dataset in pool},
        "seconds": spent,
        "gpu_hours": {part: gpus * value / 3600 for part, value in spent.items()},
        "scores": {test: dict.fromkeys(MEASURES, fmean(values)) for test, values in scores.items()},
        "kind": "run",
    }
    evaluations = {
        test: Evaluation(test, {f"q{i}": dict.fromkeys(MEASURES, value) for i, value in enumerate(values)})
        for test, values in scores.items()
    }
    parsed = Recipe.model_validate(recipe | changes, context={"files_may_be_missing": True})
    return Run(Path(f"runs/{name}"), parsed, record, scores=evaluations)


def with_record(run: Run, **facts: Any) -> Run:
    return replace(run, record=run.record | facts)


def shifted(by: float, *, noise: float = 0.0) -> Scores:
    generator = np.random.default_rng(0)
    return {test: [value + by + noise * generator.normal() for value in values] for test, values in SCORES.items()}


def test_a_copy_of_a_run_does_not_differ_from_it() -> None:
    for test in ("t", "randomisation"):
        found = compare([made_run("one"), made_run("copy")], test=test, bootstrap=True)
        assert [group.labels for group in found.groups] == [("one",), ("copy",)]
        assert found.contrast is not None
        results = [found.contrast.average, *found.contrast.tests.values()]
        assert [(o.difference, o.p, o.p_holm, o.interval) for o in results] == [(0.0, 1.0, 1.0, (0.0, 0.0))] * 3
        assert not any(result.significant for result in results)
        assert found.notes == ()


def test_seeds_of_a_recipe_share_a_row() -> None:
    runs = [
        made_run("a-0", shifted(0.0)),
        made_run("b-0", strategy="cooldown"),
        made_run("a-1", shifted(0.1), seed=1),
        made_run("a-2", shifted(0.05), seed=2),
    ]
    found = compare(runs)
    row, other = found.groups
    average = found.average(row)
    assert average is not None
    assert (row.labels, other.labels) == (("a-0", "a-1", "a-2"), ("b-0",))
    averages = [100 * (0.45 + 0.5) / 2 + shift for shift in (0, 10, 5)]
    assert average.values == pytest.approx(averages)
    assert average.mean == pytest.approx(averages[0] + 5)
    assert average.spread == pytest.approx(stdev(averages))
    assert row.scores()["small"].mean == pytest.approx(55)
    assert other.scores()["small"].spread is None


@pytest.mark.parametrize(
    "change",
    [
        {"strategy": {"name": "static", "init": "uniform"}},
        {"training": {"steps": 20, "batch_size": 4}},
        {"dev": {}},
        {"seed": 0},
    ],
)
def test_other_recipes_and_repeated_seeds_get_rows_of_their_own(change: dict[str, Any]) -> None:
    assert len(compare([made_run("a"), made_run("b", **{"seed": 1, **change})]).groups) == 2


def test_several_seeds_are_tested_by_their_mean_query_by_query() -> None:
    first = [shifted(0.1, noise=0.1), shifted(0.2, noise=0.05)]
    runs = [made_run(f"a{seed}", scores, seed=seed) for seed, scores in enumerate(first)]
    # The order of queries in a file does not matter.
    other = made_run("b", strategy="cooldown")
    other.scores["big"] = Evaluation("big", dict(reversed(list(other.scores["big"].per_query.items()))))
    tested = compare([*runs, other]).contrast
    assert tested is not None
    means = [(a + b) / 2 for a, b in zip(first[0]["big"], first[1]["big"], strict=True)]
    assert tested.tests["big"].p == pytest.approx(stats.ttest_rel(means, SCORES["big"]).pvalue)
    assert tested.tests["big"].difference == pytest.approx(100 * (np.mean(means) - np.mean(SCORES["big"])))


def test_every_test_set_counts_alike_and_holm_corrects_over_them() -> None:
    better = {"big": [v + 0.1 + 0.01 * i for i, v in enumerate(SCORES["big"])], "small": [0.3, 0.85]}
    tested = compare([made_run("a", better), made_run("b")]).contrast
    assert tested is not None
    assert (tested.first, tested.second) == (0, 1)
    big, small = tested.tests["big"], tested.tests["small"]
    assert (big.queries, small.queries, tested.average.queries) == (4, 2, 6)
    assert tested.average.difference == pytest.approx((11.5 + 7.5) / 2)
    assert big.p < small.p
    assert big.p_holm == pytest.approx(2 * big.p)
    assert small.p_holm == pytest.approx(max(small.p, 2 * big.p))
    assert tested.average.p_holm == tested.average.p
    assert big.significant
    assert not small.significant


def test_the_two_best_are_tested_unless_the_user_names_others() -> None:
    runs = [made_run(name, shifted(by), strategy=sampler) for name, by, sampler in (
        ("low", -0.05, "static"), ("best", 0.1, "cooldown"), ("good", 0.05, "inf-dds"), ("last", 0.0, "multidds"),
    )]  # fmt: skip
    runs.append(made_run("best-1", shifted(0.1), strategy="cooldown", seed=1))

    def tested(between: tuple[str, str] | None) -> tuple[int, int]:
        contrast = compare(runs, between=between).contrast
        assert contrast is not None
        return contrast.first, contrast.second

    assert tested(None) == (1, 2)
    assert tested(("low", "3")) == (0, 2)
    assert tested(("best-1", "low")) == (1, 0)
    assert tested(("1", "last")) == (0, 3)
    with pytest.raises(RecipeError, match=r"'worst'.* 1 low, 2 best, 3 good, 4 last"):
        tested(("worst", "1"))
    with pytest.raises(RecipeError, match=r"best best-1: both are row 2"):
        tested(("best", "best-1"))
    assert compare(runs[:1]).contrast is None


def test_what_cannot_be_compared_is_refused_by_name() -> None:
    one = made_run("one")
    with pytest.raises(DataError, match=r"^stopped: "):
        compare([one, Run(Path("stopped"), one.recipe)])
    with pytest.raises(DataError, match=r"one and untested cannot be compared: .* small"):
        compare([one, made_run("untested", {})])
    with pytest.raises(RecipeError, match=r"no test results"):
        compare([made_run("untested", {}), made_run("b", {})], between=("b", "untested"))
    fewer = made_run("fewer", {"big": SCORES["big"]})
    expected = r"one and fewer cannot be compared: only one of them was tested on small"
    with pytest.raises(DataError, match=expected):
        compare([one, fewer])
    with pytest.raises(DataError, match=r"fewer and one .* small"):
        compare([fewer, one])
    tests = one.record["tests"] | {"small": {"queries": 2, "fingerprint": "other"}}
    with pytest.raises(DataError, match=r"one and other .* small"):
        compare([one, with_record(made_run("other"), tests=tests)])
    cut = made_run("cut")
    cut.scores["big"] = Evaluation("big", dict(list(cut.scores["big"].per_query.items())[:-1]))
    with pytest.raises(DataError, match=r"one and cut .* big"):
        compare([one, cut])


def test_the_order_of_test_sets_does_not_matter() -> None:
    turned = made_run("turned", dict(reversed(SCORES.items())))
    found = compare([made_run("one"), turned])
    assert found.tests == ("big", "small")
    assert found.contrast is not None
    assert found.contrast.average.difference == 0


def test_differences_in_budget_and_data_are_told() -> None:
    one = made_run("one", training={"steps": 10, "batch_size": 4, "log_every": 3})
    other = made_run("other", strategy="cooldown", training={"steps": 20, "batch_size": 4}, gpus=2)
    third = made_run("third", strategy="cooldown", selection={"every": 5}, model={"name": "[big]"})
    third = with_record(third, datasets={"nq": {"fingerprint": "changed"}})
    assert set(compare([one, other, third]).notes) == {
        "training.steps differs: 10 in one, third; 20 in other",
        "number of GPUs differs: 0 in one, third; 2 in other",
        "model.name differs: minilm in one, other; [big] in third",
        "selection.every differs: none in one, other; 5 in third",
        "selection.dev differs: none in one, other; shared in third",
        "selection.corpus differs: none in one, other; 20000 in third",
        "training rows of nq differ between runs",
    }


def test_costs_are_counted_by_part_and_relative_to_static() -> None:
    spent = {"train": 3600.0, "probe": 360.0, "cluster": 36.0, "stage a": 3600.0, "stage b": 1800.0, "tokenise": 50.0}
    static = [made_run("s0", gpus=2), made_run("s1", gpus=2, seed=1, seconds={"train": 5400.0})]
    found = compare([made_run("dear", strategy="doge", gpus=2, seconds=spent), *static])
    dear, cheap = found.groups
    assert found.on_gpu
    nothing = dict.fromkeys(PARTS, 0)
    parts = {"training": 2, "probing": 0.2, "stages": 3, "clustering": 0.02}
    assert dear.hours(on_gpu=True) == pytest.approx(nothing | parts)
    assert cheap.hours(on_gpu=True) == pytest.approx(nothing | {"training": 2})
    assert found.relative_cost(dear) == pytest.approx(5.22 / 2)
    assert found.relative_cost(cheap) == 1
    # If one run had no GPU, all are told in plain hours.
    mixed = compare([made_run("dear", strategy="doge", gpus=2, seconds=spent), made_run("cpu", strategy="cooldown")])
    assert not mixed.on_gpu
    assert mixed.cost(mixed.groups[0]) == pytest.approx(2.61)
    assert mixed.relative_cost(mixed.groups[0]) is None


def test_costs_are_not_relative_to_a_run_that_cost_nothing() -> None:
    free, static = made_run("free", seconds={"train": 0.0}), made_run("b", training={"steps": 20, "batch_size": 4})
    assert compare([free]).static is None
    found = compare([free, static])
    assert found.static is found.groups[1]
    assert found.relative_cost(found.groups[0]) == pytest.approx(0.0)


def untrained(name: str, reference: str = "bm25") -> Run:
    """A model that was only tested, by version 0.1.0: its record has scores and nothing else."""
    run = made_run(name, shifted(-0.05))
    return replace(run, record={"kind": "test", "reference": reference, "scores": run.record["scores"]})


def test_a_model_that_was_only_tested_is_a_row_without_cost() -> None:
    found = compare([untrained("lexical"), made_run("trained"), made_run("other", seed=1)])
    assert [group.labels for group in found.groups] == [("lexical",), ("trained", "other")]
    assert found.cost(found.groups[0]) is None
    assert found.relative_cost(found.groups[0]) is None
    assert found.relative_cost(found.groups[1]) == 1
    assert found.contrast is not None
    assert found.contrast.average.difference == pytest.approx(5)
    assert found.notes == ()


def test_an_overview_takes_any_runs_and_notes_what_differs() -> None:
    one, fewer = made_run("one"), made_run("fewer", {"big": SCORES["big"]})
    changed = with_record(made_run("changed", seed=1), tests={"small": {"fingerprint": "other"}})
    found = overview([one, fewer, changed, Run(Path("stopped"), one.recipe)])
    assert [group.labels for group in found.groups] == [("one", "changed"), ("fewer",), ("stopped",)]
    assert (found.tests, found.averaged) == (("big", "small"), ("big",))
    assert [found.average(group) is None for group in found.groups] == [False, False, True]
    assert any("averages are over big" in note for note in found.notes)
    assert any("of small differ" in note for note in found.notes)


def with_references(run: Run, **shifts: float) -> Run:
    """A run that was tested along with references, whose scores are shifted."""
    return replace(run, references={name: made_run("x", shifted(by)).scores for name, by in shifts.items()})


def test_references_of_runs_are_rows_below_them_each_once() -> None:
    tested = {"fusion": 0.07, "zero-shot": -0.1, "bm25": 0.3}
    runs = [with_references(made_run("a"), **tested), with_references(made_run("a1", seed=1), **tested)]
    runs.append(with_references(made_run("b", shifted(0.05), strategy="inf-dds"), **tested))
    found = compare(runs)
    labels = ["a", "b", "zero-shot minilm", "BM25", "a + BM25", "b + BM25"]
    assert [row.label for row in found.rows] == labels
    assert [len(row.runs) for row in found.rows] == [2, 1, 1, 1, 2, 1]
    averages = [found.average(row) for row in found.rows]
    assert [score.mean for score in averages if score] == pytest.approx([47.5, 52.5, 37.5, 77.5, 54.5, 54.5])
    # By default two trained rows are tested; references can be named.
    assert found.contrast is not None
    assert (found.contrast.first, found.contrast.second) == (1, 0)
    named = compare(runs, between=("b + BM25", "BM25")).contrast
    assert named is not None
    assert named.average.difference == pytest.approx(-23)
    assert [method_of(row) for row in found.rows[2:5]] == [
        ("zero-shot", "-"), ("BM25", "-"), ("Static + BM25", "τ=1"),
    ]  # fmt: skip


def test_a_reference_that_is_given_is_not_shown_twice() -> None:
    found = compare([with_references(made_run("a"), bm25=0.1), untrained("lexical")])
    assert [row.label for row in found.rows] == ["a", "lexical"]


def test_any_row_can_be_the_baseline_of_all_others() -> None:
    runs = [made_run("a"), made_run("b", shifted(0.1, noise=0.02), strategy="inf-dds"), untrained("lexical")]
    found = overview([*runs, Run(Path("stopped"), runs[0].recipe)])
    tested = all_contrasts(found)
    assert {base: list(own) for base, own in tested.items()} == {0: [1, 2], 1: [0, 2], 2: [0, 1]}
    assert tested[0][1] == compare(runs, between=("b", "a")).contrast
    assert tested[0][2].average.difference == pytest.approx(-5)
    sheet = contrast_sheet(found, 0, tested[0])
    assert [column.head for column in sheet.columns] == ["run", "average", "big", "small"]
    assert sheet.columns[1].cells[1].text.startswith("−5.0 (")


def test_runs_without_test_sets_are_compared_by_their_cost() -> None:
    """As those of a training script, which knows no test sets."""
    found = compare([made_run("a", {}), made_run("b", {}, strategy="inf-dds", seconds={"probe": 600.0})])
    assert (found.tests, found.contrast) == ((), None)
    assert found.relative_cost(found.groups[1]) == pytest.approx(4 / 3)
    assert "| 2 | b | Inf-DDS |" in to_markdown(found)
    assert "No test results" in to_markdown(found)

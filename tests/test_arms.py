"""A run on arms, from a recipe: what it writes, resumes and costs.

- Every strategy that starts from a distribution runs on arms; weights are reported as shares of the datasets.
- The folder keeps the arms: a resumed run equals the uninterrupted one without the cache.
- `plan` counts arms as what is measured, a subset and a budget bound them, and datasets have their totals.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixfluence.data.cache import cache_root
from mixfluence.experiment import run
from mixfluence.plan import plan_run
from mixfluence.policy.initial import read_weights
from mixfluence.recipe import Recipe
from mixfluence.recipe_yaml import load_recipe
from mixfluence.runs import ARMS_FILE, read_trace
from tests.recipes import small_recipe
from tests.test_experiment import StopAt, recipe_path

__all__ = ["recipe_path"]
ARMS = "arms: {clusters: 3, rows_per_cluster: 15}"


def on_arms(path: Path, name: str, settings: str = "", *overrides: str) -> Recipe:
    return load_recipe(path, [f"strategy={{name: {name}, {ARMS}, {settings}}}", "selection=null", *overrides])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("static", ""),
        ("inf-dds", "update_every: 4, warmup_steps: 2, inner_steps: 1, subset: 3, rule: fair"),
        ("multidds", "update_every: 4, warmup_steps: 2"),
        ("doge", "update_every: 4, rounds: 2"),
        ("aioli", "update_every: 6, warmup_steps: 2, block_steps: 1"),
        ("odm", "warmup_batches: 2"),
    ],
)
def test_a_strategy_runs_on_arms(name: str, settings: str, recipe_path: Path) -> None:
    recipe = on_arms(recipe_path, name, settings)
    scores = run(recipe)
    assert set(scores) == {"small", "big"}
    trace = read_trace(recipe.output / "trace.jsonl")
    # 80 rows of `big` have three clusters or fewer, 20 of `small` have one.
    assert [arm.rpartition("/")[0] for arm in trace[0]["datasets"]][-1] == "small"
    assert 3 <= len(trace[0]["datasets"]) <= 4
    assert sum(facts["rows"] for facts in trace[0]["datasets"].values()) == 100
    assert all("terms" in facts for arm, facts in trace[0]["datasets"].items() if arm.startswith("big/"))
    weights = read_weights(recipe.output / "weights.json")
    assert set(weights) == {"big", "small"}
    assert sum(weights.values()) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize("batches", ["cluster", pytest.param("dataset", marks=pytest.mark.soak)])
def test_a_resumed_run_needs_no_cache(batches: str, recipe_path: Path, tmp_path: Path) -> None:
    settings = "update_every: 3, warmup_steps: 2, inner_steps: 1, subset: 2, shrink: false, gate: false"
    options = (f"strategy.arms.batches={batches}", "training.save_every=4")
    whole = on_arms(recipe_path, "inf-dds", settings, *options)
    expected = run(whole)
    broken = on_arms(recipe_path, "inf-dds", settings, *options, f"output={tmp_path}/broken")
    with pytest.raises(KeyboardInterrupt):
        run(broken, callbacks=[StopAt(9)])
    numbers = np.load(broken.output / ARMS_FILE)
    assert numbers.shape == (100,)
    for kind in ("clusters", "embeddings"):
        shutil.rmtree(cache_root() / kind)
    resumed = run(broken, resume=True)
    assert not (cache_root() / "clusters").exists()
    for name, scores in expected.items():
        assert resumed[name].per_query == scores.per_query
    traces = [read_trace(recipe.output / "trace.jsonl") for recipe in (whole, broken)]
    assert [line["weights"] for line in traces[0][1:]] == [line["weights"] for line in traces[1][1:]]
    assert len({str(line["weights"]) for line in traces[0][1:]}) > 1


def planned(**strategy: Any) -> Recipe:
    published = {f"set{number}": {"published": {"rows": 2_000}} for number in range(9)}
    train = published | {"tiny": {"published": {"rows": 200}}}
    training = {"steps": 400, "batch_size": 32}
    dev = {"a": {"published": {"rows": 128}}}
    chosen = {"name": "inf-dds", "update_every": 50, "arms": {"clusters": 8}, "init": "uniform", **strategy}
    return small_recipe(train=train, dev=dev, training=training, strategy=chosen)


def test_a_plan_counts_the_arms() -> None:
    whole, arms = plan_run(planned(arms=None)), plan_run(planned())
    assert (whole.clusters, arms.clusters) == (0, 9 * 8 + 1)
    assert [(own.name, own.rows) for own in arms.datasets] == [(own.name, own.rows) for own in whole.datasets]
    for own, same in zip(arms.datasets, whole.datasets, strict=True):
        assert own.share == pytest.approx(same.share) == pytest.approx(0.1)
        assert own.epochs == pytest.approx(same.epochs)
    # One step, and an evaluation of 128 rows in forward passes, for each arm.
    each = 1 + 128 / 32 / 3
    assert arms.stages[0].update_cost - whole.stages[0].update_cost == pytest.approx((73 - 10) * each)


def test_a_subset_and_a_budget_bound_the_cost_of_many_arms() -> None:
    some = plan_run(planned(subset=10))
    assert some.stages[0].update_cost == plan_run(planned(arms=None)).stages[0].update_cost
    bounded = plan_run(planned(subset=10, budget=0.25))
    assert 1 < bounded.times_static <= 1.25 + bounded.encodings["encoding"][0] / 400 + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inf-dds", "doge"])
def test_a_plan_sets_up_a_run_on_arms(name: str, recipe_path: Path) -> None:
    plan = plan_run(on_arms(recipe_path, name))
    assert plan.clusters == 4
    assert {own.name: own.rows for own in plan.datasets} == {"big": 80, "small": 20}

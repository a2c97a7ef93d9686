"""RegMix: proxies on mixtures around the start, a regression, and the best mixture.

- Mixtures have the start as their mean, differ, are repeatable, and the first is the start itself.
- On a known quadratic the optimum is found; with an epoch limit, the best mixture within it.
- The less held-out proxies are predicted, the nearer the mixture stays to the start.
- A reused mixture keeps its ratios when a dataset is added or dropped.
- A recipe trains proxies, scores them and trains on what was found; interrupted in any stage it ends bitwise alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from mixfluence.errors import RecipeError
from mixfluence.experiment import run
from mixfluence.plan import plan_run
from mixfluence.policy import PROPORTIONAL, UNIFORM, Vector, Weights
from mixfluence.policy.initial import read_weights, write_weights
from mixfluence.recipe_yaml import load_recipe
from mixfluence.report.compare import compare
from mixfluence.report.page import render_page
from mixfluence.runs import read_run
from mixfluence.strategies import StageResult
from mixfluence.strategies.regmix import Proxy, RegMix
from tests.recipes import small_recipe
from tests.test_experiment import StopInRun, recipe_path

__all__ = ["recipe_path"]

SIZES = {"a": 100, "b": 300, "c": 600}


def test_mixtures_are_drawn_around_the_start() -> None:
    first, second = (Proxy(around=PROPORTIONAL, seed=3, number=number) for number in (0, 1))
    assert first.mixtures(SIZES, 1)[0].tolist() == pytest.approx([0.1, 0.3, 0.6])
    drawn = second.mixtures(SIZES, 20_000)
    assert drawn.sum(axis=1) == pytest.approx(1)
    assert drawn.mean(axis=0).tolist() == pytest.approx([0.1, 0.3, 0.6], abs=0.01)
    # From nearly one dataset to mixtures like the start.
    assert (drawn.max(axis=1) > 0.99).mean() > 0.2
    assert (drawn.max(axis=1) < 0.7).mean() > 0.1
    again = Proxy(around=PROPORTIONAL, seed=3, number=1)
    again.start(SIZES)
    assert again.weights().tolist() == second.mixtures(SIZES, 1)[0].tolist()
    for other in Proxy(around=PROPORTIONAL, seed=3, number=2), Proxy(around=PROPORTIONAL, seed=4, number=1):
        assert np.abs(other.mixtures(SIZES, 1) - second.mixtures(SIZES, 1)).max() > 1e-3


def test_a_weight_of_zero_stays_zero() -> None:
    drawn = Proxy(around=Weights({"a": 1, "b": 0, "c": 1}), seed=0, number=1).mixtures(SIZES, 50)
    assert not drawn[:, 1].any()


def searched(score: Callable[[Vector], float], **options: Any) -> tuple[dict[str, float], str]:
    """Return the mixture and the note of a search whose proxies have known scores."""
    strategy = RegMix(**{"proxies": 128, **options})
    recipe = small_recipe()
    results = {}
    for stage in strategy.stages(recipe)[:-1]:
        proxy = stage.strategy({})
        proxy.start(SIZES)
        mixture = proxy.weights()
        results[stage.name] = StageResult(dict(zip(SIZES, mixture.tolist(), strict=True)), {"dev": score(mixture)})
    found, (note,) = strategy.conclude(recipe, results, SIZES, rows=1000)
    return dict(found), note


def hill(*best: float) -> Callable[[Vector], float]:
    return lambda mixture: float(0.8 * (1 - ((mixture - np.array(best)) ** 2).sum()))


@pytest.mark.parametrize("best", [(0.6, 0.3, 0.1), (0.2, 0.35, 0.45), (0.0, 1.0, 0.0)])
def test_the_optimum_of_a_known_quadratic_is_found(best: tuple[float, ...]) -> None:
    found, note = searched(hill(*best))
    assert list(found.values()) == pytest.approx(best, abs=0.06)
    assert sum(found.values()) == pytest.approx(1)
    assert "on 128 proxies" in note
    assert "predicted dev NDCG@10 0.79" in note or "predicted dev NDCG@10 0.78" in note


@pytest.mark.parametrize("seed", range(3))
def test_a_regression_that_predicts_nothing_leaves_the_start(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found, _ = searched(lambda mixture: 0.5 + 0.02 * rng.standard_normal(), proxies=40)
    assert list(found.values()) == pytest.approx([1 / 3] * 3, abs=0.1)
    # Noise as large as the effect moves the start a part of the way to the optimum.
    noisy, _ = searched(lambda mixture: 0.5 + 0.1 * hill(1, 0, 0)(mixture) + 0.05 * rng.standard_normal())
    assert 1 / 3 < noisy["a"] < 0.9
    # A limit holds for the start too.
    limited, _ = searched(lambda mixture: 0.5, max_epochs=1)
    assert limited == pytest.approx({"a": 0.1, "b": 0.3, "c": 0.6})


def test_the_best_mixture_keeps_the_epoch_limit() -> None:
    # Of 1000 rows a may give 200: two epochs of its 100 rows.
    found, _ = searched(hill(0.6, 0.3, 0.1), max_epochs=2)
    assert found["a"] <= 0.2
    assert found["a"] == pytest.approx(0.2, abs=0.05)
    # On the line a = 0.2 the others share what a leaves evenly.
    assert found["b"] - found["c"] == pytest.approx(0.2, abs=0.15)


def test_a_reused_mixture_keeps_its_ratios(tmp_path: Path) -> None:
    write_weights(tmp_path / "weights.json", {"a": 0.3, "b": 0.1, "dropped": 0.6})
    drawn = Proxy(around=UNIFORM, seed=0, number=1, reuse=tmp_path / "weights.json").mixtures(SIZES, 500)
    assert drawn[:, 0] == pytest.approx(3 * drawn[:, 1])
    assert drawn.sum(axis=1) == pytest.approx(1)
    assert np.ptp(drawn[:, 2]) > 0.9
    found, _ = searched(hill(0.6, 0.2, 0.2), reuse=tmp_path / "weights.json")
    assert found == pytest.approx({"a": 0.6, "b": 0.2, "c": 0.2}, abs=0.06)
    assert found["a"] == pytest.approx(3 * found["b"])


def test_where_one_mixture_is_possible_nothing_is_searched(tmp_path: Path) -> None:
    write_weights(tmp_path / "weights.json", {"a": 0.3, "b": 0.1, "c": 0.1, "dropped": 0.5})
    sources = {name: {"published": {"rows": rows}} for name, rows in SIZES.items()}
    strategy = {"name": "regmix", "reuse": tmp_path / "weights.json"}
    recipe = small_recipe(strategy=strategy, train=sources, dev={"a": {"published": {"rows": 50}}})
    with pytest.raises(RecipeError, match=r"nothing to search.*\{weights: \{a: 0\.6, b: 0\.2, c: 0\.2\}\}"):
        plan_run(recipe)


def test_proxies_are_a_tenth_of_the_run_and_counted() -> None:
    sizes = {"train": {name: {"published": {"rows": 100}} for name in "ab"}, "dev": {"a": {"published": {"rows": 50}}}}
    strategy = {"name": "regmix", "proxies": 10, "dev_queries": 24, "dev_passages": 72}
    recipe = small_recipe(strategy=strategy, **sizes)
    *proxies, final = recipe.strategy.stages(recipe)
    assert [stage.name for stage in proxies][::9] == ["proxy-01", "proxy-10"]
    assert {stage.steps for stage in proxies} == {10}
    assert (final.name, final.steps, final.scored) == ("final", 100, False)
    # Scoring encodes 96 texts, 6 batches of 8 rows with two texts each, at a third of a training step.
    plan = plan_run(recipe)
    assert plan.cost == pytest.approx(100 + 10 * (10 + 2))
    assert plan.guides == {"a": 50}
    with pytest.raises(RecipeError, match="proxies"):
        RegMix(proxies=3)


REGMIX = "strategy={name: regmix, proxies: 8, proxy_steps: 4, dev_queries: 8, dev_passages: 40}"


@pytest.mark.slow
@pytest.mark.parametrize("stage", [5, pytest.param(9, marks=pytest.mark.soak)])
def test_a_recipe_trains_on_the_mixture_found_and_interrupted_ends_bitwise_alike(
    stage: int, recipe_path: Path, tmp_path: Path
) -> None:
    whole = load_recipe(recipe_path, [REGMIX, "selection.every=2"])
    expected = run(whole)
    record = json.loads((whole.output / "record.json").read_text(encoding="utf-8"))
    assert len(record["stages"]) == 8
    for facts in record["stages"].values():
        assert set(facts["scores"]) == {"small"}
        assert 0 <= facts["scores"]["small"] <= 1
        assert facts["seconds"]["score"] > 0
    assert record["stages"]["proxy-1"]["found"] == pytest.approx({"big": 0.5, "small": 0.5})
    assert record["notes"][-1].startswith("RegMix: ")
    results = {name: StageResult(facts["found"], facts["scores"]) for name, facts in record["stages"].items()}
    found, _ = whole.strategy.conclude(whole, results, {"big": 80, "small": 20}, rows=96)
    assert read_weights(whole.output / "weights.json") == pytest.approx(dict(found))
    finished = read_run(whole.output)
    assert compare([finished, finished]).groups[0].recipe.strategy.label == "RegMix"
    assert record["notes"][-1].partition(";")[0] in render_page([finished])

    broken = load_recipe(recipe_path, [REGMIX, "selection.every=2", f"output={tmp_path}/broken"])
    with pytest.raises(KeyboardInterrupt):
        run(broken, callbacks=[StopInRun(3, stage)])
    assert len(list((broken.output / "stages").glob("*/record.json"))) == stage - 1
    resumed = run(broken, resume=True)
    ours, theirs = (load_file(recipe.output / "model" / "model.safetensors") for recipe in (broken, whole))
    assert all(bool((ours[key] == theirs[key]).all()) for key in theirs)
    # Only the scores of proxies are kept.
    assert not list(whole.output.glob("stages/*/model"))
    again = json.loads((broken.output / "record.json").read_text(encoding="utf-8"))
    for name, facts in record["stages"].items():
        assert (again["stages"][name]["scores"], again["stages"][name]["found"]) == (facts["scores"], facts["found"])
    assert read_weights(broken.output / "weights.json") == read_weights(whole.output / "weights.json")
    assert resumed["big"].per_query == expected["big"].per_query

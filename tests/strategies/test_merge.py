"""Merge: weights of experts on a simplex, searched without gradients.

- On a score with a known maximum, inside or at a corner, the search finds it, and asks for no point twice.
- A soup and a fixed share of the start are special cases.
- Every dataset has an expert of its own, and the experts share the steps of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mixfluence.build import stage_recipe
from mixfluence.errors import RecipeError
from mixfluence.plan import plan_run
from mixfluence.policy import UNIFORM, Vector
from mixfluence.strategies.merge import Merge, search_simplex
from tests.recipes import small_recipe


class Hill:
    """A score with one maximum, which counts what it was asked for."""

    def __init__(self, *best: float) -> None:
        self.best = np.array(best)
        self.asked: list[Vector] = []

    def __call__(self, weights: Vector) -> float:
        assert weights.min() >= 0
        assert weights.sum() == pytest.approx(1)
        self.asked.append(weights)
        return float(1 - ((weights - self.best) ** 2).sum())


@pytest.mark.parametrize(
    "best", [(0.37, 0.63), (0.98, 0.02), (0.2, 0.5, 0.3), (0.0, 0.4, 0.6), (0.1, 0.1, 0.15, 0.05, 0.6)]
)
def test_the_search_finds_a_known_maximum(best: tuple[float, ...]) -> None:
    hill = Hill(*best)
    found = search_simplex(hill, len(best), 100)
    assert found.tolist() == pytest.approx(best, abs=0.02)
    assert len(hill.asked) <= 100
    assert len({tuple(weights) for weights in hill.asked}) == len(hill.asked)


@pytest.mark.slow
def test_a_rough_score_is_searched_again_from_the_best() -> None:
    # Without new starts the mean gap is four times as large.
    corners, gaps = 6, []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        best, wave = rng.dirichlet([0.5] * corners), rng.standard_normal(corners)
        sides = rng.standard_normal((corners, corners))
        curvature = 0.3 * (sides @ sides.T / corners + 0.1 * np.eye(corners))

        def loss(weights: Vector, best: Vector = best, curvature: Vector = curvature) -> float:
            return float((weights - best) @ curvature @ (weights - best))

        def score(weights: Vector, wave: Vector = wave, loss: Callable[[Vector], float] = loss) -> float:
            return 0.5 - loss(weights) + 0.0005 * float(np.sin(1e4 * weights @ wave))

        gaps.append(loss(search_simplex(score, corners, 100)))
    assert np.mean(gaps) < 8e-4


def test_a_corner_can_be_best_and_the_budget_holds() -> None:
    hill = Hill(0, 1, 0)
    assert search_simplex(hill, 3, 100).tolist() == [0, 1, 0]
    few = Hill(0.2, 0.5, 0.3)
    search_simplex(few, 3, 3)
    assert [weights.tolist() for weights in few.asked] == [pytest.approx([1 / 3] * 3), [1, 0, 0], [0, 1, 0]]


def test_the_search_is_repeatable() -> None:
    first, second = Hill(0.2, 0.5, 0.3), Hill(0.2, 0.5, 0.3)
    search_simplex(first, 3, 40)
    search_simplex(second, 3, 40)
    assert [weights.tolist() for weights in first.asked] == [weights.tolist() for weights in second.asked]


def test_the_start_is_searched_or_has_a_fixed_share() -> None:
    assert Merge().merge_weights(Hill(0.4, 0.36, 0.24), 2).tolist() == pytest.approx([0.4, 0.36, 0.24], abs=0.02)
    # With three tenths fixed, the nearest point to the maximum.
    found = Merge(start_share=0.3).merge_weights(Hill(0.4, 0.36, 0.24), 2)
    assert found.tolist() == pytest.approx([0.3, 0.41, 0.29], abs=0.02)
    assert Merge(start_share=0.3).merge_weights(Hill(0.4, 0.6), 1).tolist() == pytest.approx([0.3, 0.7])


def test_a_soup_is_scored_once() -> None:
    hill = Hill(1, 0, 0)
    assert Merge(soup=True).merge_weights(hill, 2).tolist() == [0, 0.5, 0.5]
    assert len(hill.asked) == 1
    assert Merge(soup=True, start_share=0.2).merge_weights(hill, 2).tolist() == pytest.approx([0.2, 0.4, 0.4])
    assert (Merge(soup=True).label, Merge().label) == ("Soup", "Merge")


def test_every_dataset_has_an_expert() -> None:
    recipe = small_recipe(strategy={"name": "merge", "evaluations": 100})
    first, second, final = recipe.strategy.stages(recipe)
    assert [stage.name for stage in (first, second, final)] == ["expert-a", "expert-b", "final"]
    assert [stage.steps for stage in (first, second, final)] == [50, 50, 100]
    assert [stage.merges for stage in (first, second, final)] == [False, False, True]
    expert = second.strategy({})
    expert.start({"a": 5, "b": 7})
    assert expert.weights().tolist() == [0, 1]
    soup = small_recipe(strategy={"name": "merge", "soup": True, "expert_steps": 7})
    assert [stage.steps for stage in soup.strategy.stages(soup)] == [7, 7, 1]


def test_a_plan_counts_an_encoding_per_merge_but_of_a_linear_model_one_per_expert(tiny_bert_folder: Path) -> None:
    sizes = {"train": {name: {"published": {"rows": 100}} for name in "ab"}, "dev": {"a": {"published": {"rows": 50}}}}
    costs = []
    for model in ("wordllama", str(tiny_bert_folder)):
        strategy = {"name": "merge", "evaluations": 100, "dev_passages": 500}
        final = plan_run(small_recipe(strategy=strategy, model={"name": model}, **sizes)).stages[-1]
        costs.append(final.cost)
    # 50 queries and 500 passages, two to a row of a batch of 8, at a third of a training step.
    assert costs == pytest.approx([3 * 550 / 16 / 3, 100 * 550 / 16 / 3])


def test_experts_are_of_one_kind() -> None:
    with pytest.raises(RecipeError, match="one of experts, branching and mixtures"):
        Merge(branching=3, mixtures={"flat": UNIFORM})
    recipe = small_recipe(strategy={"name": "merge", "branching": 4})
    assert [stage.name for stage in recipe.strategy.stages(recipe)] == [*map("expert-{}".format, range(1, 5)), "final"]
    prompts = {"a": {"query_prompt": "query: "}, "b": {}}
    with pytest.raises(ValueError, match="query_prompt"):
        small_recipe(strategy={"name": "merge", "branching": 4}, train=prompts)


def test_names_of_experts_are_names_of_folders() -> None:
    recipe = small_recipe(strategy="merge", train={"a/../b": {}, "c": {}}, dev=["c"])
    assert recipe.strategy.stages(recipe)[0].name == "expert-a%2F..%2Fb"


def test_an_epoch_limit_is_refused() -> None:
    with pytest.raises(RecipeError, match="max_epochs"):
        Merge(max_epochs=4)


def test_a_short_stage_warms_up_for_the_same_share_of_its_steps() -> None:
    recipe = small_recipe(strategy=Merge(), training={"steps": 100, "batch_size": 8, "warmup_steps": 10})
    assert [stage_recipe(recipe, stage).training.warmup_steps for stage in recipe.strategy.stages(recipe)[:-1]] == [
        5,
        5,
    ]
    longer = small_recipe(
        strategy=Merge(expert_steps=300), training={"steps": 100, "batch_size": 8, "warmup_steps": 10}
    )
    assert stage_recipe(longer, longer.strategy.stages(longer)[0]).training.warmup_steps == 10

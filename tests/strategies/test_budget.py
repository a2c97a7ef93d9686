"""A budget for measuring: how many rounds it allows, and when they come.

- A round takes place as often as the budget pays for it. If not even two fit, they measure fewer dev rows; one takes
  place in any case, and the plan warns.
- Inf-DDS has a budget by default, unless it is told how often to measure.
- Rounds start after the warm-up, are further apart the later they are, and never closer than `update_every`.
- What is spent in a run, and what its plan says, is within the budget.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixfluence.influence import Probe, RoundCost
from mixfluence.plan import plan_run
from mixfluence.policy import UNIFORM
from mixfluence.recipe_yaml import load_recipe
from mixfluence.runs import read_trace
from mixfluence.strategies import InfDDS, MultiDDS
from mixfluence.strategies.logits import growing_intervals
from tests.test_experiment import recipe_path
from tests.training.test_inf_dds import MakeModel, guided_run

__all__ = ["recipe_path"]


def costs(round_: float) -> RoundCost:
    return lambda _: round_


@given(first=st.integers(1, 500), end=st.integers(501, 20_000), count=st.integers(1, 60), least=st.integers(1, 300))
def test_intervals_grow_and_keep_their_distance(first: int, end: int, count: int, least: int) -> None:
    found = growing_intervals(first, end, count, least=least)
    gaps = [after - before for before, after in itertools.pairwise(found)]
    assert found[0] == first
    assert found[-1] < end
    assert 1 <= len(found) <= count
    assert all(gap >= least for gap in gaps)
    # Rounding to whole steps may shorten a gap by one.
    assert all(later >= earlier - 1 for earlier, later in itertools.pairwise(gaps))


@pytest.mark.parametrize("strategy", [InfDDS(budget=0.25), MultiDDS(budget=0.25)], ids=["inf-dds", "multidds"])
def test_rounds_cost_no_more_than_the_budget(strategy: InfDDS) -> None:
    strategy.start({"a": 100, "b": 100})
    strategy.space_rounds(costs(18.0), 400)
    due = [step for step in range(1, 400) if strategy.due(step, 1.0)]
    assert due[0] == strategy.warmup_steps
    assert len(due) == 5
    assert len(due) * 18.0 <= 0.25 * 400
    assert not any(strategy.due(step, 0.05) for step in due) or strategy.freeze_below == 0


def test_without_a_budget_nothing_changes() -> None:
    strategy = InfDDS(update_every=10, warmup_steps=5)
    strategy.start({"a": 100, "b": 100})
    strategy.space_rounds(costs(1e9), 50)
    assert [step for step in range(1, 50) if strategy.due(step, 1.0)] == [5, 15, 25, 35, 45]


def test_fewer_rows_are_measured_if_two_rounds_would_not_fit() -> None:
    strategy = InfDDS(budget=0.25)
    strategy.start({"a": 100, "b": 100})

    # 10 steps and the cost of the rows: 128 cost 74 steps, 32 cost 26.
    def by_rows(rows: int) -> float:
        return 10 + rows / 2

    assert strategy.space_rounds(by_rows, 1000) == 128
    assert strategy.space_rounds(by_rows, 400) == 64
    assert strategy.space_rounds(by_rows, 240) == 32
    assert [step for step in range(1, 240) if strategy.due(step, 1.0)] == [25, 75]
    held = [strategy.steps_to_next_round() for step in (25, 75) if strategy.due(step, 1.0)]
    assert held == [50, 165]
    # One round in any case.
    assert strategy.space_rounds(by_rows, 40) == 16
    assert [step for step in range(1, 40) if strategy.due(step, 1.0)] == [25]


def test_a_plan_warns_if_one_round_exceeds_the_budget(recipe_path: Path) -> None:
    def warnings(more: str) -> list[str]:
        recipe = load_recipe(recipe_path, [f"strategy={{name: inf-dds, warmup_steps: 2, {more}}}"])
        return [concern for concern in plan_run(recipe).concerns if "budget" in concern]

    assert len(warnings("budget: 0.01")) == 1
    assert warnings("budget: 10.0") == warnings("update_every: 2") == []


def test_a_plan_warns_if_a_budget_leaves_few_rows(recipe_path: Path) -> None:
    source = f"{{path: {recipe_path.parent / 'data' / 'big'}, split: train}}"
    plans = [
        plan_run(
            load_recipe(
                recipe_path, ["dev={big: " + source + "}", "selection=null", f"strategy={{name: inf-dds, {more}}}"]
            )
        )
        for more in ("warmup_steps: 2, budget: 0.5, update_every: 1", "warmup_steps: 2, update_every: 1")
    ]
    assert [plan.stages[0].dev_batch_size for plan in plans] == [16, 128]
    assert [any("leaves 16 rows" in concern for concern in plan.concerns) for plan in plans] == [True, False]


def test_a_budget_is_the_default_of_inf_dds_alone() -> None:
    assert (InfDDS().budget, InfDDS(update_every=50).budget, InfDDS(preset="paper").budget) == (0.25, None, None)
    assert InfDDS(update_every=50, budget=0.1).budget == 0.1
    assert InfDDS(budget=None).budget is None
    assert MultiDDS().budget is None


def test_a_run_spends_what_its_budget_allows(make_static: MakeModel, tmp_path: Path) -> None:
    options = {"init": UNIFORM, "warmup_steps": 1, "update_every": 1, "inner_steps": 1, "freeze_below": 0.0}
    free = guided_run(make_static(), tmp_path / "free", InfDDS(**options, probe=Probe(dev_batch_size=8)))
    steps = free.state.max_steps
    assert free.probing is not None
    cost = free.probing._round_cost(8)
    assert cost > 0
    budget = 2.5 * cost / steps
    strategy = InfDDS(**options, budget=budget, probe=Probe(dev_batch_size=8))
    held = guided_run(make_static(), tmp_path / "held", strategy)
    rounds = [line["step"] for line in read_trace(Path(held.args.output_dir) / "trace.jsonl") if "update" in line]
    assert rounds[0] == 1
    assert len(rounds) == 2

"""A budget for measuring: how many rounds it allows, and when they come.

- A round is allowed as often as the budget pays for it; one that is too dear for a single round is refused, and the
  error says what to lower.
- Rounds start after the warm-up, are further apart the later they are, and never closer than `update_every`.
- What is spent in a run, and what its plan says, is within the budget.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixfluence.errors import RecipeError
from mixfluence.influence import Probe
from mixfluence.policy import UNIFORM
from mixfluence.runs import read_trace
from mixfluence.strategies import InfDDS, MultiDDS
from mixfluence.strategies.logits import growing_intervals
from tests.training.test_inf_dds import MakeModel, guided_run


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
    strategy.space_rounds(18.0, 400)
    due = [step for step in range(1, 400) if strategy.due(step, 1.0)]
    assert due[0] == strategy.warmup_steps
    assert len(due) == 5
    assert len(due) * 18.0 <= 0.25 * 400
    assert not any(strategy.due(step, 0.05) for step in due) or strategy.freeze_below == 0


def test_without_a_budget_nothing_changes() -> None:
    strategy = InfDDS(update_every=10, warmup_steps=5)
    strategy.start({"a": 100, "b": 100})
    strategy.space_rounds(1e9, 50)
    assert [step for step in range(1, 50) if strategy.due(step, 1.0)] == [5, 15, 25, 35, 45]


def test_a_budget_below_one_round_is_refused() -> None:
    strategy = InfDDS(budget=0.1)
    strategy.start({"a": 100, "b": 100})
    with pytest.raises(RecipeError, match=r"strategy\.budget.*inner_steps"):
        strategy.space_rounds(50.0, 400)


def test_a_run_spends_what_its_budget_allows(make_static: MakeModel, tmp_path: Path) -> None:
    options = {"init": UNIFORM, "warmup_steps": 1, "update_every": 1, "inner_steps": 1, "freeze_below": 0.0}
    free = guided_run(make_static(), tmp_path / "free", InfDDS(**options, probe=Probe(dev_batch_size=8)))
    steps = free.state.max_steps
    assert free.probing is not None
    cost = free.probing._round_cost()
    assert cost > 0
    budget = 2.5 * cost / steps
    strategy = InfDDS(**options, budget=budget, probe=Probe(dev_batch_size=8))
    held = guided_run(make_static(), tmp_path / "held", strategy)
    rounds = [line["step"] for line in read_trace(Path(held.args.output_dir) / "trace.jsonl") if "update" in line]
    assert rounds[0] == 1
    assert len(rounds) == 2

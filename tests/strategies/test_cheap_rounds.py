"""Rounds that cost less: fewer dev rows where influences are clear, and subsets chosen by need.

- `enough_rows` asks for fewer rows the clearer a target is, for all if a round is noise, and is right about the
  reliability that it promises.
- By need, the first round probes all; later ones visit every dataset, likely ones and noisy ones more often.
- A subset of datasets that are alike is not taken for one that differ: the rule ends near what probing all finds.
- The plan counts the first round and says that rows adapt; a budget pays for both.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mixfluence.influence import Influences, Probe
from mixfluence.plan import plan_run
from mixfluence.policy import UNIFORM, Fair, Vector, Weights
from mixfluence.recipe_yaml import load_recipe
from mixfluence.runs import read_trace
from mixfluence.strategies import InfDDS
from tests.policy.test_fair import measured
from tests.strategies.test_budget import costs
from tests.test_experiment import recipe_path
from tests.training.test_inf_dds import MakeModel, guided_run

__all__ = ["recipe_path"]

SIZES = {f"d{number}": 100 for number in range(12)}


def noisy(influence: Vector, noise: float, queries: int, seed: int = 0) -> Influences:
    gains = influence[:, None] + np.random.default_rng(seed).normal(0, noise, (len(influence), queries))
    return Influences(np.arange(len(influence)), np.array([], np.int64), ["t"], np.ones(1), [gains])


def test_fewer_rows_are_enough_for_a_clear_target() -> None:
    influence = np.linspace(-1, 1, 12)
    clear, faint = (float(noisy(influence, noise, 256).enough_rows(0.8)[0]) for noise in (0.5, 5.0))
    # Variance of the influences 0.395, of the noise 25 per row: 0.8 / 0.2 x 25 / 0.395 rows.
    assert faint == pytest.approx(253, rel=0.35)
    assert clear == pytest.approx(2.5, rel=0.35)
    # Of what is noise alone, half the rounds seem to have less variance than the noise.
    assert np.median([noisy(np.zeros(12), 1.0, 256, seed).enough_rows(0.8)[0] for seed in range(40)]) > 1000


def test_so_many_rows_give_the_reliability_that_was_asked_for() -> None:
    influence, wanted = np.linspace(-1, 1, 12), 0.8
    rows = round(float(np.mean([noisy(influence, 4.0, 400, seed).enough_rows(wanted)[0] for seed in range(20)])))
    true = influence - influence.mean()
    reliabilities = []
    for seed in range(200):
        found = noisy(influence, 4.0, rows, seed=1000 + seed).on_targets()[:, 0]
        noise = np.mean((found - found.mean() - true) ** 2)
        reliabilities.append(true.var() / (true.var() + noise))
    assert np.mean(reliabilities) == pytest.approx(wanted, abs=0.03)


def probed_by_need(strategy: InfDDS, influence: Vector, rounds: int, wanted: int = 3) -> Counter[int]:
    """Count how often each dataset is probed after a first round of all."""
    strategy.start(SIZES)
    strategy.update(measured(influence, seed=0))
    counts: Counter[int] = Counter()
    for number in range(1, rounds):
        urgency = strategy.urgency()
        assert urgency is not None
        chosen = np.sort(np.argsort(-urgency, kind="stable")[:wanted])
        counts.update(chosen.tolist())
        strategy.update(measured(influence[chosen], chosen, seed=number))
    return counts


def test_by_need_all_datasets_are_visited_and_likely_ones_more_often() -> None:
    init = Weights({name: 40.0 if name == "d2" else 1.0 for name in SIZES})
    strategy = InfDDS(init=init, rule=Fair(pull=1e6), subset=3, subset_by="need")
    counts = probed_by_need(strategy, np.random.default_rng(0).normal(size=(12, 2)), rounds=40)
    assert set(counts) == set(range(12))
    assert counts[2] > 1.5 * max(count for dataset, count in counts.items() if dataset != 2)


def test_by_need_it_ends_near_what_probing_everything_finds() -> None:
    influence = np.zeros((12, 3))
    influence[[0, 1, 2], [0, 1, 2]] = 1.0
    some = InfDDS(init=UNIFORM, rule=Fair(), subset=4, subset_by="need")
    probed_by_need(some, influence, rounds=30, wanted=4)
    everything = InfDDS(init=UNIFORM, rule=Fair())
    everything.start(SIZES)
    for number in range(30):
        everything.update(measured(influence, seed=number))
    assert some.weights() == pytest.approx(everything.weights(), abs=0.06)


def test_datasets_that_are_alike_stay_so_when_they_are_probed_alone() -> None:
    strategy = InfDDS(init=UNIFORM, rule=Fair(), subset=4, subset_by="need")
    influence = np.zeros((12, 1))
    influence[0] = 1.0
    influence[8:] = np.array([[-0.02], [-0.01], [0.01], [0.02]])
    strategy.start(SIZES)
    for number in range(4):
        strategy.update(measured(influence, seed=number))
    for number in range(4):
        strategy.update(measured(influence[8:], range(8, 12), queries=2048, seed=10 + number))
    known = strategy.rule.state_dict()
    # In standard deviations of all datasets.
    assert np.ptp(np.array(known["total"])[8:] / np.array(known["weight"])[8:]) < 0.5


def test_the_first_round_probes_all_and_rows_follow_the_noise(make_static: MakeModel, tmp_path: Path) -> None:
    probe = Probe(reliability=0.5)
    options = {"init": UNIFORM, "update_every": 2, "warmup_steps": 1, "inner_steps": 1, "freeze_below": 0.0}
    strategy = InfDDS(**options, subset=2, subset_by="need", probe=probe)
    trainer = guided_run(make_static(), tmp_path / "run", strategy)
    updates = [
        line["update"] for line in read_trace(Path(trainer.args.output_dir) / "trace.jsonl") if "update" in line
    ]
    assert len(updates) > 1
    assert len(updates[0]["influence"]) == len(trainer.mixture)
    assert {len(update["influence"]) for update in updates[1:]} == {2}
    json.dumps(trainer.mixture_state(), allow_nan=False)


def test_the_plan_counts_the_first_round_and_a_budget_pays_for_it(recipe_path: Path) -> None:
    def planned(more: str = "") -> float:
        change = f"strategy={{name: inf-dds, update_every: 2, warmup_steps: 2, inner_steps: 1{more}}}"
        return plan_run(load_recipe(recipe_path, [change])).stages[0].measuring_cost

    (stage,) = plan_run(
        load_recipe(recipe_path, ["strategy={name: inf-dds, probe: {reliability: 0.8}, warmup_steps: 2}"])
    ).stages
    assert stage.adapts
    # Two datasets: a subset of two is all of them.
    assert planned(", subset: 2, subset_by: need") == planned()
    strategy = InfDDS(budget=0.25, subset=2, subset_by="need")
    strategy.start(SIZES)
    strategy.space_rounds(costs(10.0, first=40.0), 400)
    due = [step for step in range(1, 400) if strategy.due(step, 1.0)]
    assert len(due) * 10 + 30 <= 100

"""The mixture that helps every target in proportion.

- `fair_mixture` solves its problem: no general solver finds a better mixture, and it finds the same one.
- Targets that are each helped by one dataset get equal shares, whatever the scale of their losses, where a mean over
  targets follows the largest. A target that nothing helps changes nothing.
- With one target it is the anchored rule.
- With subsets, what is not measured keeps its estimate, and ends near what measuring everything finds.
- Rounds without trust change nothing, a closed gate leaves the start, and what is saved as JSON continues exactly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from mixfluence.influence import Influences
from mixfluence.policy import UNIFORM, Anchored, Evidence, Fair, Reward, Temperature, Vector, Weights, softmax
from mixfluence.policy.rules import _LEAST_HELP, fair_mixture
from mixfluence.strategies import InfDDS

SIZES = {"a": 100, "b": 200, "c": 400, "d": 800, "e": 1600}
M = len(SIZES)


def objective(p: Vector, start: Vector, helps: Vector, pull: float) -> float:
    divergence = float(np.sum(p * (np.log(np.maximum(p, 1e-300)) - start)))
    return float(np.log(_LEAST_HELP + p @ helps).mean()) - pull * divergence


def reference_mixture(start: Vector, helps: Vector, pull: float) -> Vector:
    """Solve the problem by a general solver."""

    def gradient(p: Vector) -> Vector:
        shares = (helps / (_LEAST_HELP + p @ helps)).mean(axis=1)
        return np.asarray(shares - pull * (np.log(np.maximum(p, 1e-300)) - start + 1))

    found = minimize(
        lambda p: -objective(p, start, helps, pull),
        np.exp(start),
        jac=lambda p: -gradient(p),
        bounds=[(1e-12, 1)] * len(start),
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        method="SLSQP",
        options={"maxiter": 2000, "ftol": 1e-14},
    )
    return np.asarray(found.x)


@pytest.mark.parametrize("pull", [0.05, 0.15, 1.0])
@pytest.mark.parametrize(("datasets", "targets"), [(3, 1), (13, 5), (23, 13), (40, 30), (2, 8)])
def test_no_general_solver_finds_a_better_mixture(datasets: int, targets: int, pull: float) -> None:
    rng = np.random.default_rng(datasets)
    helps = np.maximum(rng.normal(size=(datasets, targets)), 0)
    start = np.log(rng.dirichlet(np.ones(datasets)))
    mixture = np.exp(fair_mixture(start, helps, pull))
    reference = reference_mixture(start, helps, pull)
    assert mixture.sum() == pytest.approx(1)
    assert objective(mixture, start, helps, pull) >= objective(reference, start, helps, pull) - 1e-7
    assert mixture == pytest.approx(reference, abs=1e-4)


@given(
    helps=st.lists(st.lists(st.floats(0, 3), min_size=3, max_size=3), min_size=4, max_size=4).map(np.array),
    weights=st.lists(st.floats(0.01, 1), min_size=4, max_size=4).map(np.array),
    pull=st.floats(0.02, 5),
)
def test_the_mixture_meets_the_conditions_of_its_only_optimum(helps: Vector, weights: Vector, pull: float) -> None:
    start = np.log(weights / weights.sum())
    logits = fair_mixture(start, helps, pull)
    p = np.exp(logits)
    # The objective is strictly concave: a mixture with equal slopes is the only optimum.
    slopes = (helps / (_LEAST_HELP + p @ helps)).mean(axis=1) - pull * (logits - start)
    assert slopes == pytest.approx(np.full(4, slopes.mean()), abs=1e-5)
    assert p.sum() == pytest.approx(1)


def test_targets_with_one_dataset_each_get_equal_shares_whatever_they_start_with() -> None:
    start = np.log(np.array([0.9, 0.05, 0.05]))
    shares = np.exp(fair_mixture(start, np.diag([2.0, 2.0, 2.0]), 0.01))
    assert shares == pytest.approx(np.full(3, 1 / 3), abs=0.02)


def test_a_target_that_nothing_helps_pulls_nowhere() -> None:
    start, helps = np.log(np.full(4, 0.25)), np.array([[1.0], [0.5], [0.0], [0.2]])
    useless = np.hstack([helps, np.zeros((4, 1))])
    # It still counts in the mean, so the pull towards the start counts twice.
    assert fair_mixture(start, useless, 0.1) == pytest.approx(fair_mixture(start, helps, 0.2), abs=1e-8)


def measured(on_targets: Vector, probed: Iterable[int] | None = None, queries: int = 32, seed: int = 0) -> Influences:
    """A round with some noise over queries, from influences of datasets x targets."""
    rng = np.random.default_rng(seed)
    positions = np.arange(len(on_targets)) if probed is None else np.array(list(probed))
    gains = [column[:, None] + rng.normal(0, 0.1, (len(column), queries)) for column in on_targets.T]
    names = [f"t{number}" for number in range(len(gains))]
    return Influences(positions, np.array([], np.int64), names, np.ones(len(gains)), gains)


def run(strategy: InfDDS, rounds: Iterable[Influences]) -> InfDDS:
    strategy.start(SIZES)
    for influences in rounds:
        strategy.update(influences)
    return strategy


# Each of three targets is helped by its own dataset; the losses of the first are ten times as large.
OWN = np.vstack([np.diag([10.0, 1.0, 1.0]), np.zeros((2, 3))])


def test_a_target_with_a_large_loss_does_not_outvote_the_others() -> None:
    rounds = [measured(OWN, seed=seed) for seed in range(8)]
    fair = run(InfDDS(init=UNIFORM, rule=Fair()), rounds).weights()
    anchored = run(InfDDS(init=UNIFORM, rule=Anchored()), rounds).weights()
    assert anchored[0] > 0.8
    assert fair[:3] == pytest.approx(np.full(3, 1 / 3), abs=0.05)


def test_with_one_target_it_is_the_anchored_rule() -> None:
    rounds = [measured(np.array([[0.5], [0.2], [0.0], [-0.1], [0.1]]), seed=seed) for seed in range(8)]
    fair = run(InfDDS(init=Temperature(1.0), rule=Fair()), rounds).weights()
    anchored = run(InfDDS(init=Temperature(1.0), rule=Anchored()), rounds).weights()
    assert fair == pytest.approx(anchored, abs=1e-6)
    assert fair[0] > 0.3


@pytest.mark.parametrize("init", [UNIFORM, Temperature(1.0)])
def test_with_subsets_it_ends_near_what_measuring_everything_finds(init: Temperature) -> None:
    rng = np.random.default_rng(1)
    subsets = [np.sort(rng.choice(M, 3, replace=False)) for _ in range(60)]
    some = run(
        InfDDS(init=init, rule=Fair()), [measured(OWN[few], few, seed=number) for number, few in enumerate(subsets)]
    )
    everything = run(InfDDS(init=init, rule=Fair()), [measured(OWN, seed=number) for number in range(60)])
    assert some.weights()[:3] == pytest.approx(everything.weights()[:3], abs=0.12)
    assert some.weights()[3:].max() < 0.1


def test_datasets_that_are_alike_stay_so_when_they_are_measured_alone() -> None:
    influence = np.zeros((12, 1))
    influence[0] = 1.0
    influence[8:] = np.array([[-0.02], [-0.01], [0.01], [0.02]])
    strategy = InfDDS(init=UNIFORM, rule=Fair(), subset=4)
    strategy.start({f"d{number}": 100 for number in range(12)})
    for number in range(4):
        strategy.update(measured(influence, seed=number))
    for number in range(4):
        strategy.update(measured(influence[8:], range(8, 12), queries=2048, seed=10 + number))
    known = strategy.rule.state_dict()
    # In standard deviations of all datasets.
    assert np.ptp(np.array(known["total"])[8:] / np.array(known["weight"])[8:]) < 0.5


def test_what_is_not_measured_stays_and_ages() -> None:
    strategy = run(InfDDS(init=UNIFORM, rule=Fair()), [measured(OWN, seed=seed) for seed in range(6)])
    before = np.array(strategy.rule.state_dict()["weight"])
    helped = strategy.weights()[2]
    for seed in range(4):
        strategy.update(measured(OWN[[0, 1, 3]], [0, 1, 3], seed=10 + seed))
    after = np.array(strategy.rule.state_dict()["weight"])
    assert (after[2] < before[2]).all()
    assert (after[2] > 0.5 * before[2]).all()
    assert strategy.weights()[2] == pytest.approx(helped, abs=0.05)


def judge(values: Vector, *, gate: float = 1.0, trust: float = 1.0) -> Reward:
    judged = Evidence(shrink=False, gate=False).judge(np.arange(len(values)), values, np.zeros_like(values))
    return Reward(judged.probed, judged.contrasts, judged.spread, trust * judged.trust, gate)


def test_rounds_without_trust_change_nothing_and_a_closed_gate_leaves_the_start() -> None:
    rule, start = Fair(), Temperature(1.0).logits(SIZES)
    rule.start(start)
    moved = rule.move(start, judge(OWN))
    state = json.dumps(rule.state_dict())
    assert rule.move(moved, judge(OWN[::-1], trust=0)).tolist() == moved.tolist()
    assert rule.move(moved, judge(np.full((M, 3), 0.7))).tolist() == moved.tolist()
    assert json.dumps(rule.state_dict()) == state
    assert softmax(rule.move(moved, judge(OWN, gate=0))) == pytest.approx(softmax(start))


def test_a_strategy_read_back_from_json_continues_exactly_also_with_a_weight_of_zero() -> None:
    init = Weights({"a": 1.0, "b": 0.0, "c": 1.0, "d": 2.0, "e": 1.0})
    rounds = [measured(OWN[[0, 2, 3, 4]], [0, 2, 3, 4], seed=seed) for seed in range(6)]
    strategy = run(InfDDS(init=init, rule=Fair()), rounds[:3])
    resumed = run(InfDDS(init=init, rule=Fair()), [])
    resumed.load_state_dict(json.loads(json.dumps(strategy.state_dict(), allow_nan=False)))
    for influences in rounds[3:]:
        assert resumed.update(influences) == strategy.update(influences)
        assert resumed.logits.tolist() == strategy.logits.tolist()
    assert resumed.state_dict() == strategy.state_dict()
    assert strategy.weights()[1] == 0


def test_it_starts_again_with_other_targets() -> None:
    strategy = run(InfDDS(init=UNIFORM, rule=Fair()), [measured(OWN)])
    fresh = run(strategy, [measured(OWN[:, :2])])
    assert np.isfinite(fresh.weights()).all()
    assert np.array(fresh.rule.state_dict()["total"]).shape == (M, 2)

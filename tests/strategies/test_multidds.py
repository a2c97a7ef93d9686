"""MultiDDS moves probabilities towards the shares of rewards.

- One step of Adam moves two logits apart by exactly twice the rate; a whole update by no more than its steps.
- With constant rewards the probabilities end in proportion to them, from any start. A negative reward counts as zero,
  and a round without positive rewards moves nothing.
- A dataset that was not measured keeps its probability, one of weight zero is never drawn, and the floor holds.
- Updates start after the warm-up and need a useful learning rate.
- A strategy restored from its JSON state continues bitwise. Invalid settings are refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mixfluence.errors import RecipeError
from mixfluence.influence import Alignment, Influences
from mixfluence.policy import PROPORTIONAL, UNIFORM, Weights
from mixfluence.strategies.multidds import MultiDDS

SIZES = {"a": 600, "b": 300, "c": 100}


def aligned(values: Sequence[float], probed: Sequence[int] | None = None, failed: Sequence[int] = ()) -> Influences:
    """Return what an alignment with these values gives."""
    which = np.arange(len(values)) if probed is None else np.array(probed)
    return Influences(which, np.array(failed, np.int64), ["x+y"], np.array([1.0]), [np.array(values)[:, None]])


def started(sizes: dict[str, int] = SIZES, **options: Any) -> MultiDDS:
    strategy = MultiDDS(**options)
    strategy.start(sizes)
    return strategy


def test_it_starts_uniformly_and_asks_for_the_cosine_of_one_batch() -> None:
    strategy = started()
    assert strategy.weights() == pytest.approx([1 / 3] * 3)
    assert strategy.probing.method == Alignment()
    assert Alignment.score == "cosine"
    assert strategy.probing.steps == 1
    assert strategy.outcome() is None


def test_a_first_step_of_adam_moves_each_logit_by_the_rate() -> None:
    strategy = started({"a": 1, "b": 1}, iterations=1, rate=0.01)
    assert strategy.update(aligned([0.6, 0.2])) == {"influence": [0.6, 0.2]}
    one, other = strategy.weights()
    assert math.log(one / other) == pytest.approx(0.02, rel=1e-9)
    # Moments last from one update to the next: the second step is Adam's second, not another first one.
    strategy.update(aligned([0.2, 0.6]))
    before = np.log(one / other) / 2
    first, second = 0.2, 0.2 - 0.8 / (1 + math.exp(-2 * before))
    mean = (0.9 * 0.1 * first + 0.1 * second) / (1 - 0.9**2)
    square = (0.999 * 0.001 * first**2 + 0.001 * second**2) / (1 - 0.999**2)
    moved = np.log(np.divide(*strategy.weights())) / 2 - before
    assert moved == pytest.approx(0.01 * mean / math.sqrt(square), rel=1e-3)


@pytest.mark.parametrize("rate", [1e-4, 1e-3])
def test_an_update_moves_no_logit_further_than_its_steps(rate: float) -> None:
    strategy = started({"a": 1, "b": 1}, rate=rate)
    strategy.update(aligned([0.9, 1e-6]))
    ratio = math.log(np.divide(*strategy.weights()))
    # As published, 200 steps of 1e-4, it is 0.02 for each of the two.
    assert 0.9 * 400 * rate < ratio <= 400 * rate * (1 + 1e-9)


@pytest.mark.parametrize("init", [PROPORTIONAL, UNIFORM, Weights({"a": 1e-6, "b": 1, "c": 1})])
def test_with_constant_rewards_probabilities_end_in_proportion_to_them(init: Any) -> None:
    strategy = started(init=init, rate=0.01)
    for _ in range(60):
        strategy.update(aligned([0.03, 0.01, 0.06]))
    assert strategy.weights() == pytest.approx([0.3, 0.1, 0.6], abs=2e-3)


def test_a_negative_reward_counts_as_zero() -> None:
    with_negative, with_zero = started(init=PROPORTIONAL), started(init=PROPORTIONAL)
    for _ in range(5):
        with_negative.update(aligned([0.03, -0.5, 0.06]))
        with_zero.update(aligned([0.03, 0.0, 0.06]))
    assert with_negative.weights().tolist() == with_zero.weights().tolist()
    assert with_negative.weights()[1] < 0.2


@pytest.mark.parametrize("values", [[0.0, 0.0, 0.0], [-0.1, 0.0, -0.3]])
def test_a_round_without_a_reward_moves_nothing(values: list[float]) -> None:
    strategy = started()
    strategy.update(aligned([0.1, 0.2, 0.3]))
    before = json.dumps(strategy.state_dict())
    assert strategy.update(aligned(values)) == {"influence": values}
    assert json.dumps(strategy.state_dict()) == before


@pytest.mark.parametrize(("values", "probed"), [([], []), ([0.4], [1])])
def test_fewer_than_two_datasets_move_nothing(values: list[float], probed: list[int]) -> None:
    strategy = started(init=PROPORTIONAL)
    strategy.update(aligned(values, probed, failed=[0]))
    assert strategy.weights() == pytest.approx([0.6, 0.3, 0.1])


def test_a_dataset_that_was_not_measured_keeps_its_probability() -> None:
    strategy = started(init=PROPORTIONAL)
    for _ in range(3):
        strategy.update(aligned([0.1, 0.5], probed=[0, 2], failed=[1]))
    weights = strategy.weights()
    assert weights[1] == pytest.approx(0.3, abs=1e-12)
    assert weights[2] > 0.15
    assert weights.sum() == pytest.approx(1)


def test_a_weight_of_zero_stays_zero_and_the_floor_holds() -> None:
    strategy = started(init=Weights({"a": 1, "b": 0, "c": 1}))
    assert strategy.candidates().tolist() == [0, 2]
    strategy.update(aligned([0.1, 0.5], probed=[0, 2]))
    assert strategy.weights()[1] == 0
    assert json.loads(json.dumps(strategy.state_dict()))["logits"][1] is None
    floored = started(floor=0.2, rate=0.1)
    for _ in range(20):
        floored.update(aligned([0.0, 0.0, 1.0]))
    assert floored.weights() == pytest.approx([0.2, 0.2, 0.6], abs=1e-3)


def test_updates_are_due_after_the_warm_up_at_a_useful_learning_rate() -> None:
    strategy = started(update_every=4, warmup_steps=3, freeze_below=0.5)
    assert [step for step in range(13) if strategy.due(step, 1.0)] == [3, 7, 11]
    assert not any(strategy.due(step, 0.4) for step in range(13))
    assert not started(update_every=4, warmup_steps=0).due(0, 1.0)


@pytest.mark.parametrize("init", [PROPORTIONAL, Weights({"a": 1, "b": 0, "c": 3})])
def test_a_restored_state_continues_bitwise(init: Any) -> None:
    random = np.random.default_rng(0)
    probed = [0, 1, 2] if init is None else [0, 2]
    rounds = [aligned(random.normal(0.1, 0.1, len(probed)).tolist(), probed) for _ in range(6)]
    whole, stopped, resumed = (started(init=init) for _ in range(3))
    for round_ in rounds:
        whole.update(round_)
    for round_ in rounds[:3]:
        stopped.update(round_)
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    for round_ in rounds[3:]:
        resumed.update(round_)
    assert resumed.weights().tolist() == whole.weights().tolist()
    assert resumed.state_dict() == whole.state_dict()
    assert resumed.weights().tolist() != started(init=init).weights().tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"update_every": 0}, "update_every"),
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"iterations": 0}, "iterations"),
        ({"rate": 0.0}, "rate"),
        ({"rate": math.nan}, "rate"),
        ({"max_epochs": 0}, "max_epochs"),
        ({"floor": 0.5}, "a floor of 0.5 for 3 datasets"),
    ],
)
def test_invalid_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        started(**options)

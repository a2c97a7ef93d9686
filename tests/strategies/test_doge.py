"""DoGE shifts weight by scores, and returns the mean of the weights over all updates.

- Two datasets move apart by update_every x step x relative learning rate x the difference of their scores, exactly;
  smoothing is (1 - c) w + c / M. By default a training step counts for 0.05 at most, as published.
- Scores are clipped to between 0 and `clip`. The learning rate is that of the step the update is due at.
- The outcome is the arithmetic mean over updates, the start if there was none.
- A dataset that was not measured keeps its weight, and one of weight zero is never drawn.
- A strategy restored from its JSON state continues bitwise. Invalid settings are refused.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from mixfluence.errors import RecipeError
from mixfluence.influence import Projection
from mixfluence.policy import Temperature, Weights
from mixfluence.strategies.doge import DoGE
from tests.strategies.test_multidds import aligned

SIZES = {"a": 600, "b": 300, "c": 100}


def started(sizes: dict[str, int] = SIZES, **options: Any) -> DoGE:
    strategy = DoGE(**options)
    strategy.start(sizes)
    return strategy


def log_ratio(strategy: DoGE) -> float:
    one, other = strategy.weights()
    return math.log(one / other)


def test_it_starts_uniform_and_asks_for_the_projection_of_one_batch() -> None:
    strategy = started()
    assert strategy.weights() == pytest.approx([1 / 3] * 3)
    assert strategy.probing.method == Projection()
    assert strategy.probing.steps == 1
    assert started(init=Temperature(1.0)).weights() == pytest.approx([0.6, 0.3, 0.1])
    own = Projection(preconditioned=True)
    assert started(alignment=own).probing.method == own


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_two_datasets_move_apart_by_the_difference_of_their_scores(rate: float) -> None:
    strategy = started({"a": 9, "b": 1}, init=Temperature(1.0), update_every=4, step=0.05, smoothing=0.0)
    assert strategy.due(4, rate)
    assert strategy.update(aligned([1.5, 4.0])) == {"influence": [1.5, 4.0]}
    assert log_ratio(strategy) == pytest.approx(math.log(9) + 4 * 0.05 * rate * (1.5 - 4.0), abs=1e-12)
    strategy.due(8, rate / 2)
    strategy.update(aligned([2.0, 1.0]))
    assert log_ratio(strategy) == pytest.approx(math.log(9) + 4 * 0.05 * rate * (-2.5 + 0.5), abs=1e-12)


def test_smoothing_spreads_a_share_evenly() -> None:
    rough, smooth = (started({"a": 1, "b": 1}, smoothing=smoothing) for smoothing in (0.0, 0.1))
    for strategy in (rough, smooth):
        strategy.update(aligned([3.0, 0.0]))
    assert smooth.weights() == pytest.approx(0.9 * rough.weights() + 0.05, abs=1e-12)
    for _ in range(500):
        smooth.update(aligned([5.0, 0.0]))
    assert 0.05 < smooth.weights()[1] < 0.2
    assert smooth.weights().sum() == pytest.approx(1)


@pytest.mark.parametrize(("scores", "counted"), [([-3.0, 1.0], [0.0, 1.0]), ([7.0, 90.0], [5.0, 5.0])])
def test_scores_count_between_zero_and_the_clip(scores: list[float], counted: list[float]) -> None:
    one, other = started({"a": 2, "b": 1}), started({"a": 2, "b": 1})
    one.update(aligned(scores))
    other.update(aligned(counted))
    assert one.weights().tolist() == other.weights().tolist()


def test_by_the_published_step_a_training_step_counts_for_five_hundredths_at_most() -> None:
    for every in (1, 10):
        strategy = started({"a": 1, "b": 1}, update_every=every, step=0.01, smoothing=0.0)
        strategy.due(every, 1.0)
        strategy.update(aligned([100.0, -100.0]))
        # 5 eta / mu with eta = 5e-4 and mu = 0.05.
        assert log_ratio(strategy) == pytest.approx(every * 5 * 5e-4 / 0.05)


def test_the_outcome_is_the_mean_over_updates() -> None:
    strategy = started(init=Temperature(1.0))
    assert strategy.outcome() == pytest.approx([0.6, 0.3, 0.1])
    seen = []
    for scores in ([1.0, 2.0, 3.0], [0.0, 5.0, 0.0], [4.0, 0.0, 1.0]):
        strategy.update(aligned(scores))
        seen.append(strategy.weights())
    assert strategy.outcome() == pytest.approx(np.mean(seen, axis=0), abs=1e-12)
    assert strategy.outcome() != pytest.approx(strategy.weights(), abs=1e-3)
    # Nothing was learned, so nothing is added to the mean.
    strategy.update(aligned([1.0], probed=[2], failed=[0, 1]))
    strategy.update(aligned([], probed=[], failed=[0, 1, 2]))
    assert strategy.outcome() == pytest.approx(np.mean(seen, axis=0), abs=1e-12)


def test_a_dataset_that_was_not_measured_keeps_its_weight() -> None:
    strategy = started(init=Temperature(1.0), step=0.01, smoothing=0.0)
    strategy.update(aligned([0.0, 5.0], probed=[0, 2], failed=[1]))
    weights = strategy.weights()
    assert weights[1] == pytest.approx(0.3, abs=1e-12)
    assert math.log(weights[2] / weights[0]) == pytest.approx(math.log(1 / 6) + 0.5)
    assert weights.sum() == pytest.approx(1)


def test_a_dataset_of_weight_zero_stays_out_of_the_smoothing_too() -> None:
    strategy = started(init=Weights({"a": 1, "b": 0, "c": 3}), smoothing=0.2)
    assert strategy.candidates().tolist() == [0, 2]
    strategy.update(aligned([1.0, 1.0], probed=[0, 2]))
    assert strategy.weights() == pytest.approx([0.8 * 0.25 + 0.1, 0.0, 0.8 * 0.75 + 0.1])


def test_updates_are_due_at_the_interval() -> None:
    strategy = started(update_every=3)
    assert [step for step in range(10) if strategy.due(step, 0.0)] == [3, 6, 9]


def test_a_restored_state_continues_bitwise() -> None:
    random = np.random.default_rng(0)
    rounds = [aligned(random.normal(1.0, 2.0, 3).tolist()) for _ in range(6)]

    def update(strategy: DoGE, first: int, last: int) -> None:
        for number in range(first, last):
            strategy.due(10 * number, 1 - number / 6)
            strategy.update(rounds[number])

    whole, stopped, resumed = started(), started(), started()
    update(whole, 0, 6)
    update(stopped, 0, 3)
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert resumed.outcome().tolist() == stopped.outcome().tolist()
    update(resumed, 3, 6)
    assert resumed.weights().tolist() == whole.weights().tolist()
    assert resumed.outcome().tolist() == whole.outcome().tolist()
    assert resumed.state_dict() == whole.state_dict()
    assert whole.weights().std() > 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"update_every": 0}, "update_every"),
        ({"step": 0.0}, "step"),
        ({"clip": -1.0}, "clip"),
        ({"clip": math.nan}, "clip"),
        ({"smoothing": 1.0}, "smoothing"),
        ({"smoothing": -0.1}, "smoothing"),
        ({"max_epochs": 0}, "max_epochs"),
    ],
)
def test_invalid_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        started(**options)

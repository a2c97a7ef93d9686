"""Cooldown: a high temperature first, a low one after the switch.

- Before and after the switch it equals static sampling at the hot and the cold temperature, bitwise.
- The linear shape is linear in 1 / tau, and never raises the probability of a small dataset.
- The floor holds and there is no state. A cooldown that heats up, or a switch outside the run, is refused.
- In a real run the temperature falls with the batches drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from mixfluence.errors import RecipeError
from mixfluence.policy import Temperature, Vector
from mixfluence.runs import read_trace
from mixfluence.strategies.static import Cooldown, Static
from tests.training.runs import arguments, build

SIZES = {"large": 32, "small": 1}


def started(hot: float = 5.0, cold: float = 1.0, sizes: dict[str, int] = SIZES, **options: Any) -> Cooldown:
    strategy = Cooldown(hot=hot, cold=cold, **options)
    strategy.start(sizes)
    return strategy


def static(tau: float) -> Vector:
    strategy = Static(init=Temperature(tau))
    strategy.start(SIZES)
    return strategy.weights()


def test_a_step_is_one_static_distribution_and_then_another() -> None:
    strategy = started()
    # 32 ** (1 / 5) is 2.
    assert strategy.weights(0.0) == pytest.approx([2 / 3, 1 / 3])
    assert strategy.weights(0.5) == pytest.approx([32 / 33, 1 / 33])
    for progress, tau in {0.0: 5.0, 0.499: 5.0, 0.5: 1.0, 0.75: 1.0, 1.0: 1.0}.items():
        assert strategy.weights(progress).tolist() == static(tau).tolist(), progress


def test_the_temperature_changes_at_the_switch() -> None:
    strategy = started(math.inf, 0.5, switch=0.2)
    assert strategy.weights(0.199).tolist() == [0.5, 0.5]
    assert strategy.weights(0.2).tolist() == static(0.5).tolist()
    late = started(switch=1.0)
    assert late.weights(0.999).tolist() == static(5.0).tolist()


def test_the_linear_shape_is_linear_in_the_inverse_temperature() -> None:
    strategy = started(math.inf, 1.0, shape="linear", switch=0.8, sizes={"large": 16, "small": 1})
    for progress, odds in {0.0: 1.0, 0.2: 2.0, 0.4: 4.0, 0.6: 8.0, 0.8: 16.0, 0.9: 16.0, 1.0: 16.0}.items():
        large, small = strategy.weights(progress)
        assert large / small == pytest.approx(odds), progress
    assert started(5.0, 2.0, shape="linear").temperature(0.25) == pytest.approx(1 / 0.35)


@pytest.mark.parametrize("shape", ["step", "linear"])
def test_small_datasets_are_never_drawn_more_often_than_before(shape: str) -> None:
    strategy = started(7.0, 0.3, shape=shape, switch=0.7)
    shares = [strategy.weights(progress)[1] for progress in np.linspace(0, 1, 101)]
    assert (np.diff(shares) <= 0).all()
    assert shares[0] > 1e3 * shares[-1]


def test_equal_temperatures_are_static_sampling() -> None:
    for shape in ("step", "linear"):
        for tau in (2.0, math.inf):
            strategy = started(tau, tau, shape=shape)
            for progress in (0.0, 0.3, 0.5, 1.0):
                assert strategy.weights(progress) == pytest.approx(static(tau), abs=1e-15)


def test_the_floor_holds_throughout() -> None:
    strategy = started(5.0, 0.1, floor=0.2)
    assert min(strategy.weights(1.0)) == pytest.approx(0.2)
    assert strategy.weights(0.0) == pytest.approx([0.6 * 2 / 3 + 0.2, 0.6 / 3 + 0.2])
    with pytest.raises(RecipeError, match=r"a floor of 0\.6 for 2 datasets"):
        started(floor=0.6)


def test_it_keeps_no_state() -> None:
    strategy = started()
    strategy.weights(0.7)
    assert strategy.state_dict() == {}
    assert strategy.weights(0.1).tolist() == static(5.0).tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hot": 1.0, "cold": 5.0}, "hot"),
        ({"hot": math.nan}, "hot"),
        ({"cold": 0.0}, "cold"),
        ({"hot": -1.0, "cold": -2.0}, "hot"),
        ({"switch": 0.0}, "switch"),
        ({"switch": 1.5}, "switch"),
        ({"shape": "cosine"}, "shape"),
        ({"max_epochs": 0}, "max_epochs"),
    ],
)
def test_invalid_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Cooldown(**options)


@pytest.mark.slow
def test_a_run_cools_down_as_it_draws(make_static: Callable[[], SentenceTransformer], tmp_path: Path) -> None:
    # 30 and 18 rows; at 0.01 the larger has all the probability.
    trainer = build(make_static(), arguments(tmp_path, max_steps=8), strategy=Cooldown(hot=math.inf, cold=0.01))
    trainer.train()
    lines = [line for line in read_trace(tmp_path / "trace.jsonl") if "trained" in line]
    # A line has the weights of the draw that follows it.
    assert [line["weights"]["far"] for line in lines[:3]] == [0.5] * 3
    assert all(line["weights"]["far"] < 1e-9 for line in lines[3:])
    assert [dataset for line in lines[4:] for dataset in line["trained"]] == [0] * 4

"""Target-only sampling and replay.

- Target-only draws the datasets named like a target and gives all others exactly zero.
- Several targets share by size, by weights, or evenly; a target without a training dataset is ignored.
- A replay samples by the weights of another run, under its own name.
- If nothing can be drawn, the error names the targets and the training datasets.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mixfluence.errors import RecipeError
from mixfluence.policy import Temperature, Weights
from mixfluence.policy.initial import write_weights
from mixfluence.strategies import Replay, Static, TargetOnly

SIZES = {"a": 10, "b": 30, "c": 60}


def started(strategy: TargetOnly) -> TargetOnly:
    strategy.start(SIZES)
    return strategy


def test_a_single_target_gets_everything() -> None:
    strategy = started(TargetOnly(targets=["b"], max_epochs=3))
    assert strategy.weights().tolist() == strategy.weights(0.9).tolist() == [0.0, 1.0, 0.0]
    assert strategy.max_epochs == 3
    assert strategy.state_dict() == {}
    assert strategy.probing is None


def test_several_targets_share_as_the_start_says() -> None:
    assert started(TargetOnly(targets=["c", "a"])).weights().tolist() == [0.5, 0.0, 0.5]
    assert started(TargetOnly(targets=["a", "b"], init=Temperature(1.0))).weights() == pytest.approx([0.25, 0.75, 0])
    weighted = started(TargetOnly(targets=["a", "b", "c"], init=Weights({"a": 1, "b": 0, "c": 3})))
    assert weighted.weights() == pytest.approx([0.25, 0, 0.75])
    assert started(TargetOnly(targets=["a", "b"], init=Temperature(1.0))).weights()[2] == 0.0


def test_a_target_without_rows_of_its_own_is_ignored() -> None:
    assert started(TargetOnly(targets=["elsewhere", "b"])).weights().tolist() == [0.0, 1.0, 0.0]


def test_targets_without_any_rows_of_their_own_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"the targets are x, y, the training datasets a, b, c$"):
        started(TargetOnly(targets=["x", "y"]))
    with pytest.raises(RecipeError, match=r"the targets are none, the training datasets a, b, c$"):
        started(TargetOnly(targets=[]))
    with pytest.raises(RecipeError, match=r"^init.* a$"):
        started(TargetOnly(targets=["a"], init=Weights({"a": 0, "b": 1, "c": 1})))
    with pytest.raises(RecipeError, match="max_epochs"):
        TargetOnly(targets=["a"], max_epochs=0)


def test_a_replay_is_the_static_mixture_of_a_run(tmp_path: Path) -> None:
    weights = {"c": 0.5, "a": 0.3, "b": 0.2}
    write_weights(tmp_path / "weights.json", weights)
    replay, static = Replay(run=tmp_path, which="final", max_epochs=2), Static(init=Weights(weights))
    for strategy in (replay, static):
        strategy.start(SIZES)
    assert replay.weights().tolist() == static.weights().tolist()
    assert replay.weights() == pytest.approx([0.3, 0.2, 0.5])
    assert replay.max_epochs == 2
    # The name is part of a checkpoint and of the model card.
    assert type(replay).__name__ == "Replay"


def test_a_replay_of_another_pool_is_refused(tmp_path: Path) -> None:
    write_weights(tmp_path / "weights.json", {"a": 0.5, "b": 0.25, "c": 0.125, "d": 0.125})
    with pytest.raises(RecipeError, match="weight for 'd', which is not a training dataset"):
        Replay(run=tmp_path, which="final").start(SIZES)
    write_weights(tmp_path / "weights.json", {"a": 0.5, "b": 0.5})
    with pytest.raises(RecipeError, match="no weight for 'c'"):
        Replay(run=tmp_path, which="final").start(SIZES)

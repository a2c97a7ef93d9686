"""Aioli measures influences during training, block by block, without rolling back.

- Where a step on dataset i changes target j by A[i, j], a sweep finds A exactly, for losses and for metrics that
  rise, and every step of it is a training step.
- Dev sets are evaluated before the first block and after each block, and at no other time.
- Two copies of a dataset get equal weights, and equal influences keep the start.
- Over two sweeps, progress that slows down steadily favours no dataset. A dataset of weight zero is never tried.
- A dev metric that is not finite drops the sweep and nothing else.
- A run resumed at any step, also within a sweep, equals the uninterrupted run.
- A real run finds the dataset that is like the target, and traces what it measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer

from mixfluence.errors import RecipeError
from mixfluence.influence import Influences, Metric, Probe, info_nce_metric
from mixfluence.policy import Temperature, Vector, Weights
from mixfluence.runs import read_trace
from mixfluence.strategies.aioli import Aioli
from mixfluence.training.losses import info_nce
from mixfluence.training.trainer import MixtureTrainer
from tests.training.runs import arguments, build
from tests.training.test_resume import StopAt, without_times

NONE = np.array([], np.int64)
# Three datasets, two targets; the second harms one of them.
WORLD = np.array([[0.25, 0.5], [-0.125, 0.75], [0.5, 0.0]])
QUICK: dict[str, Any] = {"update_every": 10, "warmup_steps": 4, "block_steps": 2}


def started(strategy: Aioli, datasets: int = 3) -> Aioli:
    strategy.start({f"d{number}": 10 * (number + 1) for number in range(datasets)})
    return strategy


def probe(*, metric: Metric | Literal["training-loss"] | None = None, **options: Any) -> Probe:
    return Probe(metric=metric or info_nce_metric(), **options)


class World:
    """A model whose dev values change by what a step's batches, in expectation, are worth."""

    def __init__(self, strategy: Aioli, worth: Vector, *, rising: bool = False) -> None:
        self.strategy = strategy
        self.worth = worth
        self.sign = 1 if rising else -1
        self.dev = np.full(worth.shape[1], 8.0)
        self.step = 0
        self.dev_evals: list[int] = []
        self.drawn: list[list[float]] = []
        self.facts: list[dict[str, Any]] = []

    def train(self, steps: int, relative_rate: float = 1.0) -> None:
        for _ in range(steps):
            self.drawn.append(self.strategy.weights().tolist())
            self.dev = self.dev + self.sign * self.strategy.weights() @ self.worth
            self.step += 1
            if self.strategy.due(self.step, relative_rate):
                self.look()

    def look(self) -> None:
        assert len(self.strategy.candidates()) == 0
        targets = [f"t{number}" for number in range(len(self.dev))]
        self.dev_evals.append(self.step)
        self.facts.append(
            self.strategy.update(
                Influences(NONE, NONE, targets, self.dev.copy(), [np.zeros((0, 5)) for _ in targets], self.sign)
            )
        )

    def found(self) -> Vector:
        """What the last sweep found, datasets x targets."""
        traced = [facts["influence_on"] for facts in self.facts if "influence_on" in facts]
        return np.array([list(column.values()) for column in traced[-1].values()]).T


# What is measured.


@pytest.mark.parametrize("rising", [False, True])
def test_a_linear_world_is_found_exactly(rising: bool) -> None:
    strategy = started(Aioli(**QUICK))
    world = World(strategy, WORLD, rising=rising)
    world.train(23)
    assert len([facts for facts in world.facts if "influence" in facts]) == 2
    assert world.found() == pytest.approx(WORLD, abs=1e-9)
    assert world.facts[-1]["influence"] == pytest.approx({"d0": 0.375, "d1": 0.3125, "d2": 0.25})


def test_the_training_loss_is_a_loss() -> None:
    world = World(started(Aioli(**QUICK, probe=probe(metric="training-loss"))), WORLD)
    world.train(10)
    assert world.found() == pytest.approx(WORLD)


def test_dev_is_evaluated_before_the_first_block_and_after_each() -> None:
    world = World(started(Aioli(**QUICK)), WORLD)
    world.train(34)
    assert world.dev_evals == [4, 6, 8, 10, 14, 16, 18, 20, 24, 26, 28, 30, 34]
    blocks = [facts.get("block") for facts in world.facts[:4]]
    assert blocks[3] is None
    assert {*blocks[:3]} == {"d0", "d1", "d2"}
    for number, block in enumerate(blocks[:3]):
        one_hot = [float(name == block) for name in ("d0", "d1", "d2")]
        assert world.drawn[4 + 2 * number : 6 + 2 * number] == [one_hot] * 2


def test_a_block_draws_one_dataset_and_training_goes_on_by_what_was_learned() -> None:
    strategy = started(Aioli(**QUICK))
    world = World(strategy, WORLD)
    world.train(14)
    assert [sorted(weights) for weights in world.drawn[4:10]] == [[0.0, 0.0, 1.0]] * 6
    tried = [weights.index(max(weights)) for weights in world.drawn[4:10]]
    assert tried[::2] == tried[1::2]
    assert sorted(tried[::2]) == [0, 1, 2]
    assert world.drawn[:4] == [pytest.approx([1 / 3] * 3)] * 4
    assert world.drawn[10:] == [strategy.outcome().tolist()] * 4
    assert len(set(world.drawn[10])) == 3


def test_no_sweep_starts_at_a_low_learning_rate_but_one_begun_is_finished() -> None:
    world = World(started(Aioli(**QUICK, freeze_below=0.5)), WORLD)
    world.train(9, relative_rate=0.4)
    assert world.dev_evals == []
    world.train(5, relative_rate=0.6)
    world.train(16, relative_rate=0.4)
    assert world.dev_evals == [14, 16, 18, 20]


def test_the_first_sweep_waits_for_the_warm_up() -> None:
    strategy = started(Aioli(update_every=10, warmup_steps=0, block_steps=1))
    assert [step for step in range(21) if strategy.due(step, 1.0)] == [10, 20]
    strategy = started(Aioli(update_every=10, warmup_steps=25, block_steps=1))
    assert [step for step in range(46) if strategy.due(step, 1.0)] == [25, 35, 45]


def test_steady_slowing_favours_no_dataset_over_two_sweeps() -> None:
    """A drop that shrinks by the same amount from block to block, and is the same for all datasets."""
    strategy = started(Aioli(update_every=20, warmup_steps=0, block_steps=1), datasets=5)
    orders: list[list[str]] = []
    for _ in range(4):
        dev, drops = 8.0, np.linspace(0.5, 0.1, 5)
        order = []
        for drop in [*drops, 0.0]:
            facts = strategy.update(Influences(NONE, NONE, ["t"], np.array([dev]), [np.zeros((0, 1))]))
            order.append(facts.get("block", ""))
            dev -= float(drop)
        orders.append(order[:-1])
        uneven = np.ptp(strategy.outcome())
        assert (uneven < 1e-12) == (len(orders) % 2 == 0)
    assert orders[1] == orders[0][::-1]
    assert orders[2] not in orders[:2]
    assert sorted(orders[2]) == sorted(orders[0])


# What is made of it.


def test_shares_add_up_on_the_logits() -> None:
    # Column of t0: 0.25, -0.125, 0.5. Shifted by the least: 0.375, 0, 0.625 of a total of 1.
    worth = WORLD[:, :1]
    strategy = started(Aioli(init=Temperature(1.0), **QUICK, step=2.0))
    world = World(strategy, worth)
    world.train(13)
    once = np.array([1.0, 2.0, 3.0]) * np.exp(2.0 * np.array([0.375, 0.0, 0.625]))
    assert strategy.weights() == pytest.approx(once / once.sum())
    world.train(10)
    twice = np.array([1.0, 2.0, 3.0]) * np.exp(4.0 * np.array([0.375, 0.0, 0.625]))
    assert strategy.weights() == pytest.approx(twice / twice.sum())


def test_influences_above_zero_are_not_shifted() -> None:
    strategy = started(Aioli(**QUICK, step=1.0), datasets=2)
    World(strategy, np.array([[0.75], [0.25]])).train(13)
    assert strategy.weights()[0] / strategy.weights()[1] == pytest.approx(math.exp(0.5))


def test_a_memory_keeps_the_weights_near_the_start() -> None:
    strategy = started(Aioli(init=Temperature(1.0), **QUICK, step=2.0, memory=0.75))
    world = World(strategy, WORLD[:, :1])
    world.train(13)
    first = np.array([0.375, 0.0, 0.625])
    expected = np.array([1.0, 2.0, 3.0]) * np.exp(2.0 * first)
    assert strategy.weights() == pytest.approx(expected / expected.sum())
    world.worth = np.array([[0.0], [1.0], [0.0]])
    world.train(10)
    mean = 0.75 * first + 0.25 * np.array([0.0, 1.0, 0.0])
    expected = np.array([1.0, 2.0, 3.0]) * np.exp(2.0 * mean)
    assert strategy.weights() == pytest.approx(expected / expected.sum())


@pytest.mark.parametrize("memory", [None, 0.5])
def test_two_copies_of_a_dataset_get_equal_weights(memory: float | None) -> None:
    strategy = Aioli(update_every=20, warmup_steps=4, memory=memory)
    started(strategy, datasets=4)
    World(strategy, np.array([[0.3, 0.1], [0.1, 0.1], [0.3, 0.1], [0.0, 0.2]])).train(120)
    weights = strategy.outcome()
    assert weights[0] == pytest.approx(weights[2], rel=1e-9)
    assert weights[0] > 1.05 * weights[1]


@pytest.mark.parametrize("worth", [0.1, 0.0, -0.1])
def test_equal_influences_leave_the_start(worth: float) -> None:
    strategy = started(Aioli(init=Temperature(1.0), **QUICK, step=5.0))
    World(strategy, np.full((3, 2), worth)).train(54)
    assert strategy.outcome() == pytest.approx([1 / 6, 2 / 6, 3 / 6], abs=1e-9)


def test_a_single_dataset_keeps_all_the_weight() -> None:
    for worth in (0.5, 0.0, -0.5):
        strategy = started(Aioli(**QUICK), datasets=1)
        world = World(strategy, np.array([[worth]]))
        world.train(30)
        assert world.drawn == [[1.0]] * 30
        assert world.found() == pytest.approx(np.array([[worth]]))


def test_a_dataset_of_weight_zero_is_never_tried() -> None:
    strategy = started(Aioli(init=Weights({"d0": 1, "d1": 0, "d2": 1}), **QUICK))
    world = World(strategy, WORLD)
    world.train(30)
    assert [weights[1] for weights in world.drawn] == [0.0] * 30
    assert world.dev_evals == [4, 6, 8, 14, 16, 18, 24, 26, 28]
    assert world.facts[-1]["influence"].keys() == {"d0", "d2"}
    assert world.found() == pytest.approx(WORLD[[0, 2]])


def test_the_floor_holds_outside_sweeps() -> None:
    strategy = started(Aioli(**QUICK, step=1e3, floor=0.1))
    World(strategy, WORLD).train(13)
    assert min(strategy.weights()) == pytest.approx(0.1)
    with pytest.raises(RecipeError, match=r"a floor of 0\.5 for 3 datasets"):
        started(Aioli(**QUICK, floor=0.5))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("when", [0, 1, 3])
def test_a_dev_metric_that_is_not_finite_drops_the_sweep_and_nothing_else(bad: float, when: int) -> None:
    strategy = started(Aioli(**QUICK))
    world = World(strategy, WORLD)
    world.train(13)
    before = strategy.outcome()
    world.train(2 * when)
    world.dev[1], good = bad, world.dev[1]
    world.train(1)
    world.dev[1] = good
    assert strategy.outcome().tolist() == before.tolist()
    assert strategy.weights().tolist() == before.tolist()
    assert "dropped" in world.facts[-1]
    json.dumps(world.facts[-1], allow_nan=False)
    world.train(30 - world.step)
    assert world.dev_evals[-4:] == [24, 26, 28, 30]
    assert world.found() == pytest.approx(WORLD)
    assert strategy.outcome().tolist() != before.tolist()


# States and arguments.


@pytest.mark.parametrize("memory", [None, 0.9])
@pytest.mark.parametrize("stop", [0, 3, 4, 5, 6, 9, 10, 12, 17])
def test_a_resumed_run_equals_the_uninterrupted_run(stop: int, memory: float | None) -> None:
    def world() -> World:
        strategy = started(Aioli(init=Temperature(2.0), **QUICK, memory=memory))
        return World(strategy, WORLD)

    whole, first, second = world(), world(), world()
    whole.train(40)
    first.train(stop)
    saved = first.strategy.state_dict()
    first.train(7)
    second.strategy.load_state_dict(json.loads(json.dumps(saved, allow_nan=False)))
    second.step, second.dev = stop, np.full(2, 8.0)
    for weights in whole.drawn[:stop]:
        second.dev = second.dev - np.array(weights) @ WORLD
    second.train(40 - stop)
    assert second.drawn == whole.drawn[stop:]
    assert second.strategy.state_dict() == whole.strategy.state_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"block_steps": 0}, "block_steps"),
        ({"step": 0.0}, "step"),
        ({"memory": 1.0}, "memory"),
        ({"update_every": 12}, r"update_every"),
        ({"update_every": 0}, "update_every"),
    ],
)
def test_impossible_settings_are_refused_before_training(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        started(Aioli(**options))


# Real runs.


def mapped(*gaps: int, shift: int = 40) -> Dataset:
    """For each gap the 40 pairs of words so far apart, answered by the words that stand `shift` places behind them."""
    pairs = [(word, (word + gap) % 40) for gap in gaps for word in range(40)]
    return Dataset.from_dict(
        {
            "query": [f"w{one} w{two}" for one, two in pairs],
            "answer": [f"w{shift + one} w{shift + two}" for one, two in pairs],
        }
    )


def new_trainer(model: SentenceTransformer, folder: Path, **options: Any) -> MixtureTrainer:
    """Return a trainer of a pool in which only `right` has the target's rule."""
    callbacks = options.pop("callbacks", None)
    plan = {"max_steps": 60, "learning_rate": 0.02, "per_device_train_batch_size": 16, **options}
    return build(
        model,
        arguments(folder, **plan),
        loss=info_nce(model, 0.1),
        train_dataset={"wrong": mapped(1, 2, shift=80), "right": mapped(1, 2), "other": mapped(4, 5, shift=120)},
        dev_dataset={"target": mapped(3)},
        strategy=Aioli(
            update_every=12, warmup_steps=2, block_steps=3, step=2.0, probe=probe(metric=info_nce_metric(0.1))
        ),
        callbacks=callbacks,
    )


@pytest.mark.slow
def test_a_run_finds_the_dataset_like_the_target(
    make_static: Callable[[], SentenceTransformer], tmp_path: Path
) -> None:
    trainer = new_trainer(make_static(), tmp_path, max_steps=48)
    trainer.train()
    lines = read_trace(tmp_path / "trace.jsonl")
    updates = [line for line in lines if "update" in line]
    assert [line["step"] for line in updates[:5]] == [2, 5, 8, 11, 14]
    assert {line["update"]["memory"] for line in updates} == {0.0}
    drawn = [dataset for line in lines for dataset in line.get("trained", [])]
    assert len(drawn) == 48
    blocks = [line["update"]["block"] for line in updates[:3]]
    assert sorted(blocks) == ["other", "right", "wrong"]
    assert drawn[2:11] == [["wrong", "right", "other"].index(block) for block in blocks for _ in range(3)]
    measured = [line["update"]["influence"] for line in updates if "influence" in line["update"]]
    assert len(measured) == 4
    total = {name: sum(found[name] for found in measured) for name in measured[0]}
    assert total["right"] > 1.2 * max(total["wrong"], total["other"])
    outcome = trainer.strategy.outcome()
    assert outcome is not None
    assert outcome[1] > 0.5
    # It trained on the way: a look's value is the next one's start.
    dev = [line["update"]["dev"]["target"] for line in updates]
    assert dev[0] - dev[3] == pytest.approx(3 * sum(measured[0].values()))


@pytest.mark.slow
@pytest.mark.parametrize("stop", [5, *(pytest.param(step, marks=pytest.mark.soak) for step in (7, 12))])
def test_a_real_run_resumed_in_a_sweep_equals_the_uninterrupted_run(
    make_static: Callable[[], SentenceTransformer], tmp_path: Path, stop: int
) -> None:
    plan = {"max_steps": 24, "save_strategy": "steps", "save_steps": stop, "save_total_limit": None}
    whole = new_trainer(make_static(), tmp_path / "whole", **plan)
    whole.train()
    new_trainer(make_static(), tmp_path / "parts", callbacks=[StopAt(stop + 2)], **plan).train()
    resumed = new_trainer(make_static(), tmp_path / "parts", **plan)
    resumed.train(resume_from_checkpoint=str(tmp_path / "parts" / f"checkpoint-{stop}"))
    assert resumed.strategy.state_dict() == whole.strategy.state_dict()
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    traced = [read_trace(tmp_path / run / "trace.jsonl") for run in ("whole", "parts")]
    traced = [[{**line, "update": {**line.get("update", {}), "seconds": 0}} for line in lines] for lines in traced]
    assert without_times(traced[0]) == without_times(traced[1])

"""ODM: a bandit on the training loss.

- Rewards, exploration and probabilities are those of the published equations, computed by hand.
- On arms of known loss the draws settle at the fixed point of the equations, and follow when the arms change.
- It starts uniform, never drops a dataset, and returns to uniform as the exploration falls.
- In a real run it is told the loss of every batch, whatever the accumulation, and a resumed run is told the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from mixfluence.policy import Vector, Weights, softmax
from mixfluence.runs import read_trace
from mixfluence.strategies.odm import ODM
from tests.training.runs import arguments, build

SIZES = {"a": 10, "b": 100, "c": 1000}


def started(**options: Any) -> ODM:
    strategy = ODM(**{"warmup_batches": 0, **options})
    strategy.start(SIZES)
    return strategy


def exploration(batches: int, count: int = 3) -> float:
    return min(1 / count, math.sqrt(math.log(count) / (count * batches)))


def test_two_batches_by_hand() -> None:
    odm = started(memory=0.75)
    for _ in range(8):
        odm.observe(0, 1.2)
    # Nothing is known of the others, so all count alike, and the reward of the first is 1.2 / (1/3).
    assert odm.weights().tolist() == pytest.approx([1 / 3] * 3)
    odm.observe(1, 0.6)
    rewards = np.array([3.6, 1.8, 2.7])
    expected = (1 - 3 * exploration(9)) * softmax(exploration(8) * rewards) + exploration(9)
    assert odm.weights().tolist() == pytest.approx(expected.tolist())
    odm.observe(1, 2.0)
    rewards[1] = 0.75 * 1.8 + 0.25 * 2.0 / expected[1]
    rewards[2] = rewards[:2].mean()
    expected = (1 - 3 * exploration(10)) * softmax(exploration(9) * rewards) + exploration(10)
    assert odm.weights().tolist() == pytest.approx(expected.tolist())
    assert odm.weights().sum() == pytest.approx(1)


def play(odm: ODM, losses: Sequence[float], batches: int, seed: int = 0) -> Vector:
    """Draw batches from arms of known loss; return the mean of the probabilities over the second half."""
    rng, history = np.random.default_rng(seed), []
    for _ in range(batches):
        weights = odm.weights()
        history.append(weights)
        arm = int(rng.choice(len(weights), p=weights / weights.sum()))
        odm.observe(arm, losses[arm])
    return np.asarray(np.mean(history[batches // 2 :], axis=0))


def fixed_point(losses: Vector, batches: int) -> Vector:
    """Return the probabilities that reproduce themselves if every reward is its expectation, loss / probability."""
    weights, rate = np.full(len(losses), 1 / len(losses)), exploration(batches)
    for _ in range(1000):
        greedy = (1 - len(losses) * rate) * softmax(rate * losses / weights) + rate
        weights = 0.9 * weights + 0.1 * greedy
    return weights


def test_draws_settle_where_the_equations_say_and_follow_the_arms() -> None:
    losses = np.array([1.0, 2.0, 4.0])
    odm = started()
    first = play(odm, losses.tolist(), 400)
    assert first.tolist() == pytest.approx(fixed_point(losses, 300).tolist(), abs=0.03)
    assert first[0] < first[1] < first[2]
    second = play(odm, losses[::-1].tolist(), 400)
    assert second[0] > second[1] > second[2]
    assert second.tolist() == pytest.approx(fixed_point(losses[::-1], 700).tolist(), abs=0.03)


def test_it_starts_uniform_keeps_every_dataset_and_returns_to_uniform() -> None:
    odm = started()
    for batch in range(3):
        odm.observe(batch, 10.0**batch)
    assert exploration(3) == 1 / 3
    assert odm.weights().tolist() == pytest.approx([1 / 3] * 3)
    for _ in range(400):
        odm.observe(2, 100.0)
    assert odm.weights()[2] > 0.5
    assert odm.weights().min() >= exploration(403)
    late = started()
    late.load_state_dict({"rewards": [1.0, 2.0, 3.0], "batches": 10**9})
    assert late.weights().tolist() == pytest.approx([1 / 3] * 3, abs=1e-3)


def test_a_warm_up_draws_by_the_start_and_a_weight_of_zero_stays() -> None:
    odm = started(warmup_batches=5, init=Weights({"a": 3, "b": 1, "c": 0}))
    for _ in range(6):
        assert odm.weights().tolist() == pytest.approx([0.75, 0.25, 0])
        odm.observe(0, 1.0)
    assert odm.weights()[2] == 0
    assert odm.weights().sum() == pytest.approx(1)


def test_a_loss_that_is_not_finite_is_ignored() -> None:
    odm = started()
    odm.observe(0, math.nan)
    assert odm.weights().tolist() == pytest.approx([1 / 3] * 3)
    odm.observe(1, 1.0)
    before = odm.state_dict()["rewards"]
    odm.observe(1, math.inf)
    assert odm.state_dict()["rewards"] == before


class Listening(ODM):
    """Keeps what it was told."""

    def start(self, sizes: Any) -> None:
        super().start(sizes)
        self._heard: list[tuple[int, float]] = []

    @property
    def heard(self) -> list[tuple[int, float]]:
        return self._heard

    def observe(self, dataset: int, loss: float) -> None:
        super().observe(dataset, loss)
        self._heard.append((dataset, loss))


@pytest.mark.slow
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_run_tells_the_loss_of_every_batch(
    accumulation: int, tmp_path: Path, tiny_bert: SentenceTransformer
) -> None:
    odm = Listening(warmup_batches=0)
    args = arguments(tmp_path, gradient_accumulation_steps=accumulation)
    build(tiny_bert, args, strategy=odm).train()
    lines = [line for line in read_trace(tmp_path / "trace.jsonl") if "loss" in line]
    assert [dataset for dataset, _ in odm.heard] == [dataset for line in lines for dataset in line["trained"]]
    means = np.array([loss for _, loss in odm.heard]).reshape(-1, accumulation).mean(axis=1)
    assert [line["loss"] for line in lines] == pytest.approx(means.tolist(), abs=1e-3)


@pytest.mark.slow
def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path: Path, tiny_bert_folder: Path) -> None:
    def train(folder: Path, resume: Path | None = None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        odm = ODM(warmup_batches=1)
        model = SentenceTransformer(str(tiny_bert_folder), device="cpu")
        args = arguments(folder, max_steps=12, save_strategy="steps", save_steps=5)
        build(model, args, strategy=odm).train(resume_from_checkpoint=resume)
        return read_trace(folder / "trace.jsonl"), odm.state_dict()

    trace, state = train(tmp_path / "run")
    again, state_again = train(tmp_path / "run", resume=tmp_path / "run" / "checkpoint-5")
    assert state == state_again
    assert state["batches"] == 12
    for line in (*trace, *again):
        line.pop("seconds")
    assert trace == again
    assert trace[-1]["weights"]["near"] != pytest.approx(0.5, abs=1e-4)

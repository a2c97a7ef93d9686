"""MultiDDS and DoGE in real training runs.

- With weights that do not move, a run that compares gradients is, to the last bit, the run that does not: weights,
  optimizer, draws and log, with dropout and accumulated gradients, in every mode.
- A dataset like the target is better aligned than shuffled answers and other words, and rises; DoGE's outcome says so.
- A run that was stopped and resumed is the run that was not.
- Two processes with half the batch each measure and decide as one process with the whole batch does.
- The trace tells the alignments and their memory. What cannot work is one clear error.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import TrainerCallback

from mixfluence.errors import DataError, RecipeError
from mixfluence.influence import Alignment, Projection, info_nce_metric
from mixfluence.policy import UNIFORM
from mixfluence.runs import read_trace
from mixfluence.strategies import Static, Strategy
from mixfluence.strategies.doge import DoGE
from mixfluence.strategies.multidds import MultiDDS
from mixfluence.training.losses import info_nce
from mixfluence.training.trainer import MixtureTrainer
from tests.training.runs import arguments, build, pool, start_processes
from tests.training.test_inf_dds import (
    EVERY_STEP,
    assert_same,
    draws,
    guided_run,
    influences,
    losses,
    small_run,
    updates,
    weights_and_moments,
)
from tests.training.test_inf_dds_resume import logged, timeless_trace
from tests.training.test_resume import StopAt

pytestmark = pytest.mark.slow
MakeModel = Callable[[], SentenceTransformer]
ROWS = 8


class FrozenMultiDDS(MultiDDS):
    """Measures and reports, but keeps its weights."""

    def _match(self, probed: Any, rewards: Any) -> None:
        pass


class FrozenDoGE(DoGE):
    """Measures and reports, but keeps its weights."""

    def _shift(self, probed: Any, scores: Any) -> None:
        pass


# Measuring has no side effects.


@pytest.mark.parametrize(
    ("strategy", "accumulation"),
    [
        (lambda: FrozenMultiDDS(**EVERY_STEP), 1),
        (lambda: FrozenMultiDDS(**EVERY_STEP, alignment=Alignment(preconditioned=True, batch_size=7)), 1),
        (lambda: FrozenDoGE(update_every=1), 2),
        (lambda: FrozenDoGE(update_every=1, alignment=Projection(preconditioned=True, metric="training-loss")), 1),
    ],
    ids=["cosine", "preconditioned", "projection, accumulation", "projection, all"],
)
def test_a_run_with_frozen_weights_is_the_run_without_measurements(
    tiny_bert_folder: Path, tmp_path: Path, strategy: Callable[[], Strategy], accumulation: int
) -> None:
    results = []
    for name, sampler in ("measured", strategy()), ("plain", Static(init=UNIFORM)):
        model = SentenceTransformer(str(tiny_bert_folder), device="cpu")
        assert any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
        options = {"gradient_accumulation_steps": accumulation, "weight_decay": 0.1, "warmup_steps": 2}
        trainer = small_run(model, tmp_path / name, sampler, **options)
        results.append((trainer, weights_and_moments({"model": model, "optimizer": trainer.optimizer})))
    (measured, (weights, moments)), (plain, (plain_weights, plain_moments)) = results
    assert len(updates(measured)) == 5
    assert all(value != 0 for round_ in influences(measured) for value in round_.values())
    assert draws(measured) == draws(plain)
    assert losses(measured) == losses(plain)
    assert_same(weights, plain_weights)
    assert_same(moments, plain_moments)


# What is measured, and what comes of it.


@pytest.mark.parametrize(
    "alignment",
    [Alignment(), Alignment(preconditioned=True), Alignment(metric="training-loss")],
    ids=["plain", "preconditioned", "training loss"],
)
def test_a_dataset_like_the_target_is_best_aligned_and_rises(
    make_static: MakeModel, tmp_path: Path, alignment: Alignment
) -> None:
    strategy = MultiDDS(init=UNIFORM, update_every=4, warmup_steps=4, alignment=alignment)
    trainer = guided_run(make_static(), tmp_path, strategy)
    rounds = influences(trainer)
    assert len(rounds) == 4
    for round_ in rounds:
        assert round_["right"] > 0.05
        assert round_["right"] > 1.5 * max(round_["shuffled"], round_["unrelated"])
        assert abs(round_["unrelated"]) < 1e-6
    found = trainer.probabilities()
    assert found["right"] > 2 * max(found["shuffled"], found["unrelated"])


def test_what_doge_finds_favours_a_dataset_like_the_target(make_static: MakeModel, tmp_path: Path) -> None:
    metric = info_nce_metric(0.1)
    strategy = DoGE(update_every=2, step=0.2, alignment=Projection(metric=metric))
    trainer = guided_run(make_static(), tmp_path, strategy)
    seen = [list(line["weights"].values()) for line in updates(trainer)]
    assert len(seen) == 9
    assert strategy.outcome() == pytest.approx(np.mean(seen, axis=0))
    right, shuffled, unrelated = strategy.outcome()
    assert right > shuffled > unrelated
    assert right > 0.4


def test_the_trace_tells_of_all_targets_together(make_static: MakeModel, tmp_path: Path) -> None:
    dev = {"like-near": pool()["near"].select(range(9)), "like-far": pool()["far"]}
    strategy = MultiDDS(update_every=3, warmup_steps=2)
    trainer = small_run(make_static(), tmp_path, strategy, max_steps=6, dev_dataset=dev)
    for line in updates(trainer):
        update = line["update"]
        assert set(update) == {
            "influence",
            "on_targets",
            "target_errors",
            "dev",
            "rows",
            "failed",
            "seconds",
            "memory",
        }
        assert update["on_targets"] == {"like-near+like-far": update["influence"]}
        assert update["influence"].keys() == pool().keys()
        assert update["memory"] == 1
    assert [line["step"] for line in updates(trainer)] == [2, 5]


# Stopped and resumed.

KINDS: dict[str, Callable[[], Strategy]] = {
    "multidds": lambda: MultiDDS(update_every=3, warmup_steps=2, rate=0.01),
    "multidds preconditioned": lambda: MultiDDS(
        update_every=3, warmup_steps=2, rate=0.01, alignment=Alignment(preconditioned=True, dev_batch_size=8)
    ),
    "doge": lambda: DoGE(update_every=3, step=0.2),
    "doge preconditioned": lambda: DoGE(update_every=3, alignment=Projection(preconditioned=True)),
}


def new_trainer(
    model: SentenceTransformer, folder: Path, kind: str, callbacks: list[TrainerCallback] | None = None, **options: Any
) -> MixtureTrainer:
    """Return a trainer with everything new: twelve steps and a round every three."""
    words = range(60, 80)
    third = Dataset.from_dict({"query": [f"w{i}" for i in words], "answer": [f"w{i - 50} w{i}" for i in words]})
    return build(
        model,
        arguments(folder, max_steps=12, save_strategy="steps", save_total_limit=None, **options),
        train_dataset={**pool(), "third": third},
        dev_dataset={"dev": pool()["near"].select(range(20)), "other": third},
        strategy=KINDS[kind](),
        callbacks=callbacks,
    )


@pytest.mark.parametrize(
    ("kind", "transformer", "checkpoint"),
    [
        ("multidds", True, 6),
        pytest.param("multidds preconditioned", False, 5, marks=pytest.mark.soak),
        pytest.param("doge", True, 6, marks=pytest.mark.soak),
        ("doge preconditioned", False, 4),
    ],
)
def test_a_resumed_run_is_the_run_that_was_not_stopped(
    make_static: MakeModel, tiny_bert_folder: Path, tmp_path: Path, kind: str, transformer: bool, checkpoint: int
) -> None:
    def model() -> SentenceTransformer:
        return SentenceTransformer(str(tiny_bert_folder), device="cpu") if transformer else make_static()

    whole = new_trainer(model(), tmp_path / "whole", kind, save_steps=checkpoint)
    whole.train()
    new_trainer(model(), tmp_path / "stopped", kind, [StopAt(9)], save_steps=checkpoint).train()
    resumed = new_trainer(model(), tmp_path / "stopped", kind, save_steps=checkpoint)
    resumed.train(resume_from_checkpoint=str(tmp_path / "stopped" / f"checkpoint-{checkpoint}"))

    trace = timeless_trace(whole)
    assert len({line["weights"]["near"] for line in trace if "update" in line}) > 2
    assert timeless_trace(resumed) == trace
    assert resumed.mixture_state() == whole.mixture_state()
    assert logged(resumed) == logged(whole)
    assert_same(resumed.model.state_dict(), whole.model.state_dict())
    assert_same(*(run.optimizer.state_dict()["state"] for run in (resumed, whole)))


# Several processes, really started.


def main(model_folder: str, output: Path) -> None:
    """Train with eight rows a step over all processes, and leave weights and probabilities in the folder."""
    model = SentenceTransformer(model_folder, device="cpu")
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    # Without clipping, whose threshold would act on each process's share of the gradient alike.
    args = arguments(output, learning_rate=1e-3, max_grad_norm=0.0)
    args.per_device_train_batch_size = ROWS // args.world_size
    alignment = Alignment(dev_batch_size=16, preconditioned=True)
    strategy = MultiDDS(init=UNIFORM, update_every=2, warmup_steps=1, alignment=alignment)
    loss = info_nce(model, 0.05, gather_across_devices=args.world_size > 1)
    dev = {"dev": pool()["near"], "other": pool()["far"]}
    build(model, args, loss=loss, strategy=strategy, dev_dataset=dev).train()
    weights = np.concatenate([parameter.detach().numpy().ravel() for parameter in model.parameters()])
    np.savez(output / f"process-{args.process_index}.npz", weights=weights, logits=strategy.logits)


def test_two_processes_measure_as_one_process_does(tiny_bert_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    start_processes(main, str(tiny_bert_folder), tmp_path / "two")
    main(str(tiny_bert_folder), tmp_path / "one")
    first, second = (np.load(tmp_path / "two" / f"process-{rank}.npz") for rank in range(2))
    alone = np.load(tmp_path / "one" / "process-0.npz")
    for name in ("weights", "logits"):
        assert np.array_equal(first[name], second[name]), name
    assert np.abs(first["weights"] - alone["weights"]).max() < 1e-4
    assert first["logits"] == pytest.approx(alone["logits"], abs=1e-2)
    assert np.ptp(first["logits"]) > 0.1
    one, two = (
        [line["update"]["influence"] for line in read_trace(tmp_path / name / "trace.jsonl") if "update" in line]
        for name in ("one", "two")
    )
    assert len(one) == 3
    for expected, found in zip(one, two, strict=True):
        assert found == pytest.approx(expected, abs=1e-3)


# What cannot work.


@pytest.mark.parametrize("strategy", [MultiDDS(), DoGE()], ids=["multidds", "doge"])
def test_a_run_without_a_dev_set_is_refused(make_static: MakeModel, tmp_path: Path, strategy: Strategy) -> None:
    with pytest.raises(DataError, match=f"{type(strategy).__name__} needs at least one dev set"):
        build(make_static(), arguments(tmp_path), strategy=strategy)


def test_preconditioning_needs_second_moments_from_the_start(make_static: MakeModel, tmp_path: Path) -> None:
    strategy = DoGE(alignment=Projection(preconditioned=True))
    with pytest.raises(RecipeError, match="second moments such as AdamW, found SGD"):
        small_run(make_static(), tmp_path, strategy, optim="sgd")

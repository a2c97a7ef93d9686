"""Inf-DDS that measures the steps of training.

- A run that is measured and does not follow is, to the last bit, the run that is not measured.
- A dataset like the target rises and shuffled answers fall, with several batches per step too; guards are held.
- What a window measures agrees with many trial steps from the same model.
- A run that is stopped in a window, between two, or right behind one ends where the uninterrupted run does. One that
  goes on for longer keeps its window, if it is still of the same rows.
- The first round comes after a whole window. Nothing is evaluated for rounds that do not take place.
- Rounds need no memory; what they cost is in the trace, and in the plan before.
- Settings that need trial steps, or leave no room for a window, raise one clear error.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers import TrainerCallback

from mixfluence.errors import RecipeError
from mixfluence.influence import DevBatch, InLine, Metric, Probe, Probing, Reptile, info_nce_metric
from mixfluence.influence.in_line import StepMeter
from mixfluence.plan import plan_run
from mixfluence.policy import UNIFORM
from mixfluence.recipe_yaml import load_recipe
from mixfluence.strategies import InfDDS, Static, Strategy
from mixfluence.training.losses import info_nce
from mixfluence.training.trainer import MixtureTrainer
from tests.test_experiment import recipe_path
from tests.training.runs import arguments, build
from tests.training.test_guard import datasets, start_model
from tests.training.test_inf_dds import (
    Frozen,
    MakeModel,
    assert_same,
    candidates,
    draws,
    influences,
    losses,
    mapped,
    updates,
    weights_and_moments,
)
from tests.training.test_inf_dds_resume import timeless_trace
from tests.training.test_resume import StopAt

__all__ = ["recipe_path"]
pytestmark = pytest.mark.slow
# Rounds after steps 30, 60 and 90 of 100, each of which measures the thirty steps before it.
EVERY_30: dict[str, Any] = {"init": UNIFORM, "update_every": 30, "warmup_steps": 30, "freeze_below": 0.0}
METRIC = info_nce_metric(0.1)


def in_line(**options: Any) -> InLine:
    return InLine(metric=METRIC, **options)


def new_trainer(model: SentenceTransformer, folder: Path, strategy: Strategy, **options: Any) -> MixtureTrainer:
    ours = {"train_dataset", "dev_dataset", "callbacks"} & options.keys()
    plan = {"max_steps": 100, "learning_rate": 0.02, "per_device_train_batch_size": 8, "logging_steps": 10}
    args = arguments(folder, **plan | {name: value for name, value in options.items() if name not in ours})
    chosen = {"train_dataset": candidates(), "dev_dataset": {"target": mapped(3)}, "loss": info_nce(model, 0.1)}
    return build(model, args, strategy=strategy, **chosen | {name: options[name] for name in ours})


def run(model: SentenceTransformer, folder: Path, strategy: Strategy, **options: Any) -> MixtureTrainer:
    trainer = new_trainer(model, folder, strategy, **options)
    trainer.train()
    return trainer


@pytest.mark.parametrize("accumulation", [1, 2])
def test_measuring_changes_nothing(tiny_bert_folder: Path, tmp_path: Path, accumulation: int) -> None:
    results = []
    for name, strategy in ("measured", Frozen(**EVERY_30, probe=in_line())), ("plain", Static(init=UNIFORM)):
        model = SentenceTransformer(str(tiny_bert_folder), device="cpu")
        options = {"gradient_accumulation_steps": accumulation, "weight_decay": 0.1, "warmup_steps": 2}
        trainer = run(model, tmp_path / name, strategy, max_steps=35, learning_rate=1e-3, **options)
        results.append((trainer, weights_and_moments({"model": model, "optimizer": trainer.optimizer})))
    (measured, (weights, moments)), (plain, (plain_weights, plain_moments)) = results
    assert [line["step"] for line in updates(measured)] == [30]
    assert all(value != 0 for value in influences(measured)[0].values())
    assert draws(measured) == draws(plain)
    assert losses(measured) == losses(plain)
    assert_same(weights, plain_weights)
    assert_same(moments, plain_moments)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_dataset_like_the_target_rises_and_a_shuffled_one_falls(
    make_static: MakeModel, tmp_path: Path, accumulation: int
) -> None:
    strategy = InfDDS(**EVERY_30, probe=in_line())
    trainer = run(make_static(), tmp_path, strategy, gradient_accumulation_steps=accumulation)
    found = trainer.probabilities()
    assert len(updates(trainer)) == 3
    assert found["right"] > 0.5
    assert found["shuffled"] < 0.25


def test_a_window_agrees_with_trial_steps(make_static: MakeModel, tmp_path: Path) -> None:
    shares = {f"share {part}": mapped(1, first=100 - 20 * part) for part in range(6)}
    options: dict[str, Any] = {
        "train_dataset": shares,
        "dev_dataset": {"target": mapped(1)},
        "max_steps": 62,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
    }
    measured = run(
        make_static(), tmp_path / "in line", Frozen(**EVERY_30 | {"update_every": 31}, probe=in_line()), **options
    )
    steps = {"init": UNIFORM, "update_every": 1, "warmup_steps": 1, "freeze_below": 0.0}
    tried = run(make_static(), tmp_path / "trials", Frozen(**steps, probe=Probe(metric=METRIC)), **options)
    window = influences(measured)[1]
    trials = [found for line, found in zip(updates(tried), influences(tried), strict=True) if 31 <= line["step"] < 61]
    means = [float(np.mean([found[name] for found in trials])) for name in shares]
    correlation = np.corrcoef([window[name] for name in shares], means)[0, 1]
    assert len(trials) == 30
    assert correlation > 0.9


def test_a_mixture_moves_to_the_dataset_that_spares_a_guard(make_static: MakeModel, tmp_path: Path) -> None:
    model, found = start_model(make_static(), tmp_path / "start"), {}
    for name, guard in ("without", {}), ("with", {"general": 0.02}):
        dev = {"target": mapped(3)} | ({"general": mapped(3, first=100)} if guard else {})
        strategy = InfDDS(**EVERY_30, probe=in_line(), guard=guard)
        options = {"train_dataset": datasets(), "dev_dataset": dev, "per_device_train_batch_size": 16}
        found[name] = run(deepcopy(model), tmp_path / name, strategy, **options).probabilities()["sharp"]
    assert found["without"] > 0.5 > found["with"]


@pytest.mark.parametrize(("stop", "workers"), [(10, 0), (30, 2), (45, 2)])
def test_a_resumed_run_is_the_uninterrupted_one(
    tiny_bert_folder: Path, tmp_path: Path, stop: int, workers: int
) -> None:
    def plan(callbacks: list[TrainerCallback]) -> dict[str, Any]:
        saved = {"save_strategy": "steps", "save_steps": stop, "learning_rate": 1e-3}
        return {"max_steps": 65, "callbacks": callbacks, "dataloader_num_workers": workers, **saved}

    def model() -> SentenceTransformer:
        return SentenceTransformer(str(tiny_bert_folder), device="cpu")

    strategy = InfDDS(**EVERY_30, probe=in_line(dev_batch_size=16))
    whole = run(model(), tmp_path / "whole", strategy, **plan([]))
    run(model(), tmp_path / "halves", strategy.model_copy(), **plan([StopAt(stop)]))
    resumed = new_trainer(model(), tmp_path / "halves", strategy.model_copy(), **plan([]))
    resumed.train(resume_from_checkpoint=True)
    for name, parameter in whole.model.state_dict().items():
        assert torch.equal(parameter, resumed.model.state_dict()[name]), name
    assert timeless_trace(whole) == timeless_trace(resumed)
    assert whole.mixture_state() == resumed.mixture_state()
    assert len(updates(resumed)) == 2


@pytest.mark.parametrize("rows", [128, 16])
def test_a_run_that_goes_on_for_longer_keeps_its_window(
    make_static: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    chosen: dict[str, Any] = {"learning_rate": 1e-3, "save_strategy": "steps", "save_steps": 10}
    strategy = InfDDS(**EVERY_30, probe=in_line())
    run(make_static(), tmp_path, strategy, max_steps=40, callbacks=[StopAt(10)], **chosen)
    # A budget may choose other rows for a longer run.
    monkeypatch.setattr(InfDDS, "space_rounds", lambda *_: rows)
    evaluated = watch(monkeypatch)
    resumed = new_trainer(make_static(), tmp_path, strategy.model_copy(), max_steps=80, **chosen)
    resumed.train(resume_from_checkpoint=True)
    # The rate of the step after the checkpoint is that of the longer schedule.
    step, rate = evaluated[0]
    assert step == 11
    assert rate == pytest.approx(1e-3 * 70 / 80)
    assert [len(line["update"]["influence"]) for line in updates(resumed)] == [3, 3]


@pytest.mark.parametrize(
    ("options", "steps", "rounds", "evaluations"),
    [
        ({"update_every": 40, "warmup_steps": 1}, 100, [30, 70], 30 + 31),
        ({"update_every": 40, "freeze_below": 0.5}, 100, [30], 30 + 11),
        ({"update_every": 30}, 65, [30, 60], 60),
        ({"update_every": 30}, 25, [], 0),
    ],
)
def test_windows_are_whole_and_lead_to_a_round(
    make_static: MakeModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    steps: int,
    rounds: list[int],
    evaluations: int,
) -> None:
    evaluated = watch(monkeypatch)
    strategy = InfDDS(**{"init": UNIFORM, "freeze_below": 0.0} | options, probe=in_line())
    trainer = run(make_static(), tmp_path, strategy, max_steps=steps)
    assert [line["step"] for line in updates(trainer)] == rounds
    assert len(evaluated) == evaluations


def test_a_short_step_at_the_end_of_an_epoch_has_its_own_batches(
    make_static: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    record = StepMeter.record

    def watched(meter: StepMeter, dev: list[DevBatch], datasets: list[int], rate: float, step: int) -> None:
        batches.append(len(datasets))
        record(meter, dev, datasets, rate, step)

    monkeypatch.setattr(StepMeter, "record", watched)
    # An epoch has 30 batches: seven steps of four, and one of two.
    plan = {"max_steps": -1, "num_train_epochs": 5.0, "gradient_accumulation_steps": 4}
    run(make_static(), tmp_path, InfDDS(**EVERY_30, probe=in_line()), **plan)
    assert batches == 3 * [4, 4, 4, 4, 4, 4, 4, 2] + 6 * [4]


def watch(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """Returns a list that grows by the number and the learning rate of every step that is evaluated."""
    seen: list[tuple[int, float]] = []
    record = StepMeter.record

    def watched(meter: StepMeter, dev: list[DevBatch], datasets: list[int], rate: float, step: int) -> None:
        seen.append((step, rate))
        record(meter, dev, datasets, rate, step)

    monkeypatch.setattr(StepMeter, "record", watched)
    return seen


def test_rounds_cost_evaluations_and_no_memory(recipe_path: Path, make_static: MakeModel, tmp_path: Path) -> None:
    trainer = run(make_static(), tmp_path, InfDDS(**EVERY_30, probe=in_line()))
    assert all(line["update"]["memory"] == 0 for line in updates(trainer))
    assert all(line["update"]["seconds"] > 0 for line in updates(trainer))
    assert trainer.probing is not None
    assert sum(line["update"]["seconds"] for line in updates(trainer)) == pytest.approx(
        trainer.probing.seconds, abs=1e-3
    )
    recipe = load_recipe(
        recipe_path, ["strategy={name: inf-dds, probe: in-line}", "training.steps=1000", "selection=null"]
    )
    stage = plan_run(recipe).stages[-1]
    assert stage.memory == 0
    assert stage.updates >= 4
    assert stage.first_update is not None
    assert stage.first_update >= 30
    assert 0 < stage.measuring_cost <= 0.25 * 1000


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"inner_steps": 3}, "inner_steps"),
        ({"subset": 2}, "subset"),
        ({"reptile": Reptile()}, "reptile"),
        ({"preset": "thorough", "probe": {"name": "in-line"}}, "inner_steps"),
        ({"probe": {"name": "in-line", "state": "inherited"}}, "state"),
        ({"probe": "sideways"}, "probe"),
    ],
)
def test_settings_of_trials_are_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(RecipeError, match=field):
        InfDDS(**{"probe": InLine(), **options})


def test_intervals_too_short_for_a_window_are_refused(make_static: MakeModel, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="update_every"):
        new_trainer(make_static(), tmp_path, InfDDS(update_every=29, probe=InLine()))


def test_a_strategy_that_does_not_say_when_rounds_come_is_refused(make_static: MakeModel, tmp_path: Path) -> None:
    class Own(Static):
        needs_dev = True

        @property
        def probing(self) -> Probing:
            return Probing(in_line())

    with pytest.raises(RecipeError, match="steps_to_round"):
        run(make_static(), tmp_path, Own(init=UNIFORM))


def test_half_precision_does_not_round_what_a_step_changes(tiny_bert_folder: Path, tmp_path: Path) -> None:
    exact: list[bool] = []

    def values(model: nn.Module, batch: DevBatch) -> Tensor:
        plain = SentenceTransformer(str(tiny_bert_folder), device="cpu").eval()
        plain.load_state_dict(model.state_dict())
        found = METRIC.values(model, batch)
        exact.append(torch.equal(found, METRIC.values(plain, batch)))
        return found

    for probe in (
        InLine(metric=Metric(values, higher_is_better=False)),
        Probe(metric=Metric(values, higher_is_better=False)),
    ):
        model = SentenceTransformer(str(tiny_bert_folder), device="cpu")
        run(model, tmp_path / probe.name, InfDDS(**EVERY_30, probe=probe), bf16=True, max_steps=31, learning_rate=1e-3)
        assert all(exact) == (probe.name == "in-line")
        assert len(exact) >= 4
        exact.clear()

"""Edge cases of Inf-DDS: weights that no metric sees, checkpoints of other runs, invalid settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from sentence_transformers import SentenceTransformer

from mixfluence.errors import MixfluenceError, RecipeError
from mixfluence.influence import Reptile
from mixfluence.policy import UNIFORM
from mixfluence.recipe_yaml import load_recipe
from mixfluence.strategies import InfDDS
from mixfluence.training.losses import info_nce
from tests.test_recipes import SMALL, write
from tests.training.runs import arguments, build, pool
from tests.training.test_inf_dds import EVERY_STEP, Breakable, BreakInProbes, influences, small_run, updates
from tests.training.test_resume import StopAt

pytestmark = pytest.mark.slow
MakeModel = Callable[[], SentenceTransformer]


def test_a_probe_that_breaks_weights_the_metric_does_not_see_does_no_harm(
    make_static: MakeModel, tmp_path: Path
) -> None:
    model = make_static()
    broken, plain = Breakable(info_nce(model), math.nan), info_nce(model)
    far = Dataset.from_dict(
        {"anchor": [f"w{i + 100}" for i in range(18)], "positive": [f"w{i + 130}" for i in range(18)]}
    )
    trainer = small_run(
        model,
        tmp_path,
        InfDDS(init=UNIFORM, **EVERY_STEP, reptile=Reptile()),
        max_grad_norm=0.0,
        train_dataset={"near": pool()["near"], "far": far, "far2": far.select(range(17))},
        loss={"near": plain, "far": broken, "far2": plain, "dev": plain},
        callbacks=[BreakInProbes(broken)],
    )
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert [line["update"]["failed"] for line in updates(trainer)] == [["far"]] * 5


def test_reptile_may_be_a_bare_number(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, SMALL), ["strategy={name: inf-dds, reptile: 0.5}"])
    assert isinstance(recipe.strategy, InfDDS)
    assert recipe.strategy.reptile == Reptile(rate=0.5)


def test_a_rule_without_a_name_lists_the_rules(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"strategy\.rule\.name: expected one of gradient, .*anchored"):
        load_recipe(write(tmp_path, SMALL), ["strategy={name: inf-dds, rule: {step: 0.1}}"])


@pytest.mark.parametrize("strategy", ["{preset: [paper]}", "{preset: paper, rule: {name: [x]}}"])
def test_a_list_for_a_word_is_a_recipe_error(tmp_path: Path, strategy: str) -> None:
    with pytest.raises(RecipeError):
        load_recipe(write(tmp_path, SMALL), [f"strategy={{name: inf-dds, {strategy[1:-1]}}}"])


def test_an_override_keeps_the_strategy_that_a_word_named(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, SMALL + "strategy: inf-dds\n"), ["strategy.update_every=10"])
    assert recipe.strategy.name == "inf-dds"


@pytest.mark.parametrize("case", ["static checkpoint", "another dev set more", "other dev rows"])
def test_a_checkpoint_that_does_not_fit_is_refused(make_static: MakeModel, tmp_path: Path, case: str) -> None:
    saving = arguments(tmp_path, save_strategy="steps", save_steps=3)
    dev: dict[str, Any] = {"dev": pool()["near"]}
    strategy = None if case.startswith("static") else InfDDS(**EVERY_STEP)
    build(make_static(), saving, strategy=strategy, dev_dataset=dev).train()
    other = {"static checkpoint": dev, "another dev set more": {**dev, "more": pool()["far"]}}
    trainer = build(
        make_static(),
        arguments(tmp_path),
        strategy=InfDDS(**EVERY_STEP),
        dev_dataset=other.get(case, {"dev": pool()["far"]}),
    )
    with pytest.raises(MixfluenceError):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


def test_a_strategy_that_is_used_again_starts_again(make_static: MakeModel, tmp_path: Path) -> None:
    strategy = InfDDS(**EVERY_STEP)
    rounds = [updates(small_run(make_static(), tmp_path / name, strategy)) for name in "ab"]
    assert [line["weights"] for line in rounds[0]] == [line["weights"] for line in rounds[1]]


def test_a_learning_rate_of_zero_is_no_crash(make_static: MakeModel, tmp_path: Path) -> None:
    assert small_run(make_static(), tmp_path, InfDDS(**EVERY_STEP), learning_rate=0.0).state.global_step == 6


def test_a_resumed_run_logs_the_influences_of_the_round_before(make_static: MakeModel, tmp_path: Path) -> None:
    def new(name: str, *callbacks: Any) -> Any:
        args = arguments(tmp_path / name, max_steps=8, save_strategy="steps", save_steps=4)
        strategy = InfDDS(update_every=4, warmup_steps=2, freeze_below=0.0)
        return build(
            make_static(), args, strategy=strategy, dev_dataset={"dev": pool()["near"]}, callbacks=list(callbacks)
        )

    whole, stopped, resumed = new("whole"), new("stopped", StopAt(5)), new("stopped")
    whole.train()
    stopped.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "stopped" / "checkpoint-4"))
    logs = [[set(entry) for entry in run.state.log_history if "loss" in entry] for run in (whole, resumed)]
    assert logs[0] == logs[1]


def test_a_dev_set_of_one_query_is_refused(make_static: MakeModel, tmp_path: Path) -> None:
    one = Dataset.from_dict({"anchor": ["w1"] * 5, "positive": [f"w{i}" for i in range(2, 7)]})
    with pytest.raises(MixfluenceError):
        small_run(make_static(), tmp_path, InfDDS(**EVERY_STEP), dev_dataset={"dev": one})


def test_a_loss_per_training_set_is_enough_when_dev_is_judged_by_info_nce(
    make_static: MakeModel, tmp_path: Path
) -> None:
    model = make_static()
    trainer = small_run(model, tmp_path, InfDDS(**EVERY_STEP), loss={"near": info_nce(model), "far": info_nce(model)})
    assert len(influences(trainer)) == 5


def test_settings_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MixfluenceError):
        Reptile(rate=-1.0)


def test_an_infinite_probe_rate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError):
        load_recipe(write(tmp_path, SMALL), ["strategy={name: inf-dds, probe: {learning_rate: .inf}}"])

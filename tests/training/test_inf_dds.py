"""Inf-DDS in a real training run: what probes measure, that they have no side effects, and how weights follow.

- With frozen logits and without Reptile a run that probes is, to the last bit, the run that does not: weights,
  optimizer, draws and log, with dropout and accumulated gradients, whatever the kind of probe. No steps, no influence.
- A dataset like the target rises under every rule and shuffled answers fall; two copies of one dataset stay together.
- Every metric tells them apart; the metric says whether higher is better. Accumulation does not scale a probe.
- Reptile at the literal rate moves nothing, relative to the schedule it does; the optimizer is as before either way.
  A momentum-free probe moves words that were never trained no further than others.
- What is not a number gets no credit and does no harm: a dataset whose loss breaks, and a dev set that does.
- Rounds come when they are due, with as many datasets as asked for; others keep their logits.
- The trace holds what was measured, the new weights and the cost; the Trainer's log has the new probabilities.
- Settings that cannot work raise one clear error.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mixfluence.data.rows import Row, RowSet
from mixfluence.errors import DataError, RecipeError
from mixfluence.influence import (
    DevBatch,
    Influences,
    Metric,
    Probe,
    Reptile,
    distillation_metric,
    info_nce_metric,
    soft_ndcg_metric,
)
from mixfluence.policy import PROPORTIONAL, UNIFORM, Anchored, PolicyGradient, Rule, Weights
from mixfluence.runs import read_trace
from mixfluence.strategies import InfDDS, Static, Strategy
from mixfluence.training.losses import info_nce
from mixfluence.training.trainer import MixtureTrainer
from tests.conftest import row_set
from tests.training.runs import arguments, build, pool

pytestmark = pytest.mark.slow
MakeModel = Callable[[], SentenceTransformer]
EVERY_STEP: dict[str, Any] = {"update_every": 1, "warmup_steps": 1, "freeze_below": 0.0}
RULES: dict[str, Rule] = {
    "gradient": PolicyGradient(step=0.1),
    "anchored": Anchored(),
}


class Frozen(InfDDS):
    """Measures and reports, but keeps its weights."""

    def update(self, influences: Influences) -> dict[str, Any]:
        logits = self.logits.copy()
        facts = super().update(influences)
        self._logits = logits
        return facts


class Around(TrainerCallback):
    """Looks right before and right after the round that ends a step: ours is the last callback, the log comes next."""

    def __init__(self, look: Callable[[dict[str, Any]], Any]) -> None:
        self._look = look
        self.before: list[Any] = []
        self.after: list[Any] = []

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.before.append(self._look(kwargs))

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if "loss" in kwargs["logs"]:
            self.after.append(self._look(kwargs))


class BreakInProbes(TrainerCallback):
    """Lets a loss break while datasets are probed, and only then."""

    def __init__(self, loss: Breakable) -> None:
        self._loss = loss

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._loss.broken = True

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._loss.broken = False


class Breakable(nn.Module):
    """A loss that can be made to return something else."""

    def __init__(self, loss: nn.Module, value: float) -> None:
        super().__init__()
        self.loss = loss
        self.value = value
        self.broken = False

    def forward(self, features: list[dict[str, Tensor]], labels: Tensor | None) -> Tensor:
        loss: Tensor = self.loss(features, labels)
        return loss * self.value if self.broken else loss


class InParts(nn.Module):
    """A loss that the Trainer logs part by part."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, features: list[dict[str, Tensor]], labels: Tensor | None) -> dict[str, Tensor]:
        loss: Tensor = self.loss(features, labels)
        return {"larger": 0.75 * loss, "smaller": 0.25 * loss}


def updates(trainer: MixtureTrainer) -> list[dict[str, Any]]:
    """Lines of the trace that tell of a round."""
    return [line for line in read_trace(Path(trainer.args.output_dir) / "trace.jsonl") if "update" in line]


def influences(trainer: MixtureTrainer) -> list[dict[str, float]]:
    return [line["update"]["influence"] for line in updates(trainer)]


def draws(trainer: MixtureTrainer) -> list[tuple[int, int]]:
    lines = read_trace(Path(trainer.args.output_dir) / "trace.jsonl")
    told = [line for line in lines if "trained" in line]
    return [draw for line in told for draw in zip(line["trained"], line["rows"], strict=True)]


def logs(trainer: MixtureTrainer) -> list[dict[str, float]]:
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def losses(trainer: MixtureTrainer) -> list[dict[str, float]]:
    """What the Trainer logged, without what is ours."""
    return [{name: value for name, value in entry.items() if "/" not in name} for entry in logs(trainer)]


def weights_and_moments(facts: dict[str, Any]) -> tuple[dict[str, Tensor], dict[int, dict[str, Tensor]]]:
    """Copies of a model's parameters and of its optimizer's state."""
    state = facts["optimizer"].state_dict()["state"]
    return copy.deepcopy(facts["model"].state_dict()), copy.deepcopy(state)


def assert_same(one: Any, other: Any) -> None:
    """Compare tensors in nested dicts, bit for bit."""
    if not isinstance(one, dict):
        assert torch.equal(one, other)
        return
    assert one.keys() == other.keys()
    assert one
    for name, value in one.items():
        assert_same(value, other[name])


def greatest_move(before: dict[str, Tensor], after: dict[str, Tensor]) -> float:
    return max(float((after[name] - value).abs().max()) for name, value in before.items())


# Data with a rule: a query of two words is answered by the words that stand 40 places behind them.


def mapped(*gaps: int, first: int = 0, shuffled: bool = False) -> Dataset:
    """For each gap the 40 pairs of words that are so far apart; other gaps are other rows of the same rule."""
    pairs = [(word, (word + gap) % 40) for gap in gaps for word in range(40)]
    answers = [f"w{first + 40 + one} w{first + 40 + two}" for one, two in pairs]
    if shuffled:
        random.Random(0).shuffle(answers)
    return Dataset.from_dict({"query": [f"w{first + one} w{first + two}" for one, two in pairs], "answer": answers})


def candidates() -> dict[str, Dataset]:
    """A dataset with the target's rule, one with shuffled answers, and one of other words."""
    return {"right": mapped(1, 2), "shuffled": mapped(4, 5, shuffled=True), "unrelated": mapped(1, 2, first=100)}


def guided_run(model: SentenceTransformer, folder: Path, strategy: Strategy, **options: Any) -> MixtureTrainer:
    """Train on the candidates, guided by rows of the rule that none of them has."""
    chosen = {"train_dataset": candidates(), "dev_dataset": {"target": mapped(3)}, "loss": info_nce(model, 0.1)}
    args = arguments(folder, max_steps=20, learning_rate=0.02, per_device_train_batch_size=16)
    trainer = build(model, args, **{"strategy": strategy, **chosen, **options})
    trainer.train()
    return trainer


def small_run(model: SentenceTransformer, folder: Path, strategy: Strategy, **options: Any) -> MixtureTrainer:
    """Train on the small pool; options of the Trainer are told from ours by their names."""
    ours = {"train_dataset", "dev_dataset", "loss", "callbacks"} & options.keys()
    args = arguments(folder, **{name: value for name, value in options.items() if name not in ours})
    chosen = {"dev_dataset": {"dev": pool()["near"]}} | {name: options[name] for name in ours}
    trainer = build(model, args, strategy=strategy, **chosen)
    trainer.train()
    return trainer


# Probes leave no trace but the trace.


@pytest.mark.parametrize(
    ("probe", "accumulation"),
    [
        (Probe(state="inherited"), 1),
        (Probe(state="inherited", snapshot="cpu", learning_rate=0.5), 2),
        (Probe(state="momentum-free", snapshot="cpu"), 1),
        (Probe(state="momentum-free", learning_rate=0.01, batch_size=7), 2),
    ],
    ids=[
        "inherited",
        "inherited, cpu, accumulation",
        "momentum-free, cpu",
        "momentum-free, accumulation",
    ],
)
def test_a_run_with_frozen_logits_is_the_run_without_probes(
    tiny_bert_folder: Path, tmp_path: Path, probe: Probe, accumulation: int
) -> None:
    results = []
    for name, strategy in ("probed", Frozen(**EVERY_STEP, probe=probe)), ("plain", Static(init=UNIFORM)):
        model = SentenceTransformer(str(tiny_bert_folder), device="cpu")
        assert any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
        options = {"gradient_accumulation_steps": accumulation, "weight_decay": 0.1, "warmup_steps": 2}
        trainer = small_run(model, tmp_path / name, strategy, **options)
        results.append((trainer, weights_and_moments({"model": model, "optimizer": trainer.optimizer})))
    (probed, (weights, moments)), (plain, (plain_weights, plain_moments)) = results
    assert len(updates(probed)) == 5
    assert all(value != 0 for round_ in influences(probed) for value in round_.values())
    assert draws(probed) == draws(plain)
    assert len(draws(probed)) == 6 * accumulation
    assert losses(probed) == losses(plain)
    assert_same(weights, plain_weights)
    assert_same(moments, plain_moments)


def test_training_probes_and_dev_evals_draw_other_rows_of_the_same_dataset(
    make_static: MakeModel, tmp_path: Path
) -> None:
    batches: dict[str, list[list[str]]] = {"training": [], "probes": [], "dev": []}

    class Watching(Breakable):
        def forward(self, features: list[dict[str, Tensor]], labels: Tensor | None) -> Tensor:
            batches["probes" if self.broken else "training"].append(words(features[0]))
            return super().forward(features, labels)

    def words(queries: dict[str, Tensor]) -> list[str]:
        return [str(row) for row in queries["input_ids"].tolist()]

    def values(model: nn.Module, batch: DevBatch) -> Tensor:
        batches["dev"] += [words(piece.columns[0]) for piece in batch.pieces]
        return info_nce_metric(0.1).values(model, batch)

    model = make_static()
    loss = Watching(info_nce(model), 1.0)
    probe = Probe(metric=Metric(values, higher_is_better=False), batch_size=4, dev_batch_size=4)
    datasets = {"near": pool()["near"]}
    options = {"train_dataset": datasets, "dev_dataset": datasets, "loss": loss, "callbacks": [BreakInProbes(loss)]}
    small_run(model, tmp_path, Frozen(**EVERY_STEP, inner_steps=1, probe=probe), **options)
    # Each round evaluates its dev batch twice: before and after the one probe.
    orders = batches["training"][:5], batches["probes"], batches["dev"][::2]
    assert [len(order) for order in orders] == [5, 5, 5]
    for one, other in combinations(orders, 2):
        assert one != other


def test_a_loss_of_several_parts_is_logged_as_if_there_were_no_probes(make_static: MakeModel, tmp_path: Path) -> None:
    told = []
    for name, strategy in ("probed", Frozen(**EVERY_STEP)), ("plain", Static(init=UNIFORM)):
        model = make_static()
        trainer = small_run(model, tmp_path / name, strategy, loss=InParts(info_nce(model)), logging_steps=3)
        told.append(losses(trainer))
    assert len(told[0]) == 2
    assert "smaller" in told[0][0]
    assert told[0] == told[1]


def test_without_inner_steps_there_is_no_influence(make_static: MakeModel, tmp_path: Path) -> None:
    strategy = InfDDS(
        **EVERY_STEP,
        init=PROPORTIONAL,
        inner_steps=0,
        rule=PolicyGradient(step=1.0),
        shrink=False,
        gate=False,
        reptile=Reptile(),
    )
    trainer = small_run(make_static(), tmp_path, strategy)
    assert influences(trainer) == [{"near": 0.0, "far": 0.0}] * 5
    assert trainer.probabilities() == pytest.approx({"near": 30 / 48, "far": 18 / 48}, abs=1e-15)


# What is learnt.


@pytest.mark.parametrize(
    ("rule", "state"),
    [*((rule, "inherited") for rule in RULES), ("anchored", "momentum-free")],
)
def test_a_dataset_like_the_target_rises_and_a_shuffled_one_falls(
    make_static: MakeModel, tmp_path: Path, rule: str, state: Literal["inherited", "momentum-free"]
) -> None:
    probe = Probe(state=state, metric=info_nce_metric(0.1))
    strategy = InfDDS(init=UNIFORM, update_every=2, warmup_steps=2, inner_steps=2, rule=RULES[rule], probe=probe)
    found = guided_run(make_static(), tmp_path, strategy).probabilities()
    assert sum(found.values()) == pytest.approx(1)
    assert found["right"] > 0.5
    assert found["shuffled"] < 0.25


def test_two_copies_of_a_dataset_stay_together(make_static: MakeModel, tmp_path: Path) -> None:
    datasets = {"one": mapped(1, 2), "other": mapped(1, 2), "shuffled": mapped(4, 5, shuffled=True)}
    # Copies are judged by batches of their own: most of their 80 rows each, or chance would set them apart.
    probe = Probe(metric=info_nce_metric(0.1), batch_size=64)
    strategy = InfDDS(init=UNIFORM, update_every=2, warmup_steps=2, probe=probe)
    trainer = guided_run(make_static(), tmp_path, strategy, train_dataset=datasets)
    found = trainer.probabilities()
    assert found["one"] != found["other"]
    assert abs(found["one"] - found["other"]) < 0.2 * abs(found["one"] - found["shuffled"])
    assert min(found["one"], found["other"]) > 1 / 3 > found["shuffled"]


def negated_info_nce(model: nn.Module, batch: DevBatch) -> Tensor:
    return -info_nce_metric(0.1).values(model, batch)


def scored_target() -> RowSet:
    """Rows of the target's rule, each with a negative that a teacher likes less."""
    rows = mapped(3)
    negatives = rows["answer"][20:] + rows["answer"][:20]
    texts = zip(rows["query"], rows["answer"], negatives, strict=True)
    return row_set(*(Row(query, answer, [negative], [3.0, 0.0]) for query, answer, negative in texts))


@pytest.mark.parametrize(
    "metric",
    [
        "training-loss",
        info_nce_metric(0.1, hard_negatives=True),
        soft_ndcg_metric(0.1),
        distillation_metric(0.1),
        Metric(negated_info_nce, higher_is_better=True),
    ],
    ids=["training-loss", "hard negatives", "soft-ndcg", "distillation", "own"],
)
def test_every_metric_tells_the_right_dataset_from_the_shuffled(
    make_static: MakeModel, tmp_path: Path, metric: Metric | Literal["training-loss"]
) -> None:
    probe = Probe(metric=metric, learning_rate=0.01)
    strategy = Frozen(init=UNIFORM, update_every=4, warmup_steps=4, inner_steps=3, probe=probe)
    trainer = guided_run(make_static(), tmp_path, strategy, dev_dataset={"target": scored_target()})
    measured = influences(trainer)
    assert len(measured) == 4
    for round_ in measured:
        assert all(map(math.isfinite, round_.values()))
        assert round_["right"] > round_["shuffled"]
        assert round_["right"] > 0


def test_the_metric_says_which_way_is_better(make_static: MakeModel, tmp_path: Path) -> None:
    metrics = {
        "loss": info_nce_metric(0.1),
        "negated": Metric(negated_info_nce, higher_is_better=True),
        "mistaken": Metric(negated_info_nce, higher_is_better=False),
    }
    measured, found = {}, {}
    for name, metric in metrics.items():
        strategy = InfDDS(init=UNIFORM, update_every=100, warmup_steps=4, probe=Probe(metric=metric))
        trainer = guided_run(make_static(), tmp_path / name, strategy)
        (measured[name],) = influences(trainer)
        found[name] = trainer.probabilities()
    assert measured["loss"] == measured["negated"]
    assert measured["mistaken"] == {dataset: -value for dataset, value in measured["loss"].items()}
    assert found["loss"] == found["negated"]
    assert found["loss"]["right"] > 1 / 3 > found["mistaken"]["right"]


def test_accumulation_does_not_scale_the_gradient_of_a_probe(make_static: MakeModel, tmp_path: Path) -> None:
    measured = []
    for accumulation in (1, 4):
        strategy = Frozen(**EVERY_STEP, inner_steps=1, probe=Probe(state="inherited", learning_rate=1.0))
        # A step so small that both runs probe the same model, without a state that would differ.
        options = {"learning_rate": 1e-12, "optim": "sgd", "gradient_accumulation_steps": accumulation}
        options["max_grad_norm"] = 0.0
        trainer = small_run(make_static(), tmp_path / str(accumulation), strategy, max_steps=2, **options)
        measured += influences(trainer)
    assert measured[0]["near"] > 0
    assert measured[0] == pytest.approx(measured[1], rel=1e-4)


def test_the_model_is_probed_at_the_rate_asked_for(make_static: MakeModel, tmp_path: Path) -> None:
    rates: list[Literal["current"] | float] = ["current", 0.005, 0.01]
    measured = []
    for number, rate in enumerate(rates):
        strategy = Frozen(update_every=9, warmup_steps=9, freeze_below=0.0, probe=Probe(learning_rate=rate))
        measured.append(influences(small_run(make_static(), tmp_path / str(number), strategy, max_steps=10))[0])
    current, half, greatest = measured
    assert 0 < 2 * current["near"] < half["near"] < greatest["near"]


# Following the probes.


@pytest.mark.parametrize(
    ("reptile", "least", "most"),
    [
        (None, 0, 0),
        (Reptile(rate="literal"), 0, 1e-8),
        (Reptile(rate="relative"), 3e-6, 1e-4),
        (Reptile(rate="relative", weights="sum"), 3e-6, 1e-4),
        (Reptile(rate=0.5), 3e-6, 1e-4),
    ],
    ids=["off", "literal", "relative", "relative, sum", "constant"],
)
def test_reptile_moves_the_model_by_its_rate_and_never_the_optimizer(
    tiny_bert: SentenceTransformer, tmp_path: Path, reptile: Reptile | None, least: float, most: float
) -> None:
    watch = Around(weights_and_moments)
    # The target is of the pool, so that some influence is above zero.
    strategy = InfDDS(update_every=2, warmup_steps=2, inner_steps=3, reptile=reptile)
    trainer = small_run(tiny_bert, tmp_path, strategy, max_steps=6, learning_rate=2e-5, callbacks=[watch])
    assert [line["step"] for line in updates(trainer)] == [2, 4]
    for step, ((before, moments), (after, later_moments)) in enumerate(zip(watch.before, watch.after, strict=True), 1):
        assert_same(moments, later_moments)
        if step in {2, 4}:
            assert least <= greatest_move(before, after) <= most
        else:
            assert_same(before, after)


def test_a_reptile_step_at_full_rate_goes_to_the_mean_of_the_probes(make_static: MakeModel, tmp_path: Path) -> None:
    ends: list[Tensor] = []

    def remember(model: nn.Module, batch: DevBatch) -> Tensor:
        ends.append(next(model.parameters()).detach().clone())
        return info_nce_metric().values(model, batch)

    watch = Around(weights_and_moments)
    # In the first round all weights are equal.
    strategy = InfDDS(
        **EVERY_STEP, probe=Probe(metric=Metric(remember, higher_is_better=False)), reptile=Reptile(rate=1.0)
    )
    small_run(make_static(), tmp_path, strategy, max_steps=2, callbacks=[watch])
    start, near, far = ends
    ((before, after),) = [(b[0], a[0]) for b, a in zip(watch.before[:1], watch.after[:1], strict=True)]
    assert torch.equal(next(iter(before.values())), start)
    assert torch.allclose(next(iter(after.values())), (near + far) / 2, atol=1e-6)
    assert not torch.allclose(near, far, atol=1e-4)


def test_a_momentum_free_probe_moves_words_that_were_never_trained_as_far_as_others(
    make_static: MakeModel, tmp_path: Path
) -> None:
    watch = Around(weights_and_moments)
    only_near = Weights({"near": 1, "far": 1e-9})
    strategy = InfDDS(init=only_near, **EVERY_STEP, probe=Probe(state="momentum-free"), reptile=Reptile(rate=1.0))
    trainer = small_run(make_static(), tmp_path, strategy, dev_dataset={"dev": pool()["far"]}, callbacks=[watch])
    assert {dataset for dataset, _ in draws(trainer)} == {0}
    assert influences(trainer)[0]["far"] > 0
    # Three steps at a rate of 0.01.
    assert greatest_move(watch.before[0][0], watch.after[0][0]) < 0.1


# What is not a number.


@pytest.mark.parametrize(
    ("value", "reptile", "probe"),
    [
        (math.nan, None, Probe(metric=distillation_metric(0.1))),
        (math.inf, Reptile(), Probe(metric=info_nce_metric(0.1))),
        (math.nan, Reptile(), Probe(state="momentum-free", metric=soft_ndcg_metric(0.1))),
    ],
    ids=["nan, distillation", "infinite, reptile", "nan, reptile, momentum-free"],
)
def test_a_dataset_whose_loss_breaks_gets_no_credit_and_does_no_harm(
    make_static: MakeModel, tmp_path: Path, value: float, reptile: Reptile | None, probe: Probe
) -> None:
    model = make_static()
    broken = Breakable(info_nce(model, 0.1), value)
    plain = info_nce(model, 0.1)
    strategy = InfDDS(init=UNIFORM, update_every=4, warmup_steps=4, reptile=reptile, probe=probe)
    watch = Around(weights_and_moments)
    trainer = guided_run(
        model,
        tmp_path,
        strategy,
        dev_dataset={"target": scored_target()},
        loss={"right": plain, "shuffled": broken, "unrelated": plain, "target": plain},
        callbacks=[BreakInProbes(broken), watch],
    )
    assert trainer.state.global_step == 20
    # The model still follows the probes that can be trusted.
    moves = [greatest_move(before, after) for (before, _), (after, _) in zip(watch.before, watch.after, strict=True)]
    assert [step for step, move in enumerate(moves, 1) if move > 0] == ([4, 8, 12, 16] if reptile else [])
    assert [line["update"]["failed"] for line in updates(trainer)] == [["shuffled"]] * 4
    for round_ in influences(trainer):
        assert round_.keys() == {"right", "unrelated"}
        assert all(map(math.isfinite, round_.values()))
    assert strategy.logits[1] == 0
    assert strategy.logits[0] > 0.1
    assert strategy.logits[2] < -0.1
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert all(math.isfinite(entry["loss"]) for entry in losses(trainer))


def test_a_dev_set_that_cannot_be_measured_moves_nothing(make_static: MakeModel, tmp_path: Path) -> None:
    looks: list[int] = []

    def broken_at_first(model: nn.Module, batch: DevBatch) -> Tensor:
        looks.append(len(looks))
        values = info_nce_metric(0.1).values(model, batch)
        # One query of the first look, which every influence of the first round is a difference from.
        return torch.where(torch.arange(len(values)) == 3, math.nan, values) if len(looks) == 1 else values

    strategy = InfDDS(
        init=UNIFORM,
        update_every=8,
        warmup_steps=8,
        probe=Probe(metric=Metric(broken_at_first, higher_is_better=False)),
        reptile=Reptile(),
    )
    model = make_static()
    watch = Around(weights_and_moments)
    trainer = guided_run(model, tmp_path, strategy, callbacks=[watch])
    first, second = updates(trainer)
    assert first["update"]["failed"] == list(candidates())
    assert first["update"]["dev"] == {"target": None}
    assert first["weights"] == pytest.approx(dict.fromkeys(candidates(), 1 / 3))
    for before, after in zip(watch.before[7], watch.after[7], strict=True):
        assert_same(before, after)
    assert trainer.state.global_step == 20
    assert second["update"]["failed"] == []
    assert second["weights"]["right"] > 0.4
    assert all(parameter.isfinite().all() for parameter in model.parameters())


# When, and which datasets.


@pytest.mark.parametrize(
    ("strategy", "options", "steps"),
    [
        ({"warmup_steps": 3}, {}, [3, 7, 11, 15]),
        ({"warmup_steps": 0}, {}, [4, 8, 12, 16]),
        ({"warmup_steps": 2, "freeze_below": 0.5}, {}, [2, 6]),
        # With a warm-up of its own the learning rate reaches one half after step 5, and falls below it after 14.
        ({"warmup_steps": 3, "freeze_below": 0.5}, {"warmup_steps": 10}, [7, 11]),
        ({"warmup_steps": 18}, {}, [18]),
        ({"warmup_steps": 19}, {}, []),
    ],
)
def test_rounds_come_when_they_are_due_and_never_at_the_last_step(
    make_static: MakeModel, tmp_path: Path, strategy: dict[str, Any], options: dict[str, Any], steps: list[int]
) -> None:
    chosen = InfDDS(**{"update_every": 4, "freeze_below": 0.0, "inner_steps": 1, **strategy})
    trainer = small_run(make_static(), tmp_path, chosen, max_steps=19, logging_steps=19, **options)
    assert [line["step"] for line in updates(trainer)] == steps


def test_a_subset_is_probed_and_the_others_keep_their_logits(make_static: MakeModel, tmp_path: Path) -> None:
    datasets = {f"d{gap}": mapped(gap, shuffled=gap % 2 == 0) for gap in (1, 2, 4, 5, 6)}
    strategy = InfDDS(
        init=UNIFORM,
        **EVERY_STEP,
        subset=2,
        rule=PolicyGradient(step=0.1),
        shrink=False,
        gate=False,
        probe=Probe(dev_batch_size=8),
    )
    watch = Around(lambda facts: strategy.logits.copy())
    trainer = guided_run(make_static(), tmp_path, strategy, train_dataset=datasets, callbacks=[watch])
    probed = [tuple(round_) for round_ in influences(trainer)]
    assert len(probed) == 19
    assert {len(names) for names in probed} == {2}
    assert {name for names in probed for name in names} == datasets.keys()
    assert len(set(probed)) > 4
    names = np.array(list(datasets))
    for which, before, after in zip(probed, watch.before, watch.after, strict=False):
        assert set(names[before != after]) == set(which)


def test_a_dataset_that_is_never_drawn_is_never_probed(make_static: MakeModel, tmp_path: Path) -> None:
    init = Weights({"right": 1, "shuffled": 1, "unrelated": 0})
    strategy = InfDDS(init=init, **EVERY_STEP, inner_steps=1)
    trainer = guided_run(make_static(), tmp_path, strategy)
    assert {tuple(round_) for round_ in influences(trainer)} == {("right", "shuffled")}
    assert trainer.probabilities()["unrelated"] == 0
    assert 2 not in {dataset for dataset, _ in draws(trainer)}


# What is told.


def test_the_trace_tells_what_was_measured_and_what_came_of_it(make_static: MakeModel, tmp_path: Path) -> None:
    strategy = InfDDS(update_every=3, warmup_steps=2, freeze_below=0.0)
    dev = {"like-near": pool()["near"].select(range(9)), "like-far": pool()["far"]}
    trainer = small_run(make_static(), tmp_path, strategy, max_steps=12, dev_dataset=dev)
    rounds = updates(trainer)
    assert [line["step"] for line in rounds] == [2, 5, 8, 11]
    for line in rounds:
        assert set(line) == {"step", "seconds", "weights", "update"}
        update = line["update"]
        assert set(update) == {
            *("influence", "error", "trust", "gate"),
            *("on_targets", "target_errors", "dev", "rows", "failed", "seconds", "memory"),
        }
        assert update["rows"] == {"like-near": 9, "like-far": 18}
        assert update["failed"] == []
        assert 0 < update["seconds"] <= line["seconds"]
        assert update["on_targets"].keys() == update["dev"].keys() == dev.keys()
        assert all(value > 0 for value in update["error"].values())
        for name, influence in update["influence"].items():
            assert influence == pytest.approx(np.mean([update["on_targets"][target][name] for target in dev]))
        assert update["influence"].keys() == update["trust"].keys() == pool().keys()
        assert all(0 <= share < 1 for share in update["trust"].values())
        assert 0 <= update["gate"] <= 1
        # The targets are half of one dataset's rows and all of the other's.
        assert update["on_targets"]["like-far"]["far"] > update["on_targets"]["like-far"]["near"]


def test_new_probabilities_hold_from_one_round_to_the_next(make_static: MakeModel, tmp_path: Path) -> None:
    strategy = InfDDS(init=PROPORTIONAL, preset="thorough", update_every=3, warmup_steps=2, freeze_below=0.0)
    trainer = small_run(make_static(), tmp_path, strategy, max_steps=12)
    told = {entry["step"]: {name: entry[f"sampling/{name}"] for name in pool()} for entry in logs(trainer)}
    in_force = pytest.approx({"near": 30 / 48, "far": 18 / 48})
    for line in read_trace(tmp_path / "trace.jsonl")[1:]:
        if "update" in line:
            assert line["weights"] != in_force
            in_force = line["weights"]
            assert told[line["step"]] == pytest.approx(in_force, abs=1e-6)
        else:
            # What was trained on before a round at the end of the same step is told with what it was drawn by.
            assert line["weights"] == in_force
    assert len(told) == len(draws(trainer)) == 12
    assert trainer.probabilities() == in_force


@pytest.mark.parametrize(
    ("probe", "reptile", "sizes"),
    [
        (Probe(state="inherited"), None, 3),
        (Probe(state="inherited", snapshot="cpu"), None, 3),
        (Probe(state="inherited"), Reptile(), 4),
        (Probe(), None, 1),
        (Probe(state="momentum-free"), Reptile(), 2),
    ],
)
def test_the_trace_tells_the_memory_of_a_round(
    make_static: MakeModel, tmp_path: Path, probe: Probe, reptile: Reptile | None, sizes: int
) -> None:
    strategy = InfDDS(**EVERY_STEP, inner_steps=1, probe=probe, reptile=reptile)
    (line,) = updates(small_run(make_static(), tmp_path, strategy, max_steps=2))
    assert line["update"]["memory"] == pytest.approx(sizes, abs=0.01)


# What cannot work.


@pytest.mark.parametrize("nothing", [None, {}])
def test_a_run_without_a_dev_set_is_refused(make_static: MakeModel, tmp_path: Path, nothing: Any) -> None:
    with pytest.raises(DataError, match=r"^dev_dataset: InfDDS"):
        build(make_static(), arguments(tmp_path), strategy=InfDDS(), dev_dataset=nothing)


def test_a_dev_set_with_one_positive_is_refused(make_static: MakeModel, tmp_path: Path) -> None:
    single = Dataset.from_dict({"anchor": ["w1", "w2", "w3"], "positive": ["w9", "w9", "w9"]})
    with pytest.raises(DataError, match=r"^dev set single: "):
        small_run(make_static(), tmp_path, InfDDS(), dev_dataset={"single": single})


def test_a_distillation_metric_needs_scores(make_static: MakeModel, tmp_path: Path) -> None:
    strategy = InfDDS(**EVERY_STEP, probe=Probe(metric=distillation_metric()))
    with pytest.raises(DataError, match=r"^dev set dev: "):
        small_run(make_static(), tmp_path, strategy)
    assert not (tmp_path / "trace.jsonl").exists()  # not one step later


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_half_precision_with_a_loss_scale_is_refused(
    make_static: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    if by == "environment":
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    args = arguments(tmp_path, fp16=by == "argument")
    with pytest.raises(RecipeError, match=r"^fp16: "):
        build(make_static(), args, strategy=InfDDS(), dev_dataset=pool())


def test_a_norm_below_zero_clips_neither_training_nor_probes(make_static: MakeModel, tmp_path: Path) -> None:
    measured = []
    for norm in (0.0, -1.0):
        trainer = small_run(make_static(), tmp_path / str(norm), InfDDS(**EVERY_STEP), max_grad_norm=norm)
        measured.append([line["update"]["influence"] for line in updates(trainer)])
    assert measured[0] == measured[1] != []


def test_momentum_free_probes_need_second_moments(make_static: MakeModel, tmp_path: Path) -> None:
    strategy = InfDDS(**EVERY_STEP, probe=Probe(state="momentum-free"))
    with pytest.raises(RecipeError, match="second moments such as AdamW, found SGD"):
        small_run(make_static(), tmp_path, strategy, optim="sgd")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (lambda: InfDDS(update_every=0), "InfDDS.update_every"),
        (lambda: InfDDS(warmup_steps=-1), "InfDDS.warmup_steps"),
        (lambda: InfDDS(inner_steps=-1), "InfDDS.inner_steps"),
        (lambda: InfDDS(subset=1), "InfDDS.subset"),
        (lambda: Probe(batch_size=1), "Probe.batch_size"),
        (lambda: Probe(dev_batch_size=1), "Probe.dev_batch_size"),
        (lambda: Probe(learning_rate=0.0), "Probe.learning_rate"),
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong: Callable[[], object], field: str) -> None:
    with pytest.raises(RecipeError, match=f"^{field}: "):
        wrong()

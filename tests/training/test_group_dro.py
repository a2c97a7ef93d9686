"""Losses of a proxy run, on real encoders and real runs.

- Unweighted, the loss is sentence-transformers' to 1e-9, hard negatives included; with own passages alone it is what
  the formula says. The gradient is that of the weighted loss.
- Without gradient or in eval mode nothing is learned. The reference is frozen, not saved, not trained, not replaced.
- In a run, alpha falls on a dataset that nobody can learn; a resumed run ends with the same alpha and weights.
- Under bf16 a proxy that is its own reference has no excess; two processes weigh as one does, and alike.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import TrainerCallback

from mixfluence.errors import RecipeError
from mixfluence.policy import UNIFORM
from mixfluence.strategies import Static
from mixfluence.strategies.group_dro import TDRO, DoReMi, GroupDRO
from mixfluence.training.losses import GroupLoss, Reference, group_losses, info_nce
from mixfluence.training.trainer import MixtureTrainer
from tests.training.runs import arguments, build, pool, start_processes
from tests.training.test_resume import StopAt, assert_equal_runs

pytestmark = pytest.mark.slow

COLUMNS = [[f"w{start + i}" for i in range(5)] for start in (0, 20, 40, 60)]


class Scale:
    """A weight, and the losses it was asked for."""

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight
        self.seen: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []

    def __call__(self, losses: NDArray[np.float64], reference: NDArray[np.float64]) -> float:
        self.seen.append((losses, reference))
        return self.weight


def features(model: SentenceTransformer, columns: int) -> list[dict[str, Any]]:
    return [model.preprocess(texts) for texts in COLUMNS[:columns]]


def other(model: SentenceTransformer) -> SentenceTransformer:
    """Change an encoder's parameters, so that it is another."""
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def without_dropout(folder: Path) -> SentenceTransformer:
    model = SentenceTransformer(str(folder), device="cpu")
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


@pytest.mark.parametrize("columns", [2, 3, 4])
def test_the_plain_loss_is_that_of_the_library(tiny_bert_folder: Path, columns: int) -> None:
    # In double precision: in single, the order of a sum, which differs between processors, is worth 1e-6.
    model, reference = without_dropout(tiny_bert_folder).double(), other(without_dropout(tiny_bert_folder)).double()
    weigh = Scale()
    loss = GroupLoss(model, Reference(reference), weigh, 0.05)(features(model, columns))
    assert loss.item() == pytest.approx(info_nce(model, 0.05)(features(model, columns), None).item(), abs=1e-9)
    (losses, references), *rest = weigh.seen
    assert not rest
    assert losses.shape == (5,)
    assert losses.mean() == pytest.approx(loss.item(), abs=1e-9)
    expected = info_nce(reference, 0.05)(features(model, columns), None).item()
    assert references.mean() == pytest.approx(expected, abs=1e-9)
    assert abs(losses - references).max() > 0.01


def test_a_query_may_be_compared_with_its_own_passages_alone(make_static: Callable[[], SentenceTransformer]) -> None:
    model, reference, weigh = make_static(), other(make_static()), Scale()
    loss = GroupLoss(model, Reference(reference), weigh, 0.5, own_negatives_only=True)
    loss(features(model, 4))
    for encoder, found in zip((model, reference), weigh.seen[0], strict=True):
        vectors = np.stack([encoder.encode(column, normalize_embeddings=True) for column in COLUMNS])
        scores = np.exp((vectors[0] * vectors[1:]).sum(axis=2) / 0.5)
        assert found == pytest.approx(np.log(scores.sum(axis=0) / scores[0]), abs=1e-5)
    # Without hard negatives there is nothing else than the other rows' positives.
    pairs = GroupLoss(model, Reference(reference), weigh, 0.5, own_negatives_only=True)(features(model, 2))
    assert pairs.item() == pytest.approx(info_nce(model, 0.5)(features(model, 2), None).item(), abs=1e-6)


def test_the_strategy_says_what_a_query_is_compared_with(make_static: Callable[[], SentenceTransformer]) -> None:
    model = make_static()
    with torch.no_grad():
        own, batch = (
            group_losses(model, make_static(), strategy, ["a"], 0.5)["a"](features(model, 4)).item()
            for strategy in (TDRO(), DoReMi())
        )
        assert batch == pytest.approx(info_nce(model, 0.5)(features(model, 4), None).item(), abs=1e-6)
    assert own < batch


def test_the_gradient_is_that_of_the_weighted_loss(make_static: Callable[[], SentenceTransformer]) -> None:
    gradients = []
    for weight in (1.0, 2.5):
        model = make_static()
        GroupLoss(model, Reference(other(make_static())), Scale(weight), 0.05)(features(model, 3)).backward()
        gradients += [parameter.grad for parameter in model.parameters()]
    one, scaled = gradients
    assert one is not None
    assert scaled is not None
    assert one.abs().max() > 0
    assert torch.allclose(scaled, 2.5 * one, rtol=1e-4, atol=1e-5)


def test_nothing_is_learned_without_gradient_or_in_eval_mode(make_static: Callable[[], SentenceTransformer]) -> None:
    model, weigh = make_static(), Scale(3.0)
    loss = GroupLoss(model, Reference(other(make_static())), weigh, 0.05)
    plain = info_nce(model, 0.05)(features(model, 3), None).item()
    with torch.no_grad():
        assert loss(features(model, 3)).item() == pytest.approx(plain, rel=1e-6)
    assert loss.eval()(features(model, 3)).item() == pytest.approx(plain, rel=1e-6)
    assert weigh.seen == []
    assert loss.train()(features(model, 3)).item() == pytest.approx(3 * plain, rel=1e-6)
    assert len(weigh.seen) == 1


def test_features_are_left_as_they_are(tiny_bert: SentenceTransformer, tiny_bert_folder: Path) -> None:
    columns = features(tiny_bert, 3)
    before = [set(column) for column in columns]
    reference = Reference(SentenceTransformer(str(tiny_bert_folder), device="cpu"))
    GroupLoss(tiny_bert, reference, Scale())(columns)
    assert [set(column) for column in columns] == before


def test_the_reference_is_no_part_of_the_losses(make_static: Callable[[], SentenceTransformer]) -> None:
    model, reference, strategy = make_static(), make_static(), DoReMi()
    losses = group_losses(model, reference, strategy, ["a", "b"])
    assert list(losses) == ["a", "b"]
    together = nn.ModuleDict(losses)
    assert list(together.parameters()) == list(model.parameters())
    assert len(losses["a"].state_dict()) == len(model.state_dict())
    together.train()
    assert not reference.training
    assert not any(parameter.requires_grad for parameter in reference.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_each_loss_teaches_its_own_dataset(make_static: Callable[[], SentenceTransformer]) -> None:
    model, strategy = make_static(), DoReMi(rate=1.0)
    strategy.start({"a": 1, "b": 1, "c": 1})
    losses = group_losses(model, other(make_static()), strategy, ["a", "b", "c"])
    losses["c"](features(model, 2))
    first, second, third = strategy.state_dict()["scores"]
    assert first is None
    assert second is None
    assert third > 0


def test_what_cannot_work_is_refused(make_static: Callable[[], SentenceTransformer]) -> None:
    model = make_static()
    with pytest.raises(RecipeError, match=r"^reference: "):
        group_losses(model, model, DoReMi(), ["a"])
    with pytest.raises(RecipeError, match=r"^'b\.c': "):
        group_losses(model, make_static(), DoReMi(), ["a", "b.c"])


def proxy(
    model: SentenceTransformer,
    reference: SentenceTransformer,
    strategy: GroupDRO,
    folder: Path,
    callbacks: list[TrainerCallback] | None = None,
    **options: Any,
) -> MixtureTrainer:
    """Return a trainer of the small pool whose losses are compared with a reference."""
    losses = group_losses(model, reference, strategy, list(pool()), 0.05)
    return build(model, arguments(folder, **options), strategy=strategy, loss=losses, callbacks=callbacks)


def test_alpha_falls_on_what_nobody_can_learn(make_static: Callable[[], SentenceTransformer], tmp_path: Path) -> None:
    # The encoder adds up words, so that orders of the same words are one query with many answers.
    orders = [" ".join(order) for order in itertools.permutations(["w0", "w1", "w2", "w3"])]
    datasets = {
        "noise": Dataset.from_dict({"query": orders, "answer": [f"w{i + 40}" for i in range(24)]}),
        "words": Dataset.from_dict(
            {"query": [f"w{i + 80}" for i in range(24)], "answer": [f"w{i + 120}" for i in range(24)]}
        ),
    }
    reference = make_static()
    plan = {"max_steps": 100, "learning_rate": 0.03, "logging_steps": 50}
    learned = build(
        reference,
        arguments(tmp_path / "reference", **plan),
        train_dataset=datasets,
        loss=info_nce(reference, 0.05),
        strategy=Static(init=UNIFORM),
    )
    learned.train()
    before = {name: value.clone() for name, value in reference.state_dict().items()}

    model, strategy = make_static(), DoReMi(rate=0.05)
    losses = group_losses(model, reference, strategy, list(datasets), 0.05)
    folder = tmp_path / "proxy"
    options = {"max_steps": 30, "learning_rate": 0.01, "save_strategy": "steps", "save_steps": 30}
    args = arguments(folder, gradient_accumulation_steps=2, **options)
    trainer = build(model, args, train_dataset=datasets, strategy=strategy, loss=losses)
    trainer.train()

    assert strategy.alpha[1] > 0.6
    assert strategy.outcome()[1] > 0.55
    assert strategy.outcome().sum() == pytest.approx(1)
    assert strategy.state_dict()["steps"] == 60
    for name, value in reference.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not any(parameter.grad is not None for parameter in reference.parameters())
    optimised = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert optimised == {id(parameter) for parameter in model.parameters()}
    saved = json.loads((folder / "checkpoint-30" / "mixture_state.json").read_text(encoding="utf-8"))
    assert saved["strategy"] == strategy.state_dict()
    size = sum(file.stat().st_size for file in (folder / "checkpoint-30").glob("*.safetensors"))
    assert size < 1.5 * sum(value.numel() * value.element_size() for value in model.state_dict().values())


def test_evaluation_leaves_alpha(make_static: Callable[[], SentenceTransformer], tmp_path: Path) -> None:
    model, strategy = make_static(), DoReMi()
    losses = group_losses(model, other(make_static()), strategy, list(pool()), 0.05)
    dev = {"near": pool()["near"]}
    trainer = build(model, arguments(tmp_path), strategy=strategy, loss=losses, dev_dataset=dev)
    trainer.train()
    before = strategy.state_dict()
    assert np.isfinite(trainer.evaluate()["eval_near_loss"])
    assert strategy.state_dict() == before
    assert before["steps"] == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "accumulation"),
    [
        pytest.param(lambda: DoReMi(rate=2.0), 1, id="doremi"),
        pytest.param(lambda: TDRO(rate=0.5), 2, id="tdro, accumulation"),
        pytest.param(lambda: DoReMi(rate=2.0), 2, id="doremi, accumulation", marks=pytest.mark.soak),
        pytest.param(lambda: TDRO(rate=0.5), 1, id="tdro", marks=pytest.mark.soak),
    ],
)
def test_a_resumed_proxy_is_the_proxy_that_was_not_stopped(
    make: Callable[[], GroupDRO], accumulation: int, tiny_bert_folder: Path, tmp_path: Path
) -> None:
    plan: dict[str, Any] = {"max_steps": 12, "save_strategy": "steps", "save_steps": 6, "logging_steps": 2}
    plan["gradient_accumulation_steps"] = accumulation
    reference = other(without_dropout(tiny_bert_folder))

    def trainer(folder: Path, callbacks: list[TrainerCallback] | None = None) -> MixtureTrainer:
        model = SentenceTransformer(str(tiny_bert_folder), device="cpu")
        return proxy(model, reference, make(), folder, callbacks, **plan)

    whole = trainer(tmp_path / "whole")
    whole.train()
    trainer(tmp_path / "stopped", [StopAt(8)]).train()
    resumed = trainer(tmp_path / "stopped")
    resumed.train(resume_from_checkpoint=str(tmp_path / "stopped" / "checkpoint-6"))
    assert_equal_runs(whole, resumed)
    state = resumed.strategy.state_dict()
    assert state == whole.strategy.state_dict()
    assert state["steps"] == 12 * accumulation
    assert abs(np.exp(state["log_alpha"][0]) - 0.5) > 0.01


def test_a_proxy_that_is_its_reference_has_no_excess_whatever_the_dropout(tiny_bert_folder: Path) -> None:
    model, reference = (SentenceTransformer(str(tiny_bert_folder), device="cpu") for _ in range(2))
    dropouts = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    for module in dropouts:
        module.p = 0.5
    weigh = Scale()
    loss = GroupLoss(model, Reference(reference), weigh, 0.05).train()
    loss(features(model, 3)).backward()
    (losses, references), *_ = weigh.seen
    assert losses == pytest.approx(references, abs=1e-5)
    assert all(module.training for module in dropouts), "training goes on with dropout"


@pytest.mark.slow
def test_under_bf16_a_proxy_that_is_its_reference_has_no_excess(tiny_bert_folder: Path, tmp_path: Path) -> None:
    scores = {}
    for autocast in (torch.bfloat16, None):
        model, strategy = SentenceTransformer(str(tiny_bert_folder), device="cpu"), DoReMi()
        losses = group_losses(
            model, without_dropout(tiny_bert_folder), strategy, list(pool()), 0.02, autocast=autocast
        )
        args = arguments(tmp_path / str(autocast), learning_rate=0.0, bf16=True)
        build(model, args, strategy=strategy, loss=losses).train()
        scores[autocast] = strategy.state_dict()["scores"]
    assert scores[torch.bfloat16] == [0, 0]
    assert min(scores[None]) > 0


def process_run(model_folder: str, output: Path) -> None:
    """Train with eight rows a step over all processes; leave what each of them ends with in the folder."""
    model, reference = without_dropout(Path(model_folder)), other(without_dropout(Path(model_folder)))
    # Without clipping, whose threshold would act on each process's share of the gradient alike.
    args = arguments(output, learning_rate=1e-3, max_grad_norm=0.0)
    args.per_device_train_batch_size = 8 // args.world_size
    strategy = DoReMi(rate=0.2)
    shared = args.world_size > 1
    losses = group_losses(model, reference, strategy, list(pool()), 0.05, gather_across_devices=shared)
    build(model, args, strategy=strategy, loss=losses).train()
    weights = np.concatenate([parameter.detach().numpy().ravel() for parameter in model.parameters()])
    np.savez(output / f"process-{args.process_index}.npz", weights=weights, alpha=strategy.alpha)


@pytest.mark.slow
def test_two_processes_weigh_as_one_does(tiny_bert_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    start_processes(process_run, str(tiny_bert_folder), tmp_path / "two")
    process_run(str(tiny_bert_folder), tmp_path / "one")
    first, second = (np.load(tmp_path / "two" / f"process-{rank}.npz") for rank in range(2))
    alone = np.load(tmp_path / "one" / "process-0.npz")
    for name in ("weights", "alpha"):
        assert np.array_equal(first[name], second[name]), name
    assert np.abs(first["weights"] - alone["weights"]).max() < 1e-4
    assert first["alpha"] == pytest.approx(alone["alpha"], abs=1e-3)
    assert abs(first["alpha"][0] - 0.5) > 0.01

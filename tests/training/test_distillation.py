"""m3-kd.

- The closed form is what eliminating a query's passages one after another gives, with or without all scores.
- Its gradient is that of the numbers, and stays finite for a batch of one row.
- Without scores, and for rows without, it is sentence-transformers' InfoNCE with hard negatives.
- Encoding in pieces changes neither the loss nor the gradient, nor do checkpoints of activations or more processes.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from mixfluence.data.rows import Row, RowSet
from mixfluence.training.losses import info_nce
from mixfluence.training.m3_kd import M3Distillation, distillation_losses
from tests.conftest import row_set
from tests.training.runs import arguments, build, start_processes

QUERIES, PASSAGES = 4, 3
NAN = math.nan
COLUMNS = [[f"w{start + i} w{i}" for i in range(QUERIES)] for start in (0, 20, 40, 60)]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def eliminated(own: Tensor, others: list[Tensor], teacher: Tensor) -> Tensor:
    """The loss by its definition: full cross-entropies, each without the passages that were answers before."""
    losses = []
    for scores, rest, taught in zip(own, others, teacher, strict=True):
        negatives = sorted(range(1, len(scores)), key=lambda place: -taught[place].item())
        order = [0, *negatives]
        weights = taught.softmax(0)
        loss = torch.zeros((), dtype=own.dtype)
        for turn, answer in enumerate(order):
            candidates = torch.cat([scores[order[turn:]], rest])
            loss = loss + weights[answer] * F.cross_entropy(candidates[None], torch.tensor([0]))
        losses.append(loss)
    return torch.stack(losses)


@pytest.mark.parametrize("members", [1, 2, 5, 9])
def test_the_closed_form_is_step_by_step_elimination(members: int) -> None:
    own, teacher = 5 * numbers(6, members), 3 * numbers(6, members, seed=1)
    rest = list(5 * numbers(6, 5 * members, seed=2))
    others = torch.stack([part.logsumexp(0) for part in rest])
    torch.testing.assert_close(
        distillation_losses(own, others, teacher), eliminated(own, rest, teacher), rtol=1e-13, atol=1e-13
    )


def test_a_row_whose_positive_is_not_scored_is_info_nce() -> None:
    own, others = numbers(3, 4), numbers(3, seed=1)
    plain = torch.logaddexp(others, own.logsumexp(1)) - own[:, 0]
    scored = numbers(3, 4, seed=2)
    mixed = torch.stack([torch.full((4,), NAN, dtype=torch.float64), scored[1], scored[2]])
    mixed[2, 0] = NAN
    found = distillation_losses(own, others, mixed)
    torch.testing.assert_close(found[[0, 2]], plain[[0, 2]])
    assert not torch.isclose(found[1], plain[1])


def test_a_negative_without_a_score_competes_and_is_never_the_answer() -> None:
    own, others = numbers(1, 3), numbers(1, seed=1)
    teacher = torch.tensor([[2.0, NAN, 1.0]], dtype=torch.float64)
    known = own[:, [0, 2]]
    # As if it were one more passage of the others.
    expected = distillation_losses(known, torch.logaddexp(others, own[:, 1]), teacher[:, [0, 2]])
    torch.testing.assert_close(distillation_losses(own, others, teacher), expected)


def test_the_order_of_negatives_is_the_teachers() -> None:
    own, others, teacher = numbers(5, 4), numbers(5, seed=1), numbers(5, 4, seed=2)
    places = torch.tensor([0, 3, 1, 2])
    torch.testing.assert_close(
        distillation_losses(own[:, places], others, teacher[:, places]), distillation_losses(own, others, teacher)
    )


@pytest.mark.parametrize("teacher", [[[1.0, 0.5, -2.0]] * 2, [[1.0, NAN, 0.3], [NAN, NAN, NAN]]])
def test_the_gradient_is_right(teacher: list[list[float]]) -> None:
    own, others = numbers(2, 3).requires_grad_(), numbers(2, seed=1).requires_grad_()
    taught = torch.tensor(teacher, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda a, b: distillation_losses(a, b, taught), (own, others))


def without_dropout(folder: Path) -> SentenceTransformer:
    model = SentenceTransformer(str(folder), device="cpu")
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def features(model: SentenceTransformer, rows: int = QUERIES) -> list[dict[str, Any]]:
    return [model.preprocess(texts[:rows]) for texts in COLUMNS]


def gradients(loss: nn.Module, model: SentenceTransformer, labels: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    value = loss(features(model), labels)
    value.backward()
    return value.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


LABELS = [[2.0, 1.0, 0.0], [NAN, NAN, NAN], [0.5, 0.7, NAN], [3.0, -1.0, 2.0]]


def test_without_scores_it_is_the_library_loss(tiny_bert_folder: Path) -> None:
    model = without_dropout(tiny_bert_folder)
    expected, wanted = gradients(info_nce(model, 0.05), model, None)
    for labels in (None, torch.full((QUERIES, PASSAGES), NAN)):
        found, got = gradients(M3Distillation(model, 0.05), model, labels)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)


def test_scores_are_those_of_all_passages_of_the_batch(tiny_bert_folder: Path) -> None:
    model = without_dropout(tiny_bert_folder).eval()
    labels = torch.tensor(LABELS)
    with torch.no_grad():
        columns = [F.normalize(model(column)["sentence_embedding"], dim=-1) for column in features(model)]
        found = M3Distillation(model, 0.05)(features(model), labels)
    queries, passages = columns[0], torch.stack(columns[1:], dim=1)
    own = torch.einsum("qd,qpd->qp", queries, passages) / 0.05
    rest = [
        torch.cat([passages[:row], passages[row + 1 :]]).flatten(0, 1) @ queries[row] / 0.05 for row in range(QUERIES)
    ]
    others = torch.stack([part.logsumexp(0) for part in rest])
    torch.testing.assert_close(found, distillation_losses(own, others, labels).mean())


def test_encoding_in_pieces_changes_nothing(tiny_bert_folder: Path) -> None:
    model = without_dropout(tiny_bert_folder)
    labels = torch.tensor(LABELS)
    expected, wanted = gradients(M3Distillation(model, 0.05), model, labels)
    found, got = gradients(M3Distillation(model, 0.05, mini_batch_size=3), model, labels)
    torch.testing.assert_close(found, expected)
    assert wanted.keys() == got.keys() != set()
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)


def test_a_single_row_has_a_finite_gradient(tiny_bert_folder: Path) -> None:
    model = without_dropout(tiny_bert_folder)
    loss = M3Distillation(model)(features(model, rows=1), torch.tensor([[1.0, 0.0, NAN]]))
    loss.backward()
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert grads
    assert all(grad.isfinite().all() for grad in grads)
    assert any(grad.abs().sum() > 0 for grad in grads)


def scored_pool() -> dict[str, RowSet]:
    """A dataset in which every second row is scored, and one without any score."""

    def row(number: int, scored: bool) -> Row:
        negatives = [f"w{number + 80}", f"w{number + 120}"]
        return Row(f"w{number}", f"w{number + 40} w{number}", negatives, [2.0, number % 3, -1.0] if scored else [])

    return {
        "mixed": row_set(*(row(number, scored=number % 2 == 0) for number in range(24))),
        "plain": row_set(*(row(number, scored=False) for number in range(24, 36))),
    }


def trained(folder: Path, output: Path, mini_batch_size: int | None = None, **options: Any) -> NDArray[np.float32]:
    """Train with eight rows a step over all processes; return the parameters."""
    model = without_dropout(folder)
    args = arguments(output, learning_rate=1e-3, max_grad_norm=0.0, **options)
    args.per_device_train_batch_size = 8 // args.world_size
    shared = args.world_size > 1
    loss = M3Distillation(model, 0.05, mini_batch_size=mini_batch_size, gather_across_devices=shared)
    build(model, args, train_dataset=scored_pool(), loss=loss, num_negatives=3).train()
    found = np.concatenate([parameter.detach().numpy().ravel() for parameter in model.parameters()])
    output.mkdir(exist_ok=True)
    np.save(output / f"process-{args.process_index}.npy", found)
    return found


@pytest.mark.slow
def test_runs_that_save_memory_train_the_same(tiny_bert_folder: Path, tmp_path: Path) -> None:
    plain = trained(tiny_bert_folder, tmp_path / "plain")
    before = np.concatenate([p.detach().numpy().ravel() for p in without_dropout(tiny_bert_folder).parameters()])
    assert np.abs(plain - before).max() > 1e-3
    checkpoints = trained(tiny_bert_folder, tmp_path / "checkpoints", gradient_checkpointing=True)
    assert np.abs(plain - checkpoints).max() < 1e-4
    pieces = trained(tiny_bert_folder, tmp_path / "pieces", mini_batch_size=3)
    assert np.abs(plain - pieces).max() < 1e-4


@pytest.mark.slow
def test_two_processes_train_as_one_does(tiny_bert_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    start_processes(trained, tiny_bert_folder, tmp_path / "two")
    alone = trained(tiny_bert_folder, tmp_path / "one")
    first, second = (np.load(tmp_path / "two" / f"process-{rank}.npy") for rank in range(2))
    assert np.array_equal(first, second)
    assert np.abs(first - alone).max() < 1e-4

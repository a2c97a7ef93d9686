"""Metrics on dev batches.

- InfoNCE equals the training loss of sentence-transformers, per query, with and without hard negatives; splitting a
  batch into pieces or evaluating twice changes nothing.
- Soft NDCG is between 0 and 1, grows with the cosine of the positive, is near 1 if the positive is far ahead and
  converges to NDCG for low temperatures.
- Distillation is the divergence from the teacher plus the teacher's entropy; a passage without a score is ignored, and
  rows without scores are refused.
- The training loss is computed per piece; a target without one is refused.
- A model with NaN weights has the value NaN on all of them.
"""

from __future__ import annotations

import math

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor, nn
from torch.nn import functional as F

from mixfluence.errors import DataError
from mixfluence.influence import (
    DevBatch,
    Metric,
    Piece,
    distillation_metric,
    info_nce_metric,
    loss_metric,
    soft_ndcg_metric,
)

every_metric = pytest.mark.parametrize(
    "metric", [info_nce_metric(), soft_ndcg_metric(), distillation_metric()], ids=["info-nce", "soft-ndcg", "distil"]
)


class Given(nn.Module):
    """An encoder of texts that are embeddings already, up to a factor."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": self.factor * features["embedding"]}


def embedded(*columns: Tensor, labels: Tensor | None = None) -> Piece:
    return Piece([{"embedding": column} for column in columns], labels)


def random_piece(rows: int, passages: int, *, labels: bool = False) -> Piece:
    generator = torch.Generator().manual_seed(rows)
    columns = [torch.randn(rows, 6, generator=generator) for _ in range(1 + passages)]
    return embedded(*columns, labels=torch.randn(rows, passages, generator=generator) if labels else None)


def values(metric: Metric, *pieces: Piece, model: nn.Module | None = None) -> Tensor:
    with torch.no_grad():
        return metric.values(model or Given(), DevBatch("dev", pieces))


def texts(model: SentenceTransformer, rows: range, passages: int) -> Piece:
    """Texts of different lengths through the encoder's own tokeniser."""
    written = [
        [
            " ".join(f"w{(7 * row + 31 * column + word) % 200}" for word in range(1 + (row + column) % 5))
            for row in rows
        ]
        for column in range(1 + passages)
    ]
    return Piece([model.preprocess(column) for column in written])


@pytest.mark.parametrize("hard_negatives", [0, 2])
@pytest.mark.parametrize("temperature", [0.02, 0.5])
def test_info_nce_equals_the_training_loss(
    tiny_bert: SentenceTransformer, hard_negatives: int, temperature: float
) -> None:
    tiny_bert.eval()
    piece = texts(tiny_bert, range(7), 1 + hard_negatives)
    loss = MultipleNegativesRankingLoss(tiny_bert, scale=1 / temperature)
    with torch.no_grad():
        expected = loss([dict(column) for column in piece.columns], None)
    metric = info_nce_metric(temperature, hard_negatives=hard_negatives > 0)
    found = values(metric, piece, model=tiny_bert)
    assert found.shape == (7,)
    assert found.mean().item() == pytest.approx(expected.item(), rel=1e-5)
    assert (metric.higher_is_better, metric.hard_negatives) == (False, hard_negatives > 0)


@pytest.mark.parametrize("cuts", [(3, 8), (1, 2, 8), (4, 5, 8)])
def test_pieces_change_nothing(tiny_bert: SentenceTransformer, cuts: tuple[int, ...]) -> None:
    tiny_bert.eval()
    metric = info_nce_metric(0.02, hard_negatives=True)
    whole = values(metric, texts(tiny_bert, range(8), 2), model=tiny_bert)
    pieces = [texts(tiny_bert, range(begin, end), 2) for begin, end in zip((0, *cuts), cuts, strict=False)]
    # Texts of other lengths are padded otherwise, and a temperature of 0.02 enlarges what that rounds.
    torch.testing.assert_close(values(metric, *pieces, model=tiny_bert), whole, rtol=1e-4, atol=1e-4)
    assert whole.std() > 0.01


def test_evaluating_does_not_change_the_batch(tiny_bert: SentenceTransformer) -> None:
    tiny_bert.eval()
    piece = texts(tiny_bert, range(4), 1)
    before = [set(column) for column in piece.columns]
    first = values(info_nce_metric(), piece, model=tiny_bert)
    assert torch.equal(values(info_nce_metric(), piece, model=tiny_bert), first)
    assert [set(column) for column in piece.columns] == before


def test_dev_rows_without_hard_negatives_are_refused_where_they_are_asked_for(tiny_bert: SentenceTransformer) -> None:
    with pytest.raises(DataError, match="hard negatives"):
        values(info_nce_metric(0.02, hard_negatives=True), texts(tiny_bert, range(4), 1), model=tiny_bert)


def test_hard_negatives_of_every_row_compete() -> None:
    pairs, triples = random_piece(5, 1), random_piece(5, 2)
    assert torch.equal(pairs.columns[0]["embedding"], triples.columns[0]["embedding"])
    queries, positives, negatives = (F.normalize(c["embedding"], dim=-1) for c in triples.columns)
    scores = torch.cat([queries @ positives.T, queries @ negatives.T], dim=1) / 0.1
    expected = F.cross_entropy(scores, torch.arange(5), reduction="none")
    torch.testing.assert_close(values(info_nce_metric(0.1), triples), expected)
    assert (values(info_nce_metric(0.1), triples) > values(info_nce_metric(0.1), pairs)).all()


@every_metric
def test_metrics_compare_directions_not_lengths(metric: Metric) -> None:
    piece = random_piece(6, 3, labels=True)
    torch.testing.assert_close(values(metric, piece, model=Given(50.0)), values(metric, piece))


@pytest.mark.parametrize("temperature", [0.001, 0.05, 1.0])
def test_soft_ndcg_lies_between_zero_and_one(temperature: float) -> None:
    for passages in (1, 4):
        found = values(soft_ndcg_metric(temperature), random_piece(50, passages))
        assert (found > 0).all()
        assert (found <= 1).all()
    assert soft_ndcg_metric().higher_is_better


def test_soft_ndcg_is_near_one_for_a_positive_far_ahead_and_near_ndcg_where_ranks_are_sharp() -> None:
    far_ahead = embedded(torch.eye(6), torch.eye(6))
    assert values(soft_ndcg_metric(0.05), far_ahead).tolist() == pytest.approx([1.0] * 6, abs=1e-4)
    piece = random_piece(40, 2)
    queries, positives, negatives = (F.normalize(c["embedding"], dim=-1) for c in piece.columns)
    scores = queries @ torch.cat([positives, negatives]).T
    ranks = 1 + (scores > scores.diagonal()[:, None]).sum(dim=1)
    assert len(set(ranks.tolist())) > 10
    sharp = values(soft_ndcg_metric(1e-7), piece)
    torch.testing.assert_close(sharp, 1 / torch.log2(1 + ranks.float()), rtol=1e-3, atol=1e-3)


def test_soft_ndcg_grows_with_the_cosine_of_the_positive() -> None:
    others = torch.tensor([[math.cos(a), math.sin(a)] for a in (0.3, 0.9, 1.5)])
    found = []
    for angle in torch.linspace(math.pi, 0, 30).tolist():
        positives = torch.cat([torch.tensor([[math.cos(angle), math.sin(angle)]]), others])
        queries = torch.cat([torch.tensor([[1.0, 0.0]]), others])
        found.append(values(soft_ndcg_metric(0.1), embedded(queries, positives))[0].item())
    assert found == sorted(found)
    assert found[-1] - found[0] > 0.3


def test_distillation_is_the_divergence_from_the_teacher_up_to_its_entropy() -> None:
    pieces = [random_piece(3, 4, labels=True), random_piece(5, 4, labels=True)]
    assert pieces[0].labels is not None
    assert pieces[1].labels is not None
    teacher = torch.cat([pieces[0].labels, pieces[1].labels]).softmax(dim=1)
    queries, *passages = (
        F.normalize(torch.cat([piece.columns[column]["embedding"] for piece in pieces]), dim=-1) for column in range(5)
    )
    student = torch.stack([(queries * passage).sum(dim=1) for passage in passages], dim=1) / 0.1
    divergence = F.kl_div(student.log_softmax(dim=1), teacher, reduction="none").sum(dim=1)
    entropy = -(teacher * teacher.log()).sum(dim=1)
    torch.testing.assert_close(values(distillation_metric(0.1), *pieces), divergence + entropy)
    assert not distillation_metric().higher_is_better


def test_a_passage_without_a_score_is_as_good_as_absent() -> None:
    piece = random_piece(4, 4, labels=True)
    assert piece.labels is not None
    unscored = piece.labels.clone()
    unscored[:, 2] = torch.nan
    without = Piece([c for n, c in enumerate(piece.columns) if n != 3], piece.labels[:, [0, 1, 3]])
    found = values(distillation_metric(), Piece(piece.columns, unscored))
    torch.testing.assert_close(found, values(distillation_metric(), without))
    assert not torch.allclose(found, values(distillation_metric(), piece))


def test_rows_without_teacher_scores_are_an_error_that_names_the_target() -> None:
    with pytest.raises(DataError, match=r"^dev set dev: .*teacher scores"):
        values(distillation_metric(), random_piece(3, 2, labels=True), random_piece(4, 2))


class Parts(nn.Module):
    """A loss of two parts."""

    def forward(self, columns: list[dict[str, Tensor]], labels: Tensor | None) -> dict[str, Tensor]:
        queries, positives = columns[0]["embedding"], columns[1]["embedding"]
        return {"distance": (queries - positives).square().mean(), "size": positives.abs().mean()}


def test_the_training_loss_is_the_loss_piece_by_piece() -> None:
    model = Given()
    loss = MultipleNegativesRankingLoss(model)
    pieces = [random_piece(3, 2), random_piece(4, 2), random_piece(6, 2)]
    with torch.no_grad():
        expected = torch.stack([loss(piece.columns, None) for piece in pieces])
    assert torch.equal(values(loss_metric(loss), *pieces, model=model), expected)
    assert torch.equal(values(loss_metric({"other": Parts(), "dev": loss}), *pieces, model=model), expected)


def test_a_training_loss_of_several_parts_is_their_sum() -> None:
    pieces = [random_piece(3, 1), random_piece(4, 1)]
    parts = [Parts()(list(piece.columns), None) for piece in pieces]
    expected = torch.stack([part["distance"] + part["size"] for part in parts])
    torch.testing.assert_close(values(loss_metric(Parts()), *pieces), expected)


def test_a_target_without_a_training_loss_is_an_error_that_names_it() -> None:
    with pytest.raises(DataError, match=r"^dev set dev: .*loss"):
        values(loss_metric({"other": Parts()}), random_piece(3, 1))


@every_metric
def test_a_model_that_is_not_a_number_has_no_value(metric: Metric) -> None:
    assert values(metric, random_piece(3, 2, labels=True), model=Given(math.nan)).isnan().all()


def test_a_model_that_is_not_a_number_has_no_value_where_scores_are_missing_either() -> None:
    piece = random_piece(3, 3, labels=True)
    assert piece.labels is not None
    piece.labels[:, 1] = torch.nan
    assert values(distillation_metric(), piece).isfinite().all()
    assert values(distillation_metric(), piece, model=Given(math.nan)).isnan().all()

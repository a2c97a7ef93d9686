"""What a model is worth on a dev batch: one value per query.

Built-in metrics compare every query with the passages of all rows in the batch, in fp32 and by cosine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mixfluence.errors import DataError
from mixfluence.influence.columns import Features, embed_columns, packed

# Without gradients a model keeps the activations of one layer: this many pieces fit where training fits one.
PIECES_TOGETHER = 8


@dataclass(frozen=True)
class Piece:
    """Rows of a dev batch that pass through the model together.

    Attributes:
        columns: Model inputs: queries, positives, then one per hard negative.
        labels: Teacher scores of each row's passages, if there are any.
    """

    columns: Sequence[Features]
    labels: Tensor | None = None


@dataclass(frozen=True)
class DevBatch:
    """The rows of one target that a round is judged by."""

    target: str
    pieces: Sequence[Piece]


@dataclass(frozen=True)
class Metric:
    """A function of (model, dev batch) that returns one value per query, and which way is better.

    Attributes:
        values: The function. It runs in eval mode, before and after every probe without gradients; an `Alignment`
            takes its gradient.
        higher_is_better: Whether a larger value is a better model.
        hard_negatives: Whether the dev batch should hold the rows' hard negatives.
        score: What `values` makes of embeddings (queries, passages of each, batch), if that is all it does: several
            targets then pass through the model together.
    """

    values: Callable[[nn.Module, DevBatch], Tensor]
    higher_is_better: bool
    hard_negatives: bool = False
    score: Callable[[Tensor, Tensor, DevBatch], Tensor] | None = None

    def look(self, model: nn.Module, batches: Sequence[DevBatch]) -> list[Tensor]:
        """Return the values of several targets, in as few passes through the model as may be without gradients."""
        if self.score is None or not all(packed(piece.columns[0]) for batch in batches for piece in batch.pieces):
            return [self.values(model, batch) for batch in batches]
        pieces = iter(_embed_together(model, [piece for batch in batches for piece in batch.pieces]))
        embedded = [_by_column([next(pieces) for _ in batch.pieces]) for batch in batches]
        return [self.score(*sides, batch) for sides, batch in zip(embedded, batches, strict=True)]


def info_nce_metric(temperature: float = 0.02, *, hard_negatives: bool = False) -> Metric:
    """InfoNCE over the batch's positives: the paper's metric, and the one to start with.

    Args:
        temperature: Divides the cosines; keep it at that of training.
        hard_negatives: Let the hard negatives of all rows compete too.
    """

    def score(queries: Tensor, passages: Tensor, batch: DevBatch) -> Tensor:
        scores = _scores(queries, passages) / temperature
        return torch.logsumexp(scores, dim=1) - scores.diagonal()

    return _metric_of(score, higher_is_better=False, hard_negatives=hard_negatives)


def soft_ndcg_metric(temperature: float = 0.05) -> Metric:
    """NDCG of the positive among all passages of the batch, smoothed so that small improvements show.

    Nearer to what is reported than InfoNCE, and blind to queries that are already answered: worth a try when the dev
    loss falls but its NDCG does not rise.

    Args:
        temperature: How far apart two cosines must be to count as ranked.
    """

    def score(queries: Tensor, passages: Tensor, batch: DevBatch) -> Tensor:
        scores = _scores(queries, passages)
        ahead = torch.sigmoid((scores - scores.diagonal()[:, None]) / temperature).sum(dim=1) - 0.5
        return 1 / torch.log2(2 + ahead)

    return _metric_of(score, higher_is_better=True, hard_negatives=True)


def distillation_metric(temperature: float = 0.02) -> Metric:
    """Cross-entropy from a teacher's scores over a row's own passages; for dev rows that carry scores.

    Args:
        temperature: Divides the cosines; the teacher's scores are taken as they are.
    """

    def score(queries: Tensor, passages: Tensor, batch: DevBatch) -> Tensor:
        if any(piece.labels is None for piece in batch.pieces):
            raise DataError(f"{batch.target}: a distillation metric needs teacher scores on the dev rows")
        teacher = torch.cat([piece.labels for piece in batch.pieces if piece.labels is not None]).float()
        student = torch.einsum("qd,qpd->qp", queries, passages) / temperature
        known = teacher.isfinite()
        target = teacher.masked_fill(~known, -torch.inf).softmax(dim=1)
        products = target * student.masked_fill(~known, -torch.inf).log_softmax(dim=1)
        return -products.masked_fill(~known, 0.0).sum(dim=1)

    return _metric_of(score, higher_is_better=False, hard_negatives=True)


def loss_metric(loss: nn.Module | Mapping[str, nn.Module]) -> Metric:
    """The training loss itself, one value per piece of the batch: for losses that no other metric stands for.

    Standard errors over a few pieces are rough; prefer `info_nce_metric` where it fits.

    Args:
        loss: As the trainer has it: one loss, or one per dataset name.
    """

    def values(model: nn.Module, batch: DevBatch) -> Tensor:
        chosen = loss.get(batch.target) if isinstance(loss, Mapping) else loss
        if chosen is None:
            raise DataError(f"{batch.target}: there is no loss of this name to judge the dev set by")
        found = [chosen([dict(column) for column in piece.columns], piece.labels) for piece in batch.pieces]
        return torch.stack([torch.stack(list(v.values())).sum() if isinstance(v, dict) else v for v in found])

    return Metric(values, higher_is_better=False, hard_negatives=True)


Losses = nn.Module | Mapping[str, nn.Module]
# Names as recipes spell them; each is built for the training loss, whose temperature it takes.
METRICS: dict[str, Callable[[Losses], Metric]] = {
    "info-nce": lambda loss: info_nce_metric(_temperature(loss)),
    "info-nce-hard": lambda loss: info_nce_metric(_temperature(loss), hard_negatives=True),
    "soft-ndcg": lambda loss: soft_ndcg_metric(_temperature(loss)),
    "distillation": lambda loss: distillation_metric(_temperature(loss)),
    "training-loss": lambda loss: loss_metric(loss),
}


def resolve_metric(metric: str | Metric, loss: Losses) -> Metric:
    """Return the metric that a name stands for when a model trains with a loss; a `Metric` is returned unchanged."""
    return METRICS[metric](loss) if isinstance(metric, str) else metric


def _temperature(loss: Losses) -> float:
    """Return the temperature of a loss: its own, the inverse of its `scale`, or the paper's."""
    first: Any = next(iter(loss.values())) if isinstance(loss, Mapping) else loss
    scale = getattr(first, "scale", None)
    return float(getattr(first, "temperature", 1 / scale if isinstance(scale, float | int) else 0.02))


def _metric_of(
    score: Callable[[Tensor, Tensor, DevBatch], Tensor], *, higher_is_better: bool, hard_negatives: bool
) -> Metric:
    def values(model: nn.Module, batch: DevBatch) -> Tensor:
        return score(*embed(model, batch), batch)

    return Metric(values, higher_is_better, hard_negatives, score)


def embed(model: nn.Module, batch: DevBatch) -> tuple[Tensor, Tensor]:
    """Return normalised fp32 embeddings: queries x dimensions, and queries x passages of the row x dimensions."""
    return _by_column([embed_columns(model, piece.columns) for piece in batch.pieces])


def _embed_together(model: nn.Module, pieces: Sequence[Piece]) -> list[list[Tensor]]:
    """Return the embeddings of each piece's columns, several pieces at a time."""
    found: list[list[Tensor]] = []
    for start in range(0, len(pieces), PIECES_TOGETHER):
        group = pieces[start : start + PIECES_TOGETHER]
        embeddings = iter(embed_columns(model, [column for piece in group for column in piece.columns]))
        found += [[next(embeddings) for _ in piece.columns] for piece in group]
    return found


def _by_column(pieces: Sequence[Sequence[Tensor]]) -> tuple[Tensor, Tensor]:
    joined = [F.normalize(torch.cat(parts).float(), dim=-1) for parts in zip(*pieces, strict=True)]
    return joined[0], torch.stack(joined[1:], dim=1)


def _scores(queries: Tensor, passages: Tensor) -> Tensor:
    """Return cosines of every query with every passage, the positives of all rows first."""
    return queries @ passages.transpose(0, 1).flatten(0, 1).T

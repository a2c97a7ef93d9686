"""Metrics on dev batches: one value per query.

Built-in metrics compare every query with the passages of all rows in the batch, by the scores of the model: cosines,
inner products, MaxSim or logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mixfluence.errors import DataError
from mixfluence.influence.scoring import DevBatch, score_batches

Losses = nn.Module | Mapping[str, nn.Module]
# Without gradients only the activations of one layer are kept: this many pieces fit where training fits one.
PIECES_PER_PASS = 8


@dataclass(frozen=True)
class Metric:
    """A function of (model, dev batch) that returns one value per query.

    Attributes:
        values: The function. It runs in eval mode: without gradients before and after every probe, with gradients
            for an `Alignment`.
        higher_is_better: Whether a larger value means a better model.
        hard_negatives: Whether the dev batch includes the hard negatives of its rows.
        score: For metrics of scores only: the function of (scores, batch) that `values` applies to the scores of each
            query with the passages of all rows, as `score_batches` returns them. Several targets are then encoded
            together.
    """

    values: Callable[[nn.Module, DevBatch], Tensor]
    higher_is_better: bool
    hard_negatives: bool = False
    score: Callable[[Tensor, DevBatch], Tensor] | None = None

    def evaluate(self, model: nn.Module, batches: Sequence[DevBatch]) -> list[Tensor]:
        """Return the values of several targets, in as few forward passes as fit without gradients."""
        if self.score is None:
            return [self.values(model, batch) for batch in batches]
        scored = score_batches(model, batches, PIECES_PER_PASS)
        return [self.score(scores, batch) for scores, batch in zip(scored, batches, strict=True)]


def info_nce_metric(temperature: float = 0.02, *, hard_negatives: bool = False) -> Metric:
    """InfoNCE over the batch's positives: the metric of the paper and the default.

    With `hard_negatives`, also over those of all rows, which the dev rows must then have. The temperature divides the
    scores; use that of training.
    """

    def score(scores: Tensor, batch: DevBatch) -> Tensor:
        if hard_negatives and scores.shape[1] <= len(scores):
            raise DataError(f"{batch.target}: info-nce-hard needs dev rows with hard negatives; use info-nce")
        scores = scores / temperature
        return torch.logsumexp(scores, dim=1) - scores.diagonal()

    return _metric_of(score, higher_is_better=False, hard_negatives=hard_negatives)


def soft_ndcg_metric(temperature: float = 0.05) -> Metric:
    """NDCG of the positive among all passages of the batch, smoothed so that small improvements count.

    Closer to the reported measure than InfoNCE, but flat for queries that already rank first. Try it if the dev loss
    falls and dev NDCG does not rise. The temperature is how far apart two scores must be to count as ranked.
    """

    def score(scores: Tensor, batch: DevBatch) -> Tensor:
        ahead = torch.sigmoid((scores - scores.diagonal()[:, None]) / temperature).sum(dim=1) - 0.5
        return 1 / torch.log2(2 + ahead)

    return _metric_of(score, higher_is_better=True, hard_negatives=True)


def distillation_metric(temperature: float = 0.02) -> Metric:
    """Cross-entropy with a teacher's scores over a row's own passages, for dev rows with scores.

    The temperature divides the model's scores, not the teacher's.
    """

    def score(scores: Tensor, batch: DevBatch) -> Tensor:
        if any(piece.labels is None for piece in batch.pieces):
            raise DataError(f"{batch.target}: a distillation metric needs teacher scores on the dev rows")
        teacher = torch.cat([piece.labels for piece in batch.pieces if piece.labels is not None]).float()
        # The score of each query with its own passages: those of row i are the columns i, i + rows, ...
        student = scores.reshape(len(scores), -1, len(scores)).diagonal(dim1=0, dim2=2).T / temperature
        known = teacher.isfinite()
        target = teacher.masked_fill(~known, -torch.inf).softmax(dim=1)
        products = target * student.masked_fill(~known, -torch.inf).log_softmax(dim=1)
        return -products.masked_fill(~known, 0.0).sum(dim=1)

    return _metric_of(score, higher_is_better=False, hard_negatives=True)


def loss_metric(loss: Losses) -> Metric:
    """The training loss, one value per piece of the batch, for losses that no other metric approximates.

    Standard errors over a few pieces are rough; prefer `info_nce_metric` where it applies. A mapping has one loss per
    dataset, as the trainer has it.
    """

    def values(model: nn.Module, batch: DevBatch) -> Tensor:
        chosen = loss.get(batch.target) if isinstance(loss, Mapping) else loss
        if chosen is None:
            raise DataError(f"{batch.target}: the trainer has no loss for this dev set")
        # Copied, because modules of sentence-transformers modify their input.
        found = [chosen([copy(column) for column in piece.columns], piece.labels) for piece in batch.pieces]
        return torch.stack([torch.stack(list(v.values())).sum() if isinstance(v, dict) else v for v in found])

    return Metric(values, higher_is_better=False, hard_negatives=True)


# Names as recipes spell them; each is built for the training loss, whose temperature it takes.
METRICS: dict[str, Callable[[Losses], Metric]] = {
    "info-nce": lambda loss: info_nce_metric(temperature_of(loss)),
    "info-nce-hard": lambda loss: info_nce_metric(temperature_of(loss), hard_negatives=True),
    "soft-ndcg": lambda loss: soft_ndcg_metric(temperature_of(loss)),
    "distillation": lambda loss: distillation_metric(temperature_of(loss)),
    "training-loss": loss_metric,
}


def resolve_metric(metric: str | Metric, loss: Losses) -> Metric:
    """Return the metric that a name stands for when a model trains with a loss; a `Metric` is returned unchanged."""
    return METRICS[metric](loss) if isinstance(metric, str) else metric


def temperature_of(loss: Losses, default: float = 0.02) -> float:
    """Return the temperature of a loss, or of the loss that it wraps: 1 / `scale`, its own, or the default."""
    first: Any = next(iter(loss.values())) if isinstance(loss, Mapping) else loss
    while isinstance(getattr(first, "loss", None), nn.Module):
        first = first.loss
    scale = getattr(first, "scale", None)
    return 1 / scale if isinstance(scale, float | int) else float(getattr(first, "temperature", default))


def _metric_of(score: Callable[[Tensor, DevBatch], Tensor], *, higher_is_better: bool, hard_negatives: bool) -> Metric:
    def values(model: nn.Module, batch: DevBatch) -> Tensor:
        return score(score_batches(model, [batch], 1)[0], batch)

    return Metric(values, higher_is_better, hard_negatives, score)

"""Metrics on dev batches: one value per query.

Built-in metrics compare every query with the passages of all rows in the batch, by cosine in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mixfluence.errors import DataError

Features = dict[str, Any]
Losses = nn.Module | Mapping[str, nn.Module]
# Inputs of packed columns by their names in transformers: concatenated, maximised, and all that joining combines.
TOKENS = ("input_ids", "position_ids", "token_type_ids")
LONGEST = ("max_length_q", "max_length_k")
COMBINED = {*TOKENS, *LONGEST, "cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"}
# Without gradients only the activations of one layer are kept: this many pieces fit where training fits one.
PIECES_PER_PASS = 8


@dataclass(frozen=True)
class Piece:
    """Rows of a dev batch that are encoded together.

    Attributes:
        columns: Model inputs: queries, positives, then one column per hard negative.
        labels: Teacher scores of each row's passages, if any.
    """

    columns: Sequence[Features]
    labels: Tensor | None = None


@dataclass(frozen=True)
class DevBatch:
    """The rows of one target in a round."""

    target: str
    pieces: Sequence[Piece]


@dataclass(frozen=True)
class Metric:
    """A function of (model, dev batch) that returns one value per query.

    Attributes:
        values: The function. It runs in eval mode: without gradients before and after every probe, with gradients
            for an `Alignment`.
        higher_is_better: Whether a larger value means a better model.
        hard_negatives: Whether the dev batch includes the hard negatives of its rows.
        score: For metrics of embeddings only: the function of (queries, passages of each, batch) that `values`
            applies. Several targets are then encoded together.
    """

    values: Callable[[nn.Module, DevBatch], Tensor]
    higher_is_better: bool
    hard_negatives: bool = False
    score: Callable[[Tensor, Tensor, DevBatch], Tensor] | None = None

    def evaluate(self, model: nn.Module, batches: Sequence[DevBatch]) -> list[Tensor]:
        """Return the values of several targets, in as few forward passes as fit without gradients."""
        if self.score is None:
            return [self.values(model, batch) for batch in batches]
        embedded = _embed(model, batches, PIECES_PER_PASS)
        return [self.score(*sides, batch) for sides, batch in zip(embedded, batches, strict=True)]


def info_nce_metric(temperature: float = 0.02, *, hard_negatives: bool = False) -> Metric:
    """InfoNCE over the batch's positives: the metric of the paper and the default.

    With `hard_negatives`, also over those of all rows, which the dev rows must then have. The temperature divides the
    cosines; use that of training.
    """

    def score(queries: Tensor, passages: Tensor, batch: DevBatch) -> Tensor:
        if hard_negatives and passages.shape[1] < 2:
            raise DataError(f"{batch.target}: info-nce-hard needs dev rows with hard negatives; use info-nce")
        scores = _scores(queries, passages) / temperature
        return torch.logsumexp(scores, dim=1) - scores.diagonal()

    return _metric_of(score, higher_is_better=False, hard_negatives=hard_negatives)


def soft_ndcg_metric(temperature: float = 0.05) -> Metric:
    """NDCG of the positive among all passages of the batch, smoothed so that small improvements count.

    Closer to the reported measure than InfoNCE, but flat for queries that already rank first. Try it if the dev loss
    falls and dev NDCG does not rise. The temperature is how far apart two cosines must be to count as ranked.
    """

    def score(queries: Tensor, passages: Tensor, batch: DevBatch) -> Tensor:
        scores = _scores(queries, passages)
        ahead = torch.sigmoid((scores - scores.diagonal()[:, None]) / temperature).sum(dim=1) - 0.5
        return 1 / torch.log2(2 + ahead)

    return _metric_of(score, higher_is_better=True, hard_negatives=True)


def distillation_metric(temperature: float = 0.02) -> Metric:
    """Cross-entropy with a teacher's scores over a row's own passages, for dev rows with scores.

    The temperature divides the cosines, not the teacher's scores.
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


def loss_metric(loss: Losses) -> Metric:
    """The training loss, one value per piece of the batch, for losses that no other metric approximates.

    Standard errors over a few pieces are rough; prefer `info_nce_metric` where it applies. A mapping has one loss per
    dataset, as the trainer has it.
    """

    def values(model: nn.Module, batch: DevBatch) -> Tensor:
        chosen = loss.get(batch.target) if isinstance(loss, Mapping) else loss
        if chosen is None:
            raise DataError(f"{batch.target}: no loss of this name to evaluate the dev set with")
        found = [chosen([dict(column) for column in piece.columns], piece.labels) for piece in batch.pieces]
        return torch.stack([torch.stack(list(v.values())).sum() if isinstance(v, dict) else v for v in found])

    return Metric(values, higher_is_better=False, hard_negatives=True)


# Names as recipes spell them; each is built for the training loss, whose temperature it takes.
METRICS: dict[str, Callable[[Losses], Metric]] = {
    "info-nce": lambda loss: info_nce_metric(_temperature(loss)),
    "info-nce-hard": lambda loss: info_nce_metric(_temperature(loss), hard_negatives=True),
    "soft-ndcg": lambda loss: soft_ndcg_metric(_temperature(loss)),
    "distillation": lambda loss: distillation_metric(_temperature(loss)),
    "training-loss": loss_metric,
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
        return score(*_embed(model, [batch], 1)[0], batch)

    return Metric(values, higher_is_better, hard_negatives, score)


def _embed(model: nn.Module, batches: Sequence[DevBatch], pieces_per_pass: int) -> list[tuple[Tensor, Tensor]]:
    """Return the normalised fp32 embeddings of each batch: [queries, d], and [queries, passages per row, d]."""
    pieces = [piece for batch in batches for piece in batch.pieces]
    found: list[Tensor] = []
    for start in range(0, len(pieces), pieces_per_pass):
        group = pieces[start : start + pieces_per_pass]
        found += embed_columns(model, [column for piece in group for column in piece.columns])
    columns = iter(found)
    embedded = []
    for batch in batches:
        by_piece = [[next(columns) for _ in piece.columns] for piece in batch.pieces]
        joined = [F.normalize(torch.cat(parts).float(), dim=-1) for parts in zip(*by_piece, strict=True)]
        embedded.append((joined[0], torch.stack(joined[1:], dim=1)))
    return embedded


def _scores(queries: Tensor, passages: Tensor) -> Tensor:
    """Return the cosines of every query with every passage, positives of all rows first."""
    return queries @ passages.transpose(0, 1).flatten(0, 1).T


def embed_columns(model: nn.Module, columns: Sequence[Features]) -> list[Tensor]:
    """Return the embeddings of every column, given the model inputs of each.

    Packed columns are concatenated and encoded in one forward pass; padded ones would have to be padded to the
    longest of all, so that they are encoded one by one.
    """
    if not _joinable(columns):
        # Copied, because modules of sentence-transformers write into their input.
        return [model(dict(column))["sentence_embedding"] for column in columns]
    embeddings: Tensor = model(_join_columns(columns))["sentence_embedding"]
    return list(torch.split(embeddings, [len(column["cu_seq_lens_q"]) - 1 for column in columns]))


def packed(column: Features) -> bool:
    """Return whether the sequences of a column are packed without padding."""
    return "cu_seq_lens_q" in column


def _joinable(columns: Sequence[Features]) -> bool:
    """Return whether columns are packed and equal in all inputs that joining does not combine."""
    rest = [{name: value for name, value in column.items() if name not in COMBINED} for column in columns]
    return all(map(packed, columns)) and all(other == rest[0] for other in rest)


def _join_columns(columns: Sequence[Features]) -> Features:
    joined = dict(columns[0])
    for name in joined.keys() & TOKENS:
        joined[name] = torch.cat([column[name] for column in columns], dim=1)
    tokens = texts = 0
    bounds, numbers = [columns[0]["cu_seq_lens_q"][:1]], []
    for column in columns:
        bounds.append(column["cu_seq_lens_q"][1:] + tokens)
        numbers.append(column["seq_idx"] + texts)
        tokens += column["input_ids"].shape[1]
        texts += len(column["cu_seq_lens_q"]) - 1
    joined["seq_idx"] = torch.cat(numbers, dim=1)
    joined["cu_seq_lens_q"] = joined["cu_seq_lens_k"] = torch.cat(bounds)
    return joined | {name: max(column[name] for column in columns) for name in LONGEST}

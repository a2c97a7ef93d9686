"""Metrics on dev batches, one value per query, and the scores that built-in metrics are computed from.

Built-in metrics compare every query with the passages of all rows in the batch, by the scores of the model: cosines,
inner products, MaxSim or logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SparseEncoder
from sentence_transformers.util import batch_to_device, maxsim
from torch import Tensor, nn
from torch.nn import functional as F

from mixfluence.errors import DataError

Features = dict[str, Any]
Losses = nn.Module | Mapping[str, nn.Module]
# Without gradients only the activations of one layer are kept: this many pieces fit where training fits one.
PIECES_PER_PASS = 8
# Inputs of packed columns by their names in transformers: concatenated, and all that joining combines.
TOKENS = ("input_ids", "position_ids", "token_type_ids")
COMBINED = {*TOKENS, "max_length_q", "cu_seq_lens_q", "seq_idx"}
# Passages of other rows that a cross-encoder compares with each query: all of them would be a forward pass per pair.
# As many as in training, so that a dev row costs what a training row does.
OTHER_ROWS = 4


@dataclass(frozen=True)
class Piece:
    """Rows of a dev batch that are encoded together.

    Attributes:
        columns: Model inputs, or texts for a cross-encoder: queries, positives, then one column per hard negative.
        labels: Teacher scores of each row's passages, if any.
    """

    columns: Sequence[Any]
    labels: Tensor | None = None


@dataclass(frozen=True)
class DevBatch:
    """Rows of a target whose queries are compared with each other's passages; a round may have several of a target."""

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
        score: For metrics of scores only: the function of (scores, batch) that `values` applies to the scores of each
            query with the passages of all rows, as `score_batches` returns them. Several targets are then encoded
            together.
    """

    values: Callable[[nn.Module, DevBatch], Tensor]
    higher_is_better: bool
    hard_negatives: bool = False
    score: Callable[[Tensor, DevBatch], Tensor] | None = None

    def evaluate(self, model: nn.Module, batches: Sequence[DevBatch]) -> list[Tensor]:
        """Return the values of each target, in as few forward passes as fit without gradients."""
        if self.score is None:
            values = [self.values(model, batch) for batch in batches]
        else:
            scored = score_batches(model, batches, PIECES_PER_PASS)
            values = [self.score(scores, batch) for scores, batch in zip(scored, batches, strict=True)]
        found: dict[str, list[Tensor]] = {}
        for batch, own in zip(batches, values, strict=True):
            found.setdefault(batch.target, []).append(own)
        return [torch.cat(parts) for parts in found.values()]


def targets_of(batches: Sequence[DevBatch]) -> list[str]:
    """Return the targets of dev batches, each once."""
    return list(dict.fromkeys(batch.target for batch in batches))


def info_nce_metric(temperature: float = 0.02, *, hard_negatives: bool = False) -> Metric:
    """InfoNCE over the batch's positives: the metric of the paper and the default.

    With `hard_negatives`, also over those of all rows, which the dev rows must then have. The temperature divides the
    scores; use that of training.
    """

    def score(scores: Tensor, batch: DevBatch) -> Tensor:
        if hard_negatives and scores.shape[1] <= len(scores):
            raise DataError(f"dev set {batch.target}: info-nce-hard needs dev rows with hard negatives; use info-nce")
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
            raise DataError(f"dev set {batch.target}: a distillation metric needs teacher scores on the dev rows")
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
            raise DataError(f"dev set {batch.target}: the trainer has no loss for it")
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


@singledispatch
def score_batches(model: nn.Module, batches: Sequence[DevBatch], pieces_per_pass: int) -> list[Tensor]:
    """Return the scores of every batch in fp32: [queries, passages], the positives of all rows first.

    Those of a dense model are cosines. A pair that is not scored has -inf.
    """
    return [
        _products([F.normalize(column, dim=-1) for column in columns])
        for columns in _embed(model, batches, pieces_per_pass)
    ]


@score_batches.register(SparseEncoder)
def _score_sparse(model: SparseEncoder, batches: Sequence[DevBatch], pieces_per_pass: int) -> list[Tensor]:
    """Return inner products."""
    return [_products(columns) for columns in _embed(model, batches, pieces_per_pass)]


@score_batches.register(MultiVectorEncoder)
def _score_multi_vector(model: MultiVectorEncoder, batches: Sequence[DevBatch], _: int) -> list[Tensor]:
    """Return sums over the tokens of a query of the largest cosine with a token of the passage."""
    return [_maxsim(model, batch) for batch in batches]


@score_batches.register(CrossEncoder)
def _score_pairs(model: CrossEncoder, batches: Sequence[DevBatch], pieces_per_pass: int) -> list[Tensor]:
    """Return the logits of each query with its own passages, and with the positives of the next few rows."""
    return [_pair_logits(model, batch, pieces_per_pass) for batch in batches]


def _maxsim(model: MultiVectorEncoder, batch: DevBatch) -> Tensor:
    def vectors(column: int) -> tuple[list[Tensor], list[Tensor]]:
        # Copied, because modules of sentence-transformers write into their input.
        inputs = [dict(piece.columns[column]) for piece in batch.pieces]
        outputs = [model(features, task=features["task"]) for features in inputs]
        tokens = [row for output in outputs for row in output["token_embeddings"].float()]
        return tokens, [row for output in outputs for row in output["attention_mask"].bool()]

    queries, query_masks = vectors(0)
    scores = []
    for column in range(1, len(batch.pieces[0].columns)):
        passages, masks = vectors(column)
        mean = model.similarity_fn_name == "meanmaxsim"
        scores.append(maxsim(queries, passages, query_masks, masks, length_normalize=mean))
    return torch.cat(scores, dim=1)


def _pair_logits(model: CrossEncoder, batch: DevBatch, pieces_per_pass: int) -> Tensor:
    by_column = zip(*(piece.columns for piece in batch.pieces), strict=True)
    queries, *columns = [[text for part in parts for text in part] for parts in by_column]
    passages = [text for column in columns for text in column]
    count = len(queries)
    own = [(row, place) for row in range(count) for place in range(row, len(passages), count)]
    others = [(row, (row + i) % count) for i in range(1, min(OTHER_ROWS, count - 1) + 1) for row in range(count)]
    pairs = own + others
    logits = []
    size = len(batch.pieces[0].columns[0]) * pieces_per_pass
    for start in range(0, len(pairs), size):
        texts = [(queries[row], passages[place]) for row, place in pairs[start : start + size]]
        features = model.preprocess(texts)
        logits.append(model(batch_to_device(features, model.device))["scores"].float().flatten())
    rows, places = torch.tensor(pairs, device=logits[0].device).T
    scores: Tensor = logits[0].new_full((count, len(passages)), -torch.inf)
    return scores.index_put((rows, places), torch.cat(logits))


def _embed(model: nn.Module, batches: Sequence[DevBatch], pieces_per_pass: int) -> list[list[Tensor]]:
    """Return the embeddings of each batch in fp32: of its queries, then of each column of passages."""
    pieces = [piece for batch in batches for piece in batch.pieces]
    found: list[Tensor] = []
    for start in range(0, len(pieces), pieces_per_pass):
        group = pieces[start : start + pieces_per_pass]
        found += embed_columns(model, [column for piece in group for column in piece.columns])
    columns = iter(found)
    embedded = []
    for batch in batches:
        by_piece = [[next(columns) for _ in piece.columns] for piece in batch.pieces]
        embedded.append([torch.cat(parts).float() for parts in zip(*by_piece, strict=True)])
    return embedded


def _products(columns: Sequence[Tensor]) -> Tensor:
    queries, *passages = columns
    return queries @ torch.cat(passages).T


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
    """Return whether mixfluence packed the sequences of a column; flattened by sentence-transformers, they differ."""
    return "cu_seq_lens_q" in column and "cu_seq_lens_k" not in column


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
    joined["seq_idx"], joined["cu_seq_lens_q"] = torch.cat(numbers, dim=1), torch.cat(bounds)
    joined["max_length_q"] = max(column["max_length_q"] for column in columns)
    return joined

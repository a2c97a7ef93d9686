"""Scores of dev batches under every kind of model: each query against the passages of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SparseEncoder
from sentence_transformers.util import batch_to_device, maxsim
from torch import Tensor, nn
from torch.nn import functional as F

Features = dict[str, Any]
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
    """The rows of one target in a round."""

    target: str
    pieces: Sequence[Piece]


@singledispatch
def score_batches(model: nn.Module, batches: Sequence[DevBatch], pieces_per_pass: int) -> list[Tensor]:
    """Return the scores of every batch in fp32: [queries, passages], the positives of all rows first.

    Those of a dense model are cosines. A pair that is not scored has -inf.
    """
    return [
        _products(F.normalize(queries, dim=-1), [F.normalize(passages, dim=-1) for passages in columns])
        for queries, *columns in _embed(model, batches, pieces_per_pass)
    ]


@score_batches.register(SparseEncoder)
def _score_sparse(model: SparseEncoder, batches: Sequence[DevBatch], pieces_per_pass: int) -> list[Tensor]:
    """Return inner products."""
    return [_products(queries, columns) for queries, *columns in _embed(model, batches, pieces_per_pass)]


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


def _products(queries: Tensor, columns: Sequence[Tensor]) -> Tensor:
    return queries @ torch.cat(list(columns)).T


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
    joined["seq_idx"], joined["cu_seq_lens_q"] = torch.cat(numbers, dim=1), torch.cat(bounds)
    joined["max_length_q"] = max(column["max_length_q"] for column in columns)
    return joined

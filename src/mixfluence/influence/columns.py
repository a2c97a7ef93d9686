"""Columns of text become embeddings, in one pass through the model where they have no padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

Features = dict[str, Any]
# What differs between columns that were laid end to end, by the host's names for it.
RUNS = ("input_ids", "position_ids", "token_type_ids", "seq_idx")
BOUNDS = ("cu_seq_lens_q", "cu_seq_lens_k")
LONGEST = ("max_length_q", "max_length_k")


def embed_columns(model: nn.Module, columns: Sequence[Features]) -> list[Tensor]:
    """Return the embeddings of every column.

    Columns whose texts were laid end to end are laid end to end in turn, so that the model runs once; padded ones
    would have to be padded to the longest of all, and run one after another.

    Args:
        model: The encoder.
        columns: Its inputs, one for each column.
    """
    if not _joinable(columns):
        # The host's modules write into the features they are given.
        return [model(dict(column))["sentence_embedding"] for column in columns]
    embeddings: Tensor = model(join_columns(columns))["sentence_embedding"]
    return list(torch.split(embeddings, [len(column["cu_seq_lens_q"]) - 1 for column in columns]))


def packed(column: Features) -> bool:
    """Return whether a column's texts were laid end to end."""
    return "cu_seq_lens_q" in column


def join_columns(columns: Sequence[Features]) -> Features:
    """Lay columns end to end whose texts already are."""
    joined = dict(columns[0])
    for name in RUNS:
        if name in joined and name != "seq_idx":
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


def _joinable(columns: Sequence[Features]) -> bool:
    """Return whether columns are laid end to end, and are alike in what else a model might look at."""
    if not all(map(packed, columns)):
        return False
    apart = {*RUNS, *BOUNDS, *LONGEST}
    rest = [{name: value for name, value in column.items() if name not in apart} for column in columns]
    return all(other == rest[0] for other in rest)

"""Losses by the names that recipes use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from torch import Tensor, nn

from mixfluence.influence import embed_columns, packed
from mixfluence.training.distillation import M3Distillation


class PackedMultipleNegativesRankingLoss(MultipleNegativesRankingLoss):
    """`MultipleNegativesRankingLoss` that embeds all columns in one pass if they are packed."""

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor | None = None) -> Tensor:
        """Return the loss of a batch."""
        columns = list(sentence_features)
        loss: Tensor = (
            self.compute_loss_from_embeddings(embed_columns(self.model, columns), labels)
            if packed(columns[0])
            else super().forward(columns, labels)
        )
        return loss


def info_nce(
    model: SentenceTransformer,
    temperature: float = 0.02,
    *,
    mini_batch_size: int | None = None,
    gather_across_devices: bool = False,
) -> nn.Module:
    """Return InfoNCE over cosine similarities with in-batch and hard negatives.

    Args:
        model: The encoder.
        temperature: Divides the cosines. The paper uses 0.02, sentence-transformers defaults to 0.05.
        mini_batch_size: Encode this many texts at a time with cached gradients (GradCache): the same gradient with
            far less memory, about twice as slow. None encodes the batch at once.
        gather_across_devices: Also use the passages of other processes as negatives, with their gradient.

    Returns:
        A loss with the attribute `temperature`.
    """
    options = {"scale": 1 / temperature, "gather_across_devices": gather_across_devices}
    loss: nn.Module = (
        PackedMultipleNegativesRankingLoss(model, **options)
        if mini_batch_size is None
        else CachedMultipleNegativesRankingLoss(model, mini_batch_size=mini_batch_size, **options)
    )
    return loss


# Names as recipes spell them. Each takes (model, temperature, *, mini_batch_size, gather_across_devices).
LOSSES: dict[str, Callable[..., nn.Module]] = {"info-nce": info_nce, "m3-kd": M3Distillation}

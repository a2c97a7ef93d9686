"""The host's contrastive losses under the names a recipe uses."""

from __future__ import annotations

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from torch import nn


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
        temperature: Divides the cosines; the paper uses 0.02, the host's default is 0.05.
        mini_batch_size: Encode in pieces of this many texts with cached gradients (GradCache): the same
            gradient in far less memory, about twice as slow. None encodes the batch at once.
        gather_across_devices: Take the other processes' passages as negatives too, with their gradient.
    """
    options = {"scale": 1 / temperature, "gather_across_devices": gather_across_devices}
    loss: nn.Module = (
        MultipleNegativesRankingLoss(model, **options)
        if mini_batch_size is None
        else CachedMultipleNegativesRankingLoss(model, mini_batch_size=mini_batch_size, **options)
    )
    return loss

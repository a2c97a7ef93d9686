"""InfoNCE, the weighted loss of a proxy run, and the losses by the names that recipes use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, singledispatch
from typing import Any, cast

import numpy as np
import torch
from accelerate.utils import gather
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.cross_encoder import losses as reranking
from sentence_transformers.multi_vector_encoder import losses as multi_vector
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.sparse_encoder import losses as sparse
from torch import Tensor, nn

from mixfluence.errors import RecipeError
from mixfluence.influence import embed_columns, packed
from mixfluence.influence.snapshot import preserve_modes
from mixfluence.strategies import Strategy
from mixfluence.training.m3_kd import M3Distillation, in_batch_scores, normalised
from mixfluence.training.packing import prepare_attention

# Weights of the FLOPS regularisation in SPLADE, the defaults of sentence-transformers.
QUERY_FLOPS, PASSAGE_FLOPS = 5e-5, 3e-5


class PackedMultipleNegativesRankingLoss(MultipleNegativesRankingLoss):
    """`MultipleNegativesRankingLoss` that embeds all columns in one pass if they are packed."""

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor | None = None) -> Tensor:
        """Return the loss of a batch."""
        columns = list(sentence_features)
        if not packed(columns[0]):
            return cast(Tensor, super().forward(columns, labels))
        return cast(Tensor, self.compute_loss_from_embeddings(embed_columns(self.model, columns), labels))


@singledispatch
def info_nce(
    model: SentenceTransformer,
    temperature: float = 0.02,
    *,
    mini_batch_size: int | None = None,
    gather_across_devices: bool = False,
) -> nn.Module:
    """Return InfoNCE over the scores of a model with in-batch and hard negatives.

    Scores are cosines, inner products of sparse vectors (SPLADE, with its FLOPS regularisation), MaxSim of
    multi-vector encoders or logits of cross-encoders. The temperature of the last three is 1 by default.

    Args:
        model: The encoder.
        temperature: Divides the scores. The paper uses 0.02, sentence-transformers defaults to 0.05.
        mini_batch_size: Encode this many texts at a time with cached gradients (GradCache): the same gradient with
            far less memory, about twice as slow. None encodes the batch at once.
        gather_across_devices: Also use the passages of other processes as negatives, with their gradient.
    """
    kind: Any = PackedMultipleNegativesRankingLoss
    if mini_batch_size is not None:
        kind = partial(CachedMultipleNegativesRankingLoss, mini_batch_size=mini_batch_size)
    return cast(nn.Module, kind(model, scale=1 / temperature, gather_across_devices=gather_across_devices))


@info_nce.register(SparseEncoder)
def _splade(
    model: SparseEncoder,
    temperature: float = 1.0,
    *,
    mini_batch_size: int | None = None,
    gather_across_devices: bool = False,
) -> nn.Module:
    options = {"scale": 1 / temperature, "gather_across_devices": gather_across_devices}
    inner = sparse.SparseMultipleNegativesRankingLoss(model, **options)
    kind: Any = sparse.SpladeLoss
    if mini_batch_size is not None:
        kind = partial(sparse.CachedSpladeLoss, mini_batch_size=mini_batch_size)
    weights = {"query_regularizer_weight": QUERY_FLOPS, "document_regularizer_weight": PASSAGE_FLOPS}
    return cast(nn.Module, kind(model, inner, **weights))


@info_nce.register(MultiVectorEncoder)
def _maxsim(
    model: MultiVectorEncoder,
    temperature: float = 1.0,
    *,
    mini_batch_size: int | None = None,
    gather_across_devices: bool = False,
) -> nn.Module:
    kind: Any = multi_vector.MultiVectorMultipleNegativesRankingLoss
    if mini_batch_size is not None:
        cached = multi_vector.CachedMultiVectorMultipleNegativesRankingLoss
        kind = partial(cached, mini_batch_size=mini_batch_size)
    return cast(nn.Module, kind(model, scale=1 / temperature, gather_across_devices=gather_across_devices))


@info_nce.register(CrossEncoder)
def _rerank(
    model: CrossEncoder,
    temperature: float = 1.0,
    *,
    mini_batch_size: int | None = None,
    gather_across_devices: bool = False,
) -> nn.Module:
    """Return the cross-entropy of the positive among a row's hard negatives and four random passages of the batch.

    Passages of other processes would have to be sent as texts, so that they are never gathered.
    """
    kind: Any = reranking.MultipleNegativesRankingLoss
    if mini_batch_size is not None:
        kind = partial(reranking.CachedMultipleNegativesRankingLoss, mini_batch_size=mini_batch_size)
    return cast(nn.Module, kind(model, scale=1 / temperature, activation_fn=nn.Identity()))


class Reference:
    """A frozen encoder in eval mode, given token ids of the trained model and the precision of the training.

    It is not an `nn.Module`, so that a loss that holds it neither trains nor saves it, and sentence-transformers does
    not replace its model by the one being trained.
    """

    def __init__(self, model: SentenceTransformer, autocast: torch.dtype | None = None) -> None:
        self._model = model.eval().requires_grad_(False)
        self._autocast = autocast

    @torch.no_grad()
    def embed(self, columns: Sequence[dict[str, Any]], device: torch.device) -> list[Tensor]:
        """Return the embeddings of every column, computed on a device."""
        if self._model.device != device:
            self._model.to(device)
        if packed(columns[0]):
            prepare_attention(self._model)
        with torch.autocast(device.type, self._autocast, enabled=self._autocast is not None):
            return embed_columns(self._model, columns)


class GroupLoss(nn.Module):
    """InfoNCE of one dataset in a proxy run, times the current group-DRO weight of the dataset.

    Each batch, or micro-batch, is weighed once, by the losses of all processes under model and reference. Without
    gradients, as in evaluation, it is the plain loss and no weight changes. Both models are compared without dropout,
    so that equal models have equal losses. `own_negatives_only` ignores in-batch negatives where a row has hard ones.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        reference: Reference,
        weigh: Callable[[NDArray[np.float64], NDArray[np.float64]], float],
        temperature: float = 0.02,
        *,
        own_negatives_only: bool = False,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self._reference = reference
        self._weigh = weigh
        self.temperature = temperature
        self._own_negatives_only = own_negatives_only
        self._gather_across_devices = gather_across_devices

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor | None = None) -> Tensor:
        """Return the weighted loss of a batch."""
        columns = list(sentence_features)
        losses = self._rows(embed_columns(self.model, columns))
        if not (self.training and torch.is_grad_enabled()):
            return losses.mean()
        with torch.no_grad(), preserve_modes(self.model):
            proxy = self._rows(embed_columns(self.model.eval(), columns))
            reference = self._rows(self._reference.embed(columns, losses.device))
        both = gather(torch.stack([proxy, reference], dim=1)).double().cpu().numpy()
        return self._weigh(both[:, 0], both[:, 1]) * losses.mean()

    def _rows(self, columns: Sequence[Tensor]) -> Tensor:
        """Return the loss of each query."""
        queries, *passages = normalised(columns)
        if self._own_negatives_only and len(passages) > 1:
            scores = torch.einsum("qd,pqd->qp", queries, torch.stack(passages)) / self.temperature
            return torch.logsumexp(scores, dim=1) - scores[:, 0]
        scores, first = in_batch_scores(queries, passages, self.temperature, self._gather_across_devices)
        return torch.logsumexp(scores, dim=1) - scores.diagonal(first)


def group_losses(
    model: SentenceTransformer,
    reference: SentenceTransformer,
    strategy: Strategy,
    names: Sequence[str],
    temperature: float = 0.02,
    *,
    autocast: torch.dtype | None = None,
    gather_across_devices: bool = False,
) -> dict[str, nn.Module]:
    """Return one loss per dataset for `MixtureTrainer`, with a common reference and strategy.

    Args:
        model: The encoder that is trained.
        reference: A trained encoder with the same tokenizer; it is frozen.
        strategy: The strategy of the same trainer.
        names: The datasets, in the trainer's order.
        temperature: Divides the cosines.
        autocast: `torch.bfloat16` if the training argument `bf16` is on.
        gather_across_devices: As for `info_nce`; only on several processes.
    """
    if reference is model:
        raise RecipeError("reference: must not be the model that is trained")
    if dotted := [name for name in names if "." in name]:
        raise RecipeError(f"{dotted[0]!r}: names of datasets with a loss of their own must not contain a dot")
    frozen = Reference(reference, autocast)
    options = {"own_negatives_only": strategy.own_negatives_only, "gather_across_devices": gather_across_devices}
    return {
        name: GroupLoss(model, frozen, partial(strategy.weigh, number), temperature, **options)
        for number, name in enumerate(names)
    }


# Names as recipes spell them. Each takes (model, temperature, *, mini_batch_size, gather_across_devices).
LOSSES: dict[str, Callable[..., nn.Module]] = {"info-nce": info_nce, "m3-kd": M3Distillation}

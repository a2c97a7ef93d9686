"""The losses of recipes, through the classes of sentence-transformers, and the weighted loss of a proxy run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from accelerate.utils import gather
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.model import BaseModel
from sentence_transformers.cross_encoder import losses as reranking
from sentence_transformers.multi_vector_encoder import losses as multi_vector
from sentence_transformers.sentence_transformer.losses import (
    CachedGISTEmbedLoss,
    CachedMultipleNegativesRankingLoss,
    ContrastiveLoss,
    CoSENTLoss,
    CosineSimilarityLoss,
    DistillKLDivLoss,
    GISTEmbedLoss,
    MarginMSELoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
    OnlineContrastiveLoss,
    SoftmaxLoss,
    TripletLoss,
)
from sentence_transformers.sparse_encoder import losses as sparse
from sentence_transformers.util import pairwise_cos_sim, pairwise_dot_score
from torch import Tensor, nn

from mixfluence.data.tokens import TokenisedRows
from mixfluence.encoders import load_encoder
from mixfluence.errors import DataError, RecipeError
from mixfluence.influence import embed_columns, packed
from mixfluence.influence.snapshot import preserve_modes
from mixfluence.losses import FlopsSection, LossSection
from mixfluence.strategies import Strategy
from mixfluence.training.m3_kd import in_batch_scores, normalised
from mixfluence.training.packing import prepare_attention

# Losses that compare with a teacher's scores and nothing else, by the class of the model.
MARGIN_MSE: dict[type[BaseModel], Any] = {
    SentenceTransformer: MarginMSELoss,
    SparseEncoder: sparse.SparseMarginMSELoss,
    MultiVectorEncoder: multi_vector.MultiVectorMarginMSELoss,
    CrossEncoder: reranking.MarginMSELoss,
}
DISTILL_KL: dict[type[BaseModel], Any] = {
    SentenceTransformer: DistillKLDivLoss,
    SparseEncoder: sparse.SparseDistillKLDivLoss,
    MultiVectorEncoder: multi_vector.MultiVectorDistillKLDivLoss,
}
# Losses of pairs with a label or a score, in place of positives; those of sparse encoders are subclasses.
LABELLED = CosineSimilarityLoss, CoSENTLoss, ContrastiveLoss, OnlineContrastiveLoss, SoftmaxLoss
TAUGHT = *MARGIN_MSE.values(), *DISTILL_KL.values()
# Losses with a guide model, whose attention is not prepared for packed sequences.
GUIDED = GISTEmbedLoss, CachedGISTEmbedLoss


class LossSettings(NamedTuple):
    """What a recipe says about every loss; the arguments of `info_nce`."""

    temperature: float
    mini_batch_size: int | None = None
    gather_across_devices: bool = False


class PackedMultipleNegativesRankingLoss(MultipleNegativesRankingLoss):
    """`MultipleNegativesRankingLoss` that embeds all columns in one pass if they are packed."""

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor | None = None) -> Tensor:
        columns = list(sentence_features)
        if not packed(columns[0]):
            return cast(Tensor, super().forward(columns, labels))
        return self.compute_loss_from_embeddings(embed_columns(self.model, columns), labels)

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor | None) -> Tensor:
        """Return the loss; without looking scores up by indices, whose gradients a GPU has to sort."""
        if self.gather_across_devices or self.hardness_mode or self.directions != ("query_to_doc",):
            return cast(Tensor, super().compute_loss_from_embeddings(embeddings, labels))
        queries, *passages = embeddings
        scores = self.similarity_fct(queries, torch.cat(passages)) * self.scale
        loss: Tensor = -(scores.diagonal() - torch.logsumexp(scores, dim=1)).mean()
        return loss


def info_nce(
    model: Any,
    temperature: float | None = None,
    *,
    mini_batch_size: int | None = None,
    gather_across_devices: bool = False,
) -> nn.Module:
    """Return InfoNCE over the scores of a model with in-batch and hard negatives.

    Scores are cosines, inner products of sparse vectors (SPLADE, with its FLOPS regularisation), MaxSim of
    multi-vector encoders or logits of cross-encoders, which compare the positive with a row's hard negatives and four
    random passages of the batch.

    Args:
        model: The encoder.
        temperature: Divides the scores; None for 0.02, as in the paper, of cosines, and for 1 of other scores.
        mini_batch_size: Encode this many texts at a time with cached gradients (GradCache): the same gradient with
            far less memory, about twice as slow. None encodes the batch at once.
        gather_across_devices: Also use the passages of other processes as negatives, with their gradient.
    """
    if temperature is None:
        temperature = 0.02 if isinstance(model, SentenceTransformer) else 1.0
    options: dict[str, Any] = {"scale": 1 / temperature, "gather_across_devices": gather_across_devices}
    match model:
        case SparseEncoder():
            return regularised(model, sparse.SparseMultipleNegativesRankingLoss(model, **options), mini_batch_size)
        case MultiVectorEncoder():
            whole, cached = (
                multi_vector.MultiVectorMultipleNegativesRankingLoss,
                multi_vector.CachedMultiVectorMultipleNegativesRankingLoss,
            )
        case CrossEncoder():
            # Passages of other processes would have to be sent as texts, so that they are never gathered.
            options = {"scale": 1 / temperature, "activation_fn": nn.Identity()}
            whole, cached = reranking.MultipleNegativesRankingLoss, reranking.CachedMultipleNegativesRankingLoss
        case _:
            whole, cached = PackedMultipleNegativesRankingLoss, CachedMultipleNegativesRankingLoss
    return cast(nn.Module, _in_pieces(whole, cached, mini_batch_size)(model, **options))


def regularised(
    model: SparseEncoder, loss: nn.Module, mini_batch_size: int | None = None, flops: FlopsSection | None = None
) -> nn.Module:
    """Return a loss of sparse vectors with the FLOPS regularisation of SPLADE."""
    flops = flops or FlopsSection()
    weights = {"query_regularizer_weight": flops.query, "document_regularizer_weight": flops.passage}
    kind = _in_pieces(sparse.SpladeLoss, sparse.CachedSpladeLoss, mini_batch_size)
    return cast(nn.Module, kind(model, loss, **weights))


def _in_pieces(whole: Any, cached: Any, mini_batch_size: int | None) -> Any:
    """Return the class of a loss, or of its form with cached gradients if there is a size of mini-batches."""
    return whole if mini_batch_size is None else partial(cached, mini_batch_size=mini_batch_size)


def gist(model: SentenceTransformer, guide: str, margin: float, settings: LossSettings) -> nn.Module:
    """Return GISTEmbed's loss with a frozen guide."""
    frozen = load_encoder(guide, device=str(model.device)).eval().requires_grad_(False)
    temperature, mini_batch_size, gathered = settings
    kind = _in_pieces(GISTEmbedLoss, CachedGISTEmbedLoss, mini_batch_size)
    return cast(nn.Module, kind(model, frozen, temperature, margin=margin, gather_across_devices=gathered))


def taught(losses: Mapping[type[BaseModel], Any], model: Any, settings: LossSettings, **options: Any) -> nn.Module:
    """Return a loss against a teacher's scores, given its class by that of the model, and options of that class.

    The temperature divides the scores of the model only. As an option of the KL divergence it would also divide those
    of the teacher, and multiply the loss by its square.
    """
    loss_class = next(own for kind, own in losses.items() if isinstance(model, kind))
    temperature, mini_batch_size, _ = settings
    loss: Any
    match model:
        case MultiVectorEncoder():
            loss = loss_class(model, mini_batch_size=mini_batch_size, **options)
            loss.similarity_fct = _divided(loss.similarity_fct, temperature)
        case CrossEncoder():
            loss = loss_class(model, _divided(nn.Identity(), temperature), **options)
        case _:
            similarity = pairwise_dot_score if isinstance(model, SparseEncoder) else pairwise_cos_sim
            loss = loss_class(model, _divided(similarity, temperature), **options)
    # Metrics on dev batches have the temperature of the loss.
    loss.scale = 1 / temperature
    return cast(nn.Module, loss)


def _divided(score: Callable[..., Tensor], temperature: float) -> Callable[..., Tensor]:
    @wraps(score)
    def divided(*args: Any, **options: Any) -> Tensor:
        return score(*args, **options) / temperature

    return divided


def build_loss(section: LossSection, model: Any, settings: LossSettings) -> nn.Module:
    """Return the loss that a recipe describes."""
    try:
        loss = section.build(model, settings)
        if isinstance(model, SparseEncoder):
            inner = loss.loss if isinstance(loss, sparse.SpladeLoss) else loss
            loss = regularised(model, inner, settings.mini_batch_size, section.flops)
        if section.matryoshka:
            loss = MatryoshkaLoss(model, loss, section.matryoshka.dims, section.matryoshka.weights)
    except ValueError as error:
        raise RecipeError(f"loss: refused by sentence-transformers ({error})") from error
    return loss


def has_part(loss: object, *kinds: type[nn.Module]) -> bool:
    """Return whether a loss is of one of some classes, or wraps one that is."""
    return isinstance(loss, nn.Module) and any(isinstance(part, kinds) for part in loss.modules())


def check_rows(loss: nn.Module, name: str, rows: TokenisedRows, negatives: int) -> None:
    """Refuse a dataset whose rows a loss cannot be computed on."""
    if has_part(loss, *TAUGHT) and not (negatives and rows.fully_scored):
        raise DataError(f"{name}: its loss needs hard negatives, and a teacher's score for every passage of every row")
    if has_part(loss, GISTEmbedLoss) and negatives > 1:
        raise DataError(f"{name}: gist takes one hard negative, found {negatives}; set hard_negatives to 1 or 0")
    if has_part(loss, TripletLoss) and negatives != 1:
        raise DataError(f"{name}: a triplet loss takes one hard negative, found {negatives}; set num_negatives to 1")


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
    """Return one loss per dataset for `MixtureTrainer`, given the strategy and the datasets of that trainer, in order.

    The reference is a trained encoder with the same tokenizer, and is frozen. `autocast` is `torch.bfloat16` if the
    training argument `bf16` is on; `gather_across_devices` is that of `info_nce`, only on several processes.
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

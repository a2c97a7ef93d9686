"""InfoNCE, distillation from a teacher (m3-kd), and the weighted loss of a proxy run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses.gradcache import CachedLossMixin
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.util import all_gather_with_grad, get_rank
from torch import Tensor, nn
from torch.nn import functional as F

from mixfluence.errors import RecipeError
from mixfluence.influence import embed_columns, packed
from mixfluence.strategies import Strategy
from mixfluence.training.packing import prepare_attention


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


class M3Distillation(CachedLossMixin, nn.Module):
    """InfoNCE over cosines, distilled from a teacher's scores as in BGE-M3, in rows that have them.

    A batch may mix rows with and without scores. Without any, it equals `info_nce`, which is then the simpler choice.
    Scores are the label, one per passage, the positive first. The arguments are those of `info_nce`; the temperature
    does not divide the teacher's scores.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        temperature: float = 0.02,
        *,
        mini_batch_size: int | None = None,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.gather_across_devices = gather_across_devices
        self.mini_batch_size = mini_batch_size
        self.uses_gradient_cache = mini_batch_size is not None

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor | None = None) -> Tensor:
        """Return the mean loss of a batch."""
        columns = list(sentence_features)
        if self.uses_gradient_cache:
            loss: Tensor = CachedLossMixin.forward_cached(self, columns, labels)
            return loss
        return self._mean(embed_columns(self.model, columns), labels)

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """Return the loss of embeddings computed in mini-batches, as `CachedLossMixin` expects."""
        loss = self._mean([torch.cat(pieces) for pieces in reps], labels)
        if with_backward:
            torch.autograd.backward(loss)
        return loss.detach() if with_backward else loss

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings for the model card."""
        return {name: getattr(self, name) for name in ("temperature", "mini_batch_size", "gather_across_devices")}

    def _mean(self, columns: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        queries, *passages = _normalised(columns)
        scores, first = _scores(queries, passages, self.temperature, self.gather_across_devices)
        scores = scores.view(len(queries), len(passages), -1)
        rows = torch.arange(len(queries), device=scores.device)
        own = scores[rows, :, first + rows]
        mine = F.one_hot(first + rows, scores.shape[2]).bool()[:, None, :]
        others = scores.masked_fill(mine, -torch.inf).flatten(1).logsumexp(1)
        teacher = torch.full_like(own, torch.nan) if labels is None else labels.to(own)
        return distillation_losses(own, others, teacher).mean()


def distillation_losses(own: Tensor, others: Tensor, teacher: Tensor) -> Tensor:
    """Return the m3-kd loss of each query.

    A query's own passages are taken in turn: the positive first, then its negatives by falling teacher score. Each is
    the target once, against all passages except those taken before it, weighted by the softmax of the teacher's
    scores. The denominators are a cumulative sum from the end, so one pass is enough.

    A row whose positive has no score uses plain InfoNCE. A negative without a score is never a target, but stays in
    the denominators.

    Args:
        own: Queries x own passages, the positive first: the student's scores, divided by the temperature.
        others: For each query, the logsumexp of its scores with all other queries' passages.
        teacher: The teacher's scores of the own passages, unscaled; NaN where there is none.
    """
    keys = teacher.nan_to_num(-torch.inf)
    keys[:, 0] = torch.inf
    order = keys.argsort(dim=1, descending=True, stable=True)
    own, teacher = own.gather(1, order), teacher.gather(1, order)
    left = own.flip(1).logcumsumexp(1).flip(1)
    # Only the positive is a target if the teacher has not scored it.
    scored = teacher.isfinite() & teacher[:, :1].isfinite()
    targets = torch.where(scored, teacher, -torch.inf)
    targets[:, 0] = targets[:, 0].masked_fill(~scored[:, 0], 0.0)
    return (targets.softmax(1).to(own.dtype) * (torch.logaddexp(others[:, None], left) - own)).sum(1)


class Reference:
    """A frozen encoder in eval mode, given token ids of the trained model.

    It is not an `nn.Module`, so that a loss that holds it neither trains nor saves it, and sentence-transformers does
    not replace its model by the one being trained.

    Args:
        autocast: Precision of the training, which accelerate applies to the trained model only; None for the
            encoder's own.
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

    Prefer `info_nce` if nothing is to be weighted. Each batch is weighed once, by the losses of all processes; with
    gradient accumulation each micro-batch. Without gradients, as in evaluation, it is the plain loss and no weight
    changes. The trained model is compared with dropout, the reference without.

    Args:
        reference: The encoder that the losses of the trained `model` are compared with.
        weigh: Takes the losses of all queries under model and reference, and returns the weight of the batch.
        own_negatives_only: Use only a row's own passages, in rows that have hard negatives.
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
        with torch.no_grad():
            reference = self._rows(self._reference.embed(columns, losses.device))
        both = gather(torch.stack([losses.detach(), reference], dim=1)).double().cpu().numpy()
        return self._weigh(both[:, 0], both[:, 1]) * losses.mean()

    def _rows(self, columns: Sequence[Tensor]) -> Tensor:
        """Return the loss of each query."""
        queries, *passages = _normalised(columns)
        if self._own_negatives_only and len(passages) > 1:
            scores = torch.einsum("qd,pqd->qp", queries, torch.stack(passages)) / self.temperature
            return torch.logsumexp(scores, dim=1) - scores[:, 0]
        scores, first = _scores(queries, passages, self.temperature, self._gather_across_devices)
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
        autocast: Precision of the training: `torch.bfloat16` if the training argument `bf16` is on.
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


def _normalised(columns: Sequence[Tensor]) -> list[Tensor]:
    """Return embeddings of length 1, in fp32 at least: at a temperature of 0.02, bf16 rounds scores to a tenth."""
    precision = torch.promote_types(columns[0].dtype, torch.float32)
    return [F.normalize(column.to(precision), dim=-1) for column in columns]


def _scores(queries: Tensor, passages: list[Tensor], temperature: float, gathered: bool) -> tuple[Tensor, int]:
    """Return the scores of queries with all passages, and the place of the first query's positive among them."""
    first = 0
    if gathered:
        passages = [all_gather_with_grad(column) for column in passages]
        first = get_rank() * len(queries)
    # A plain matrix product: the backward pass of gathering misreads a gradient that is not contiguous.
    return queries @ torch.cat(passages).T / temperature, first


# Names as recipes spell them. Each takes (model, temperature, *, mini_batch_size, gather_across_devices).
LOSSES: dict[str, Callable[..., nn.Module]] = {"info-nce": info_nce, "m3-kd": M3Distillation}

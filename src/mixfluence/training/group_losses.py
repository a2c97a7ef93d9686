"""The loss of a proxy run: InfoNCE, weighted by how a batch compares with a frozen reference model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import all_gather_with_grad
from torch import Tensor, nn
from torch.nn import functional as F

from mixfluence.errors import RecipeError
from mixfluence.influence import embed_columns, packed
from mixfluence.strategies import Strategy
from mixfluence.training.packing import prepare_attention

Features = dict[str, Any]
Weigh = Callable[[NDArray[np.float64], NDArray[np.float64]], float]


class Reference:
    """A trained encoder that is only asked.

    No module, so that a loss that holds it neither trains nor saves it, and the host does not put the proxy in its
    place. The encoder is frozen and set to eval mode for good.

    Args:
        model: The encoder; it gets the token ids of the model that is trained.
        autocast: Precision that the training runs under, which the host applies to the trained model alone; None for
            the encoder's own.
    """

    def __init__(self, model: SentenceTransformer, autocast: torch.dtype | None = None) -> None:
        self._model = model.eval().requires_grad_(False)
        self._autocast = autocast

    @torch.no_grad()
    def embed(self, columns: Sequence[Features], device: torch.device) -> list[Tensor]:
        """Return the embeddings of every column, computed on a device."""
        if self._model.device != device:
            self._model.to(device)
        if packed(columns[0]):
            prepare_attention(self._model)
        with torch.autocast(device.type, self._autocast, enabled=self._autocast is not None):
            return embed_columns(self._model, columns)


class GroupLoss(nn.Module):
    """InfoNCE of one dataset in a proxy run, times the weight that the dataset has earned against the reference.

    Unweighted, it is the host's `MultipleNegativesRankingLoss`; use that (`info_nce`) wherever nothing is to be
    weighted. Every batch is weighed once: with gradient accumulation each of a step's batches, on several processes
    by the losses of them all. Where no gradient is asked for, as in the host's evaluation, it is the plain loss and
    nothing is learned. The trained model has its dropout while it is compared, the reference has none.

    Args:
        model: The encoder that is trained.
        reference: What its losses are compared with.
        weigh: Takes the losses of all queries under model and reference, and returns the weight of the batch.
        temperature: Divides the cosines.
        own_negatives_only: Compare a query with its row's own passages alone, where rows have hard negatives.
        gather_across_devices: Take the other processes' passages as negatives too, with their gradient.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        reference: Reference,
        weigh: Weigh,
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

    def forward(self, sentence_features: Iterable[Features], labels: Tensor | None = None) -> Tensor:
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
        # In fp32 or better from here on: at a temperature of 0.02, bf16 would round scores to a tenth.
        precision = torch.promote_types(columns[0].dtype, torch.float32)
        queries, *passages = (F.normalize(column.to(precision), dim=-1) for column in columns)
        if self._own_negatives_only and len(passages) > 1:
            scores = torch.einsum("qd,pqd->qp", queries, torch.stack(passages)) / self.temperature
            return torch.logsumexp(scores, dim=1) - scores[:, 0]
        place = 0
        if self._gather_across_devices:
            passages = [all_gather_with_grad(column) for column in passages]
            place = torch.distributed.get_rank() * len(queries)
        scores = queries @ torch.cat(passages).T / self.temperature
        return torch.logsumexp(scores, dim=1) - scores.diagonal(place)


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
    """Return a loss per dataset for `MixtureTrainer`, all against one reference and all teaching one strategy.

    Args:
        model: The encoder that is trained.
        reference: A trained encoder of the same kind; it is frozen.
        strategy: The strategy of the same trainer.
        names: The datasets, in the trainer's order.
        temperature: Divides the cosines.
        autocast: Precision that the training runs under: `torch.bfloat16` where the host's `bf16` is on.
        gather_across_devices: Take the other processes' passages as negatives too; only on several processes.
    """
    if reference is model:
        raise RecipeError("the reference must be another model than the one that is trained")
    if dotted := [name for name in names if "." in name]:
        raise RecipeError(f"a dataset with a loss of its own must have a name without a dot, found {dotted[0]!r}")
    frozen = Reference(reference, autocast)
    return {
        name: GroupLoss(
            model,
            frozen,
            partial(strategy.weigh, number),
            temperature,
            own_negatives_only=strategy.own_negatives_only,
            gather_across_devices=gather_across_devices,
        )
        for number, name in enumerate(names)
    }

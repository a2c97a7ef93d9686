"""The loss `m3-kd`: InfoNCE with distillation from a teacher's scores, as BGE-M3 is trained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses.gradcache import CachedLossMixin
from sentence_transformers.util import all_gather_with_grad, get_rank
from torch import Tensor, nn
from torch.nn import functional as F

from mixfluence.influence import embed_columns


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
        columns = list(sentence_features)
        if self.uses_gradient_cache:
            return cast(Tensor, CachedLossMixin.forward_cached(self, columns, labels))
        return self._mean(embed_columns(self.model, columns), labels)

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """Return the loss of embeddings computed in mini-batches, as `CachedLossMixin` expects."""
        loss = self._mean([torch.cat(pieces) for pieces in reps], labels)
        if with_backward:
            torch.autograd.backward(loss)
        return loss.detach() if with_backward else loss

    def _mean(self, columns: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        queries, *passages = normalised(columns)
        scores, first = in_batch_scores(queries, passages, self.temperature, self.gather_across_devices)
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
    scores. The denominators are a cumulative sum from the end, so one pass is enough. A row whose positive has no
    score uses plain InfoNCE. A negative without a score is never a target, but stays in the denominators.

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


def normalised(columns: Sequence[Tensor]) -> list[Tensor]:
    """Return embeddings of length 1, in fp32 at least: at a temperature of 0.02, bf16 rounds scores to a tenth."""
    precision = torch.promote_types(columns[0].dtype, torch.float32)
    return [F.normalize(column.to(precision), dim=-1) for column in columns]


def in_batch_scores(queries: Tensor, passages: list[Tensor], temperature: float, gathered: bool) -> tuple[Tensor, int]:
    """Return the scores of queries with all passages, and the place of the first query's positive among them."""
    first = 0
    if gathered:
        passages = [all_gather_with_grad(column) for column in passages]
        first = get_rank() * len(queries)
    # A plain matrix product: the backward pass of gathering misreads a gradient that is not contiguous.
    return queries @ torch.cat(passages).T / temperature, first

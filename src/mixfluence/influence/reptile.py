"""Probes are not thrown away: the model moves by the mean of their displacements, the better ones counting more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from mixfluence.influence.learner import Learner


class Displacement:
    """The weighted mean of displacements, streamed: one tensor per parameter however many probes there are.

    Weights depend on all influences, which are known only when the last probe is done. A softmax needs no more
    than the largest exponent so far: when it grows, what was added before is scaled down. Its scale cannot wait,
    so it is the spread of the round before; in the first round all weights are equal.

    Args:
        parameters: The model's, which probes change.
        start: Copies of them from before any probe, wherever they are kept.
        weights: See `Reptile`.
        scale: Spread of the influences one round ago; infinite if there was none.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        start: Sequence[Tensor],
        weights: Literal["softmax", "sum"],
        scale: float,
    ) -> None:
        self._start = start
        self._weights = weights
        self._scale = scale
        self._sum = [torch.zeros_like(tensor) for tensor in parameters]
        # Kept on the device: a weight that the host had to know would make it wait for every probe.
        numbers = torch.zeros(2, dtype=torch.float64, device=parameters[0].device)
        self._total, self._largest = numbers[0], numbers[1] + torch.finfo(torch.float64).min

    @property
    def bytes(self) -> int:
        """Size of the running sum."""
        return sum(tensor.nbytes for tensor in self._sum)

    @torch.no_grad()
    def add(self, parameters: Sequence[Tensor], influence: Tensor) -> None:
        """Count a probe that ended at `parameters`, which are left as displacements to save a copy of them.

        A probe whose influence is not a number does not count.
        """
        counts = influence.isfinite()
        weight = self._weight(torch.where(counts, influence, -torch.inf))
        for live, kept in zip(parameters, self._start, strict=True):
            # One at a time: a snapshot on the host must not come back whole.
            live.sub_(kept.to(live.device, non_blocking=True)).mul_(weight).masked_fill_(~counts, 0)
        torch._foreach_add_(self._sum, list(parameters))
        self._total = self._total + weight

    @torch.no_grad()
    def merge(self, learner: Learner) -> None:
        """Add up what several processes have counted, each for its own probes."""
        places = self._total.new_zeros(learner.world)
        places[learner.rank] = self._largest
        self._shrink_to(learner.total(places).max())
        self._total = learner.total(self._total)
        for tensor in self._sum:
            tensor.copy_(learner.total(tensor))

    @torch.no_grad()
    def apply(self, parameters: Sequence[Tensor], alpha: float) -> None:
        """Move restored parameters by `alpha` times the weighted mean."""
        part = torch.where(self._total > 0, alpha / self._total, 0)
        for live, moved in zip(parameters, self._sum, strict=True):
            live.add_(moved * part)

    def _weight(self, influence: Tensor) -> Tensor:
        """Return the weight of a probe beside those before it: 0 for an influence of minus infinity."""
        if self._weights == "sum":
            return influence.clip(min=0)
        exponent = torch.where(influence.isfinite(), influence / self._scale, -torch.inf)
        self._shrink_to(torch.maximum(self._largest, exponent))
        return (exponent - self._largest).exp()

    def _shrink_to(self, largest: Tensor) -> None:
        """Express what was added so far by another exponent, at least as large."""
        factor = (self._largest - largest).exp()
        torch._foreach_mul_(self._sum, factor)
        self._total, self._largest = self._total * factor, largest

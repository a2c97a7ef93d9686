"""Reptile: the model moves by the mean displacement of its probes, weighted by their influence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from mixfluence.influence.settings import Learner


class Displacement:
    """A running weighted mean of displacements: one tensor per parameter for any number of probes.

    The weights depend on all influences, which are known only after the last probe. As in an online softmax, earlier
    sums are rescaled when the largest exponent grows. The temperature must be known before, so that it is the spread
    of the previous round unless a number is given; without either, in the first round, all weights are equal.

    Args:
        parameters: The parameters of the model, which probes change.
        start: Copies of them from before any probe, on any device.
        weights: See `Reptile`.
        scale: Temperature of the softmax; infinite if there was no previous round.
    """

    def __init__(
        self, parameters: Sequence[Tensor], start: Sequence[Tensor], weights: Literal["softmax", "sum"], scale: float
    ) -> None:
        self._start = start
        self._weights = weights
        self._scale = scale
        self._sum = [torch.zeros_like(tensor) for tensor in parameters]
        # Kept on the device, so that no probe waits for a copy to the CPU.
        numbers = torch.zeros(2, dtype=torch.float64, device=parameters[0].device)
        self._total, self._largest = numbers[0], numbers[1] + torch.finfo(torch.float64).min

    @property
    def bytes(self) -> int:
        """Size of the running sum."""
        return sum(tensor.nbytes for tensor in self._sum)

    @torch.no_grad()
    def add(self, parameters: Sequence[Tensor], influence: Tensor) -> None:
        """Add a probe that ended at `parameters`, which are overwritten by displacements to save a copy.

        A probe whose influence is not finite is skipped.
        """
        counts = influence.isfinite()
        weight = self._weight(torch.where(counts, influence, -torch.inf))
        for live, kept in zip(parameters, self._start, strict=True):
            # One at a time, so that a snapshot on the CPU is never on the device as a whole.
            live.sub_(kept.to(live.device, non_blocking=True)).mul_(weight).masked_fill_(~counts, 0)
        torch._foreach_add_(self._sum, list(parameters))
        self._total = self._total + weight

    @torch.no_grad()
    def merge(self, learner: Learner) -> None:
        """Sum the displacements of several processes, each of which ran some of the probes."""
        places = self._total.new_zeros(learner.world)
        places[learner.rank] = self._largest
        self._rescale(learner.total(places).max())
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
        """Return the weight of a probe relative to earlier ones; 0 for an influence of minus infinity."""
        if self._weights == "sum":
            return influence.clip(min=0)
        exponent = torch.where(influence.isfinite(), influence / self._scale, -torch.inf)
        self._rescale(torch.maximum(self._largest, exponent))
        return (exponent - self._largest).exp()

    def _rescale(self, largest: Tensor) -> None:
        factor = (self._largest - largest).exp()
        torch._foreach_mul_(self._sum, factor)
        self._total, self._largest = self._total * factor, largest

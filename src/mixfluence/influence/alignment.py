"""Influence by gradients: compare the gradient of a dataset with those of the dev sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mixfluence.errors import RecipeError
from mixfluence.influence.influences import Influences
from mixfluence.influence.metrics import DevBatch, Metric, targets_of
from mixfluence.influence.settings import Alignment, Batches, Learner, Meter, refuse_without_moments
from mixfluence.influence.snapshot import Snapshot, explain_out_of_memory, preserve, preserve_rng_and_modes

Array = NDArray[np.float64]
# Dot product of a gradient with a direction, and norm of the gradient.
Pair = tuple[Tensor, Tensor]


class Aligner(Meter):
    """Measures alignments without side effects: everything is restored bit by bit.

    Gradients are compared one by one, so that a single vector of parameter size is kept for any number of datasets and
    targets: the mean of cosines is the dot product with the mean of the targets' unit vectors.
    """

    def __init__(self, learner: Learner, alignment: Alignment, metric: Metric) -> None:
        if alignment.preconditioned:
            refuse_without_moments(learner.optimizer)
        super().__init__(learner, metric)
        self._alignment = alignment

    @explain_out_of_memory("lower strategy.alignment.batch_size or strategy.alignment.dev_batch_size")
    def measure(
        self, datasets: Sequence[int], batches: Batches, dev: Sequence[DevBatch], *, seed: int, spread: float = inf
    ) -> Influences:
        """Compare datasets one after another; see `Meter.measure` for the arguments, of which `spread` is not used.

        The gradients of a dataset's batches are summed; without batches its alignment is zero. The result has the mean
        of all targets as a single target: the alignments with each are not known.
        """
        base, pairs = [], []
        modules = self._learner.modules
        with preserve_rng_and_modes(modules), preserve("grad", modules.parameters()):
            # Without a step, a forward pass in training mode changes nothing but buffers.
            snapshot = Snapshot(list(modules.buffers()))
            direction = [torch.zeros_like(parameter, dtype=torch.float32) for parameter in self._parameters]
            extra = snapshot.bytes + sum(tensor.nbytes for tensor in direction)
            self.memory = extra / sum(parameter.nbytes for parameter in self._parameters)
            for target in (targets := targets_of(dev)):
                base.append(self._dev_backward([batch for batch in dev if batch.target == target]))
                weight = self._weight(_norm(self._gradients()), len(targets))
                for kept, gradient in zip(direction, self._gradients(), strict=True):
                    kept.addcmul_(gradient, weight)
            for dataset in datasets:
                with snapshot.restored():
                    self._train_backward(batches(dataset), seed)
                    pairs.append(_pair(self._train_gradients(), direction))
        return self._gather(datasets, targets, base, pairs)

    def _train_backward(self, batches: Iterable[Any], seed: int) -> None:
        self._learner.modules.zero_grad()
        self._learner.modules.train()
        for number, batch in enumerate(batches):
            torch.manual_seed(seed + number)
            self._learner.backward(batch)

    def _dev_backward(self, batches: Sequence[DevBatch]) -> Tensor:
        """Compute the gradient of the metric of a target, in the direction to be minimised, and return its value."""
        self._learner.modules.zero_grad()
        self._learner.modules.eval()
        means = []
        for batch in batches:
            mean = self._metric.values(self._learner.model, batch).float().mean() / len(batches)
            if not mean.requires_grad:
                raise RecipeError("an alignment needs a differentiable metric")
            (-mean if self._metric.higher_is_better else mean).backward()  # type: ignore[no-untyped-call]
            means.append(mean.detach())
        return torch.stack(means).sum()

    def _gradients(self) -> Iterator[Tensor]:
        """Yield the gradient of each parameter in fp32; a scalar zero for one without."""
        for parameter in self._parameters:
            yield (parameter.new_zeros(()) if parameter.grad is None else parameter.grad).float()

    def _train_gradients(self) -> Iterator[Tensor]:
        if not self._alignment.preconditioned:
            yield from self._gradients()
            return
        optimizer = self._learner.optimizer
        groups = [group for group in optimizer.param_groups for _ in group["params"]]
        for parameter, group, gradient in zip(self._parameters, groups, self._gradients(), strict=True):
            decay, state = group["betas"][1], optimizer.state.get(parameter, {})
            # As in Adam, the gradient is part of its own second moment; see `FrozenAdam`.
            square = decay * state.get("exp_avg_sq", 0.0) + (1 - decay) * gradient.square()
            unbiased = square / (1 - decay ** (1 + state.get("step", 0)))
            yield gradient / (unbiased.sqrt() + group["eps"])

    def _weight(self, norm: Tensor, targets: int) -> Tensor:
        """Return the factor of a target's gradient with this norm."""
        if self._alignment.score == "projection":
            return 1 / norm.clamp(min=1.0)
        return 1 / (targets * torch.where(norm == 0, 1.0, norm))

    def _gather(
        self, datasets: Sequence[int], targets: list[str], base: list[Tensor], pairs: list[Pair]
    ) -> Influences:
        # The only synchronisation with the device.
        numbers = self._learner.agree(torch.stack([*base, *(number for pair in pairs for number in pair)]))
        found: Array = numbers.double().cpu().numpy()
        before, dots, norms = found[: len(base)], found[len(base) :: 2], found[len(base) + 1 :: 2]
        positions = np.array(datasets, np.int64)
        finite = np.isfinite(dots) & np.isfinite(norms) & np.isfinite(before).all()
        values = self._scores(dots[finite], norms[finite])[:, None]
        return Influences(
            positions[finite], positions[~finite], ["+".join(targets)], np.array([before.mean()]), [values]
        )

    def _scores(self, dots: Array, norms: Array) -> Array:
        if self._alignment.score == "projection":
            return np.asarray(dots / (norms.sum() / max(len(norms), 1) + 1e-6))
        return np.asarray(dots / np.where(norms == 0, 1.0, norms))


def _norm(gradients: Iterable[Tensor]) -> Tensor:
    # `sum` adds pairwise; `norm` does not, and is off by 1e-4 for large tensors on a CPU.
    return torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()


def _pair(gradients: Iterable[Tensor], direction: Iterable[Tensor]) -> Pair:
    dots, squares = [], []
    for gradient, kept in zip(gradients, direction, strict=True):
        # One tensor at a time: the products of all would be another vector of parameter size.
        dots.append((gradient * kept).sum())
        squares.append(gradient.square().sum())
    return torch.stack(dots).sum(), torch.stack(squares).sum().sqrt()

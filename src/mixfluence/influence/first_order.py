"""Influence to first order: how fast the dev metric improves along the step that training on a dataset would take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mixfluence.influence.alignment import adam_directions, backward_metric, preserve_gradients
from mixfluence.influence.influences import Influences, gather
from mixfluence.influence.probe import Prober, learning_rates
from mixfluence.influence.scoring import DevBatch
from mixfluence.influence.settings import Batches
from mixfluence.influence.snapshot import Snapshot, explain_out_of_memory, preserve_rng_and_modes

# Numbers that are kept of a gradient. The dot product of two such sketches is off by about |a| |b| / 512.
SKETCH = 2**18


class SlopeProber(Prober):
    """Measures influences of one momentum-free step without taking it: the step times the gradient of the metric.

    Every dataset and every piece of a target costs one backward pass, so that targets add to the cost of datasets
    instead of multiplying it. Gradients are kept as sketches, whose size does not depend on the model. A target has a
    value for each piece of its rows, with in-batch negatives of its own, from which standard errors follow.

    Attributes:
        memory: Extra device memory of the last round, in parameter sizes: 1 MiB for each piece of the dev rows.
    """

    @explain_out_of_memory("strategy.probe")
    def measure(
        self, datasets: Sequence[int], batches: Batches, dev: Sequence[DevBatch], *, seed: int, spread: float = inf
    ) -> Influences:
        """Measure datasets one after another; see `Meter.measure`. `spread` is not used."""
        modules, rank, world = self._learner.modules, self._learner.rank, self._learner.world
        with preserve_rng_and_modes(modules), preserve_gradients(modules):
            # Without a step, a forward pass in training mode changes nothing but buffers.
            snapshot = Snapshot(list(modules.buffers()))
            found = [[self._slope(batch.target, piece, seed) for piece in batch.pieces] for batch in dev]
            before = self._agreed([torch.stack([value for value, _ in own]) for own in found])
            slopes = torch.stack([slope for own in found for _, slope in own])
            extra = snapshot.bytes + slopes.nbytes
            self.memory = extra / sum(parameter.nbytes for parameter in self._parameters)
            pieces = [len(values) for values in before]
            own = []
            for dataset in datasets[rank::world]:
                with snapshot.restored():
                    gains = slopes @ self._step(batches(dataset), seed)
                changes = torch.split(self._sign * gains, pieces)
                after = [values + change for values, change in zip(before, changes, strict=True)]
                own.append(after if world > 1 else self._agreed(after))
            after_all = self._exchange(len(datasets), before, own)
        return gather(datasets, [batch.target for batch in dev], before, after_all, self._sign)

    def _slope(self, target: str, piece: Any, seed: int) -> tuple[Tensor, Tensor]:
        """Return the metric of a piece, and its gradient, negated if a higher metric is better."""
        value = backward_metric(self._learner, self._metric, DevBatch(target, [piece]))
        return value, sketch((parameter.grad for parameter in self._parameters), self._parameters, seed)

    def _step(self, batches: Iterable[Any], seed: int) -> Tensor:
        """Return the step that Adam without momentum would take on a batch; zero without one."""
        self._learner.modules.zero_grad()
        self._learner.modules.train()
        for batch in batches:
            torch.manual_seed(seed)
            self._learner.backward(batch)
        optimizer = self._learner.optimizer
        with learning_rates(optimizer, self._probe.learning_rate):
            rates = [group["lr"] for group in optimizer.param_groups for _ in group["params"]]
            directions = adam_directions(optimizer, self._parameters)
            return sketch(
                (rate * direction for rate, direction in zip(rates, directions, strict=True)), self._parameters, seed
            )


def sketch(vectors: Iterable[Tensor | None], like: Sequence[Tensor], seed: int, size: int = SKETCH) -> Tensor:
    """Return a short vector whose dot products are, in expectation over seeds, those of the vectors put together.

    Numbers get random signs and are summed up `size` apart (a count sketch); fewer than `size` are all kept.

    Args:
        vectors: A tensor for each parameter; None for zero.
        like: The parameters.
        seed: Seed of the signs, the same for all vectors that are compared.
        size: Numbers of the result.
    """
    total = torch.zeros(size, device=like[0].device)
    generator = torch.Generator(total.device).manual_seed(seed)
    position = 0
    for vector, parameter in zip(vectors, like, strict=True):
        signs = torch.randint(2, (parameter.numel(),), generator=generator, device=total.device, dtype=torch.int8)
        if vector is not None:
            signed = vector.flatten().float() * (2 * signs - 1)
            total += F.pad(signed, (position, -(position + len(signed)) % size)).view(-1, size).sum(0)
        position = (position + parameter.numel()) % size
    return total

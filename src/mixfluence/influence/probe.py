"""Influence by trial: train on a dataset for a few steps, measure dev, roll back.

With Reptile, the model then moves by the mean displacement of its probes, weighted by their influence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf, sqrt
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from mixfluence.errors import RecipeError
from mixfluence.influence.influences import Influences, combined_gain, gather
from mixfluence.influence.metrics import DevBatch, Metric, targets_of
from mixfluence.influence.settings import Batches, Learner, Meter, Probe, Reptile, refuse_without_moments
from mixfluence.influence.snapshot import Snapshot, explain_out_of_memory, local, preserve_rng_and_modes, release

# Weights that a momentum-free step moves at once.
SLICE = 2**26


class Prober(Meter):
    """Measures influences. Without Reptile, probing has no side effects: everything is restored bit by bit.

    Several processes divide the datasets and exchange results once, at the end; or they take the steps on each dataset
    together and use the results of the first. The memory is 1 for the snapshot, 2 more with inherited state, 1 more
    with Reptile.
    """

    def __init__(self, learner: Learner, probe: Probe, metric: Metric, reptile: Reptile | None = None) -> None:
        if probe.state == "momentum-free":
            refuse_without_moments(learner.optimizer)
        super().__init__(learner, metric)
        self._probe = probe
        self._reptile = reptile
        self._sign = 1 if metric.higher_is_better else -1

    @explain_out_of_memory(
        "lower strategy.probe.batch_size or strategy.probe.dev_batch_size, or keep the snapshot in CPU memory with "
        "strategy.probe.snapshot: cpu"
    )
    def measure(
        self, datasets: Sequence[int], batches: Batches, dev: Sequence[DevBatch], *, seed: int, spread: float = inf
    ) -> Influences:
        """Probe datasets one after another; see `Meter.measure` for the arguments.

        A probe takes one step per batch; without batches its influence is exactly zero.
        """
        targets = targets_of(dev)
        if not datasets:
            with preserve_rng_and_modes(self._learner.modules):
                return gather(datasets, targets, self._agreed(self._evaluate(dev)), [], self._sign)
        optimizer, reptile, inherited = self._learner.optimizer, self._reptile, self._probe.state == "inherited"
        stepper = optimizer if inherited else FrozenAdam(optimizer)
        with preserve_rng_and_modes(self._learner.modules):
            parameters = [local(parameter) for parameter in self._parameters]
            tensors = [*parameters, *self._learner.modules.buffers()]
            snapshot = Snapshot(tensors, optimizer if inherited else None, on_cpu=self._probe.snapshot == "cpu")
            start = snapshot.copies[: len(parameters)]
            tau = spread if reptile is None or isinstance(reptile.tau, str) else reptile.tau
            follow = Displacement(parameters, start, reptile.weights, tau) if reptile else None
            extra = snapshot.bytes + (follow.bytes if follow else 0)
            self.memory = extra / sum(parameter.nbytes for parameter in parameters)
            before = self._agreed(self._evaluate(dev))
            own = []
            for dataset in datasets[self._learner.rank :: self._learner.world]:
                with snapshot.restored():
                    self._train(stepper, batches(dataset), seed)
                    evals = self._evaluate(dev)
                    own.append(evals if self._learner.world > 1 else self._agreed(evals))
                    if follow:
                        gain = combined_gain(before, own[-1], self._sign)
                        follow.add(parameters, gain)
            after = self._exchange(len(datasets), before, own)
        if follow and reptile:
            if self._learner.world > 1:
                follow.merge(self._learner)
            rate = float(optimizer.param_groups[0]["lr"])
            follow.apply(parameters, reptile.alpha(rate, relative_rate(optimizer)))
        return gather(datasets, targets, before, after, self._sign)

    def _train(self, stepper: Optimizer | FrozenAdam, batches: Iterable[Any], seed: int) -> None:
        self._learner.modules.train()
        optimizer = self._learner.optimizer
        with _learning_rate(optimizer, self._probe.learning_rate):
            for number, batch in enumerate(batches):
                torch.manual_seed(seed + number)
                try:
                    self._learner.backward(batch)
                    stepper.step()
                finally:
                    optimizer.zero_grad()

    @torch.no_grad()
    def _evaluate(self, dev: Sequence[DevBatch]) -> list[Tensor]:
        self._learner.modules.eval()
        # 0, or NaN if any parameter is NaN: the metric may not depend on the parameter that diverged.
        health = 0 * torch.stack(torch._foreach_norm([local(parameter) for parameter in self._parameters])).sum()
        if self._learner.world == 1:
            health = self._learner.total(health)
        values = self._metric.evaluate(self._learner.model, dev)
        release(self._learner.model)
        return [value + health for value in values]

    def _agreed(self, evals: list[Tensor]) -> list[Tensor]:
        return [self._learner.agree(values) for values in evals]

    def _exchange(self, datasets: int, before: list[Tensor], own: list[list[Tensor]]) -> list[list[Tensor]]:
        """Return the values after every dataset's probe, whichever process ran it."""
        rank, world = self._learner.rank, self._learner.world
        if world == 1:
            return own
        queries = [len(values) for values in before]
        seen = before[0].new_zeros(datasets, sum(queries))
        if own:
            seen[rank::world] = torch.stack([torch.cat(evals) for evals in own]).to(seen)
        return [list(torch.split(row, queries)) for row in self._learner.total(seen)]


def relative_rate(optimizer: Optimizer) -> float:
    """Return the learning rate as a fraction of the schedule's maximum."""
    group = optimizer.param_groups[0]
    maximum = float(group.get("initial_lr", group["lr"]))
    return float(group["lr"]) / maximum if maximum else 0.0


class FrozenAdam:
    """Adam's step without momentum, with fixed second moments.

    With momentum, nine tenths of a first step continue the direction of training, whatever the dataset. Without it,
    the whole step is determined by the dataset, at the scale that Adam has learned for each weight. The state of the
    optimizer is only read, so that a snapshot need not include it. Weight decay, which is the same for all datasets,
    is omitted.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        refuse_without_moments(optimizer)
        known = {p: state for p, state in optimizer.state.items() if "exp_avg_sq" in state and "step" in state}
        if not known:
            raise RecipeError("momentum-free probes cannot run before the first optimizer step")
        # Waiting for the device once is cheaper than several kernels for each parameter at every step.
        counts = torch.stack([local(torch.as_tensor(state["step"])) for state in known.values()]).tolist()
        self._counts = dict(zip(known, counts, strict=True))

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for group in self._optimizer.param_groups:
            decay = group["betas"][1]
            for live in _slices(p for p in group["params"] if p.grad is not None and p in self._counts):
                gradients = [local(p.grad) for p in live if p.grad is not None]
                squares = [local(self._optimizer.state[p]["exp_avg_sq"]) for p in live]
                # As in Adam, the gradient is part of its own second moment: a weight without one so far, such as the
                # embedding of an unseen token, would otherwise be divided by zero.
                roots = torch._foreach_mul(squares, decay)
                torch._foreach_addcmul_(roots, gradients, gradients, value=1 - decay)
                torch._foreach_sqrt_(roots)
                torch._foreach_div_(roots, [sqrt(1 - decay ** (1 + self._counts[p])) for p in live])
                torch._foreach_add_(roots, group["eps"])
                torch._foreach_addcdiv_([local(p) for p in live], gradients, roots, value=-float(group["lr"]))


def _slices(parameters: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield parameters in lists of limited size: a step needs memory for the roots of one list."""
    part: list[Tensor] = []
    for parameter in parameters:
        if part and sum(local(own).numel() for own in (*part, parameter)) > SLICE:
            yield part
            part = []
        part.append(parameter)
    if part:
        yield part


@contextmanager
def _learning_rate(optimizer: Optimizer, wanted: str | float) -> Iterator[None]:
    usual = [group["lr"] for group in optimizer.param_groups]
    try:
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] if wanted == "current" else wanted
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, usual, strict=True):
            group["lr"] = rate


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

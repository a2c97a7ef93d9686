"""What is a dataset worth now? Train on it for a few steps, look at the dev sets, go back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from mixfluence.influence.influences import Influences, combined_gain, gather
from mixfluence.influence.learner import Learner
from mixfluence.influence.metrics import DevBatch, Metric
from mixfluence.influence.preserve import learning_rate, memory_named, surroundings, way_back
from mixfluence.influence.reptile import Displacement
from mixfluence.influence.settings import Probe, Reptile
from mixfluence.influence.snapshot import Snapshot
from mixfluence.influence.steps import FrozenAdam


class Prober:
    """Measures influences, and leaves everything bit for bit as it was unless a Reptile step was asked for.

    Cost of a round, in training steps of the same batch: datasets x inner steps for probes, and
    (datasets + 1) x targets / 3 for looking. Memory in parameter sizes: 1 for the snapshot, 2 more with
    inherited state, 1 more with Reptile. Processes that share out the datasets divide the probes and the looks after
    them; what they found is summed up once, at the end.

    Args:
        learner: What is being trained.
        probe: How to probe.
        metric: What is measured on dev.
        reptile: Follow the probes by a part of the way; None to throw them away.

    Attributes:
        memory: What the last round needed on the device beyond training, in parameter sizes.
    """

    def __init__(self, learner: Learner, probe: Probe, metric: Metric, reptile: Reptile | None = None) -> None:
        self._learner = learner
        self._probe = probe
        self._metric = metric
        self._reptile = reptile
        self._sign = 1 if metric.higher_is_better else -1
        self._parameters = [p for group in learner.optimizer.param_groups for p in group["params"]]
        self.memory = 0.0

    @memory_named("strategy.probe", "keep the snapshot in CPU memory with strategy.probe.snapshot: cpu")
    def measure(
        self,
        datasets: Sequence[int],
        batches: Callable[[int], Iterable[Any]],
        dev: Sequence[DevBatch],
        *,
        seed: int,
        spread: float = math.inf,
    ) -> Influences:
        """Probe datasets one after another.

        Args:
            datasets: Which ones. With none, only the dev sets are looked at.
            batches: Returns a dataset's batches, one per step. Without any, its influence is exactly zero.
            dev: The rows of every target, the same before and after every probe.
            seed: Decides dropout, the same at step s of every probe.
            spread: Spread of the influences one round ago, infinite if there was none; see `Displacement`.

        Raises:
            RecipeError: If the memory of the device is not enough; then everything is as it was before.
        """
        if not datasets:
            with surroundings(self._learner.modules):
                return self._gather(datasets, dev, self._agreed(self._look(dev)), [])
        optimizer, inherited = self._learner.optimizer, self._probe.state == "inherited"
        stepper = optimizer if inherited else FrozenAdam(optimizer)
        with surroundings(self._learner.modules):
            snapshot = self._snapshot(inherited)
            follow = self._displacement(snapshot, spread)
            self.memory = (snapshot.bytes + (follow.bytes if follow else 0)) / _bytes(self._parameters)
            before = self._agreed(self._look(dev))
            own = []
            for dataset in datasets[self._learner.rank :: self._learner.world]:
                with way_back(snapshot):
                    self._train(stepper, batches(dataset), seed)
                    own.append(self._look(dev))
                    if follow:
                        gain = combined_gain(before, own[-1], self._probe.aggregate, self._sign)
                        follow.add(self._parameters, gain)
            after = self._gather_looks(len(datasets), before, own)
        if follow and self._reptile:
            if self._learner.world > 1:
                follow.merge(self._learner)
            rate = float(optimizer.param_groups[0]["lr"])
            follow.apply(self._parameters, self._reptile.alpha(rate, relative_rate(optimizer)))
        return self._gather(datasets, dev, before, after)

    def _train(self, stepper: Optimizer | FrozenAdam, batches: Iterable[Any], seed: int) -> None:
        self._learner.modules.train()
        optimizer = self._learner.optimizer
        with learning_rate(optimizer, self._probe.learning_rate):
            for number, batch in enumerate(batches):
                torch.manual_seed(seed + number)
                try:
                    self._learner.backward(batch)
                    stepper.step()
                finally:
                    optimizer.zero_grad()

    @torch.no_grad()
    def _look(self, dev: Sequence[DevBatch]) -> list[Tensor]:
        self._learner.modules.eval()
        # Zero, or not a number if some parameter is none: the metric may not read the parameter that broke.
        health = 0 * torch.stack(torch._foreach_norm(self._parameters)).sum()
        return [value + health for value in self._metric.look(self._learner.model, dev)]

    def _agreed(self, looks: list[Tensor]) -> list[Tensor]:
        return [self._learner.agree(values) for values in looks]

    def _gather_looks(self, datasets: int, before: list[Tensor], own: list[list[Tensor]]) -> list[list[Tensor]]:
        """Return what was seen after every dataset's probe, wherever it ran."""
        rank, world = self._learner.rank, self._learner.world
        if world == 1:
            return [self._agreed(looks) for looks in own]
        queries = [len(values) for values in before]
        seen = before[0].new_zeros(datasets, sum(queries))
        if own:
            seen[rank::world] = torch.stack([torch.cat(looks) for looks in own]).to(seen)
        return [list(torch.split(row, queries)) for row in self._learner.total(seen)]

    def _gather(
        self, datasets: Sequence[int], dev: Sequence[DevBatch], before: list[Tensor], after: list[list[Tensor]]
    ) -> Influences:
        targets = [batch.target for batch in dev]
        first, *others = _to_host([before, *after])
        return gather(datasets, targets, first, others, self._sign)

    def _snapshot(self, inherited: bool) -> Snapshot:
        buffers = self._learner.modules.buffers()
        optimizer = self._learner.optimizer if inherited else None
        return Snapshot([*self._parameters, *buffers], optimizer, on_host=self._probe.snapshot == "cpu")

    def _displacement(self, snapshot: Snapshot, spread: float) -> Displacement | None:
        if self._reptile is None:
            return None
        start = snapshot.tensors[: len(self._parameters)]
        return Displacement(self._parameters, start, self._reptile.weights, spread)


def relative_rate(optimizer: Optimizer) -> float:
    """Return the learning rate in parts of the one that the schedule takes for its greatest."""
    group = optimizer.param_groups[0]
    greatest = float(group.get("initial_lr", group["lr"]))
    return float(group["lr"]) / greatest if greatest else 0.0


def _to_host(looks: Sequence[list[Tensor]]) -> list[list[NDArray[np.float64]]]:
    """Return what was seen at every look, by one copy: a device makes the host wait for each."""
    values = [value for look in looks for value in look]
    flat = torch.cat([value.double() for value in values]).cpu().numpy()
    parts = iter(np.split(flat, np.cumsum([len(value) for value in values])[:-1]))
    return [[next(parts) for _ in look] for look in looks]


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)

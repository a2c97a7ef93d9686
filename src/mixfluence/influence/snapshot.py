"""Exact restoration after a trial: tensors or their shards, optimizer state, random states and module modes."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from mixfluence.errors import RecipeError


def local(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor, in the same memory; the tensor itself if it is not sharded."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor


def release(model: nn.Module) -> None:
    """Free gathered parameters, which a forward pass without gradients leaves behind.

    The next pass gathers them again. Otherwise it would not see that the shards have changed.
    """
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


class Snapshot:
    """A copy of parameters and, optionally, of the state of an optimizer.

    Restoring writes into the tensors in place, so that references to them stay valid. `copies` are those of the given
    tensors, in their order, and then those of the optimizer's. Of a sharded tensor a process copies its part.

    Args:
        tensors: Parameters and buffers.
        optimizer: Copied too if given: its steps change moments and step counts.
        on_cpu: Keep the copy in CPU memory; slower, but needs no memory on the device.
    """

    def __init__(self, tensors: Sequence[Tensor], optimizer: Optimizer | None = None, *, on_cpu: bool = False) -> None:
        self._on_cpu = on_cpu
        self._optimizer = optimizer
        self._live = [local(tensor) for tensor in tensors]
        self._values: dict[Tensor, dict[str, Any]] = {}
        for parameter, state in optimizer.state.items() if optimizer else ():
            self._live += [local(value) for value in state.values() if isinstance(value, Tensor)]
            self._values[parameter] = dict(state)
        self.copies = [self._copy(tensor) for tensor in self._live]
        self._pairs: dict[Any, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
        for live, kept in zip(self._live, self.copies, strict=True):
            # Grouped by device and type: torch copies mixed lists one by one, with a kernel for each tensor.
            for tensors, tensor in zip(self._pairs[live.device, live.dtype], (live, kept), strict=True):
                tensors.append(tensor)

    @property
    def bytes(self) -> int:
        """Size of the copies that are on the same device as their originals."""
        return sum(k.nbytes for k, live in zip(self.copies, self._live, strict=True) if k.device == live.device)

    def restore(self) -> None:
        """Write everything back."""
        with torch.no_grad():
            for live, kept in self._pairs.values():
                torch._foreach_copy_(live, kept, non_blocking=self._on_cpu)
        if self._optimizer is None:
            return
        for parameter in list(self._optimizer.state):
            if parameter in self._values:
                self._optimizer.state[parameter].update(self._values[parameter])
            else:
                del self._optimizer.state[parameter]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore at the end of the block, also after an error."""
        try:
            yield
        finally:
            self.restore()

    def _copy(self, tensor: Tensor) -> Tensor:
        if not self._on_cpu:
            return tensor.detach().clone()
        kept = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        return kept.copy_(tensor.detach(), non_blocking=True)


@contextmanager
def preserve(attribute: str, owners: Iterable[object]) -> Iterator[None]:
    """Restore an attribute of several objects at the end of the block."""
    before = [(owner, getattr(owner, attribute)) for owner in owners]
    try:
        yield
    finally:
        for owner, value in before:
            setattr(owner, attribute, value)


def preserve_modes(model: nn.Module) -> AbstractContextManager[None]:
    """Restore the mode of every module at the end of the block; some may be in eval mode on purpose."""
    return preserve("training", model.modules())


@contextmanager
def preserve_rng_and_modes(modules: nn.Module) -> Iterator[None]:
    """Restore random states and module modes at the end of the block."""
    # We draw only from torch, but a loss or a metric may draw from the others.
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    try:
        with preserve_modes(modules), torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


@contextmanager
def explain_out_of_memory(remedy: str) -> Iterator[None]:
    """Turn an out-of-memory error into one that says what to do, such as which recipe keys to lower.

    There is no retry with a smaller batch: it has fewer negatives and would measure something else.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RecipeError(f"out of memory while measuring datasets: {remedy}") from error

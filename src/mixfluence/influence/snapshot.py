"""Tensors and an optimizer as they were, to go back to exactly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Snapshot:
    """A copy of parameters, and of an optimizer's state if one is given.

    Restoring writes into the tensors in place, so that nothing that refers to them notices.

    Args:
        tensors: Parameters and buffers.
        optimizer: Copied too if given: a step through it changes moments and step counts.
        on_host: Keep the copy in the host's memory; slower, and free on the device.
    """

    def __init__(
        self, tensors: Sequence[Tensor], optimizer: Optimizer | None = None, *, on_host: bool = False
    ) -> None:
        self._on_host = on_host
        self._optimizer = optimizer
        self._count = len(tensors)
        self._live = list(tensors)
        self._values: dict[Tensor, dict[str, Any]] = {}
        for parameter, state in optimizer.state.items() if optimizer else ():
            self._live += [value for value in state.values() if isinstance(value, Tensor)]
            self._values[parameter] = dict(state)
        self._kept = [self._copy(tensor) for tensor in self._live]
        self._pairs: dict[Any, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
        for live, kept in zip(self._live, self._kept, strict=True):
            # By kind: tensors of several kinds in one call are copied one by one, a kernel for each.
            for tensors, tensor in zip(self._pairs[live.device, live.dtype], (live, kept), strict=True):
                tensors.append(tensor)

    @property
    def tensors(self) -> list[Tensor]:
        """The copies of the given tensors."""
        return self._kept[: self._count]

    @property
    def bytes(self) -> int:
        """Size of the copy as far as it is on the device of what it is a copy of."""
        return sum(k.nbytes for k, live in zip(self._kept, self._live, strict=True) if k.device == live.device)

    def restore(self) -> None:
        """Write everything back."""
        with torch.no_grad():
            for live, kept in self._pairs.values():
                torch._foreach_copy_(live, kept, non_blocking=self._on_host)
        if self._optimizer is None:
            return
        for parameter in list(self._optimizer.state):
            if parameter in self._values:
                self._optimizer.state[parameter].update(self._values[parameter])
            else:
                del self._optimizer.state[parameter]

    def _copy(self, tensor: Tensor) -> Tensor:
        if not self._on_host:
            return tensor.detach().clone()
        kept = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        return kept.copy_(tensor.detach(), non_blocking=True)

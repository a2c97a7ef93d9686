"""Models that several processes hold in shards (FSDP2): parameters are DTensors, of which each process has a part."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from mixfluence.errors import DataError


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


@contextmanager
def whole(model: nn.Module) -> Iterator[None]:
    """Make a sharded model an ordinary one in CPU memory on the first process, so that it can be saved.

    All processes must take part, but only the first may use the model meanwhile.
    """
    release(model)
    gathered = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    parts = [(prefix, module) for prefix, module in model.named_modules() if gathered]
    kept = [
        (module, dict(module._parameters), module._forward_pre_hooks, module._forward_hooks) for _, module in parts
    ]
    # Tied parameters stay tied.
    replaced: dict[nn.Parameter, nn.Parameter] = {}
    sharded_class = type(model)
    try:
        for prefix, module in parts:
            for name, parameter in module.named_parameters(recurse=False):
                values = cast(Tensor, gathered[f"{prefix}.{name}".lstrip(".")])
                module._parameters[name] = replaced.setdefault(parameter, nn.Parameter(values, requires_grad=False))
            if isinstance(cast(object, module), FSDPModule):
                # They gather parameters, for which the other processes do not wait.
                module._forward_pre_hooks, module._forward_hooks = OrderedDict(), OrderedDict()
        # The name of the class is saved too: `fully_shard` derives one from it and from FSDPModule.
        model.__class__ = sharded_class.__bases__[1]
        yield
    finally:
        model.__class__ = sharded_class
        for module, parameters, before, after in kept:
            module._parameters.update(parameters)
            module._forward_pre_hooks, module._forward_hooks = before, after


def save_shards(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Write this process's part of a model and its optimizer."""
    release(model)
    state = optimizer.state_dict()
    state["state"] = {place: _mapped(own, local) for place, own in state["state"].items()}
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"model": _tensors(model), "optimizer": state}, _file(folder))


def load_shards(folder: Path, model: nn.Module, optimizer: Optimizer | None = None) -> None:
    """Read this process's part of a model and, if given, of its optimizer; on as many processes as wrote them."""
    if not _file(folder).exists():
        raise DataError(f"{folder}: not written by {distributed.get_world_size()} processes that share a model")
    saved = torch.load(_file(folder), weights_only=True, map_location="cpu")
    release(model)
    with torch.no_grad():
        for name, tensor in _tensors(model).items():
            tensor.copy_(saved["model"][name])
    if optimizer:
        state, parameters = saved["optimizer"], [p for group in optimizer.param_groups for p in group["params"]]
        state["state"] = {
            place: _mapped(own, partial(_sharded, like=parameters[place])) for place, own in state["state"].items()
        }
        optimizer.load_state_dict(state)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: local(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def _mapped(values: dict[str, Any], function: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    return {name: function(value) if isinstance(value, Tensor) else value for name, value in values.items()}


def _sharded(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor as the local part of one that is sharded like a parameter; counts of steps are not."""
    if not isinstance(like, DTensor) or tensor.dim() == 0:
        return tensor
    own, mesh, placements = tensor.to(like.device), like.device_mesh, like.placements
    return DTensor.from_local(own, mesh, placements, run_check=False, shape=like.shape, stride=like.stride())


def _file(folder: Path) -> Path:
    return folder / f"shard-{distributed.get_rank()}-of-{distributed.get_world_size()}.pt"

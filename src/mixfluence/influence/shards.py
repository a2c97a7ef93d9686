"""Models that several processes hold in shards (FSDP2): parameters are DTensors, of which each process has a part."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


def local(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor, in the same memory; the tensor itself if it is not sharded."""
    return cast(Tensor, tensor.detach().to_local()) if isinstance(tensor, DTensor) else tensor


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
    kept = [(module, dict(module._parameters), module._forward_pre_hooks, module._forward_hooks) for _, module in parts]
    # Tied parameters stay tied.
    replaced: dict[nn.Parameter, nn.Parameter] = {}
    sharded_class = type(model)
    try:
        for prefix, module in parts:
            for name, parameter in module.named_parameters(recurse=False):
                values = gathered[f"{prefix}.{name}".lstrip(".")]
                module._parameters[name] = replaced.setdefault(parameter, nn.Parameter(values, requires_grad=False))
            if isinstance(module, FSDPModule):
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

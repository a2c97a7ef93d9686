"""Saving and resuming sharded models (FSDP2), of which each process has a part of every parameter, and adapters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from sentence_transformers.base.trainer import BaseTrainer
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from transformers.trainer import SCHEDULER_NAME

from mixfluence.adapters import has_adapter, load_trained
from mixfluence.errors import DataError
from mixfluence.influence.snapshot import local, release


class ShardedMixin(BaseTrainer):
    """A trainer that also saves and resumes sharded models (FSDP2) and adapters; others as its base does.

    sentence-transformers saves only models that are whole. The checkpoints of accelerate cannot hold the optimizer of
    a model with parameters that never had a gradient, such as the pooler of BERT.
    """

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if not self.is_fsdp_enabled:
            super().save_model(output_dir, _internal_call)
            return
        with whole(self.model):
            if self.args.should_save:
                self._save(output_dir)

    def _load_from_checkpoint(self, checkpoint_path: str, model: nn.Module | None = None) -> None:
        if self.is_fsdp_enabled:
            load_shards(Path(checkpoint_path), self.model)
        elif has_adapter(self.model):
            load_trained(self.model, Path(checkpoint_path))
        else:
            super()._load_from_checkpoint(checkpoint_path)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.is_fsdp_enabled:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        save_shards(Path(output_dir), self.model, self.optimizer.optimizer)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if not self.is_fsdp_enabled or checkpoint is None:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        load_shards(Path(checkpoint), self.model, self.optimizer.optimizer)
        self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / SCHEDULER_NAME, weights_only=True))


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
    state["state"] = {
        place: {name: local(value) if isinstance(value, Tensor) else value for name, value in own.items()}
        for place, own in state["state"].items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: local(tensor) for name, tensor in _tensors(model).items()}
    torch.save({"model": tensors, "optimizer": state}, _file(folder))
    if distributed.get_rank() == 0:
        # Of the same step, written by another number of processes before a run was resumed.
        for path in set(folder.glob("shard-*-of-*.pt")) - set(_files(folder, distributed.get_world_size())):
            path.unlink()


def load_shards(folder: Path, model: nn.Module, optimizer: Optimizer | None = None) -> None:
    """Read this process's part of a model and, if given, of its optimizer, whatever number of processes wrote them."""
    files = sorted(folder.glob("shard-*-of-*.pt"))
    if not files or sorted(_files(folder, len(files))) != files:
        raise DataError(f"{folder}: not written by processes that share a model")
    files = [_file(folder)] if _file(folder) in files else _files(folder, len(files))
    # Read where it is needed: a process that joins parts would otherwise hold the whole model and optimizer.
    saved = [torch.load(file, weights_only=True, map_location="cpu", mmap=True) for file in files]
    release(model)
    with torch.no_grad():
        for name, tensor in _tensors(model).items():
            local(tensor).copy_(_own_part([part["model"][name] for part in saved], tensor))
    if optimizer:
        state, parameters = saved[0]["optimizer"], [p for group in optimizer.param_groups for p in group["params"]]
        state["state"] = {
            place: {
                name: _sharded([part["optimizer"]["state"][place][name] for part in saved], parameters[place])
                for name in own
            }
            for place, own in state["state"].items()
        }
        optimizer.load_state_dict(state)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _sharded(parts: Sequence[Any], like: Tensor) -> Any:
    """Return the parts of a tensor as one that is sharded like a parameter; counts of steps are not."""
    if not isinstance(like, DTensor) or not isinstance(parts[0], Tensor) or parts[0].dim() == 0:
        return parts[0]
    own, mesh, placements = _own_part(parts, like).to(like.device), like.device_mesh, like.placements
    return DTensor.from_local(own, mesh, placements, run_check=False, shape=like.shape, stride=like.stride())


def _own_part(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """Return this process's part of a tensor, given all parts of it, or this one alone."""
    if len(parts) == 1 or not isinstance(like, DTensor):
        return parts[0]
    joined = torch.cat(list(parts))
    # Along the first dimension, as `fully_shard` does it; the last processes may have nothing.
    own = joined.chunk(distributed.get_world_size())[distributed.get_rank() :]
    return own[0] if own else joined[:0]


def _file(folder: Path) -> Path:
    return _files(folder, distributed.get_world_size())[distributed.get_rank()]


def _files(folder: Path, processes: int) -> list[Path]:
    return [folder / f"shard-{rank}-of-{processes}.pt" for rank in range(processes)]

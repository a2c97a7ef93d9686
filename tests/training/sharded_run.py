"""A short run on processes that share a model, which `test_sharded` starts: MODEL OUTPUT [STEP_OF_A_KILL]."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import DistributedType
from accelerate.state import AcceleratorState
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback, TrainerState, TrainingArguments

from mixfluence.training.sharded import load_shards, save_shards
from tests.training.inf_dds_process_run import CHECKPOINT
from tests.training.inf_dds_process_run import main as guided_run
from tests.training.runs import leave_processes

MODEL = "model"
SHARDED: dict[str, Any] = {"fsdp": True, "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["BertLayer"]}}


def shard_on_cpu() -> None:
    """Let accelerate shard models on the CPU too, as torch can: it ignores its own plugin there."""
    prepare = AcceleratorState.__init__

    def sharding(self: AcceleratorState, *args: Any, fsdp_plugin: Any = None, **options: Any) -> None:
        prepare(self, *args, fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin

    AcceleratorState.__init__ = sharding


class Killed(TrainerCallback):
    """Kills the last process at a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        if state.global_step == self._step and args.process_index == args.world_size - 1:
            os.kill(os.getpid(), signal.SIGKILL)


def main(model_folder: str, output: Path, killed_at: int = 0, adapter: bool = False) -> bool:
    """Train or resume, save the model whole and its parts in `process-N.npz`, and return whether it was resumed."""
    shard_on_cpu()
    callbacks = [Killed(killed_at)] if killed_at else []
    saving = {"save_strategy": "steps", "save_steps": CHECKPOINT}
    trainer = guided_run(model_folder, output, "together", callbacks, adapter, **SHARDED, **saving)
    trainer.save_model(str(output / MODEL))
    return trainer.resumed is not None


def train_and_resume(model_folder: str, output: Path) -> None:
    """Train, keep what was saved in the folder `whole`, and train again from the checkpoint."""
    assert not main(model_folder, output)
    for name in (f"process-{os.environ['RANK']}.npz", *([MODEL] if os.environ["RANK"] == "0" else [])):
        (output / name).rename(output.with_name("whole") / name)
    assert main(model_folder, output)


def write_parts(folder: Path) -> None:
    """Train a layer of five rows for a step, and write its parts, and all of it in `whole.pt`."""
    model, optimizer = _layer()
    model(torch.arange(6.0).view(2, 3)).square().sum().backward()
    optimizer.step()
    save_shards(folder, model, optimizer)
    found = _gathered(model, optimizer)
    if distributed.get_rank() == 0:
        torch.save(found, folder / "whole.pt")


def read_parts(folder: Path) -> None:
    """Read the parts of a layer; together they must be what was written."""
    model, optimizer = _layer()
    load_shards(folder, model, optimizer)
    expected, found = torch.load(folder / "whole.pt"), _gathered(model, optimizer)
    assert len(found) == 6
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))


def _layer() -> tuple[nn.Module, torch.optim.Optimizer]:
    if not distributed.is_initialized():
        distributed.init_process_group("gloo")
    model = nn.Linear(3, 5)
    fully_shard(model, mesh=init_device_mesh("cpu", (distributed.get_world_size(),)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def _gathered(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    return [cast(DTensor, tensor).full_tensor().detach() for tensor in (*model.parameters(), *moments)]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    leave_processes()

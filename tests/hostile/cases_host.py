"""Arguments of the host, weights and variables of a launcher that the host would stumble over much later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.hostile.workplace import Case, own_model

Tensors = dict[str, Tensor]
LAYER = "encoder.layer.0.output.dense"


def host(what: str, arguments: str) -> Case:
    """Arguments under `training.host`."""
    return Case(what, recipe={"steps: 4": f"steps: 4\n  host: {arguments}"})


def weights(what: str, change: Callable[[Tensors], Tensors]) -> Case:
    """Weights of the model that are not those it was saved with."""

    def arrange(folder: Path) -> None:
        path = own_model(folder) / "model.safetensors"
        changed = change(load_file(path))
        save_file({name: tensor.contiguous() for name, tensor in changed.items()}, path, metadata={"format": "pt"})

    return Case(what, arrange=arrange)


def variable(what: str, name: str, value: str) -> Case:
    """A variable of the environment."""
    return Case(what, environment={name: value})


CASES = {
    "Recipes": [
        host("a text for a number of the host's", "{max_grad_norm: x}"),
        host("a number for a mapping of the host's", "{lr_scheduler_kwargs: 3}"),
        host("fewer loader workers than none", "{dataloader_num_workers: -1}"),
        host(
            "one wrong argument of the host's among others",
            "{max_grad_norm: 2, adam_beta1: 5}",
        ),
        host("an optimizer that the host does not know", "{optim: adam}"),
        host("an argument that the schedule does not take", "{lr_scheduler_kwargs: {cycles: 2}}"),
        host("a tracker that the host does not know", "{report_to: nonsense}"),
        Case(
            "a metric that needs a teacher's scores, and none",
            recipe={"dev: [dev]": "dev: [dev]\nstrategy: {name: inf-dds, probe: {metric: distillation}}"},
        ),
    ],
    "Models": [
        weights("weights that lack a layer", lambda all: {k: v for k, v in all.items() if not k.startswith(LAYER)}),
        weights("weights under other names", lambda all: {f"module.{name}": tensor for name, tensor in all.items()}),
        weights("one tensor of another shape", lambda all: all | {f"{LAYER}.bias": all[f"{LAYER}.bias"][:3]}),
    ],
    "Environment": [
        variable("a process of no group", "LOCAL_RANK", "0"),
        variable("a rank beyond the group", "RANK", "3"),
        variable("a rank that is no number", "LOCAL_RANK", "first"),
        variable("a precision that there is not", "ACCELERATE_MIXED_PRECISION", "fp7"),
        variable("a switch that is neither on nor off", "ACCELERATE_USE_FSDP", "perhaps"),
    ],
}

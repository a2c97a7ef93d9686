"""A short run guided by influence that `test_inf_dds_processes` starts, on one process or several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import nn
from transformers import TrainerCallback

from mixfluence.data.mixture import Mixture
from mixfluence.encoders import load_encoder
from mixfluence.influence import Probe, Reptile, info_nce_metric
from mixfluence.influence.snapshot import local
from mixfluence.policy import UNIFORM, PolicyGradient
from mixfluence.strategies import InfDDS
from mixfluence.training.losses import info_nce
from mixfluence.training.trainer import MixtureMixin
from tests.training.runs import arguments, build, pool

ROWS = 8
LORA = {"rank": 2, "alpha": 4.0, "dropout": 0.0, "targets": ["query", "value"]}
# The step of the only checkpoint of runs that write one.
CHECKPOINT = 4
Processes = Literal["divided", "together"]


class Record(TrainerCallback):
    """Keeps what probes must restore, as it is after every step on this process."""

    def __init__(self) -> None:
        self.states: list[list[torch.Tensor]] = []

    def on_step_end(self, *_: Any, **own: Any) -> None:
        optimizer = own["optimizer"].optimizer
        tensors = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        tensors += [
            *own["model"].buffers(),
            *(value for state in optimizer.state.values() for value in state.values()),
        ]
        self.states.append([*(local(tensor).detach().clone() for tensor in tensors), torch.get_rng_state()])


def main(
    model_folder: str,
    output: Path,
    processes: Processes = "divided",
    callbacks: Sequence[TrainerCallback] = (),
    adapter: bool = False,
    **options: Any,
) -> MixtureMixin:
    """Train with eight rows a step over all processes, and leave weights and logits of each in the folder.

    Probes `together` have the eight rows of a training step too, and the model does not follow them. With `adapter` a
    LoRA adapter is trained, by a loss for each dataset. Other options are training arguments.
    """
    model: Any = load_encoder(model_folder, lora=LORA if adapter else None, device="cpu")
    # As most embedders have it.
    model.append(Normalize())
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    # Without clipping, whose threshold would act on each process's share of the gradient alike.
    args = arguments(output, **{"learning_rate": 1e-3, "max_grad_norm": 0.0, **options})
    args.per_device_train_batch_size = ROWS // args.world_size
    strategy = InfDDS(
        init=UNIFORM,
        update_every=2,
        warmup_steps=1,
        freeze_below=0.0,
        inner_steps=2,
        probe=Probe(
            batch_size=4 if processes == "divided" else None,
            dev_batch_size=16,
            metric=info_nce_metric(0.02),
            processes=processes,
        ),
        rule=PolicyGradient(step=0.2),
        reptile=Reptile() if processes == "divided" else None,
    )
    loss: Any = info_nce(model, 0.05, gather_across_devices=args.world_size > 1)
    # Three datasets, so that two processes have not the same number of them.
    datasets = Mixture({**pool(), "words": pool()["near"].select(range(10, 24))})
    if adapter:
        loss = {name: info_nce(model, 0.05, gather_across_devices=args.world_size > 1) for name in datasets}
    dev = {"dev": pool()["near"], "other": pool()["far"]}
    before, after = Record(), Record()
    given: dict[str, Any] = {"loss": loss, "strategy": strategy, "dev_dataset": dev, "callbacks": [before, *callbacks]}
    trainer = build(model, args, train_dataset=datasets, **given)
    trainer.add_callback(after)
    trainer.train(resume_from_checkpoint="latest" if args.save_steps == CHECKPOINT else None)
    if strategy.reptile is None:
        for one, other in zip(before.states, after.states, strict=True):
            assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))
    weights = np.concatenate([local(parameter).detach().numpy().ravel() for parameter in model.parameters()])
    np.savez(output / f"process-{args.process_index}.npz", weights=weights, logits=strategy.logits)
    return trainer

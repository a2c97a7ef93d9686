"""A short run that `test_processes` starts, on one process or several."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import nn

from mixfluence import UNIFORM, Static, info_nce
from mixfluence.encoders import Kind, load_encoder
from tests.training.runs import arguments, build


def main(model_folder: str, output: Path, batch_size: int, kind: Kind) -> None:
    model = load_encoder(model_folder, kind=kind, device="cpu")
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    # Without clipping, whose threshold would act on each process's share of the gradient alike.
    args = arguments(output, kind, per_device_train_batch_size=batch_size, learning_rate=1e-3, max_grad_norm=0.0)
    loss = info_nce(model, 0.05, gather_across_devices=args.world_size > 1)
    build(model, args, loss=loss, strategy=Static(init=UNIFORM)).train()
    weights = np.concatenate([parameter.detach().numpy().ravel() for parameter in model.parameters()])
    np.save(output / f"weights-{args.process_index}.npy", weights)

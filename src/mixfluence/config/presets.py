"""Settings of Inf-DDS in the paper, where it gives them, by benchmark.

The paper names no optimizer or step for the logits, no number of inner steps but for BEIR (3), and a Reptile rate that
vanishes if it is taken literally: those are our reading, see docs/method-index.md.
"""

from __future__ import annotations

from typing import Any

_COMMON: dict[str, Any] = {
    "inner_steps": 3,
    "rule": {"name": "gradient", "step": 0.02, "optimizer": "adam"},
    "reptile": {"rate": "relative", "weights": "softmax"},
    "shrink": False,
    "gate": False,
    "freeze_below": 0.0,
    "floor": 0.0,
}
_PROBE: dict[str, Any] = {"state": "inherited", "learning_rate": "current", "metric": "info-nce", "aggregate": "mean"}

PRESETS: dict[str, dict[str, Any]] = {
    "paper": _COMMON
    | {"update_every": 50, "warmup_steps": 50, "probe": _PROBE | {"batch_size": 256, "dev_batch_size": 256}},
    "paper-sentence-transformers": _COMMON
    | {"update_every": 250, "warmup_steps": 500, "probe": _PROBE | {"batch_size": 256, "dev_batch_size": 256}},
    # A dataset is probed by one process: four rows in a step of the probe, and no negatives of other processes.
    "paper-mldr": _COMMON
    | {"update_every": 250, "warmup_steps": 500, "subset": 8, "reptile": {"rate": "off"}}
    | {"probe": _PROBE | {"batch_size": 4, "dev_batch_size": 32, "metric": "info-nce-hard"}},
}

"""Two small datasets of the words w0 .. w199, and runs that take a second."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformerTrainingArguments
from sentence_transformers.base.model import BaseModel
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mixfluence.encoders import kind_of
from mixfluence.policy import Vector, softmax
from mixfluence.strategies import Strategy
from mixfluence.training.kinds import TRAINERS_BY_KIND
from mixfluence.training.losses import info_nce
from mixfluence.training.trainer import MixtureMixin
from tests.forked import server

TIMEOUT = 300.0


def pool() -> dict[str, Dataset]:
    """`near` has 30 pairs of words below w100, `far` 18 triples of words from w100 on."""
    return {
        "near": Dataset.from_dict(
            {"query": [f"w{i} w{i + 1}" for i in range(30)], "answer": [f"w{i + 50}" for i in range(30)]}
        ),
        "far": Dataset.from_dict(
            {
                "query": [f"w{i + 100}" for i in range(18)],
                "answer": [f"w{i + 130} w{i + 131}" for i in range(18)],
                "negative": [f"w{i + 160}" for i in range(18)],
            }
        ),
    }


def arguments(folder: Path, kind: str = "dense", /, **options: Any) -> SentenceTransformerTrainingArguments:
    """Six steps of four rows on the CPU, everything logged and nothing saved."""
    chosen = {"max_steps": 6, "per_device_train_batch_size": 4, "learning_rate": 0.01, **options}
    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False}
    return TRAINERS_BY_KIND[kind].training_args_class(
        output_dir=str(folder), **{"logging_steps": 1, "save_strategy": "no", **quiet, **chosen}
    )


def build(model: BaseModel, args: SentenceTransformerTrainingArguments, **options: Any) -> MixtureMixin:
    """Return a trainer of the small pool with InfoNCE, unless told otherwise."""
    chosen = {"train_dataset": pool(), "loss": info_nce(model), **options}
    return TRAINERS_BY_KIND[kind_of(model)](model=model, args=args, **chosen)


class Turning(Strategy):
    """Weights that a callback reverses, stored in the checkpoint."""

    _turns: int = 0

    def start(self, sizes: Mapping[str, int]) -> None:
        self._weights = softmax(np.linspace(2.0, 0.0, len(sizes)))

    def weights(self, progress: float = 0.0) -> Vector:
        return self._weights[:: -1 if self._turns % 2 else 1]

    def turn(self) -> None:
        """Reverse the weights."""
        self._turns += 1

    def state_dict(self) -> dict[str, Any]:
        return {"turns": self._turns}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._turns = state["turns"]


class TurnAt(TrainerCallback):
    """Reverses the weights after given steps, as a measurement would."""

    def __init__(self, strategy: Turning, *steps: int) -> None:
        self._strategy = strategy
        self._steps = steps

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step in self._steps:
            self._strategy.turn()


def leave_processes() -> None:
    """End a process of several at once: gloo's threads abort one that takes its time, now and then."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def start_processes(program: Callable[..., object], *words: object, processes: int = 2) -> None:
    """Run a function in several processes with torchrun's environment, and fail if one of them does."""
    # They meet at a server of this process, as torchrun's do at the launcher's: nobody has to guess a free port.
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    group = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    environment = os.environ | group | {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    members = [
        server.Process(target=_take_part, args=(program, words, environment | {"RANK": rank, "LOCAL_RANK": rank}))
        for rank in map(str, range(processes))
    ]
    for member in members:
        member.start()
    try:
        running = members
        # One that fails leaves the others waiting for it.
        while running and not any(member.exitcode for member in members):
            assert wait([member.sentinel for member in running], TIMEOUT), f"still running after {TIMEOUT} s"
            running = [member for member in running if member.is_alive()]
    finally:
        for member in members:
            member.kill()
            member.join()
    assert [member.exitcode for member in members] == [0] * processes


def _take_part(program: Callable[..., object], words: tuple[object, ...], environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    program(*words)
    leave_processes()

"""`training.trainer_args.full_determinism` turns deterministic kernels on.

- Every step runs with them, probes included, padded or packed; two such runs are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mixfluence.experiment import run
from mixfluence.recipe_yaml import load_recipe
from mixfluence.runs import read_trace
from tests.hostile.workplace import write_workplace

pytestmark = pytest.mark.slow

SET_BY_THE_HOST = (
    *("CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG", "FLASH_ATTENTION_DETERMINISTIC"),
    *("ASCEND_LAUNCH_BLOCKING", "HCCL_DETERMINISTIC"),
)


class Watch(TrainerCallback):
    """Notes after each step whether kernels are deterministic."""

    def __init__(self) -> None:
        self.seen: list[bool] = []

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.seen.append(torch.are_deterministic_algorithms_enabled())


@pytest.fixture(autouse=True)
def _put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The trainer library changes the whole process."""
    for name in SET_BY_THE_HOST:
        monkeypatch.setenv(name, "")
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before


@pytest.mark.parametrize("packing", ["false", "true"])
def test_two_runs_are_equal_bit_for_bit(
    tmp_path: Path, tiny_bert_folder: Path, monkeypatch: pytest.MonkeyPatch, packing: str
) -> None:
    write_workplace(tmp_path / "place", tiny_bert_folder)
    monkeypatch.chdir(tmp_path / "place")
    changes = [
        "training.trainer_args={full_determinism: true}",
        f"training.packing={packing}",
        "training.learning_rate=0.01",
    ]
    changes += ["strategy={name: inf-dds, warmup_steps: 0, update_every: 1, inner_steps: 2}"]
    for name in ("one", "other"):
        watch = Watch()
        run(load_recipe(Path("recipe.yaml"), [*changes, f"output={name}"]), callbacks=[watch])
        assert watch.seen == [True] * 4
        torch.use_deterministic_algorithms(False)
    weights = Path("one/model/model.safetensors").read_bytes()
    assert weights == Path("other/model/model.safetensors").read_bytes()
    assert weights != (tiny_bert_folder / "model.safetensors").read_bytes()
    influences = measured(Path("one"))
    assert influences == measured(Path("other"))
    assert len(influences) == 3


def measured(folder: Path) -> list[object]:
    """Return what each round of probes has measured."""
    lines = read_trace(folder / "trace.jsonl")
    return [line["update"]["influence"] for line in lines if "update" in line]

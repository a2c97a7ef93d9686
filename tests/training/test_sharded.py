"""A model in shards (FSDP2) on two and four processes, really started.

- Probes of all together find what one process with the whole model and batch finds, and restore every shard bitwise.
- The final weights are those of one process, and the model is saved whole.
- Resumed from its checkpoint, the run ends bitwise the same; on another number of processes, with the same data order
  and, within rounding, the same mixture and weights. A killed process ends the job.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from mixfluence.errors import RecipeError
from mixfluence.runs import read_trace
from mixfluence.training.checkpoints import damage
from tests.training.inf_dds_process_run import CHECKPOINT
from tests.training.inf_dds_process_run import main as guided_run
from tests.training.runs import arguments, build, start_processes
from tests.training.sharded_run import MODEL, read_parts, train_and_resume, write_parts
from tests.training.sharded_run import main as sharded_run

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
def test_a_sharded_model_trains_probes_and_resumes_as_a_whole_one(tiny_bert_folder: Path, tmp_path: Path) -> None:
    for name in ("sharded", "whole"):
        (tmp_path / name).mkdir()
    # Both restore their shards bitwise, or the run fails.
    start_processes(train_and_resume, str(tiny_bert_folder), tmp_path / "sharded")
    one = guided_run(str(tiny_bert_folder), tmp_path / "one", "together")

    saved = SentenceTransformer(str(tmp_path / "sharded" / MODEL), device="cpu")
    assert type(saved) is SentenceTransformer
    pairs = zip(one.model.state_dict().values(), saved.state_dict().values(), strict=True)
    assert max(float((mine - theirs).abs().max()) for mine, theirs in pairs) < 1e-4
    assert any(not torch.equal(*pair) for pair in zip(saved.parameters(), _fresh(tiny_bert_folder), strict=True))

    assert damage(tmp_path / "sharded" / f"checkpoint-{CHECKPOINT}") is None
    resumed, whole = (tmp_path / name for name in ("sharded", "whole"))
    assert (resumed / MODEL / "model.safetensors").read_bytes() == (whole / MODEL / "model.safetensors").read_bytes()
    parts = [[np.load(folder / f"process-{rank}.npz") for rank in range(2)] for folder in (resumed, whole)]
    for again, before in zip(*parts, strict=True):
        assert all(np.array_equal(again[name], before[name]) for name in ("weights", "logits"))
    assert np.array_equal(parts[0][0]["logits"], parts[0][1]["logits"])
    # Each holds a part only.
    assert parts[0][0]["weights"].size < sum(parameter.numel() for parameter in saved.parameters())

    assert_same_trace(tmp_path / "one", tmp_path / "sharded")


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "others"), [(2, 4), (4, 2), (2, 2)])
def test_parts_are_read_by_any_number_of_processes(tmp_path: Path, processes: int, others: int) -> None:
    # The last of four processes has none of five rows.
    start_processes(write_parts, tmp_path, processes=processes)
    assert len(list(tmp_path.glob(f"shard-*-of-{processes}.pt"))) == processes
    # These compare what they read with what was written, and an error in one of them is raised here.
    start_processes(read_parts, tmp_path, processes=others)


@pytest.mark.soak
def test_a_run_continues_on_another_number_of_processes(tiny_bert_folder: Path, tmp_path: Path) -> None:
    one = guided_run(str(tiny_bert_folder), tmp_path / "one", "together")
    for processes, others in ((2, 4), (4, 2)):
        folder = tmp_path / f"from-{processes}"
        start_processes(sharded_run, str(tiny_bert_folder), folder, processes=processes)
        assert_same_trace(tmp_path / "one", folder)
        start_processes(resumed_run, str(tiny_bert_folder), folder, processes=others)
        assert_same_trace(tmp_path / "one", folder)
        saved = SentenceTransformer(str(folder / MODEL), device="cpu")
        pairs = zip(one.model.state_dict().values(), saved.state_dict().values(), strict=True)
        assert max(float((mine - theirs).abs().max()) for mine, theirs in pairs) < 1e-4


@pytest.mark.soak
def test_an_adapter_in_shards_is_that_of_one_process(tiny_bert_folder: Path, tmp_path: Path) -> None:
    # With a loss for each dataset.
    one = guided_run(str(tiny_bert_folder), tmp_path / "one", "together", adapter=True)
    start_processes(sharded_run, str(tiny_bert_folder), tmp_path / "sharded", 0, True)
    assert_same_trace(tmp_path / "one", tmp_path / "sharded")
    one.model.save_pretrained(str(tmp_path / "one" / MODEL))
    files = [load_file(tmp_path / name / MODEL / "adapter_model.safetensors") for name in ("one", "sharded")]
    assert files[0].keys() == files[1].keys()
    assert max(float((files[0][name] - files[1][name]).abs().max()) for name in files[0]) < 1e-4
    assert any(values.any() for name, values in files[1].items() if "lora_B" in name)


def resumed_run(model_folder: str, output: Path) -> None:
    assert sharded_run(model_folder, output)


def assert_same_trace(one: Path, other: Path) -> None:
    """The same datasets and rows at every step, and influences and mixtures that differ by rounding."""
    mine, theirs = (read_trace(folder / "trace.jsonl")[1:] for folder in (one, other))
    for key in ("step", "trained", "rows"):
        assert [line.get(key) for line in mine] == [line.get(key) for line in theirs]
    rounds = [[line for line in lines if "update" in line] for lines in (mine, theirs)]
    assert len(rounds[0]) == len(rounds[1]) == 3
    for first, second in zip(*rounds, strict=True):
        assert second["update"]["influence"] == pytest.approx(first["update"]["influence"], abs=1e-4)
        assert second["weights"] == pytest.approx(first["weights"], abs=1e-3)
        assert second["update"]["failed"] == []


@pytest.mark.soak
def test_a_killed_process_ends_a_job_that_shares_a_model(tiny_bert_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        torchrun(tiny_bert_folder, tmp_path / "run", CHECKPOINT + 1)
    assert not (tmp_path / "run" / MODEL).exists()
    torchrun(tiny_bert_folder, tmp_path / "run", 0)
    assert (tmp_path / "run" / MODEL / "model.safetensors").exists()


def torchrun(*words: object) -> None:
    """Run the program of this test in two processes as a user would, and fail if one of them does."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv-backend=c10d"]
    command = [*launcher, "--rdzv-endpoint=localhost:0", "-m", "tests.training.sharded_run", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    subprocess.run(command, env=environment, cwd=ROOT, check=True, timeout=300)


def test_deepspeed_is_refused(tiny_bert: SentenceTransformer, tmp_path: Path) -> None:
    args = arguments(tmp_path)
    # Set afterwards: the package itself is not needed to refuse it.
    args.deepspeed = {"zero_optimization": {"stage": 3}}
    with pytest.raises(RecipeError, match="deepspeed"):
        build(tiny_bert, args)


def _fresh(folder: Path) -> list[torch.Tensor]:
    return list(SentenceTransformer(str(folder), device="cpu").parameters())

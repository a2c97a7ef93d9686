"""`mixfluence sweep`.

- Strategies, axes and seeds are multiplied; each combination has its own recipe and folder.
- Jobs run in processes: finished ones are skipped, interrupted ones resume, a failed one is reported and the others
  go on; the comparison is printed at the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from threading import Thread

import pytest
import torch
import yaml

from mixfluence import sweep
from mixfluence.cli.sweep import parse_axis
from mixfluence.errors import RecipeError
from mixfluence.policy import UNIFORM
from mixfluence.recipe_yaml import dump_recipe
from mixfluence.runs import (
    CHECKPOINTS_FOLDER,
    MODEL_FOLDER,
    RECIPE_FILE,
    RECORD_FILE,
    TRACE_FILE,
    list_checkpoints,
    read_trace,
    step_of,
)
from mixfluence.strategies import InfDDS
from mixfluence.sweep import LOG_FILE, Job, Progress, State, build_jobs, run_jobs
from mixfluence.sweep import _cause as cause
from mixfluence.training.checkpoints import damage
from tests.forked import forked_jobs
from tests.test_cli import mixfluence_here
from tests.test_experiment import write_domain


@pytest.fixture
def recipe(tmp_path: Path, tiny_bert_folder: Path) -> str:
    for number, (name, queries) in enumerate({"big": 90, "small": 45}.items()):
        write_domain(tmp_path / "data" / name, queries, number)
    data = {
        "name": "tiny",
        "model": {"name": str(tiny_bert_folder), "pooling": "cls", "query_length": 8, "passage_length": 16},
        "defaults": {"format": "beir", "path": f"{tmp_path}/data/{{name}}"},
        "train": ["big", "small"],
        "dev": ["small"],
        "test": ["big", "small"],
        "evaluation": {"references": False},
        "strategy": {"name": "cooldown"},
        "training": {"steps": 8, "batch_size": 8, "learning_rate": 1e-3, "log_every": 1, "save_every": 2},
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return str(path)


def test_strategies_axes_and_seeds_are_multiplied(recipe: str) -> None:
    axes = {"training.learning_rate": ["1e-5", "2e-5"]}
    jobs = build_jobs(recipe, ["seed=4", "training.steps=6"], strategies=["uniform", "recipe"], axes=axes, seeds=2)
    names = [f"{word}-training.learning_rate={rate}" for word in ("uniform", "recipe") for rate in ("1e-5", "2e-5")]
    assert [job.name for job in jobs] == [f"{name}/{seed}" for seed in (4, 5) for name in names]
    assert [job.recipe.training.learning_rate for job in jobs] == [1e-5, 2e-5] * 4
    assert [job.recipe.strategy.name for job in jobs] == ["static", "static", "cooldown", "cooldown"] * 2
    assert {job.recipe.training.steps for job in jobs} == {6}
    assert [job.recipe.seed for job in jobs] == [4] * 4 + [5] * 4
    assert jobs[0].folder == Path("runs/sweeps/tiny") / jobs[0].name


def test_words_for_strategies(recipe: str, tmp_path: Path) -> None:
    words = ["uniform", "proportional", "inf-dds", "crisp"]
    jobs = build_jobs(recipe, strategies=words, output=tmp_path)
    assert [job.recipe.strategy.name for job in jobs] == ["static", "static", "inf-dds", "crisp"]
    assert jobs[0].recipe.strategy != jobs[1].recipe.strategy
    (own,) = build_jobs(recipe, strategies=["{name: inf-dds, init: uniform}"])
    assert (own.name, own.recipe.strategy) == ("name-inf-dds-init-uniform/0", InfDDS(init=UNIFORM))
    with pytest.raises(RecipeError, match="nonsense"):
        build_jobs(recipe, strategies=["nonsense"])
    with pytest.raises(RecipeError, match=r"uniform/0: two runs"):
        build_jobs(recipe, strategies=["uniform", "uniform"])


def test_values_of_an_axis_are_yaml() -> None:
    assert parse_axis("a.b=1e-5,off") == ("a.b", ["1e-5", "off"])
    assert parse_axis("s={name: static, init: {weights: {a: 1, b: 2}}},inf-dds") == (
        "s",
        ["{name: static, init: {weights: {a: 1, b: 2}}}", "inf-dds"],
    )
    for wrong in ("a", "=1", "a=", "a={"):
        with pytest.raises(RecipeError, match="--axis"):
            parse_axis(wrong)


def test_the_state_of_a_job_is_that_of_its_folder(recipe: str, tmp_path: Path) -> None:
    job, other = build_jobs(recipe, strategies=["uniform", "recipe"], output=tmp_path / "out")
    assert job.state() is State.NEW
    job.folder.mkdir(parents=True)
    (job.folder / LOG_FILE).touch()
    assert job.state() is State.NEW
    (job.folder / RECIPE_FILE).write_text(dump_recipe(job.recipe), encoding="utf-8")
    assert job.state() is State.STARTED
    (job.folder / RECORD_FILE).touch()
    assert job.state() is State.FINISHED
    changed = Job(job.name, other.recipe.model_copy(update={"output": job.folder}))
    assert changed.state() is State.FOREIGN
    with pytest.raises(RecipeError, match=str(job.folder)):
        run_jobs([changed])


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        # Our own message, whatever the libraries and other processes print around it.
        (
            "big: 3 notes\n[rank1]: RuntimeError: closed\nerror: a.yaml: wrong\nerror: b\nx.ChildFailedError: \n",
            "a.yaml: wrong",
        ),
        # The first exception: the other process only misses the one that failed.
        (
            "[rank0]:   loss()\n[rank0]: torch.OutOfMemoryError: no memory.\n[rank1]: RuntimeError: closed\n",
            "torch.OutOfMemoryError",
        ),
        # The process that was killed, not those terminated because of it.
        ("E1116] failed (exitcode: -9) local_rank: 0\n exitcode  : -15 (pid: 8)\n", "exitcode: -9"),
        ("", "exit code 1"),
    ],
)
def test_a_failure_is_explained_by_the_log(said: str, expected: str, tmp_path: Path) -> None:
    log = tmp_path / LOG_FILE
    log.write_text(said, encoding="utf-8")
    assert cause(log, 1).startswith(expected)
    assert str(log) in cause(log, 1)


def test_progress_is_the_last_new_line_that_tells_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / LOG_FILE
    log.write_text("a, stage b: step 1 of 9\nwrote a\na: step 3 of 9, loss 1\x1b[2J\nother\n")
    progress = Progress(log)
    assert progress.read() == "step 3 of 9, loss 1\ufffd[2J"
    with log.open("a") as file:
        file.write("a, stage b: step 9 of 9\n")
    assert progress.read() is None, "too soon"
    monkeypatch.setattr(sweep, "PROGRESS_SECONDS", 0.0)
    assert [progress.read(), progress.read()] == ["stage b: step 9 of 9", None]


def test_runs_that_the_machine_cannot_start_are_refused(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = build_jobs(recipe)
    with pytest.raises(RecipeError, match="--processes 2"):
        run_jobs(jobs, processes=2, gpus=8)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(RecipeError, match="--gpus 4"):
        run_jobs(jobs, gpus=8)


@pytest.mark.slow
def test_a_sweep_runs_reports_failures_and_compares(recipe: str, tiny_bert_folder: Path, tmp_path: Path) -> None:
    def sweep(strategies: str, models: str, *words: str) -> subprocess.CompletedProcess[str]:
        axis = f"model.name={models}"
        return mixfluence_here(
            *("sweep", recipe, "--strategies", strategies, "--axis", axis, "-o", "out", *words), folder=tmp_path
        )

    def records() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob(RECORD_FILE)}

    model = str(tiny_bert_folder)
    planned = sweep("uniform,{name: inf-dds, init: uniform}", f"{model},nowhere", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.count("(new)") == 4
    assert "in 4 runs" in planned.stdout
    assert not (tmp_path / "out").exists()

    # Later runs are in processes that are started as a user's are.
    with forked_jobs():
        first = sweep("uniform", f"{model},nowhere", "--processes", "2")
    assert first.returncode == 1
    assert first.stderr.count("failed: encoder 'nowhere'") == 1
    assert "Static" in first.stdout
    ((done, written),) = records().items()
    assert "testing on small" in (done.parent / LOG_FILE).read_text(encoding="utf-8")
    assert not (done.parent / MODEL_FOLDER).exists()
    assert not (done.parent / CHECKPOINTS_FOLDER).exists()

    more = sweep("uniform,inf-dds", model)
    assert more.returncode == 0, more.stderr
    assert "runs to do: 1, already finished: 1" in more.stderr
    assert "Inf-DDS" in more.stdout
    assert len(records()) == 2
    assert records()[done] == written

    again = sweep("uniform,inf-dds", model)
    assert "runs to do: 0, already finished: 2" in again.stderr
    assert again.stdout == more.stdout
    changed = sweep("uniform,inf-dds", model, "training.steps=4")
    assert changed.returncode == 2
    assert changed.stderr.count("another value of training.steps") == 1


@pytest.mark.soak
def test_a_terminated_sweep_saves_checkpoints_and_continues(recipe: str, tmp_path: Path) -> None:
    (job,) = jobs = build_jobs(recipe, ["training.steps=40", "training.save_every=8"], output=tmp_path / "out")

    def terminate() -> None:
        while not list_checkpoints(job.folder / CHECKPOINTS_FOLDER):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=terminate, daemon=True).start()
    with pytest.raises(KeyboardInterrupt) as stop:
        run_jobs(jobs)
    assert stop.value.args == (signal.SIGTERM,)
    assert job.state() is State.STARTED
    newest = list_checkpoints(job.folder / CHECKPOINTS_FOLDER)[0]
    assert damage(newest) is None
    before = read_trace(job.folder / TRACE_FILE)
    # The job ended its step and saved a checkpoint there.
    assert before[-1]["step"] == step_of(newest) < 40

    assert run_jobs(jobs, keep_models=True) == {}
    assert job.state() is State.FINISHED
    assert read_trace(job.folder / TRACE_FILE)[: len(before)] == before
    assert (job.folder / MODEL_FOLDER).is_dir()


@pytest.mark.soak
def test_a_job_on_two_processes(recipe: str, tmp_path: Path) -> None:
    (job,) = jobs = build_jobs(recipe, output=tmp_path / "out")
    assert run_jobs(jobs, gpus=2) == {}
    # Two processes with 8 rows each.
    trace = read_trace(job.folder / TRACE_FILE)
    assert trace[-1]["step"] == 8
    assert max(rows for line in trace[1:] for rows in line["rows"]) == 16

"""Runs on several GPUs, here as many processes on the CPU.

- The paper's settings 2 and 3 have 8; a dry run says so, and what cannot be is one sentence before anything starts.
- A run is trained by processes that share each batch. Ctrl-C ends them with a checkpoint, the same command goes on
  from it, a run that fails is reported with its own error, and what is finished is not run again.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from mixfluence.errors import RecipeError
from mixfluence.runs import CHECKPOINTS_FOLDER, RECORD_FILE, TRACE_FILE, read_trace
from mixfluence.study import build_cells, load_study, run_cells
from mixfluence.study.launch import check_gpus, reason_of
from mixfluence.study.schema import SETTINGS, load_setting
from mixfluence.training.checkpoints import damage, list_checkpoints, step_of
from tests.study.conftest import WriteStudy
from tests.test_cli import mixfluence_here

WORDS = ("--setting", "twin", "--data", "elsewhere", "--output", "out")
STEPS, SAVE_EVERY = 40, 8


def test_the_papers_second_and_third_settings_have_eight() -> None:
    several = {path.stem: load_setting(path.stem).gpus for path in SETTINGS.glob("*.yaml")}
    assert {name: gpus for name, gpus in several.items() if gpus > 1} == {"st32": 8, "mldr13": 8}


def test_a_setting_has_at_least_one(write_study: WriteStudy) -> None:
    path = write_study({"gpus": 0}).with_name("setting.yaml")
    with pytest.raises(RecipeError, match=r"setting\.yaml: gpus: Input should be greater than or equal to 1"):
        load_setting(str(path))


def test_fewer_gpus_than_wanted_are_refused_and_none_is_a_cpu() -> None:
    with pytest.raises(RecipeError, match="wants 8 GPUs and this machine has 4: --gpus 4"):
        check_gpus(8, 4)
    for there in (0, 8, 9):
        check_gpus(8, there)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        # The message of the run's own, whatever the host and the other process say before and after it.
        (
            "big: 3 notes\n[rank1]: RuntimeError: connection closed\nerror: a.yaml: wrong\nerror: a.yaml: wrong too\n"
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\n",
            "a.yaml: wrong",
        ),
        # The first exception: the other process only misses the one that failed.
        (
            "[rank0]: Traceback (most recent call last):\n[rank0]:   loss.backward()\n"
            "[rank0]: torch.OutOfMemoryError: CUDA out of memory.\n[rank1]: RuntimeError: connection closed\n",
            "torch.OutOfMemoryError: CUDA out of memory.",
        ),
        # A process that was killed, not the one that was ended for it.
        (
            "E1116 api.py:1002] failed (exitcode: -9) local_rank: 0 (pid: 7)\n  exitcode  : -15 (pid: 8)\n",
            "one of its processes ended with the code -9",
        ),
        ("", "one of its processes ended with the code 1"),
    ],
)
def test_the_error_is_the_runs_own(said: str, reason: str) -> None:
    assert reason_of(said, 1) == reason


def steps(said: str) -> list[int]:
    """What each cell costs."""
    return [int(line.split()[0]) for line in said.splitlines()][:-1]


@pytest.mark.slow
def test_a_dry_run_says_how_many_and_what_cannot_be_is_refused(write_study: WriteStudy, tmp_path: Path) -> None:
    path = str(write_study({"gpus": 3}))
    planned = mixfluence_here("study", path, *WORDS, "--dry-run", folder=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert "in 4 cells, each run on 3 GPUs;" in planned.stdout
    alone = mixfluence_here("study", path, *WORDS, "--dry-run", "--gpus", "1", folder=tmp_path)
    assert "GPU" not in alone.stdout
    # Static runs have as many steps; a round of probes takes less time where they are shared out.
    (static, *_, probing), (static_alone, *_, probing_alone) = steps(planned.stdout), steps(alone.stdout)
    assert static == static_alone == 8
    assert static < probing < probing_alone

    both = mixfluence_here("study", path, *WORDS, "--processes", "2", folder=tmp_path)
    assert both.returncode == 2
    assert both.stderr.count("error: ") == 1
    assert "--processes 2: runs on 3 GPUs take turns; with --gpus 1" in both.stderr
    none = mixfluence_here("study", path, *WORDS, "--gpus", "0", folder=tmp_path)
    assert none.returncode == 2
    assert "--gpus" in none.stderr
    assert not (tmp_path / "out").exists()


def processes_of_runs() -> list[int]:
    """The launchers and trainers that this test has brought about: they share its cache."""
    ours = f"MIXFLUENCE_CACHE={os.environ['MIXFLUENCE_CACHE']}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"train" in words and ours in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:  # it has ended meanwhile, or is somebody else's
            continue
    return found


@contextmanager
def interrupted_when(reached: Callable[[], object]) -> Iterator[None]:
    """Send Ctrl-C to this program at a moment."""

    def watch() -> None:
        while not reached():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGCHLD)
    Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.slow
def test_a_run_that_fails_is_reported_with_its_own_error(write_study: WriteStudy, tmp_path: Path) -> None:
    study = load_study(str(write_study()))
    cell = build_cells(study, study.place("twin"), tmp_path / "out", data=tmp_path / "absent", seeds=1)[0]
    told: list[str] = []
    failed = run_cells([cell], processes=1, keep_models=False, tell=lambda cell, _: told.append(cell.name), gpus=2)
    assert list(failed) == told == [cell.name]
    assert failed[cell.name].endswith(f"train.big.path: no such file or folder: {tmp_path}/absent/tiny/big")
    assert not cell.folder.exists()


@pytest.mark.slow
def test_a_run_on_two_processes_is_trained_once(write_study: WriteStudy, tmp_path: Path) -> None:
    study = load_study(str(write_study()))
    cells = build_cells(study, study.place("twin"), tmp_path / "out", data=tmp_path / "elsewhere", seeds=1)[:1]
    record, written = cells[0].folder / RECORD_FILE, []
    for _ in range(2):
        assert run_cells(cells, processes=1, keep_models=False, tell=lambda *_: None, gpus=2) == {}
        written.append(record.stat().st_mtime_ns)
    assert written[0] == written[1]
    # Two processes with 8 rows each.
    trace = read_trace(cells[0].folder / TRACE_FILE)
    assert trace[-1]["step"] == 8
    assert max(rows for line in trace[1:] for rows in line["rows"]) == 16


@pytest.mark.soak
def test_a_study_on_two_processes_stops_goes_on_and_is_not_run_again(write_study: WriteStudy, tmp_path: Path) -> None:
    rows = [{"label": "shared", "sampler": "static", "seeds": 1}, {"label": "zero-shot", "reference": "zero-shot"}]
    lengths = ("--set", f"training.steps={STEPS}", "--set", f"training.save_every={SAVE_EVERY}")
    words = ["study", str(write_study({"gpus": 2}, rows=rows)), *WORDS, *lengths]
    run = tmp_path / "out" / "shared" / "0"
    seen: list[int] = []

    def has_checkpoint() -> bool:
        if found := list_checkpoints(run / CHECKPOINTS_FOLDER):
            seen.extend(processes_of_runs())
        return bool(found)

    with interrupted_when(has_checkpoint):
        stopped = mixfluence_here(*words, folder=tmp_path)
    assert stopped.returncode == 130
    assert "the same command goes on" in stopped.stderr
    # A launcher and two that train.
    assert len(seen) == 3
    assert processes_of_runs() == []
    newest = list_checkpoints(run / CHECKPOINTS_FOLDER)[0]
    assert SAVE_EVERY < step_of(newest) < STEPS
    assert damage(newest) is None
    before = read_trace(run / TRACE_FILE)
    assert before[-1]["step"] == step_of(newest)

    resumed = mixfluence_here(*words, folder=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "shared/0: done" in resumed.stderr
    assert "zero-shot/0: done" in resumed.stderr
    trace = read_trace(run / TRACE_FILE)
    assert trace[: len(before)] == before
    assert trace[-1]["step"] == STEPS
    # Two processes with 8 rows each.
    assert max(rows for line in trace[1:] for rows in line["rows"]) == 16

    done = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob(RECORD_FILE)}
    assert len(done) == 2
    again = mixfluence_here(*words, folder=tmp_path)
    assert again.returncode == 0
    assert "0 cells to run, 2 are finished" in again.stderr
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob(RECORD_FILE)} == done

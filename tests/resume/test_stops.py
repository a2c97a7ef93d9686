"""Stopping a run with a signal, and what the disk and the data can do to it.

- SIGTERM, Ctrl-C, SIGUSR1 and SIGXCPU end the step, write a whole checkpoint, exit with 128 + n and say how to go on.
- The resumed run ends as the undisturbed one, its trace included, although the checkpoint was at no step of the plan.
- So they do if the loader's workers get the signal too, even before the run does.
- A second signal ends at once. While tokenising, testing and between stages, the first does.
- A disk that is full, a folder that cannot be written, data that vanished or changed are one line; the run goes on.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mixfluence.runs import list_checkpoints, step_of
from mixfluence.training.checkpoints import damage
from tests.resume.conftest import Whole
from tests.resume.crashes import (
    Moment,
    Run,
    assert_same_result,
    between_stages,
    hold_the_lock_of_a_queue,
    in_checkpoint,
    in_evaluation,
    in_probe,
    in_step,
    limit_files,
    write_recipe,
)
from tests.test_experiment import write_domain

pytestmark = pytest.mark.slow
# No step of the plan is saved but the last: a checkpoint before it is the signal's.
SAVED_BY_SIGNAL: dict[str, Any] = {"accumulation": 4, "workers": 2, "selection": {"every": 12}, "save_every": None}


def finish(recipe: Path, output: Path, whole: Path) -> None:
    run = Run(recipe, output, resume=True)
    assert run.wait() == 0, run.said
    assert_same_result(output, whole)


def stop(recipe: Path, output: Path, number: int, alone: bool) -> None:
    """Send a signal to a run that trains, and wait for its end."""
    run = Run(recipe, output)
    assert run.stop_when(in_step(5), number, alone=alone), run.said
    assert run.wait() == 128 + number, run.said
    assert "--resume continues" in run.said
    assert run.complaints == []


def children_of(process: int | None) -> list[int]:
    tasks = Path(f"/proc/{process}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text(encoding="utf-8").split()]


# As `kill` sends the one, and a scheduler and a terminal the others: to the loader's workers as well.
@pytest.mark.parametrize(
    ("number", "alone"),
    [
        (signal.SIGTERM, True),
        (signal.SIGTERM, False),
        (signal.SIGINT, False),
        pytest.param(signal.SIGUSR1, False, marks=pytest.mark.soak),
        (signal.SIGXCPU, False),
    ],
)
def test_a_signal_leaves_a_checkpoint_and_the_run_goes_on_from_it(
    number: int, alone: bool, whole_run: Whole, tmp_path: Path
) -> None:
    recipe, whole = whole_run("inf-dds", **SAVED_BY_SIGNAL)
    stop(recipe, tmp_path / "run", number, alone)
    (checkpoint,) = list_checkpoints(tmp_path / "run" / "checkpoints")
    assert 5 <= step_of(checkpoint) < 12
    assert damage(checkpoint) is None
    finish(recipe, tmp_path / "run", whole)


def test_workers_that_get_the_signal_before_the_run_go_on_until_its_checkpoint(
    whole_run: Whole, tmp_path: Path
) -> None:
    recipe, whole = whole_run("inf-dds", **SAVED_BY_SIGNAL)
    run = Run(recipe, tmp_path / "run")
    (process,) = multiprocessing.active_children()
    assert run.stop_when(in_step(5)), run.said
    workers = children_of(process.pid)
    assert len(workers) == 2, run.said
    for worker in workers:
        os.kill(worker, signal.SIGTERM)
    time.sleep(0.05)
    run.send(signal.SIGTERM, alone=True)
    assert run.wait() == 128 + signal.SIGTERM, run.said
    assert run.complaints == []
    (checkpoint,) = list_checkpoints(tmp_path / "run" / "checkpoints")
    assert 5 <= step_of(checkpoint) < 12
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    finish(recipe, tmp_path / "run", whole)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_workers_tokenise_ends_at_once(number: int, tiny_bert_folder: Path, tmp_path: Path) -> None:
    # Enough rows for several processes.
    write_domain(tmp_path / "data" / "big", 12_000, 0)
    recipe = write_recipe(tmp_path, tiny_bert_folder)
    run = Run(recipe, tmp_path / "run", before=hold_the_lock_of_a_queue)

    def tokenises(folder: Path, since: float) -> bool:
        return any(path.stat().st_size for path in (tmp_path / "cache").rglob("query_ids.bin"))

    assert run.stop_when(tokenises, number), run.said
    assert run.wait() == 128 + number, run.said
    assert "--resume continues" in run.said
    assert run.complaints == []
    assert list_checkpoints(tmp_path / "run" / "checkpoints") == []


def test_a_second_signal_ends_at_once(whole_run: Whole, tmp_path: Path) -> None:
    recipe, whole = whole_run("inf-dds")
    run = Run(recipe, tmp_path / "run")
    saved: list[Path] = []

    def probes(folder: Path, since: float) -> bool:
        saved[:] = list_checkpoints(folder / "checkpoints")
        return in_probe(4)(folder, since)

    assert run.stop_when(probes, signal.SIGINT, signal.SIGTERM), run.said
    # The system may deliver two pending signals to two threads, so that either is handled last.
    assert run.wait() in {128 + signal.SIGINT, 128 + signal.SIGTERM}, run.said
    # Those of the plan, and none that a signal asked for: a run that finished its step would have one more.
    assert {step_of(path) % 3 for path in saved} == {0}, run.said
    assert list_checkpoints(tmp_path / "run" / "checkpoints") == saved
    finish(recipe, tmp_path / "run", whole)


@pytest.mark.parametrize(("method", "moment"), [("static", in_evaluation), ("doremi", between_stages)])
def test_a_signal_while_nothing_trains_ends_at_once(
    method: str, moment: Moment, whole_run: Whole, tmp_path: Path
) -> None:
    recipe, whole = whole_run(method)
    run = Run(recipe, tmp_path / "run")
    assert run.stop_when(moment, signal.SIGTERM, alone=True), run.said
    assert run.wait() == 128 + signal.SIGTERM, run.said
    assert not (tmp_path / "run" / "record.json").exists()
    finish(recipe, tmp_path / "run", whole)


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt"])
def test_a_full_disk_is_one_line_and_the_run_goes_on(file: str, whole_run: Whole, tmp_path: Path) -> None:
    recipe, whole = whole_run("static")
    size = (list_checkpoints(whole / "checkpoints")[0] / file).stat().st_size
    run = Run(recipe, tmp_path / "run", before=partial(limit_files, size - 200))
    assert run.wait() == 1, run.said
    (complaint,) = run.complaints
    assert "could not be written" in complaint
    finish(recipe, tmp_path / "run", whole)


def test_a_folder_that_cannot_be_written_is_one_line_and_the_run_goes_on(whole_run: Whole, tmp_path: Path) -> None:
    recipe, whole = whole_run("static")
    run = Run(recipe, tmp_path / "run")
    assert run.stop_when(in_checkpoint(9), signal.SIGKILL)
    run.wait()
    shutil.move(tmp_path / "run" / "trace.jsonl", tmp_path / "kept")
    (tmp_path / "run" / "trace.jsonl").mkdir()
    again = Run(recipe, tmp_path / "run", resume=True)
    assert again.wait() in {1, 2}
    (complaint,) = again.complaints
    assert "trace.jsonl" in complaint
    (tmp_path / "run" / "trace.jsonl").rmdir()
    shutil.move(tmp_path / "kept", tmp_path / "run" / "trace.jsonl")
    finish(recipe, tmp_path / "run", whole)


def test_vanished_and_changed_data_are_one_line_and_the_run_goes_on(whole_run: Whole, tmp_path: Path) -> None:
    recipe, whole = whole_run("static")
    run = Run(recipe, tmp_path / "run")
    assert run.stop_when(in_checkpoint(9), signal.SIGKILL)
    run.wait()
    corpus = recipe.parent / "data" / "big" / "corpus.jsonl"
    text = corpus.read_text(encoding="utf-8")
    try:
        for change, expected in (
            (corpus.unlink, "corpus.jsonl"),
            (lambda: corpus.write_text(text.replace("w1 ", "w2 "), encoding="utf-8"), "training set big: changed"),
        ):
            change()
            again = Run(recipe, tmp_path / "run", resume=True)
            assert again.wait() == 2, again.said
            # The log has what the second try said, too.
            assert expected in again.complaints[-1]
    finally:
        corpus.write_text(text, encoding="utf-8")
    finish(recipe, tmp_path / "run", whole)

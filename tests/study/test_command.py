"""`mixfluence study` as a user meets it, with real runs.

- A grid runs side by side, its table is printed and written; a second call runs nothing.
- A cell that was killed is resumed, one that fails is reported and the others go on, with exit code 1.
- Without a name studies are listed; a dry run costs every cell and runs none.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import threading
import time
from multiprocessing import active_children
from pathlib import Path

import pytest

from mixfluence.runs import CHECKPOINTS_FOLDER, MODEL_FOLDER, RECORD_FILE, read_trace
from mixfluence.study import Cell, build_cells, load_study, run_cells
from mixfluence.study.cell import State, run_cell, state_of
from mixfluence.study.workers import IMPORTS
from tests.study.conftest import WriteStudy
from tests.test_cli import mixfluence, mixfluence_here

pytestmark = pytest.mark.slow

WORDS = ("--setting", "twin", "--data", "elsewhere", "--output", "out", "--processes", "2")


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob(RECORD_FILE)}


def test_a_grid_runs_once_and_its_table_is_written(write_study: WriteStudy, tmp_path: Path) -> None:
    path = write_study()
    planned = mixfluence_here("study", str(path), *WORDS, "--dry-run", folder=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.count("(new)") == 4
    assert "in 4 cells" in planned.stdout
    assert not (tmp_path / "out").exists()

    result = mixfluence("study", str(path), *WORDS, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "inf-dds 1" in result.stdout
    assert "Traceback" not in result.stderr
    done = times(tmp_path / "out")
    assert sorted(str(file.parent.relative_to(tmp_path / "out")) for file in done) == [
        *("inf-dds-1/0", "inf-dds-1/1", "static-1/0", "static-1/1")
    ]
    facts = json.loads((tmp_path / "out" / "try.json").read_text(encoding="utf-8"))
    for row in facts["rows"]:
        assert len(set(row["scores"]["big"]["by_seed"])) == 2
    assert "| static 1 |" in (tmp_path / "out" / "try.md").read_text(encoding="utf-8")
    assert not list((tmp_path / "out").rglob(MODEL_FOLDER))
    assert not list((tmp_path / "out").rglob(CHECKPOINTS_FOLDER))

    again = mixfluence_here("study", str(path), *WORDS, folder=tmp_path)
    assert again.returncode == 0
    assert "0 cells to run, 4 are finished" in again.stderr
    assert times(tmp_path / "out") == done
    assert again.stdout == result.stdout


def test_a_failing_cell_is_reported_and_the_others_go_on(write_study: WriteStudy, tmp_path: Path) -> None:
    rows = [
        {"label": "wrong", "sampler": "static", "changes": ["model.name=nowhere"], "seeds": 1},
        {"label": "right", "sampler": "static", "changes": ["training.host={dataloader_num_workers: 1}"], "seeds": 1},
        {"label": "mix", "sampler": "static", "seeds": 1, "resampled": True},
        {"label": "zero-shot", "reference": "zero-shot"},
    ]
    result = mixfluence_here("study", str(write_study(rows=rows)), *WORDS, folder=tmp_path)
    assert result.returncode == 1
    assert "wrong/0: failed, encoder 'nowhere' cannot be loaded" in result.stderr
    assert {file.parent.parent.name for file in times(tmp_path / "out")} == {"right", "mix", "zero-shot"}
    drawn = json.loads((tmp_path / "out" / "mix" / "0" / RECORD_FILE).read_text(encoding="utf-8"))["datasets"]
    assert {name: facts["rows"] for name, facts in drawn.items()} == {"big": 30, "small": 15}
    assert "Failed: wrong/0" in (tmp_path / "out" / "try.md").read_text(encoding="utf-8")


def test_a_killed_cell_is_reported_and_resumed(write_study: WriteStudy) -> None:
    path = write_study()
    study = load_study(str(path))
    changes = ["training.steps=24", "training.log_every=1"]
    place, data = study.place("twin"), path.parent / "elsewhere"
    cells = build_cells(study, place, path.parent / "out", data=data, seeds=1, changes=changes)
    victim, other = reversed(cells)

    def kill() -> None:
        # By then an earlier checkpoint is whole.
        while not (victim.folder / CHECKPOINTS_FOLDER / "checkpoint-6").exists():
            time.sleep(0.01)
        for child in active_children():
            os.kill(child.pid or 0, signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    told: list[tuple[Cell, str | None]] = []

    def tell(cell: Cell, error: str | None) -> None:
        told.append((cell, error))

    failed = run_cells([victim, other], processes=1, keep_models=False, tell=tell)
    assert failed == {victim.name: "its process ended with the code -9"}
    assert [error is None for _, error in told] == [False, True]
    assert (state_of(victim), state_of(other)) == (State.STARTED, State.FINISHED)
    reached = read_trace(victim.folder / "trace.jsonl")[-1]["step"]
    assert 4 <= reached < 24
    # Workers know the variables of now, not those of the time when the first of this process was started.
    assert list(Path(os.environ["MIXFLUENCE_CACHE"]).iterdir())

    before = read_trace(victim.folder / "trace.jsonl")[:3]
    run_cell(victim, keep_models=True)
    assert state_of(victim) is State.FINISHED
    # What was trained before the kill was not trained again.
    assert read_trace(victim.folder / "trace.jsonl")[:3] == before


def test_what_workers_share_is_there_and_leaves_signals_as_they_were() -> None:
    # The process that workers are forked from would say nothing of a module that it does not find.
    before = signal.getsignal(signal.SIGINT)
    runpy.run_module(IMPORTS)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_folder_of_another_recipe_is_refused(write_study: WriteStudy, tmp_path: Path) -> None:
    rows = [{"label": "static 1", "sampler": "static", "init": 1, "seeds": 1}]
    path = write_study(rows=rows)
    assert mixfluence_here("study", str(path), *WORDS, folder=tmp_path).returncode == 0
    changed = mixfluence_here("study", str(path), *WORDS, "--set", "training.steps=4", folder=tmp_path)
    assert changed.returncode == 1
    assert "static-1/0: failed, out/static-1/0: holds a run of another recipe" in changed.stderr


def test_studies_are_listed_and_missing_data_is_one_error(tmp_path: Path) -> None:
    listed = mixfluence_here("study", folder=tmp_path)
    assert listed.returncode == 0
    assert "start-fever" in listed.stdout
    assert "(paper, twin, twin-kd)" in listed.stdout
    missing = mixfluence_here("study", "reptile", "--setting", "twin", folder=tmp_path)
    assert missing.returncode == 2
    assert missing.stderr.count("error: ") == 1
    assert "data/english/socode and 6 more; --data says" in missing.stderr.replace("\n", " ")

"""A run as its folder shows it.

- Finished, killed half-way, not yet begun, in an earlier stage, silent for long: each is told.
- Numbers are those of the trace.
- Stages are those that the run itself would have.
- Names of datasets are text, whatever is in them.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from mixfluence.cli.runs import status
from mixfluence.errors import DataError
from mixfluence.report.status import read_status, status_view
from mixfluence.runs import read_trace
from tests.test_methods import SETTINGS

RUN = """\
name: slow
model: {name: wordllama}
defaults: {format: pydocs, library: "{name}"}
train: [numpy, scipy]
dev: [pandas]
strategy: {name: inf-dds}
training: {steps: 100, batch_size: 4}
"""
NAMES = ["[bold]loud[/bold]", "<script>alert(1)</script>"]
WRITTEN = 1_000_000.0
OLD = Path(__file__).parent / "old-runs"


def shown(folder: Path, now: float | None = None) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(status_view(read_status(folder, now)))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten of a hundred steps in 20 s, 8 of which went into an update after step 5."""
    even, turned = dict(zip(NAMES, (0.5, 0.5), strict=True)), dict(zip(NAMES, (0.25, 0.75), strict=True))
    influence = dict(zip(NAMES, (-0.001, 0.02), strict=True))
    update = {"seconds": 8.0, "memory": 3.0, "failed": [], "influence": influence}
    lines = [
        {"step": 0, "seconds": 0.0, "datasets": {}},
        {"step": 5, "seconds": 6.0, "weights": even, "loss": 3.0, "learning_rate": 1e-5},
        {"step": 5, "seconds": 14.0, "weights": turned, "update": update},
        {"step": 10, "seconds": 20.0, "weights": turned, "loss": 2.5, "learning_rate": 2e-5},
    ]
    (tmp_path / "recipe.yaml").write_text(RUN, encoding="utf-8")
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    for step in 9, 10:
        (tmp_path / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)
        (tmp_path / "checkpoints" / f"checkpoint-{step}" / "manifest.json").touch()
    (tmp_path / "checkpoints" / "checkpoint-11").mkdir()  # was being written
    os.utime(tmp_path / "trace.jsonl", (WRITTEN, WRITTEN))
    return tmp_path


def test_numbers_are_those_of_the_trace(folder: Path) -> None:
    status = read_status(folder, WRITTEN + 30)
    assert (status.state, status.stage, status.step, status.stages) == ("training", "final", 10, {"final": 100})
    assert status.checkpoint == 10
    assert status.left == pytest.approx(90 * 20 / 10)
    assert status.influence == (5, dict(zip(NAMES, (-0.001, 0.02), strict=True)))
    assert status.history[-1][NAMES[1]] == 0.75


def test_names_and_numbers_are_shown_as_they_are(folder: Path) -> None:
    text = shown(folder, WRITTEN + 30)
    assert "slow: inf-dds, training\n" in text
    assert "[bold]loud[/bold]" in text
    assert "<script>alert(1)</scrip" in text
    assert "10 of 100 (10%)" in text
    assert "1.2 s per step, 20 s so far" in text
    assert "8.0 s, 67% on top of training" in text
    assert "3 min 0 s" in text
    assert "+0.02" in text
    assert text.index("75.0%") < text.index("25.0%")


def test_what_was_not_measured_is_left_out(folder: Path) -> None:
    trace = folder / "trace.jsonl"
    trace.write_text(trace.read_text(encoding="utf-8").replace("-0.001", "null"), encoding="utf-8")
    assert read_status(folder).influence == (5, {NAMES[1]: 0.02})
    assert "last influence from step 5" in shown(folder)


def test_a_trace_that_has_not_grown_for_long_is_said_to(folder: Path) -> None:
    # Its longest pause was 8 s, so that a minute of silence is long.
    assert read_status(folder, WRITTEN + 59).silent is None
    assert read_status(folder, WRITTEN + 7200).silent == 7200
    text = shown(folder, WRITTEN + 7200)
    assert "probably stopped while training" in text
    assert "1970-01-12" in text
    assert "2 h 0 min ago" in text


def test_a_run_with_long_pauses_is_given_longer(folder: Path) -> None:
    trace = folder / "trace.jsonl"
    with trace.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": 20, "seconds": 120.0, "weights": {"a": 1.0}}) + "\n")
    os.utime(trace, (WRITTEN, WRITTEN))
    assert read_status(folder, WRITTEN + 499).silent is None
    assert read_status(folder, WRITTEN + 501).silent == 501


def test_a_run_that_has_not_begun_is_at_step_0(folder: Path) -> None:
    (folder / "trace.jsonl").unlink()
    os.utime(folder / "recipe.yaml", (WRITTEN, WRITTEN))
    status = read_status(folder, WRITTEN + 5)
    assert (status.step, status.left, status.history) == (0, None, [])
    assert "0 of 100" in shown(folder, WRITTEN + 5)


def test_a_run_that_has_trained_but_is_not_done_is_testing(folder: Path) -> None:
    with (folder / "trace.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": 100, "seconds": 200.0, "weights": {"a": 1.0}}) + "\n")
    assert read_status(folder).state == "testing"


def test_an_earlier_stage_is_told_with_what_comes_after(folder: Path) -> None:
    (folder / "recipe.yaml").write_text(
        RUN.replace("name: inf-dds", "name: doremi, reference_steps: 40, proxy_steps: 20"), encoding="utf-8"
    )
    for stage in ("reference", "proxy"):
        (folder / "stages" / stage).mkdir(parents=True)
    shutil.copy(folder / "trace.jsonl", folder / "stages" / "reference")
    shutil.move(folder / "trace.jsonl", folder / "stages" / "proxy")
    status = read_status(folder)
    assert (status.stage, status.step, status.stages["proxy"]) == ("proxy", 10, 20)
    assert status.left == pytest.approx((10 + 100) * 2)
    assert status.checkpoint is None
    assert "proxy, 2 of 3" in shown(folder)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not a run folder, it has no recipe\.yaml"):
        read_status(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("method", [*SETTINGS, "replay"])
def test_finished_runs_of_every_method_are_shown(runs: Path, method: str) -> None:
    status = read_status(runs / method, now=1e12)
    trace = read_trace(runs / method / "trace.jsonl")
    assert (status.state, status.silent) == ("finished", None)
    assert (status.step, status.stages["final"], status.left) == (12, 12, 0)
    measured = [line for line in trace if line.get("update", {}).get("influence")]
    assert bool(status.influence[1]) == bool(measured) == (method in {"inf-dds", "multidds", "aioli"})
    assert sum(status.history[-1].values()) == pytest.approx(1)
    text = shown(runs / method)
    assert "finished" in text
    assert "so far" not in text
    assert f"loss            {[line['loss'] for line in trace if 'loss' in line][-1]:.4g} " in text
    assert ("mixture found" if status.found else "sampling probabilities") in text
    assert f"from step {status.run.record['selected_step']}" in text
    drawn, scored = text.split("test scores x 100")
    # CRISP draws clusters; test sets have their names whatever was drawn.
    assert ("<script>" in drawn) == (method != "crisp")
    assert "<script>" in scored


@pytest.mark.slow
def test_a_killed_run_is_told_as_far_as_it_came(runs: Path) -> None:
    status = read_status(runs / "killed", now=1e12)
    assert status.state == "training"
    assert 4 <= status.step < 8
    assert status.checkpoint == 4
    assert status.silent is not None
    text = shown(runs / "killed", now=1e12)
    assert "probably stopped" in text
    assert "so far" in text
    assert "sampling probabilities now" in text


@pytest.mark.slow
def test_a_proxy_is_shown_by_what_it_has_found(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "doremi", tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints", "model"))
    for name in ("trace.jsonl", "record.json"):
        (tmp_path / "run" / name).unlink()
    status = read_status(tmp_path / "run")
    assert (status.stage, status.step, bool(status.found)) == ("proxy", 12, True)
    assert status.history[-1] == read_trace(tmp_path / "run" / "stages" / "proxy" / "trace.jsonl")[-1]["outcome"]
    assert "mixture found so far" in shown(tmp_path / "run")


def test_what_helps_whom_is_shown_where_it_was_measured(folder: Path) -> None:
    text = shown(OLD / "inf-dds")
    assert "what helps whom: improvement of dev info-nce, nats" in text
    assert "green  +0.14 ± 0.05" in text
    assert "what helps whom" not in shown(folder)


def test_checkpoints_of_a_training_script_lie_in_its_folder(folder: Path) -> None:
    for path in (folder / "checkpoints").iterdir():
        shutil.move(path, folder)
    assert read_status(folder).checkpoint == 10


def test_a_terminal_does_not_obey_names(folder: Path) -> None:
    trace = folder / "trace.jsonl"
    name = json.dumps("\x1b[2Jfake\nline")[1:-1]
    trace.write_text(trace.read_text(encoding="utf-8").replace("[bold]loud[/bold]", name), encoding="utf-8")
    text = shown(folder)
    assert "\x1b" not in text
    assert "\ufffd[2Jfake\ufffdline" in text


def test_a_watched_run_is_shown_until_it_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []

    def grow(seconds: float) -> None:
        pauses.append(seconds)
        os.utime(folder / "trace.jsonl", (0, 0) if len(pauses) == 3 else None)

    os.utime(folder / "trace.jsonl")
    monkeypatch.setattr("mixfluence.cli.runs.time.sleep", grow)
    status(folder, watch=True)
    assert len(pauses) == 3
    assert "probably stopped while training" in capsys.readouterr().out

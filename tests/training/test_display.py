"""What a run shows while it trains.

- Without a terminal: about ten lines a run, names as plain text.
- On a terminal: one picture, replaced by one line at the end; also if the run was interrupted.
- One display follows several runs: the stages of a method, and a resumed run from its checkpoint.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from datasets import Dataset
from rich.console import Console
from sentence_transformers import SentenceTransformer
from transformers import TrainerControl, TrainerState, TrainingArguments

from mixfluence.display import duration, mixture_table, percent, sparkline
from mixfluence.influence import Probe
from mixfluence.strategies import InfDDS, Static, Strategy
from mixfluence.training.display import ProgressDisplay
from mixfluence.training.losses import info_nce
from mixfluence.training.trainer import MixtureTrainer
from tests.training.runs import arguments, pool

NAMES = ["[bold]near[/bold]", "<script>alert(1)</script>"]


def named_pool() -> dict[str, Dataset]:
    return dict(zip(NAMES, pool().values(), strict=True))


def train(
    model: SentenceTransformer,
    folder: Path,
    display: ProgressDisplay,
    strategy: Strategy | None = None,
    steps: int = 40,
) -> None:
    trainer = MixtureTrainer(
        model=model,
        args=arguments(folder, max_steps=steps, logging_steps=1),
        train_dataset=named_pool(),
        dev_dataset=named_pool(),
        strategy=strategy or Static(),
        loss=info_nce(model),
        callbacks=[display],
    )
    trainer.train()


def log(display: ProgressDisplay, step: int, logs: dict[str, float], folder: str = "run/checkpoints") -> None:
    state = TrainerState(global_step=step, max_steps=100, is_world_process_zero=True)
    display.on_log(TrainingArguments(folder, use_cpu=True), state, TrainerControl(), logs=logs)


def begin(display: ProgressDisplay, step: int = 0, folder: str = "run/checkpoints", *, first: bool = True) -> None:
    state = TrainerState(global_step=step, max_steps=100, is_world_process_zero=first)
    display.on_train_begin(TrainingArguments(folder, use_cpu=True), state, TrainerControl())


def end(display: ProgressDisplay) -> None:
    state = TrainerState(global_step=100, max_steps=100, is_world_process_zero=True)
    display.on_train_end(TrainingArguments("run/checkpoints", use_cpu=True), state, TrainerControl())


@pytest.fixture
def plain() -> Console:
    return Console(file=io.StringIO(), width=60)


@pytest.fixture
def terminal() -> Console:
    return Console(file=io.StringIO(), width=100, height=40, force_terminal=True, color_system=None)


def text(console: Console) -> str:
    shown: str = console.file.getvalue()  # type: ignore[attr-defined]
    return shown


@pytest.mark.slow
def test_a_run_without_a_terminal_prints_ten_lines(
    plain: Console, tiny_bert: SentenceTransformer, tmp_path: Path
) -> None:
    strategy = InfDDS(update_every=10, warmup_steps=10, probe=Probe(dev_batch_size=8))
    train(tiny_bert, tmp_path, ProgressDisplay(plain, "tiny [run]"), strategy)
    lines = text(plain).splitlines()
    assert len(lines) == 10
    assert [line.split(",")[0] for line in lines] == [f"tiny [run]: step {4 * n} of 40" for n in range(1, 11)]
    assert all("loss " in line and "learning rate " in line for line in lines)
    assert all("left" in line for line in lines[:-1])
    assert "took" in lines[-1]
    assert all(f"{name} " in lines[0] for name in NAMES)


def test_a_log_at_every_step_prints_ten_lines(plain: Console) -> None:
    display = ProgressDisplay(plain, "run")
    begin(display)
    for step in range(1, 101):
        log(display, step, {"loss": 1.0, "sampling/a": 0.7 if step < 50 else 0.6, "sampling/b": 0.3})
    lines = text(plain).splitlines()
    assert len(lines) == 10
    assert [number for number, line in enumerate(lines) if "drawing a 60.0%, b 30.0%" in line] == [4, 5, 6, 7, 8, 9]
    # The Trainer logs a summary at the end, without a loss.
    log(display, 100, {"train_loss": 1.0})
    end(display)
    assert len(text(plain).splitlines()) == 10


def test_stages_and_resumed_runs_are_followed(plain: Console) -> None:
    display = ProgressDisplay(plain, "run")
    begin(display, folder="out/stages/reference/checkpoints")
    log(display, 10, {"loss": 1.0})
    log(display, 100, {"loss": 1.0})
    begin(display, folder="out/checkpoints")
    log(display, 9, {"loss": 1.0})
    log(display, 10, {"loss": 1.0})
    begin(display, step=50, folder="out/checkpoints")
    log(display, 51, {"loss": 1.0})
    log(display, 60, {"loss": 1.0})
    starts = [line.split(",")[:2] for line in text(plain).splitlines()]
    assert [",".join(start) for start in starts[:2]] == [
        f"run, stage reference: step {step} of 100" for step in (10, 100)
    ]
    assert [start[0] for start in starts[2:]] == ["run: step 10 of 100", "run: step 60 of 100"]


def test_other_processes_are_silent(terminal: Console) -> None:
    display = ProgressDisplay(terminal, "run")
    begin(display, first=False)
    end(display)
    assert text(terminal) == ""


@pytest.mark.slow
def test_a_terminal_gets_one_picture_that_goes_away(
    terminal: Console, tiny_bert: SentenceTransformer, tmp_path: Path
) -> None:
    strategy = InfDDS(update_every=3, warmup_steps=3, probe=Probe(dev_batch_size=8))
    train(tiny_bert, tmp_path, ProgressDisplay(terminal, "tiny [run]"), strategy, steps=12)
    shown = text(terminal)
    assert "tiny [run]" in shown
    assert "12 of 12" in shown
    assert all(name in shown for name in NAMES)
    assert "█" in shown
    written = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    lines = [line for line in written.splitlines() if line.startswith("tiny [run]: ")]
    assert len(lines) == 1
    assert lines[0].startswith("tiny [run]: 12 steps in ")
    # The cursor is hidden and comes back.
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1


def test_the_picture_shows_all_it_was_told(terminal: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("mixfluence.training.display.time", SimpleNamespace(monotonic=lambda: clock[0]))
    display = ProgressDisplay(terminal, "run")
    begin(display)
    clock[0] += 30.0
    many = {f"sampling/d{number}": 0.01 for number in range(10)}
    facts = {"loss": 2.5, "learning_rate": 2e-5, "probing/seconds": 10.0, "influence/d3": -0.25}
    log(display, 40, {**facts, **many, "sampling/<b>": 0.9})
    end(display)
    shown = text(terminal)
    assert "40 of 100" in shown
    # 60 steps at the pace of 40 in 30 s; 10 s of probing beside 20 s of training.
    for part in ("45 s left", "loss 2.500", "learning rate 2e-05", "probing adds 50%", "and 3 more"):
        assert part in shown
    assert "<b>" in shown
    assert "90.0%" in shown
    assert "-0.25" in shown


def test_a_run_that_was_interrupted_can_be_followed_again(terminal: Console) -> None:
    display = ProgressDisplay(terminal, "run")
    begin(display)
    begin(display, step=50)
    end(display)
    assert text(terminal).count("\x1b[?25l") == text(terminal).count("\x1b[?25h") == 2
    assert "run: 50 steps in" not in text(terminal)


def test_bars_show_every_share_above_zero() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(mixture_table([{"large": 0.5 + 1 / 96, "small": 1e-9, "none": 0.0}], {}))
    lines = text(console).splitlines()
    assert [line.count("▏") for line in lines] == [1, 1, 0]
    assert "██████▏" in lines[0]


def test_sparklines() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([]) == ""
    long = sparkline([float(number) for number in range(1000)], 10)
    assert (len(long), long[0], long[-1]) == (10, "▁", "█")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.04, "0.0 s"),
        (9.9, "9.9 s"),
        (9.97, "10 s"),
        (59.4, "59 s"),
        (59.7, "1 min 0 s"),
        (119, "1 min 59 s"),
        (119.8, "2 min 0 s"),
        (599, "9 min 59 s"),
        (600, "10 min"),
        (3599, "1 h 0 min"),
        (7260, "2 h 1 min"),
        (200_000, "2 days 7 h"),
    ],
)
def test_durations_as_people_say_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_small_shares_are_not_rounded_to_nothing() -> None:
    assert [percent(share) for share in (0, 1e-9, 0.001, 0.5, 1)] == ["0%", "<0.1%", "0.1%", "50.0%", "100.0%"]

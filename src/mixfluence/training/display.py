"""Progress of a run: a live picture on a terminal, a few lines elsewhere."""

from __future__ import annotations

import atexit
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mixfluence.display import duration, largest, mixture_table, percent, printable
from mixfluence.runs import STAGES_FOLDER

PLAIN_LINES = 10
PLAIN_DATASETS = 3
# Logged probabilities kept for sparklines; a longer history is thinned to every other one.
HISTORY = 512


class ProgressDisplay(TrainerCallback):
    """Shows step, loss, time left and probabilities of a run, or of several in turn, such as the stages of a method.

    Without a terminal it prints about ten lines per run.
    """

    def __init__(self, console: Console, label: str) -> None:
        self._console = console
        self._label = label
        self._live: Live | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._stop()
        folder = Path(args.output_dir).parent
        stage = f", stage {folder.name}" if folder.parent.name == STAGES_FOLDER else ""
        self._title = f"{self._label}{stage}"
        self._first = self._step = state.global_step
        self._steps = state.max_steps
        self._printed = self._step * PLAIN_LINES // self._steps
        self._started = time.monotonic()
        self._logs: Mapping[str, float] = {}
        self._history: list[Mapping[str, float]] = []
        # A terminal without block characters gets plain lines.
        if state.is_world_process_zero and self._console.is_terminal and not self._console.options.ascii_only:
            self._live = Live(
                console=self._console, get_renderable=self._picture, refresh_per_second=2, transient=True
            )
            self._live.start()
            # An interrupted run never calls on_train_end, but the cursor must be restored.
            atexit.register(self._stop)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._step = state.global_step

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if "loss" not in kwargs["logs"] or not state.is_world_process_zero:
            return
        self._step, self._logs = state.global_step, kwargs["logs"]
        if weights := self._logged("sampling/"):
            self._history.append(weights)
        if len(self._history) > HISTORY:
            self._history = self._history[1::2]
        due = self._step * PLAIN_LINES // self._steps
        if self._live is None and due > self._printed:
            self._printed = due
            shares = [f"{name} {percent(weights[name])}" for name in largest(weights, PLAIN_DATASETS)]
            mixture = f"; drawing {', '.join(shares)}" if shares else ""
            facts = [f"{self._title}: step {self._step:,} of {self._steps:,}", *self._facts(), self._time()]
            self._print(", ".join(facts) + mixture)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._live is not None:
            self._stop()
            took = duration(time.monotonic() - self._started)
            self._print(", ".join([f"{self._title}: {self._step - self._first:,} steps in {took}", *self._facts()]))

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
            atexit.unregister(self._stop)

    def _print(self, text: str) -> None:
        self._console.print(printable(text), style="dim", markup=False, highlight=False, soft_wrap=True)

    def _time(self) -> str:
        """Return the remaining time at the pace so far, probing included; at the end, the time taken."""
        done, elapsed = self._step - self._first, time.monotonic() - self._started
        if self._step >= self._steps:
            return f"took {duration(elapsed)}"
        return f"{duration(elapsed / done * (self._steps - self._step))} left" if done else "starting"

    def _facts(self) -> list[str]:
        formats = {"loss": "loss {:.3f}", "learning_rate": "learning rate {:.2g}"}
        facts = [text.format(self._logs[name]) for name, text in formats.items() if name in self._logs]
        elapsed, probing = time.monotonic() - self._started, self._logs.get("probing/seconds", 0.0)
        return [*facts, f"probing adds {probing / (elapsed - probing):.0%}"] if 0 < probing < elapsed else facts

    def _logged(self, prefix: str) -> dict[str, float]:
        return {key.removeprefix(prefix): value for key, value in self._logs.items() if key.startswith(prefix)}

    def _picture(self) -> Group:
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=self._steps, completed=self._step, width=24)
        progress = Text(f"{self._step:,} of {self._steps:,}")
        head.add_row(Text(printable(self._title), "bold"), bar, progress, Text(self._time(), "dim"))
        mixture = [mixture_table(self._history, self._logged("influence/"))] if self._history else []
        return Group(head, Text("   ".join(self._facts())), *mixture)

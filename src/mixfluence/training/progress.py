"""What a run shows while it trains: one calm picture on a terminal, a few lines elsewhere."""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mixfluence.display import duration, largest, mixture_table, percent
from mixfluence.runs import STAGES_FOLDER

PLAIN_LINES = 10
PLAIN_DATASETS = 3
# Logs of probabilities that are kept for sparklines; of a longer run, every other one is forgotten again and again.
HISTORY = 512
REFRESHES_PER_SECOND = 2


class ProgressDisplay(TrainerCallback):
    """Shows step, loss, learning rate, time left and what is drawn; a few plain lines where there is no terminal.

    Everything but steps and time comes from the host's logs, as any tracker gets them. It may follow several runs, one
    after the other: the stages of a method, or a run and its resumption.

    Args:
        console: Where to show it.
        label: What is being trained.
    """

    def __init__(self, console: Console, label: str) -> None:
        self._console = console
        self._label = label
        self._live: Live | None = None
        self._begin(label, 0, 1)

    def _begin(self, title: str, step: int, steps: int) -> None:
        self._title = title
        self._first = self._step = step
        self._steps = steps
        self._told = step * PLAIN_LINES // steps
        self._started = time.monotonic()
        self._logs: Mapping[str, float] = {}
        self._history: list[Mapping[str, float]] = []
        self._said: list[str] = []

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start anew, from the step that a resumed run goes on from."""
        self._stop()
        stage = _stage(Path(args.output_dir))
        self._begin(f"{self._label}, stage {stage}" if stage else self._label, state.global_step, state.max_steps)
        # A terminal that has no block characters gets the lines.
        if state.is_world_process_zero and self._console.is_terminal and not self._console.options.ascii_only:
            self._live = Live(
                console=self._console,
                get_renderable=self._picture,
                refresh_per_second=REFRESHES_PER_SECOND,
                transient=True,
            )
            self._live.start()
            # An interrupted run has no end; the cursor must come back all the same.
            atexit.register(self._stop)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count the step."""
        self._step = state.global_step

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Take what was logged, and print a line if one is due."""
        if not logs or "loss" not in logs or not state.is_world_process_zero:
            return
        self._step = state.global_step
        self._logs = logs
        if weights := _named(logs, "sampling/"):
            self._history.append(weights)
        if len(self._history) > HISTORY:
            self._history = self._history[1::2]
        due = self._step * PLAIN_LINES // self._steps
        if self._live is None and due > self._told:
            self._told = due
            self._print("; ".join([self._progress(), *self._news()]))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave one line where the picture was."""
        if self._live is not None:
            self._stop()
            loss = f", loss {self._logs['loss']:.3f}" if self._logs else ""
            took = duration(time.monotonic() - self._started)
            self._print(f"{self._title}: {self._step - self._first:,} steps in {took}{loss}")

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
            atexit.unregister(self._stop)

    def _print(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)

    def _time(self) -> str:
        """Return the time that is left at the pace so far, probing included; at the end, what it took."""
        done, elapsed = self._step - self._first, time.monotonic() - self._started
        if self._step >= self._steps:
            return f"took {duration(elapsed)}"
        return f"{duration(elapsed / done * (self._steps - self._step))} left" if done else "starting"

    def _facts(self) -> Iterator[str]:
        if "loss" in self._logs:
            yield f"loss {self._logs['loss']:.3f}"
        if "learning_rate" in self._logs:
            yield f"learning rate {self._logs['learning_rate']:.2g}"
        elapsed = time.monotonic() - self._started
        probing = self._logs.get("probing/seconds", 0.0)
        if 0 < probing < elapsed:
            yield f"probing adds {probing / (elapsed - probing):.0%}"

    def _progress(self) -> str:
        step = f"{self._title}: step {self._step:,} of {self._steps:,}"
        return ", ".join([step, *self._facts(), self._time()])

    def _news(self) -> list[str]:
        """Return what a plain line says of the mixture, as far as the line before did not say the same."""
        before, self._said = self._said, []
        if self._history:
            now = self._history[-1]
            shares = ", ".join(f"{name} {percent(now[name])}" for name in largest(now, PLAIN_DATASETS))
            self._said.append(f"drawing {shares}")
        if influence := _named(self._logs, "influence/"):
            (best,) = largest(influence, 1)
            self._said.append(f"largest influence {best} {influence[best]:+.2g}")
        return [sentence for sentence in self._said if sentence not in before]

    def _picture(self) -> Group:
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(self._title, "bold"),
            ProgressBar(total=self._steps, completed=self._step, width=24),
            Text(f"{self._step:,} of {self._steps:,}"),
            Text(self._time(), "dim"),
        )
        parts: list[Table | Text] = [head]
        if facts := "   ".join(self._facts()):
            parts.append(Text(facts))
        if self._history:
            parts.append(mixture_table(self._history, _named(self._logs, "influence/")))
        return Group(*parts)


def _named(logs: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {key.removeprefix(prefix): value for key, value in logs.items() if key.startswith(prefix)}


def _stage(checkpoints: Path) -> str | None:
    """Return the stage of a method whose checkpoints are there; None for its last, and for methods that have one."""
    folder = checkpoints.parent
    return folder.name if folder.parent.name == STAGES_FOLDER else None

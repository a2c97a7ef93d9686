"""Rounds that measure the training steps before them, in place of trial steps."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import torch

from mixfluence.errors import RecipeError
from mixfluence.influence import DevBatch, Influences, relative_rate
from mixfluence.influence.in_line import StepMeter
from mixfluence.strategies import Strategy
from mixfluence.training.probing import ProbeRunner
from mixfluence.training.streams import restore


class InLineRunner(ProbeRunner):
    """Evaluates the dev sets after each training step of a window, which ends when the strategy wants a round."""

    _meter: StepMeter
    _saved: Mapping[str, Any] | None = None

    def start(self) -> None:
        """Prepare for the first window, or continue that of a checkpoint."""
        if type(self._strategy).steps_to_round is Strategy.steps_to_round:
            raise RecipeError(f"{self._strategy.label}: in-line measurements need a strategy with steps_to_round")
        super().start()
        self._length = self._probe.window(len(self._strategy.candidates()))
        self._rate = self._learning_rate()
        self._dev: list[DevBatch] = []
        self._spent: list[tuple[Any, Any]] = []
        # In a run that goes on for longer, rounds may have other rows.
        if self._saved and self._saved["rows"] == self._dev_sizes:
            restore(self._dev_streams, self._saved["dev_streams"])
            self._open_window()
            self._meter.load_state_dict(self._saved)

    def follow(self, datasets: Sequence[int]) -> None:
        """Evaluate after a step, if a window is open or begins now."""
        # The schedule has moved on to the next step.
        rate, self._rate = self._rate, self._learning_rate()
        ahead = self._steps_to_round(falling=self._rate < rate)
        if ahead > self._length:
            self._dev = []
            return
        if not self._dev or ahead == self._length:
            self._open_window()
        started = self._mark()
        with self._aside():
            self._meter.record(self._dev, datasets, rate, self._trainer.state.global_step)
        self._spent.append((started, self._mark()))

    def update(self) -> dict[str, Any]:
        """End the window, and count the time of its evaluations to the round."""
        update = super().update()
        spent = sum(_seconds(*marks) for marks in self._spent)
        self._spent = []
        self.seconds += spent
        return update | {"seconds": round(update["seconds"] + spent, 4)}

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, with the window so far."""
        drawn = {"dev_streams": self._drawn_from, "rows": self._dev_sizes} if self._dev else {}
        return super().state_dict() | {"window": {**drawn, **self._meter.state_dict()} if drawn else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint, once training starts."""
        super().load_state_dict(state)
        self._saved = state["window"]

    def _run(self) -> Influences:
        with self._aside():
            found = self._meter.measure([], lambda _: (), self._dev, seed=0, spread=0.0)
        self._dev = []
        self._rounds += 1
        return found

    def _steps_to_round(self, *, falling: bool) -> float:
        """Return how many steps ahead the next round is; infinite if the run or its updates end before."""
        state, strategy = self._trainer.state, self._strategy
        ahead = strategy.steps_to_round(state.global_step)
        if state.global_step + ahead >= state.max_steps:
            return inf
        # A round that is not due at the learning rate of now is not due at a lower one.
        due = not falling or strategy.due(state.global_step + int(ahead), relative_rate(self._trainer.optimizer))
        return ahead if due else inf

    def _open_window(self) -> None:
        self._drawn_from = [stream.state for stream in self._dev_streams]
        self._dev = self._dev_batches(self._dev_streams)
        self._meter.start()

    def _learning_rate(self) -> float:
        return float(self._learner.optimizer.param_groups[0]["lr"])

    def _mark(self) -> Any:
        # Waiting for the device after every step would cost more than the evaluation.
        if self._trainer.args.device.type != "cuda":
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def _seconds(start: Any, end: Any) -> float:
    return float(end - start if isinstance(start, float) else start.elapsed_time(end) / 1000)

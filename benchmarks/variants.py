"""Ways to run our training step, switched every few steps of one run, so that all are timed on the same machine.

python benchmarks/variants.py --batch 128 --variants plain cast fill cast+fill
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from graphs import graphed
from side import SIZES, build_trainer, load_model, write_model
from sizes import write_texts
from transformers import TrainerCallback

from mixfluence.training.casting import cast_together
from mixfluence.training.packing import _compiled, transformers_in

BLOCK, UNCOUNTED = 14, 4


def matrix_products(seconds: float = 1.0) -> None:
    """Print the microseconds in which products are launched, of one size and of ever new ones."""
    if not torch.cuda.is_available():
        return
    weight = torch.randn(384, 1536, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(1536, device="cuda", dtype=torch.bfloat16)
    rows = torch.randn(40_000, 384, device="cuda", dtype=torch.bfloat16)
    sizes = {"one size": lambda number: 20_000, "new sizes": lambda number: 15_000 + 7 * number % 9973}
    for name, size in sizes.items():
        for kind, product in {"mm": lambda x: x @ weight, "addmm": lambda x: torch.addmm(bias, x, weight)}.items():
            for number in range(20):
                product(rows[: size(number)])
            torch.cuda.synchronize()
            started = time.perf_counter()
            for number in range(20, 220):
                product(rows[: size(number)])
            launched = time.perf_counter() - started
            torch.cuda.synchronize()
            whole = time.perf_counter() - started
            print(f"{kind} of {name}: {1e6 * launched / 200:.1f} us to launch, {1e6 * whole / 200:.1f} in all")


class Switch(TrainerCallback):  # type: ignore[misc]
    """Changes the variant after every block of steps, and times it without its first steps."""

    def __init__(self, names: list[str], rounds: int) -> None:
        self.order = names * rounds
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.forwards: dict[str, list[Callable[..., Any]]] = {}
        self.parts: list[Any] = []
        self._begun = 0.0

    def prepare(self, model: Any) -> None:
        self.parts = transformers_in(model)
        plain = [part.forward for part in self.parts]
        for name in dict.fromkeys(self.order):
            for part, forward in zip(self.parts, plain, strict=True):
                part.forward = forward
                if "cast" in name:
                    cast_together(part)
                if "graph" in name:
                    part.forward = graphed(part.forward, part)
                if "fill" in name:
                    part.forward = _compiled(part.forward, lambda function: function)
            self.forwards[name] = [part.forward for part in self.parts]

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.forwards:
            self.prepare(kwargs["model"])
        block, place = divmod(state.global_step, BLOCK)
        if place == 0:
            for part, forward in zip(self.parts, self.forwards[self.order[block]], strict=True):
                part.forward = forward
        if place == UNCOUNTED:
            wait()
            self._begun = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        block, place = divmod(state.global_step - 1, BLOCK)
        if place == BLOCK - 1:
            wait()
            self.seconds[self.order[block]].append((time.perf_counter() - self._begun) / (BLOCK - UNCOUNTED))


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(SIZES), default="minilm")
    parser.add_argument("--variants", nargs="*", default=["plain", "cast", "fill", "cast+fill"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--rows", type=int, default=14_000)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    options.batch = options.batch or (8 if options.tiny else SIZES[options.model].batch)
    options.steps, options.uncounted = BLOCK * options.rounds * len(options.variants), 0
    matrix_products()
    with tempfile.TemporaryDirectory() as scratch:
        options.folder = Path(scratch)
        write_texts(options.folder, options.rows)
        texts = json.loads((options.folder / "texts.json").read_text(encoding="utf-8"))
        write_model(SIZES[options.model], options.folder / options.model, tiny=options.tiny)
        model = load_model(options.model, options.folder / options.model)
        switch = Switch(options.variants, options.rounds)
        build_trainer("static", model, texts, options, switch).train()
    first = fmean(switch.seconds[options.variants[0]][1:])
    for name, seconds in switch.seconds.items():
        mean = fmean(seconds[1:])
        print(
            f"{options.model} batch {options.batch} {name:16} mean {1000 * mean:.2f} ms, "
            f"median {1000 * median(seconds[1:]):.2f}, "
            f"{mean / first:.3f} of the first; blocks {' '.join(f'{1000 * s:.1f}' for s in seconds)}"
        )


if __name__ == "__main__":
    main()

"""Where the time of one of our training steps goes: kernels by kind, gaps between them, and phases of the CPU.

python benchmarks/profile_step.py --model minilm --out profile.txt
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from side import SIZES, build_trainer, load_model, write_model
from sizes import write_texts
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import TrainerCallback

WARM_UP, TIMED, PROFILED = 20, 30, 5
KINDS = {
    "matrix products": ("gemm", "cutlass", "xmma", "sm90_", "cublas", "nvjet"),
    "attention": ("flash", "fmha", "attention"),
    "optimizer and clipping": ("multi_tensor", "adam", "lpnorm", "foreach"),
    "layer norm and softmax": ("layer_norm", "layernorm", "softmax", "rms", "norm"),
    "embedding and indexing": ("index", "embedding", "scatter", "gather", "sort", "radix"),
    "reductions": ("reduce",),
    "copies": ("memcpy", "memset", "copy", "cat"),
    "elementwise": ("elementwise", "vectorized", "dropout"),
}


def kind_of(name: str) -> str:
    lowered = name.lower()
    return next((kind for kind, words in KINDS.items() if any(word in lowered for word in words)), "other")


class Phases:
    """Sums up the CPU time of calls by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def wrap(self, owner: Any, method: str, name: str) -> None:
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return inner(*args, **options)
            finally:
                self.seconds[name].append(time.perf_counter() - started)

        setattr(owner, method, timed)


class Watch(TrainerCallback):  # type: ignore[misc]
    """Times some steps, then profiles some."""

    def __init__(self, phases: Phases) -> None:
        self.phases = phases
        self.steps: list[float] = []
        self.profiler: Any = None
        self.profiled = 0.0
        self.kept: dict[str, list[float]] = {}
        self.mean = 0.0
        self._begun = self._last = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = state.global_step
        if step in (WARM_UP, WARM_UP + TIMED):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.mean = (time.perf_counter() - self._begun) / TIMED
            self._begun = time.perf_counter()
            if step == WARM_UP:
                self.phases.seconds.clear()
        now = time.perf_counter()
        if WARM_UP < step <= WARM_UP + TIMED:
            self.steps.append(now - self._last)
        self._last = now
        if step == WARM_UP + TIMED:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self.kept = {name: list(seconds) for name, seconds in self.phases.seconds.items()}
            self.profiler = profile(activities=activities)
            self.profiler.start()
            self._begun = time.perf_counter()
        if step == WARM_UP + TIMED + PROFILED:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.profiled = time.perf_counter() - self._begun
            self.profiler.stop()
            control.should_training_stop = True


def describe_kernels(events: list[Any], seconds: float) -> list[str]:
    """Return lines about what the device did, per step."""
    kernels = sorted((e for e in events if e.device_type == DeviceType.CUDA), key=lambda e: e.time_range.start)
    if not kernels:
        return ["no kernels: there is no GPU"]
    by_kind: dict[str, list[float]] = defaultdict(list)
    busy = reached = 0.0
    gaps = []
    for event in kernels:
        by_kind[kind_of(event.name)].append(event.time_range.elapsed_us())
        start, end = event.time_range.start, event.time_range.end
        if reached and start > reached:
            gaps.append(start - reached)
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    window = 1e6 * seconds
    lines = [
        f"{len(kernels) / PROFILED:.0f} kernels and copies a step; the device works "
        f"{busy / PROFILED / 1000:.2f} ms of "
        f"{window / PROFILED / 1000:.2f} ms (profiled)",
        f"gaps: {sum(gaps) / PROFILED / 1000:.2f} ms a step in {len(gaps) / PROFILED:.0f}, "
        f"of which above 20 us: {sum(gap for gap in gaps if gap > 20) / PROFILED / 1000:.2f} ms; "
        f"the longest {max(gaps, default=0) / 1000:.2f} ms",
    ]
    for kind, times in sorted(by_kind.items(), key=lambda item: -sum(item[1])):
        lines.append(f"{kind:26} {sum(times) / PROFILED / 1000:8.3f} ms {len(times) / PROFILED:7.0f} kernels")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(SIZES), default="minilm")
    parser.add_argument("--side", default="static")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--rows", type=int, default=14_000)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("profile.txt"))
    options = parser.parse_args()
    options.batch = options.batch or (8 if options.tiny else SIZES[options.model].batch)
    options.steps, options.uncounted = WARM_UP + TIMED + PROFILED + 5, WARM_UP
    with tempfile.TemporaryDirectory() as scratch:
        options.folder = Path(scratch)
        write_texts(options.folder, options.rows)
        texts = json.loads((options.folder / "texts.json").read_text(encoding="utf-8"))
        write_model(SIZES[options.model], options.folder / options.model, tiny=options.tiny)
        model = load_model(options.model, options.folder / options.model)
        phases = Phases()
        watch = Watch(phases)
        trainer = build_trainer(options.side, model, texts, options, watch)
        phases.wrap(trainer, "get_batch_samples", "next batch")
        phases.wrap(trainer, "training_step", "training_step")
        phases.wrap(trainer, "compute_loss", "  forward and loss")
        phases.wrap(trainer.accelerator, "backward", "  backward")
        phases.wrap(trainer.accelerator, "clip_grad_norm_", "clipping")
        create = trainer.create_optimizer

        def create_optimizer(*args: Any) -> Any:
            optimizer = create(*args)
            phases.wrap(optimizer, "step", "optimizer")
            return optimizer

        trainer.create_optimizer = create_optimizer
        trainer.train()
    phase_lines = [
        f"{name:22} {1000 * sum(seconds) / TIMED:8.2f} ms a step, {len(seconds) / TIMED:.1f} calls"
        for name, seconds in watch.kept.items()
    ]
    averages = watch.profiler.key_averages()
    device_time = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    by_shape = averages.table(sort_by=device_time, row_limit=45, max_name_column_width=90)
    by_cpu = averages.table(sort_by="self_cpu_time_total", row_limit=45, max_name_column_width=90)
    head = f"{options.model}, {options.side}, batch {options.batch}: median {1000 * median(watch.steps):.2f} ms a step"
    text = "\n".join(
        [
            f"{head} on the CPU's clock, mean {1000 * watch.mean:.2f} ms without profiling",
            "",
            "CPU time by phase, without profiling:",
            *phase_lines,
            "",
            *describe_kernels(watch.profiler.events(), watch.profiled),
            "",
            by_shape,
            by_cpu,
        ]
    )
    options.out.write_text(text, encoding="utf-8")
    print(text[:3000])


if __name__ == "__main__":
    main()

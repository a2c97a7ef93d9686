"""Our training step by CUDA graphs, on filled batches without them, and as it is launched kernel by kernel.

Every way trains a new model on the same batches, one after the other and then all again. Printed are milliseconds of a
step, memory, a round of probes, and how far losses and gradient norms are from those of filled batches without graphs.
Those of a second run of filled batches show what the order of additions on the device does.

    python benchmarks/graphs.py --models minilm bert-base --batch 128 --out graphs.jsonl
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from side import SIZES, build_trainer, load_model, write_model
from sizes import write_texts
from transformers import TrainerCallback

from mixfluence.runs import read_trace
from mixfluence.training import trainer as trainer_module
from mixfluence.training.graphs import graph_encoder
from mixfluence.training.packing import transformers_in


def compile_and_graph(model: Any, capture: Any) -> None:
    """Capture fused kernels in our graphs, in place of the graphs of torch.compile."""
    for part in transformers_in(model):
        part.forward = torch.compile(part.forward, dynamic=True)
    graph_encoder(model, capture)


WAYS: dict[str, Callable[..., None]] = {
    "kernels": lambda model, capture: None,
    "filled": lambda model, capture: graph_encoder(model, None),
    "graphs": graph_encoder,
    "compiled": compile_and_graph,
}
COMPARED = 30  # steps


class Clock(TrainerCallback):  # type: ignore[misc]
    """Times the steps after the first ones."""

    def __init__(self, uncounted: int) -> None:
        self._uncounted = uncounted
        self.begun = self.seconds = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._uncounted:
            wait()
            self.begun = time.perf_counter()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        wait()
        self.seconds = (time.perf_counter() - self.begun) / (state.global_step - self._uncounted)


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def kept(owner: Any, method: str) -> list[Any]:
    """Keep what a method returns from now on."""
    inner, found = getattr(owner, method), []

    def call(*args: Any, **options: Any) -> Any:
        found.append(inner(*args, **options))
        return found[-1]

    setattr(owner, method, call)
    return found


def train(way: str, side: str, name: str, texts: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Train a new model by one way."""
    vars(trainer_module)["graph_encoder"] = WAYS[way]
    torch.manual_seed(0)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    clock = Clock(options.uncounted)
    trainer = build_trainer(side, load_model(name, options.folder / name), texts, options, clock)
    losses, norms = kept(trainer, "training_step"), kept(trainer.accelerator, "clip_grad_norm_")
    trainer.train()
    memory = [0.0, 0.0]
    if torch.cuda.is_available():
        memory = [torch.cuda.max_memory_allocated() / 2**30, torch.cuda.max_memory_reserved() / 2**30]
    trace = read_trace(Path(trainer.args.output_dir) / "trace.jsonl")
    rounds = [line["update"]["seconds"] for line in trace if "update" in line]
    return {
        "model": name,
        "side": side,
        "way": way,
        "ms": 1000 * clock.seconds,
        "allocated": memory[0],
        "reserved": memory[1],
        "rounds": rounds,
        "losses": [float(loss) for loss in losses[:COMPARED]],
        "norms": [float(norm) for norm in norms[:COMPARED]],
    }


def distance(own: list[float], other: list[float]) -> float:
    return max(abs(first - second) / abs(second) for first, second in zip(own, other, strict=True))


def report(found: dict[str, Any], filled: dict[str, Any] | None) -> None:
    line = f"{found['model']:10} {found['side']:8} {found['way']:8} {found['ms']:7.2f} ms a step, "
    line += f"{found['allocated']:.2f} GiB ({found['reserved']:.2f} reserved)"
    if found["rounds"]:
        line += f", rounds of {' '.join(f'{seconds:.3f}' for seconds in found['rounds'])} s"
    if filled:
        apart = distance(found["losses"], filled["losses"]), distance(found["norms"], filled["norms"])
        line += f"; from filled: losses {apart[0]:.1e}, norms {apart[1]:.1e}"
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=list(SIZES), default=["minilm", "bert-base"])
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=["filled", "graphs", "kernels"])
    parser.add_argument("--sides", nargs="*", default=["static", "inf-dds"])
    parser.add_argument("--times", type=int, default=2, help="how often the static side of each way is measured")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--uncounted", type=int, default=30)
    parser.add_argument("--rows", type=int, default=14_000)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("graphs.jsonl"))
    options = parser.parse_args()
    options.out.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        options.folder = Path(scratch)
        write_texts(options.folder, options.rows)
        texts = json.loads((options.folder / "texts.json").read_text(encoding="utf-8"))
        for name in options.models:
            write_model(SIZES[name], options.folder / name, tiny=options.tiny)
            for side in options.sides:
                runs: list[dict[str, Any]] = []
                for way in options.ways * options.times if side == "static" else options.ways:
                    runs.append(train(way, side, name, texts, options))
                    filled = [run for run in runs[:-1] if run["way"] == "filled"]
                    report(runs[-1], filled[0] if filled else None)
                    with options.out.open("a", encoding="utf-8") as out:
                        out.write(json.dumps(runs[-1]) + "\n")
                means = {way: fmean(run["ms"] for run in runs if run["way"] == way) for way in options.ways}
                print(
                    f"{name} {side}: " + ", ".join(f"{way} {ms / means['kernels']:.3f}" for way, ms in means.items())
                    if "kernels" in means
                    else means,
                    flush=True,
                )
            print(f"losses ({runs[-1]['way']}):", " ".join(f"{loss:.4f}" for loss in runs[-1]["losses"]), flush=True)


if __name__ == "__main__":
    main()

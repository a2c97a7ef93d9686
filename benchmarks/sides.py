"""One training run on random texts in a process of its own, for the scripts that compare two of them.

python benchmarks/sides.py static --model minilm --batch 256
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

SIDE_OPTIONS = {"model": "minilm", "batch": 256, "rows": 40_000, "steps": 120, "uncounted": 40}


class Side:
    """A run in a process of its own.

    Attributes:
        facts: Its measurements.
    """

    def __init__(self, kind: str, *words: str) -> None:
        command = [sys.executable, __file__, kind, *words]
        result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        self.facts: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
        names = [word.removeprefix("--") for word in words]
        extra = " ".join(name for name in names if name.split("=")[0] not in SIDE_OPTIONS)
        print(
            f"{kind} {extra}: {self.steps_per_second:.2f} steps/s, {self.facts['memory']:.2f} GiB, "
            f"ready after {self.facts['ready']:.1f} s, {self.facts['total']:.1f} s in all",
            flush=True,
        )

    @property
    def steps_per_second(self) -> float:
        """Speed without the first steps and without rounds of probes."""
        return float(self.facts["steps_per_second"])


def add_side_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that all sides of a comparison share."""
    for name, value in SIDE_OPTIONS.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)


def texts(count: int, words: Any, random: Any, least: int, most: int) -> list[str]:
    return [" ".join(words[random.integers(0, len(words), random.integers(least, most + 1))]) for _ in range(count)]


def random_rows(count: int, model: Any, seed: int) -> Any:
    import numpy as np
    from datasets import Dataset

    words = np.array([word for word in model.tokenizer.get_vocab() if word.isalpha() and len(word) > 2])
    random = np.random.default_rng(seed)
    return Dataset.from_dict(
        {"anchor": texts(count, words, random, 6, 14), "positive": texts(count, words, random, 60, 180)}
    )


def make_trainer(options: argparse.Namespace, callbacks: list[Any]) -> Any:
    """Return the trainer of one side."""
    import torch
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    from mixfluence import UNIFORM, InfDDS, MixtureTrainer, Probe, Reptile, Static, info_nce, load_encoder

    model = load_encoder(options.model, query_length=64, passage_length=256)
    pool = {f"set {n}": random_rows(options.rows // options.datasets, model, n) for n in range(options.datasets)}
    dev = {f"target {n}": random_rows(256, model, 100 + n) for n in range(options.targets)}
    on_gpu = torch.cuda.is_available()
    args = SentenceTransformerTrainingArguments(
        tempfile.mkdtemp(),
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        dataloader_num_workers=options.loader_workers,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    loss = info_nce(model, 0.05)
    if options.kind == "stock":
        from datasets import DatasetDict

        return SentenceTransformerTrainer(model, args, DatasetDict(pool), loss=loss, callbacks=callbacks)
    probe = Probe(
        state="momentum-free" if options.momentum_free else "inherited",
        snapshot="cpu" if options.cpu_snapshot else "device",
    )
    adaptive = InfDDS(init=UNIFORM, update_every=50, probe=probe, reptile=Reptile() if options.reptile else None)
    return MixtureTrainer(
        model,
        args,
        pool,
        dev_dataset=dev or None,
        strategy=adaptive if options.kind == "inf-dds" else Static(init=UNIFORM),
        loss=loss,
        compiled=options.compiled,
        callbacks=callbacks,
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train one side and return its speed, its peak memory and the seconds of its rounds."""
    import torch
    from transformers import TrainerCallback

    from mixfluence.runs import read_trace

    class Clock(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.started = self.elapsed = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step in (options.uncounted, options.steps):
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                now = time.perf_counter()
                self.started, self.elapsed = now, now - self.started

    clock = Clock()
    trainer = make_trainer(options, [clock])
    started = time.perf_counter()
    if options.kind != "stock":
        _ = trainer.tokenised
    ready = time.perf_counter() - started
    trainer.train()
    total = time.perf_counter() - started
    updates: list[dict[str, Any]] = []
    if options.kind == "inf-dds":
        lines = read_trace(Path(trainer.args.output_dir) / "trace.jsonl")
        updates = [line["update"] | {"step": line["step"]} for line in lines if "update" in line]
    probing = sum(update["seconds"] for update in updates if update["step"] > options.uncounted)
    return {
        "steps_per_second": (options.steps - options.uncounted) / (clock.elapsed - probing),
        "memory": torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0,
        "parameter_size": sum(parameter.nbytes for parameter in trainer.model.parameters()) / 2**30,
        "ready": ready,
        "total": total,
        "updates": [update["seconds"] for update in updates],
        **(round_facts(trainer, options.datasets) if updates and torch.cuda.is_available() else {}),
    }


def round_facts(trainer: Any, datasets: int) -> dict[str, float]:
    """Return how often one more round makes the CPU wait for the GPU, and the seconds of snapshot and restores."""
    import torch

    from mixfluence.influence.snapshot import Snapshot

    optimizer = trainer.optimizer.optimizer
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        waits.clear()  # setting the mode warns too
        trainer.probing.update()
        torch.cuda.set_sync_debug_mode("default")
    for wait in waits:
        print(f"{wait.filename}:{wait.lineno}: {wait.message}", file=sys.stderr)
    torch.cuda.synchronize()
    started = time.perf_counter()
    snapshot = Snapshot([*trainer.model.parameters(), *trainer.model.buffers()], optimizer)
    for _ in range(datasets):
        snapshot.restore()
    torch.cuda.synchronize()
    return {"waits": len(waits), "copying": time.perf_counter() - started}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["stock", "static", "inf-dds"])
    add_side_options(parser)
    parser.add_argument("--loader-workers", type=int, default=0)
    parser.add_argument("--datasets", type=int, default=2)
    parser.add_argument("--targets", type=int, default=0)
    for switch in ("compiled", "reptile", "momentum-free", "cpu-snapshot"):
        parser.add_argument(f"--{switch}", action="store_true")
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()

"""GPU memory that probing takes, for decoders up to the largest that one GPU trains, from one call.

Weights are random and of the right shape; nothing is downloaded. Each side of a model has a process of its own: static
sampling, and Inf-DDS with its default probes. Peak memory is that of PyTorch's allocator. What probing adds is given
in sizes of the trained parameters, which are the whole model or a LoRA adapter on a frozen base in bf16. All texts are
equally long: probes draw further batches, and the longest of more batches would count as memory of probing. A side
that fails is reported, and the next one starts.

    python benchmarks/largest.py --out largest.jsonl
    python benchmarks/largest.py --models gemma3-270m-lora qwen3-8b-lora
    python benchmarks/largest.py --tiny
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from side import QWEN, Size, bert, whole_words, write_model

EVERY = 4  # steps between rounds of probes
WORDS = {"anchor": 10, "positive": 120}  # of one token each
GIB = 2**30


def decoder(width: int, layers: int, heads: int, inner: int) -> dict[str, Any]:
    return bert(width, layers, heads) | QWEN | {"intermediate_size": inner}


GEMMA = {"num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262_144, "pad_token_id": 0}
MODELS = {
    "gemma3-270m-lora": Size("Gemma3TextConfig", decoder(640, 18, 4, 2048) | GEMMA, 64, lora=True),
    "qwen3-0.6b": Size("Qwen3Config", decoder(1024, 28, 16, 3072), 64),
    "qwen3-8b-lora": Size("Qwen3Config", decoder(4096, 36, 32, 12_288), 32, lora=True),
    "qwen3-4b": Size("Qwen3Config", decoder(2560, 36, 32, 9728), 32),
    "qwen3-32b-lora": Size("Qwen3Config", decoder(5120, 64, 64, 25_600), 16, lora=True),
    "gemma3-270m": Size("Gemma3TextConfig", decoder(640, 18, 4, 2048) | GEMMA, 64),
}
LORA = {"rank": 16, "alpha": 32.0, "dropout": 0.0, "targets": "all-linear"}
# Smaller models keep their activations; larger ones compute them again.
CHECKPOINTED = {"qwen3-4b", "qwen3-8b-lora", "qwen3-32b-lora"}


def equal_rows(count: int, seed: int) -> dict[str, list[str]]:
    """Return rows of random words that all have the same number of tokens."""
    random, words = np.random.default_rng(seed), np.array(whole_words(), object)
    return {
        name: [" ".join(words[random.integers(0, len(words), length)]) for _ in range(count)]
        for name, length in WORDS.items()
    }


def build(size: Size, folder: Path, *, tiny: bool, checkpointed: bool) -> Any:
    """Return an encoder whose transformer is made on the device: tokenizer and pooling are those of a tiny one."""
    import torch
    import transformers

    from mixfluence import load_encoder
    from mixfluence.adapters import add_lora

    write_model(size, folder, tiny=True)
    model = load_encoder(str(folder), pooling="last", query_length=64, passage_length=256)
    config = model[0].config if tiny else getattr(transformers, size.config)(**size.shape)
    with torch.device(model.device):
        half = size.lora and not tiny
        model[0].model = transformers.AutoModel.from_config(config, dtype=torch.bfloat16 if half else torch.float32)
    model[1].embedding_dimension = config.hidden_size
    if checkpointed:
        # Not by a training argument: transformers 5.17 passes an option that sentence-transformers 6.0 lacks.
        model[0].model.gradient_checkpointing_enable()
        model[0].model.enable_input_require_grads()
    if size.lora:
        add_lora(model, LORA)
    return model


def measure(name: str, side: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train a few steps and return peak memory, and the seconds of a step and of a round."""
    import torch
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainingArguments
    from transformers import TrainerCallback

    from mixfluence import UNIFORM, InfDDS, MixtureTrainer, Static, info_nce
    from mixfluence.runs import read_trace

    size, on_gpu = MODELS[name], torch.cuda.is_available()
    batch = 4 if options.tiny else size.batch
    begun = time.perf_counter()
    model = build(size, folder, tiny=options.tiny, checkpointed=name in CHECKPOINTED)
    weights = torch.cuda.memory_allocated() if on_gpu else 0
    parameters = list(model.parameters())
    trained = sum(parameter.nbytes for parameter in parameters if parameter.requires_grad)
    ends: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            if on_gpu:
                torch.cuda.synchronize()
            ends.append(time.perf_counter())

    args = SentenceTransformerTrainingArguments(
        str(folder / side),
        max_steps=options.steps,
        per_device_train_batch_size=batch,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    adaptive = side == "inf-dds"
    trainer = MixtureTrainer(
        model,
        args,
        {f"set {number}": Dataset.from_dict(equal_rows(8 * batch, number)) for number in range(3)},
        dev_dataset={"target": Dataset.from_dict(equal_rows(128, 100))} if adaptive else None,
        strategy=InfDDS(init=UNIFORM, update_every=EVERY, warmup_steps=2) if adaptive else Static(init=UNIFORM),
        loss=info_nce(model, 0.05),
        callbacks=[Clock()],
    )
    ready = time.perf_counter()
    trainer.train()
    rounds = [line["update"] for line in read_trace(folder / side / "trace.jsonl") if "update" in line]
    # The median leaves out steps that contain a round.
    steps = [after - before for before, after in pairwise(ends)]
    return {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "weights": weights / GIB,
        "trained_size": trained / GIB,
        "peak": torch.cuda.max_memory_allocated() / GIB if on_gpu else 0.0,
        "step": median(steps),
        "rounds": len(rounds),
        "round": rounds[-1]["seconds"] if rounds else 0.0,
        "start": ready - begun,
        "batch": batch,
        "checkpointed": name in CHECKPOINTED,
        "on_gpu": on_gpu,
    }


def run_side(name: str, side: str, options: argparse.Namespace) -> None:
    """Measure a side; write a line of JSON."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            found = measure(name, side, options, Path(scratch))
        except Exception as error:  # one side must not end the others
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
    with options.out.open("a", encoding="utf-8") as out:
        out.write(json.dumps({"model": name, "side": side} | found) + "\n")
    print(name, side, json.dumps(found), flush=True)


def table(lines: list[dict[str, Any]]) -> None:
    """Print a row for each model that trained."""
    heads = ["model", "parameters", "trained, GiB", "weights, GiB", "peak static", "peak Inf-DDS"]
    heads += ["probing, in sizes of the trained", "step, s", "round, s"]
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|")
    for name in dict.fromkeys(line["model"] for line in lines):
        found = {line["side"]: line for line in lines if line["model"] == name and "error" not in line}
        if not found:
            continue
        any_side, static, adaptive = next(iter(found.values())), found.get("static"), found.get("inf-dds")
        peaks = [f"{line['peak']:.1f}" if line else "" for line in (static, adaptive)]
        more = (adaptive["peak"] - static["peak"]) / static["trained_size"] if static and adaptive else None
        cells = [name, f"{any_side['parameters'] / 1e9:.2f} B", f"{any_side['trained_size']:.2f}"]
        cells += [f"{any_side['weights']:.1f}", *peaks, "" if more is None else f"{more:.1f}"]
        cells += [f"{any_side['step']:.2f}", f"{adaptive['round']:.2f}" if adaptive else ""]
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tiny", action="store_true", help="two layers of 32 dimensions, to try the script out")
    parser.add_argument("--out", type=Path, default=Path("largest.jsonl"))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, side = options.one
        run_side(name, side, options)
        return
    options.out.unlink(missing_ok=True)
    for name in options.models:
        for side in ("static", "inf-dds"):
            command = [sys.executable, __file__, *sys.argv[1:], "--one", name, side]
            subprocess.run(command, check=False, env={**os.environ, "TQDM_DISABLE": "1"})
    if options.out.exists():
        table([json.loads(line) for line in options.out.read_text(encoding="utf-8").splitlines()])


if __name__ == "__main__":
    main()

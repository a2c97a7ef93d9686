"""Training throughput of `MixtureTrainer` against sentence-transformers' own trainer, on the same rows.

Texts are random words of the encoder's vocabulary, so that they are tokenised at the usual price: queries of about ten
words, passages of about 120. Each side runs in a process of its own, one after the other; the first steps, in which
caches fill, are not counted. Tokenising once is part of our side and is printed too.

    python benchmarks/throughput.py --model minilm --batch 256 --workers 0 4 8
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from typing import Any

UNCOUNTED = 20


def rows(count: int, model: Any) -> Any:
    import numpy as np
    from datasets import Dataset

    words = [word for word in model.tokenizer.get_vocab() if word.isalpha() and len(word) > 2]
    random = np.random.default_rng(0)

    def text(least: int, most: int) -> str:
        return " ".join(random.choice(words, random.integers(least, most + 1)))

    return Dataset.from_list([{"anchor": text(6, 14), "positive": text(60, 180)} for _ in range(count)])


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Train one side and return steps a second, peak memory and seconds of tokenising."""
    import torch
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from transformers import TrainerCallback

    from mixfluence import UNIFORM, MixtureTrainer, Static, info_nce, load_encoder

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step in (UNCOUNTED, options.steps):
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                self.started, self.elapsed = time.perf_counter(), time.perf_counter() - getattr(self, "started", 0.0)

    model = load_encoder(options.model, query_length=64, passage_length=256)
    pool = {name: rows(options.rows // 2, model) for name in ("first", "second")}
    args = SentenceTransformerTrainingArguments(
        tempfile.mkdtemp(),
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        bf16=torch.cuda.is_available(),
        use_cpu=not torch.cuda.is_available(),
        dataloader_num_workers=options.side_workers,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    loss = info_nce(model, 0.05)
    clock = Clock()
    started = time.perf_counter()
    if options.side == "stock":
        from datasets import DatasetDict

        trainer = SentenceTransformerTrainer(model, args, DatasetDict(pool), loss=loss, callbacks=[clock])
    else:
        trainer = MixtureTrainer(model, args, pool, strategy=Static(UNIFORM), loss=loss, callbacks=[clock])
        _ = trainer.tokenised
    ready = time.perf_counter() - started
    trainer.train()
    memory = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    return {"steps_per_second": (options.steps - UNCOUNTED) / clock.elapsed, "memory": memory, "ready": ready}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 4, 8])
    parser.add_argument("--side", choices=["stock", "ours"], help=argparse.SUPPRESS)
    parser.add_argument("--side-workers", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options)))
        return
    found = {}
    for side, workers in [*(("stock", workers) for workers in options.workers), ("ours", 0)]:
        command = [sys.executable, *sys.argv, "--side", side, "--side-workers", str(workers)]
        result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found[side, workers] = facts = json.loads(result.stdout.splitlines()[-1])
        print(
            f"{side}, {workers} workers: {facts['steps_per_second']:.2f} steps/s, {facts['memory']:.1f} GiB, "
            f"ready after {facts['ready']:.1f} s",
            flush=True,
        )
    ours = found["ours", 0]["steps_per_second"]
    stock = {workers: facts["steps_per_second"] for (side, workers), facts in found.items() if side == "stock"}
    print(f"ours / stock at its best: {ours / max(stock.values()):.2f}")
    if 0 in stock:
        print(f"ours / stock as it comes (no workers): {ours / stock[0]:.2f}")


if __name__ == "__main__":
    main()

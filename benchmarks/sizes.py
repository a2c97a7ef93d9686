"""Training speed and memory at the sizes people train, against sentence-transformers' own trainer, from one call.

Weights are random and of the right shape; nothing is downloaded. Texts are random words: queries of about 12 tokens,
passages of about 120. Every side has a process of its own (`side.py`) and a time limit, so that one that fails does
not end the others. Processes prepare several at a time and train one at a time, on the same rows. The first steps of a
side are not counted. A line of JSON is written as each side ends.

Stock with `flash` flattens its inputs by flash attention. Where the package flash-attn is missing, a stand-in gives it
torch's kernel of the same algorithm, so that stock is measured at its best.

    python benchmarks/sizes.py --out sizes.jsonl
    python benchmarks/sizes.py --models minilm --sides static inf-dds
    python benchmarks/sizes.py --tiny --models minilm --steps 30
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from side import SIZES, syllables, whole_words

SIDE = str(Path(__file__).with_name("side.py"))
DEFAULT = ["minilm", "bert-base", "bert-large", "qwen3-0.6b"]
SIDES = ["stock 0", "stock 4", "stock 8", "stock flash 0", "stock flash 8", "static", "inf-dds"]
COMPILED = ["stock compiled 8", "static compiled"]
DATASETS = 7

STAND_IN = """
import torch


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, deterministic=False,
):
    window = {} if max(window_size) < 0 else {"window_size_left": window_size[0], "window_size_right": window_size[1]}
    sizes = cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k)
    forward = torch.ops.aten._flash_attention_forward
    return forward(q, k, v, *sizes, dropout_p, causal, False, scale=softmax_scale, **window)[0]


flash_attn_func = flash_attn_with_kvcache = None
"""


class Job(NamedTuple):
    """A side of a model, and the options of its process."""

    number: int
    model: str
    side: str


def random_texts(rows: int, random: np.random.Generator, median: int, most: int) -> list[str]:
    """Return texts of random words, every fourth of two tokens; the number of words is log-normal."""
    words, parts = np.array(whole_words(), object), np.array(syllables(), object)
    both = words[random.integers(0, len(words), 9_000)] + parts[random.integers(0, len(parts), 9_000)]
    words = np.concatenate([words[:27_000], both])
    lengths = np.clip(random.lognormal(np.log(median), 0.5, rows), 3, most).astype(int)
    return [" ".join(words[random.integers(0, len(words), length)]) for length in lengths]


def random_rows(count: int, seed: int) -> dict[str, list[str]]:
    random = np.random.default_rng(seed)
    return {"anchor": random_texts(count, random, 8, 40), "positive": random_texts(count, random, 95, 400)}


def write_texts(folder: Path, rows: int) -> None:
    """Write queries and passages of the datasets and of a dev set."""
    texts = {f"set {number}": random_rows(rows // DATASETS, number) for number in range(DATASETS)}
    texts["dev"] = random_rows(256, DATASETS)
    (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")


def write_stand_in(folder: Path) -> None:
    """Write a package that passes for flash-attn and calls torch's kernel."""
    package, facts = folder / "flash_attn", folder / "flash_attn-2.8.3.dist-info"
    package.mkdir(parents=True)
    facts.mkdir()
    (package / "__init__.py").write_text(STAND_IN, encoding="utf-8")
    names = (
        "from transformers.modeling_flash_attention_utils import _pad_input as pad_input, _unpad_input as unpad_input"
    )
    (package / "bert_padding.py").write_text(names + "\n", encoding="utf-8")
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.3\n", encoding="utf-8")
    (facts / "top_level.txt").write_text("flash_attn\n", encoding="utf-8")


class Runner:
    """Starts the processes of sides, and has them train one after the other."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder, self._options = folder, options
        self._log = options.out.with_suffix(".log").open("a", encoding="utf-8")
        self._stand_in = find_spec("flash_attn") is None
        if self._stand_in:
            write_stand_in(folder / "stand-in")
        self.environment = {**os.environ, "MIXFLUENCE_CACHE": str(folder / "cache"), "TQDM_DISABLE": "1"}

    def command(self, model: str, side: str, number: int = 0) -> list[str]:
        options = self._options
        numbers = {name: getattr(options, name) for name in ("steps", "uncounted", "seconds", "batch")}
        flags = [part for name, value in numbers.items() if value is not None for part in (f"--{name}", str(value))]
        tiny = ["--tiny"] if options.tiny else []
        return [sys.executable, SIDE, str(self._folder), model, side, "--number", str(number), *flags, *tiny]

    def start(self, job: Job) -> subprocess.Popen[bytes]:
        environment = self.environment
        if "flash" in job.side and self._stand_in:
            paths = [str(self._folder / "stand-in"), *filter(None, [environment.get("PYTHONPATH")])]
            environment = environment | {"PYTHONPATH": os.pathsep.join(paths)}
        command = self.command(job.model, job.side, job.number)
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, env=environment, cwd=self._folder
        )

    def wave(self, jobs: list[Job]) -> None:
        """Prepare some sides at the same time, then measure each."""
        processes = {job: self.start(job) for job in jobs}
        deadline = time.monotonic() + self._options.prepare_seconds
        for job, process in processes.items():
            ready = self._folder / f"{job.number}.ready"
            while not ready.exists() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
        for job, process in processes.items():
            self.record(job, self.finish(job, process))

    def finish(self, job: Job, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Let a side train, and return what it found."""
        result = self._folder / f"{job.number}.json"
        limit = self._options.compile_limit if "compiled" in job.side else self._options.limit
        if not (self._folder / f"{job.number}.ready").exists():
            limit = 0.1
        try:
            process.communicate(b"go\n", timeout=limit)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            process.kill()
            process.wait()
            return {"error": f"not finished after {limit:.0f} s"}
        if not result.exists():
            return {"error": f"ended with exit code {process.returncode}; see {self._log.name}"}
        return dict(json.loads(result.read_text(encoding="utf-8")))

    def record(self, job: Job, found: dict[str, Any]) -> None:
        print(show(job, found), flush=True)
        with self._options.out.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"model": job.model, "side": job.side} | found) + "\n")


def show(job: Job, found: dict[str, Any]) -> str:
    name = f"{job.model:12} {job.side:18}"
    if "error" in found:
        return f"{name} failed: {found['error']}"
    return (
        f"{name} {found['ms']:8.1f} ms (median {found['median_ms']:.1f}) {found['tokens_per_second']:10,.0f} tokens/s "
        f"{found['of_peak']:6.1%} of the bf16 peak {found['memory']:6.2f} GiB"
        + (f", a round {found['round']:.3f} s" if found["round"] else "")
        + (", packed" if found["packed"] else "")
        + f"; {found['wall']:.0f} s"
    )


def compare(lines: list[dict[str, Any]]) -> None:
    """Print the ratios of each model."""
    for name in dict.fromkeys(line["model"] for line in lines):
        found = {line["side"]: line for line in lines if line["model"] == name and "error" not in line}
        stock = {side: line["ms"] for side, line in found.items() if side.startswith("stock")}
        if stock:
            best = min(stock, key=lambda side: stock[side])
            for side in ("static", "static compiled"):
                if side in found:
                    print(f"{name}: {side}: {stock[best] / found[side]['ms']:.2f} of stock at its best ({best})")
        if {"static", "inf-dds"} <= found.keys():
            static, adaptive = found["static"], found["inf-dds"]
            steps = 1000 * adaptive["round"] / static["ms"]
            wall = adaptive["ms"] / static["ms"] + adaptive["budget"] * steps / adaptive["planned_steps"]
            more = (adaptive["memory"] - static["memory"]) / static["trained_size"]
            print(
                f"{name}: Inf-DDS: a round takes {steps:.1f} steps (planned {adaptive['planned_steps']:.1f}), "
                f"{wall:.2f} of our static wall-clock with the default budget, "
                f"{more:.1f} sizes of the trained parameters more memory"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=list(SIZES), default=DEFAULT)
    parser.add_argument("--sides", nargs="*", default=SIDES, help="such as `stock 4`, `stock flash 8` or `static`")
    parser.add_argument("--compiled", nargs="*", choices=list(SIZES), default=["minilm"], help="also compiled, last")
    parser.add_argument("--steps", type=int, default=70, help="steps of a side, at most")
    parser.add_argument("--uncounted", type=int, default=20, help="first steps, which are not counted")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds of counted steps, at most")
    parser.add_argument("--batch", type=int, help="rows of a batch; by default they depend on the model")
    parser.add_argument("--rows", type=int, default=14_000)
    parser.add_argument("--limit", type=float, default=40.0, help="seconds that a side may take")
    parser.add_argument("--compile-limit", type=float, default=100.0, help="the same of a compiled side")
    parser.add_argument("--prepare-seconds", type=float, default=120.0, help="limit of a wave's preparation")
    parser.add_argument("--ahead", type=int, default=os.cpu_count() or 1, help="sides that are prepared together")
    parser.add_argument("--tiny", action="store_true", help="two layers of 32 dimensions, to try the script out")
    parser.add_argument("--out", type=Path, default=Path("sizes.jsonl"))
    options = parser.parse_args()
    options.out = options.out.absolute()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.unlink(missing_ok=True)
    pairs = [(model, side) for model in options.models for side in options.sides]
    pairs += [(model, side) for model in options.models if model in options.compiled for side in COMPILED]
    jobs = [Job(number, model, side) for number, (model, side) in enumerate(pairs)]
    with tempfile.TemporaryDirectory() as scratch:
        runner = Runner(Path(scratch), options)
        writers = [
            subprocess.Popen(runner.command(model, "write"), env=runner.environment, cwd=scratch)
            for model in options.models
        ]
        write_texts(Path(scratch), options.rows)
        for writer in writers:
            writer.wait()
        for start in range(0, len(jobs), options.ahead):
            runner.wave(jobs[start : start + options.ahead])
    compare([json.loads(line) for line in options.out.read_text(encoding="utf-8").splitlines()])


if __name__ == "__main__":
    main()

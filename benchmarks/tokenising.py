"""How fast rows are tokenised, by number of rows and way, and how long 100 million rows would take.

A row is a query of about 12 tokens and a passage of about 120; texts are random words, or those of BEIR folders if
given, repeated with a number. Every side has a process of its own, a limit and an empty cache: `present` is what
training does, `preprocess` calls the model's own `preprocess` batch by batch in as many processes.

    python benchmarks/tokenising.py --rows 16000 66000 264000 --model minilm --out tokenising.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sizes import random_texts

MANY = 100_000_000


def texts_of(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return as many queries and passages as there are rows."""
    random = np.random.default_rng(0)
    if not options.data:
        queries, passages = random_texts(10_000, random, 8, 40), random_texts(10_000, random, 95, 400)
    else:
        lines = [line for path in sorted(options.data.glob("*/corpus.jsonl")) for line in path.open(encoding="utf-8")]
        passages = [json.loads(line)["text"] for line in lines]
        asked = [line for path in sorted(options.data.glob("*/queries.jsonl")) for line in path.open(encoding="utf-8")]
        queries = [json.loads(line)["text"] for line in asked]
        random.shuffle(passages)
        random.shuffle(queries)
    count = options.one_rows

    def repeated(texts: list[str]) -> list[str]:
        return [f"{texts[number % len(texts)]} {number}" for number in range(count)]

    return repeated(queries), repeated(passages)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Tokenise by one way, in this process and its workers."""
    from datasets import Dataset
    from side import SIZES, write_model

    from mixfluence import load_encoder
    from mixfluence.data import tokenize
    from mixfluence.data.mixture import Mixture

    with tempfile.TemporaryDirectory() as scratch:
        os.environ["MIXFLUENCE_CACHE"] = scratch
        name = options.model
        if name is None:
            name = f"{scratch}/model"
            write_model(SIZES["minilm"], Path(name), tiny=True)
        model = load_encoder(name, query_length=64, passage_length=options.length, device="cpu")
        queries, passages = texts_of(options)
        data = {"anchor": queries, "positive": passages}
        rows = Mixture({"rows": Dataset.from_dict(data)})["rows"]
        if options.one == "preprocess":
            tokenize.Side._is_exact = lambda self, texts: False  # type: ignore[method-assign]
        used = cpu_seconds()
        started = time.perf_counter()
        tokenised = tokenize.tokenise(rows, tokenize.Tokeniser(model), tokenize.Prompts())
        seconds = time.perf_counter() - started
        lengths = tokenised.queries.lengths.sum() + tokenised.documents.lengths.sum()
    return {"seconds": seconds, "cpu_seconds": cpu_seconds() - used, "tokens": int(lengths)}


def cpu_seconds() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[16_000, 66_000, 264_000])
    parser.add_argument("--ways", nargs="*", default=["preprocess", "present"])
    parser.add_argument("--model", help="an encoder of `load_encoder`; a tokenizer of syllables if not given")
    parser.add_argument("--data", type=Path, help="a folder of BEIR folders")
    parser.add_argument("--length", type=int, default=256, help="tokens of a passage, at most")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that a side may take")
    parser.add_argument("--out", type=Path, default=Path("tokenising.jsonl"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--one-rows", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options)))
        return
    options.out.unlink(missing_ok=True)
    for way in options.ways:
        for rows in options.rows:
            # The old way is measured at two sizes; it takes long, and the rest is proportional.
            if way == "preprocess" and rows > sorted(options.rows)[:2][-1]:
                continue
            command = [sys.executable, __file__, *sys.argv[1:], "--one", way, "--one-rows", str(rows)]
            record(options, way, rows, run(command, options.limit))


def run(command: list[str], limit: float) -> dict[str, Any]:
    """Run a side, which prints a line of JSON at its end."""
    environment = {**os.environ, "TQDM_DISABLE": "1"}
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=limit, env=environment, check=True, text=True)
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        return {"error": str(error)[-200:]}


def record(options: argparse.Namespace, way: str, rows: int, found: dict[str, Any]) -> None:
    line = {"way": way, "rows": rows, "cores": os.cpu_count()} | found
    with options.out.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
    if "error" in found:
        print(f"{way:12} {rows:9,} rows: failed: {found['error']}", flush=True)
        return
    rate = rows / found["seconds"]
    print(
        f"{way:12} {rows:9,} rows in {found['seconds']:6.1f} s ({found['cpu_seconds']:.0f} of CPU), "
        f"{rate:10,.0f} rows/s, "
        f"{found['tokens'] / found['seconds']:12,.0f} tokens/s; {MANY:,} rows: {MANY / rate / 3600:.2f} hours",
        flush=True,
    )


if __name__ == "__main__":
    main()

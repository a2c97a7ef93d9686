"""The sampler on many rows: time to the first batch, memory, and draws per second, as the number of rows grows.

The token cache on disk is synthetic: 32 datasets of the same size, one token per text, all texts different. Every size
is measured in a process of its own; memory does not include the mapped files.

    python benchmarks/sampler_scale.py --rows 1000000 10000000 100000000 --scratch DIR
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

DATASETS, BATCH, DRAWS = 32, 256, 20_000


def write_cache(folder: Path, rows: int, number: int) -> None:
    """Write a tokenised dataset whose rows share no text."""
    from mixfluence.data.tokens import TokenLayout

    folder.mkdir(parents=True)
    layout = asdict(TokenLayout(True, 0, False, [], {}))
    facts = {"distinct_positives": rows, "least_negatives": 0, "most_negatives": 0, "has_scores": False}
    (folder / "manifest.json").write_text(json.dumps({"query": layout, "document": layout, **facts}))
    for place, (side, stem) in enumerate([("query", "anchor"), ("document", "passage")]):
        first = (2 * number + place) * rows
        keys = (np.arange(first, first + rows, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        np.save(folder / f"{stem}_keys.npy", keys)
        np.save(folder / f"{side}_starts.npy", np.arange(rows + 1, dtype=np.int64))
        np.zeros(rows, np.int32).tofile(folder / f"{side}_ids.bin")
    np.save(folder / "anchors.npy", np.arange(rows, dtype=np.int32))
    np.save(folder / "passages.npy", np.arange(rows, dtype=np.int32))
    np.save(folder / "passage_starts.npy", np.arange(rows + 1, dtype=np.int64))


def measure(folder: Path) -> None:
    """Print the cost of opening the cache and of drawing from it."""
    started = time.perf_counter()
    from functools import partial

    from mixfluence.data.tokens import TokenisedRows
    from mixfluence.training.sampler import MixtureBatchSampler
    from mixfluence.training.streams import RowStream

    loaded = time.perf_counter()
    datasets = [TokenisedRows(path) for path in sorted(folder.iterdir())]
    streams = [RowStream(len(d), partial(d.text_keys, negatives=0), key) for key, d in enumerate(datasets)]
    even = np.full(len(datasets), 1 / len(datasets))
    sampler = MixtureBatchSampler(
        streams, lambda progress: even, batch_sizes=[BATCH] * len(datasets), draws_per_epoch=10 * DRAWS
    )
    draws = iter(sampler)
    next(draws)
    first = time.perf_counter() - loaded
    # Fill the blocks of every dataset.
    for _ in range(1_000):
        next(draws)
        sampler.pop_trained()
    began = time.perf_counter()
    for _ in range(DRAWS):
        next(draws)
        sampler.pop_trained()
    per_second = DRAWS / (time.perf_counter() - began)
    own = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon")]
    megabytes = int(own[0].split()[1]) / 1024 if own else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows = sum(map(len, datasets))
    print(f"{rows:12,} {loaded - started:9.1f} {1000 * first:14.1f} {megabytes:10.0f} {per_second:14,.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000_000, 10_000_000])
    parser.add_argument("--scratch", type=Path, required=True, help="58 bytes per row are written here, then removed")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.scratch)
        return
    print("        rows  import s  first batch ms  memory MB  draws a second", flush=True)
    for rows in options.rows:
        folder = options.scratch / f"rows-{rows}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            for number in range(DATASETS):
                write_cache(folder / f"{number:02}", rows // DATASETS, number)
            subprocess.run([sys.executable, __file__, "--measure", "--scratch", str(folder)], check=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

"""Training throughput of `MixtureTrainer` against sentence-transformers' own trainer, on the same rows.

Texts are random words of the encoder's vocabulary, so that tokenising costs as much as usual: queries of about ten
words, passages of about 120. Each side runs in a process of its own, one after the other. The first steps, which fill
caches and compile kernels, are not counted. The time that our side takes to tokenise once is printed too.

    python benchmarks/throughput.py --model minilm --batch 256 --workers 0 4 8 --compiled
"""

from __future__ import annotations

import argparse

from sides import SIDE_OPTIONS, Side, add_side_options


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_side_options(parser)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 4, 8], help="loader workers of stock")
    parser.add_argument("--compiled", action="store_true", help="also run ours with a compiled encoder")
    options = parser.parse_args()
    common = [f"--{name}={getattr(options, name)}" for name in SIDE_OPTIONS]
    stock = {workers: Side("stock", *common, f"--loader-workers={workers}") for workers in options.workers}
    ours = {"ours": Side("static", *common)}
    if options.compiled:
        ours["ours, compiled"] = Side("static", *common, "--compiled")
    best = max(side.steps_per_second for side in stock.values())
    for name, side in ours.items():
        print(f"{name} / stock with its best number of workers: {side.steps_per_second / best:.2f}")
        if 0 in stock:
            print(f"{name} / stock without workers: {side.steps_per_second / stock[0].steps_per_second:.2f}")


if __name__ == "__main__":
    main()

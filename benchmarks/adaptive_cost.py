"""An Inf-DDS run against a static run of the stock trainer with as many steps, and against the cost model.

The schedule is the paper's for BEIR: probes of three steps on every dataset, every 50 steps. Each side has a process
of its own. The time of a long run is extrapolated from a short one: `--run-steps` at the speed of the counted steps, a
round every 50 of them, and the work that is done once. The cost model is that of `mixfluence plan`; both sides of its
ratio come from one run.

    python benchmarks/adaptive_cost.py --model minilm --datasets 7 13 --targets 1 5 --compiled
"""

from __future__ import annotations

import argparse
from statistics import fmean

from sides import SIDE_OPTIONS, Side, add_side_options

from mixfluence import Probe

EVERY, INNER_STEPS, DEV_ROWS = 50, 3, 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_side_options(parser)
    parser.set_defaults(steps=180, uncounted=60)
    parser.add_argument("--datasets", type=int, nargs="*", default=[7, 13])
    parser.add_argument("--targets", type=int, nargs="*", default=[1, 5])
    parser.add_argument("--stock-workers", type=int, default=8)
    parser.add_argument("--run-steps", type=int, default=7000)
    parser.add_argument("--compiled", action="store_true")
    options = parser.parse_args()
    common = [f"--{name}={getattr(options, name)}" for name in SIDE_OPTIONS]
    ours = [*common, *(["--compiled"] if options.compiled else [])]
    stock = Side("stock", *common, f"--loader-workers={options.stock_workers}")
    static = Side("static", *ours)
    for datasets in options.datasets:
        for targets in options.targets:
            run = Side("inf-dds", *ours, f"--datasets={datasets}", f"--targets={targets}")
            _compare(run, stock, static, datasets, targets, options)
    _compare_memory(common)


def _compare(run: Side, stock: Side, static: Side, datasets: int, targets: int, options: argparse.Namespace) -> None:
    measured = fmean(run.facts["updates"][1:])
    cost = Probe().round_cost(datasets, 1.0, INNER_STEPS, targets * DEV_ROWS / options.batch, 1)
    model = cost / run.steps_per_second
    rounds = options.run_steps // EVERY

    def seconds(side: Side, per_round: float) -> float:
        counted = options.steps / side.steps_per_second + sum(side.facts["updates"])
        once = max(side.facts["total"] - counted, 0.0)
        return float(once + options.run_steps / side.steps_per_second + rounds * per_round)

    whole = seconds(run, measured)
    if "waits" in run.facts:
        copying = run.facts["copying"] / measured
        print(
            f"  the CPU waits for the GPU {run.facts['waits']} times in a round; "
            f"snapshot and restores take {copying:.1%} of its time"
        )
    print(
        f"  {datasets} datasets, {targets} targets: a round takes {measured:.3f} s, "
        f"{measured / model:.2f} of the cost model; "
        f"{options.run_steps} steps {whole:.0f} s, {whole / seconds(stock, 0.0):.2f} of stock static, "
        f"{whole / seconds(static, 0.0):.2f} of our static run",
        flush=True,
    )


def _compare_memory(common: list[str]) -> None:
    """Compare memory without compiling, because graphs reserve memory."""
    short = [*common, "--steps=80"]
    static = Side("static", *short)
    for switches in (["--reptile"], [], ["--momentum-free"], ["--momentum-free", "--cpu-snapshot"]):
        run = Side("inf-dds", *short, "--targets=1", *switches)
        more = (run.facts["memory"] - static.facts["memory"]) / run.facts["parameter_size"]
        print(f"  {' '.join(switches) or 'defaults'}: {more:.1f} parameter sizes above static", flush=True)


if __name__ == "__main__":
    main()

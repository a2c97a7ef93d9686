"""What the speed of a step depends on and differs between machines of one kind: clocks, processor and launch rate.

python benchmarks/machine.py --out machine.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

CLOCKS = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,temperature.gpu,pstate"
LAUNCHES = 20_000


def smi() -> str:
    command = ["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)


def processor() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    facts = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    clocks = [float(line.split(":")[1]) for line in lines if line.startswith("cpu MHz")]
    wanted = ("model name", "cache size", "cpu family", "model", "stepping")
    return {name: facts.get(name, "").strip() for name in wanted} | {"MHz": clocks, "cores": os.cpu_count()}


def best(work: Callable[[], Any], times: int = 5) -> float:
    """Return the least seconds of some repetitions."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def python_rate() -> float:
    """Return millions of iterations a second of a plain loop."""

    def loop() -> None:
        total = 0
        for number in range(2_000_000):
            total += number & 7

    return 2 / best(loop)


def measure(device: str) -> dict[str, float]:
    """Return microseconds of a launch and of a wait for the device, and the rates of products and copies."""
    on_gpu = device == "cuda"
    wait: Callable[[], None] = torch.cuda.synchronize if on_gpu else lambda: None
    one = torch.zeros(1, device=device)

    def launches() -> None:
        for _ in range(LAUNCHES):
            one.add_(1)

    launches()
    wait()
    started = time.perf_counter()
    launches()
    launched = time.perf_counter() - started
    wait()
    finished = time.perf_counter() - started
    waits = best(lambda: [one.item() for _ in range(1_000)])
    weight = torch.zeros(8, 8, device=device, requires_grad=True)
    rows = torch.zeros(8, 8, device=device)

    def train() -> None:
        for _ in range(500):
            torch.autograd.backward(torch.nn.functional.gelu(rows @ weight).sum())
        wait()

    found = {
        "launch us": 1e6 * launched / LAUNCHES,
        "launch and run us": 1e6 * finished / LAUNCHES,
        "wait us": 1e3 * waits,
        "small forward and backward us": 1e6 * best(train) / 500,
    }
    size = 8192 if on_gpu else 256
    matrix = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    large = torch.zeros(2**30 if on_gpu else 2**20, dtype=torch.uint8, device=device)
    pinned = torch.zeros(2**26, dtype=torch.uint8, pin_memory=on_gpu)

    def timed(work: Callable[[], Any]) -> float:
        def repeat() -> None:
            for _ in range(10):
                work()
            wait()

        repeat()
        return best(repeat, 3) / 10

    return found | {
        "bf16 TFLOP/s": 2 * size**3 / timed(lambda: matrix @ matrix) / 1e12,
        "copy TB/s": 2 * large.nbytes / timed(lambda: large.clone()) / 1e12,
        "host to device GB/s": pinned.nbytes / timed(lambda: pinned.to(device, non_blocking=True)) / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("machine.json"))
    options = parser.parse_args()
    idle = smi()
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "kernel": platform.release(),
        "load": os.getloadavg(),
        "processor": processor(),
        "python loop M/s": python_rate(),
        "gpu idle": idle,
        "rates": measure("cuda" if torch.cuda.is_available() else "cpu"),
        "gpu after load": smi(),
    }
    options.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

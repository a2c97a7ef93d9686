"""A round of probes on one process and on several that divide the datasets, with the same rows in every probe.

The texts are those of `sizes.py`. The sides run one after the other. On a CPU every process has one thread.

    python benchmarks/parallel_probes.py --model minilm --batch 16 --datasets 8 --processes 1 2
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean


def probe(options: argparse.Namespace) -> None:
    """Train a few steps with rounds of probes; the trace goes to the output folder."""
    import torch
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainingArguments
    from sizes import random_rows

    from mixfluence import UNIFORM, InfDDS, MixtureTrainer, Probe, info_nce, load_encoder

    on_gpu = torch.cuda.is_available()
    model = load_encoder(options.model, query_length=32, passage_length=128)
    pool = {f"set {n}": Dataset.from_dict(random_rows(20 * options.batch, n)) for n in range(options.datasets)}
    args = SentenceTransformerTrainingArguments(
        options.output,
        max_steps=4,
        per_device_train_batch_size=options.batch,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    probes = Probe(batch_size=options.batch, dev_batch_size=2 * options.batch)
    strategy = InfDDS(init=UNIFORM, update_every=1, warmup_steps=1, freeze_below=0.0, probe=probes)
    dev = {"target": Dataset.from_dict(random_rows(2 * options.batch, 100))}
    MixtureTrainer(model, args, pool, dev, strategy, info_nce(model, 0.05)).train()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--datasets", type=int, default=8)
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--output", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.output:
        probe(options)
        return
    from mixfluence.runs import read_trace

    seconds: dict[int, float] = {}
    for processes in options.processes:
        folder = tempfile.mkdtemp()
        launcher = ["-m", "torch.distributed.run", f"--nproc_per_node={processes}", "--standalone"]
        words = [f"--{name}={getattr(options, name)}" for name in ("model", "batch", "datasets")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *launcher, __file__, *words, f"--output={folder}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        updates = [line["update"]["seconds"] for line in read_trace(Path(folder) / "trace.jsonl") if "update" in line]
        seconds[processes] = fmean(updates[1:])
        print(json.dumps({"processes": processes, "seconds a round": round(seconds[processes], 3)}), flush=True)
    first = options.processes[0]
    for processes in options.processes[1:]:
        print(f"{processes} processes: {seconds[first] / seconds[processes]:.2f} times as fast as {first}")


if __name__ == "__main__":
    main()

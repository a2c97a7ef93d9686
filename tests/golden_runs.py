"""Eight tiny runs whose weights, traces and scores must not change when code is only moved.

Run it at two commits on one machine and compare the outputs:

    python tests/golden_runs.py golden-before.json     # at the first commit
    python tests/golden_runs.py golden-after.json --compare golden-before.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import BertConfig, BertModel, BertTokenizerFast

WORDS = [f"w{number}" for number in range(300)]
TOPICS = {"red": 0, "green": 75, "blue": 150, "grey": 225}
TIMES = {"seconds", "memory"}

STRATEGIES: dict[str, dict[str, Any]] = {
    "static-cap": {"strategy": {"name": "static", "init": {"temperature": 2.0}, "max_epochs": 3.0}},
    "cooldown": {"strategy": {"name": "cooldown", "hot": 10.0, "shape": "linear", "switch": 0.8}},
    "inf-dds": {
        "strategy": {"name": "inf-dds", "init": "proportional", "update_every": 4, "warmup_steps": 4}
        | {"subset": 3, "reptile": "relative", "probe": {"dev_batch_size": 16}, "freeze_below": 0.0},
        "selection": {"every": 8, "dev": "halves", "corpus": 50},
    },
    "multidds": {
        "strategy": {"name": "multidds", "init": "proportional", "update_every": 4, "warmup_steps": 4, "rate": 0.01}
    },
    "doge": {"strategy": {"name": "doge", "update_every": 4, "rounds": 2, "proxy_steps": 12}},
    "doremi": {"strategy": {"name": "doremi", "reference_steps": 8, "proxy_steps": 12}},
    "crisp": {"strategy": {"name": "crisp", "encoder": "{model}", "branching": 4, "smoothing": 0.1}},
    "accumulation-workers": {
        "strategy": {"name": "inf-dds", "init": "proportional", "update_every": 4, "warmup_steps": 4}
        | {"rule": "gradient"},
        "training": {"gradient_accumulation": 2, "hard_negatives": 1, "trainer_args": {"dataloader_num_workers": 2}},
    },
}


def make_model(folder: Path) -> None:
    """Write a two-layer BERT with random weights."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 64}
    config = BertConfig(vocab_size=len(vocabulary), num_hidden_layers=2, num_attention_heads=2, **sizes)
    BertModel(config).save_pretrained(folder)


def make_rows(topic: str, split: str, count: int) -> Iterator[dict[str, str]]:
    """Yield rows whose query and positive share a word of the topic."""
    chance, first = random.Random(f"{topic} {split}"), TOPICS[topic]
    for number in range(count):
        shared, *rest = chance.sample(WORDS[first : first + 75], 5)
        query, positive = f"{shared} {rest[0]} {number % 7}", f"{rest[1]} {shared} {rest[2]} {split[0]}"
        yield {"anchor": query, "positive": positive, "negative": f"{rest[3]} {rest[0]}"}


def make_data(folder: Path) -> None:
    """Write training, dev and test rows of four topics."""
    folder.mkdir(parents=True)
    for number, topic in enumerate(TOPICS):
        for split, count in (("train", 90 - 12 * number), ("dev", 40), ("test", 40)):
            lines = [json.dumps(row) for row in make_rows(topic, split, count)]
            (folder / f"{topic}-{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def make_recipe(name: str, root: Path) -> Path:
    """Write one of the eight recipes."""

    def sources(split: str, topics: list[str]) -> dict[str, Any]:
        return {topic: {"format": "pairs", "path": str(root / "data" / f"{topic}-{split}.jsonl")} for topic in topics}

    text = json.dumps(STRATEGIES[name]).replace("{model}", str(root / "model"))
    chosen = json.loads(text)
    training = {"steps": 24, "batch_size": 8, "learning_rate": 0.01, "temperature": 0.05, "warmup_steps": 2}
    recipe = {
        "name": name,
        "seed": 3,
        "model": {"name": str(root / "model"), "pooling": "mean", "query_length": 8, "passage_length": 16},
        "train": sources("train", list(TOPICS)),
        "dev": sources("dev", ["red", "blue"]),
        "test": sources("test", ["red", "blue"]),
        "output": str(root / "runs" / name),
        **chosen,
        "training": training | {"save_every": 10, "log_every": 3, "precision": "fp32"} | chosen.get("training", {}),
    }
    if "selection" in recipe:
        del recipe["training"]["save_every"]
    path = root / f"{name}.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


def without_times(value: Any) -> Any:
    """Return a line of a trace without what differs from run to run."""
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if key not in TIMES}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def digest(path: Path) -> str:
    """Return the hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def describe(folder: Path) -> dict[str, Any]:
    """Return what must stay the same of a run."""
    weights = sorted(path for path in folder.rglob("model/**/*.safetensors") if "checkpoints" not in path.parts)
    traces = sorted(folder.rglob("trace.jsonl"))
    found: dict[str, Any] = {str(path.relative_to(folder)): digest(path) for path in weights}
    for path in traces:
        lines = [without_times(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
        found[str(path.relative_to(folder))] = lines
    for path in sorted(folder.glob("eval/*.jsonl")):
        found[str(path.relative_to(folder))] = digest(path)
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    found["scores"], found["rows_drawn"] = record["scores"], record["rows_drawn"]
    found["weights"] = json.loads((folder / "weights.json").read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Train the eight runs, write what they gave, and compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    chosen = parser.parse_args()
    # One place for all, because paths are part of recipes and of fingerprints.
    root = chosen.keep or Path(tempfile.mkdtemp(prefix="golden-"))
    make_model(root / "model")
    make_data(root / "data")
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment = os.environ | quiet | {"MIXFLUENCE_CACHE": str(root / "cache"), "CUDA_VISIBLE_DEVICES": ""}
    found = {}
    for name in STRATEGIES:
        program = [sys.executable, "-c", "from mixfluence.cli import main; main()", "train"]
        command = [*program, str(make_recipe(name, root))]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        found[name] = describe(root / "runs" / name)
        sys.stdout.write(f"{name}: trained\n")
    chosen.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if chosen.compare:
        before = json.loads(chosen.compare.read_text(encoding="utf-8"))
        # Through JSON once more, so that both have the same types.
        found = json.loads(chosen.output.read_text(encoding="utf-8"))
        parts = [(run, part) for run in before for part in before[run]]
        different = [f"{run}: {part} differs" for run, part in parts if found[run].get(part) != before[run][part]]
        sys.exit("\n".join(different) or 0)


if __name__ == "__main__":
    main()

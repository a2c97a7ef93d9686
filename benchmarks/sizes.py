"""Training speed and memory at the sizes people train, against sentence-transformers' own trainer, from one call.

Weights are random and of the right shape; nothing is downloaded. Texts are random words: queries of about 12 tokens,
passages of about 120. Each model has a process of its own, which trains one side after the other on the same rows. The
first steps of a side are not counted. A side that fails is reported, and the next one starts.

    python benchmarks/sizes.py --out sizes.jsonl
    python benchmarks/sizes.py --models minilm --compiled --flash
    python benchmarks/sizes.py --tiny --steps 12 --uncounted 4
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

PEAK, MEASURED_PEAK = 989e12, 790e12  # bf16 operations a second of an H200: of its datasheet, and of large matrices
EVERY = 20  # steps between measured rounds; the ratio is computed for the default of the strategy


class Size(NamedTuple):
    """A model: its configuration in transformers, the rows of a batch, and whether an adapter alone is trained."""

    config: str
    shape: dict[str, Any]
    batch: int
    lora: bool = False


def bert(width: int, layers: int, heads: int) -> dict[str, Any]:
    shape = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return shape | {"intermediate_size": 4 * width, "vocab_size": 30_522}


QWEN = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "pad_token_id": 0}
SIZES = {
    "minilm": Size("BertConfig", bert(384, 6, 12), 256),
    "bert-base": Size("BertConfig", bert(768, 12, 12), 256),
    "bert-large": Size("BertConfig", bert(1024, 24, 16), 128),
    "modernbert-large": Size("ModernBertConfig", bert(1024, 28, 16) | {"intermediate_size": 2624}, 128),
    "qwen3-0.6b": Size("Qwen3Config", bert(1024, 28, 16) | {"intermediate_size": 3072} | QWEN, 64, lora=True),
}
DEFAULT = ["minilm", "bert-base", "bert-large", "qwen3-0.6b"]
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def write_model(size: Size, folder: Path, *, tiny: bool) -> None:
    """Write a model with random weights and a tokenizer whose vocabulary is made of syllables."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    syllables = [first + vowel + last for first in "bdfgklmnprstvz" for vowel in "aeiou" for last in "lmnrst"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*syllables, *(first + second for first in syllables[::6] for second in syllables)][:28_000]
    vocabulary = {token: number for number, token in enumerate([*special, *words, *(f"##{s}" for s in syllables)])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"], special, strict=True))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **names).save_pretrained(
        folder
    )
    torch.manual_seed(0)
    shape = size.shape | (TINY | {"vocab_size": 30_522} if tiny else {})
    if tiny and "head_dim" in shape:
        shape |= {"head_dim": 16, "num_key_value_heads": 2}
    config = getattr(transformers, size.config)(**shape)
    transformers.AutoModel.from_config(config).save_pretrained(folder)


def random_rows(count: int, model: Any, seed: int) -> Any:
    """Return queries and passages of random words, every fourth with a second piece; lengths are log-normal."""
    import numpy as np
    from datasets import Dataset

    vocabulary = sorted(model.tokenizer.get_vocab())
    words = np.array([word for word in vocabulary if word.isalpha() and len(word) > 2])
    endings = np.array([word[2:] for word in vocabulary if word.startswith("##") and word[2:].isalpha()] or [""])
    random = np.random.default_rng(seed)

    def texts(median: int, most: int) -> list[str]:
        lengths = np.clip(random.lognormal(np.log(median), 0.5, count), 3, most).astype(int)
        return [
            " ".join(
                word + (endings[random.integers(len(endings))] if random.random() < 0.25 else "")
                for word in words[random.integers(0, len(words), length)]
            )
            for length in lengths
        ]

    return Dataset.from_dict({"anchor": texts(8, 40), "positive": texts(95, 400)})


class Bench:
    """All sides of one model, in this process."""

    def __init__(self, name: str, options: argparse.Namespace, folder: Path) -> None:
        import torch

        self.name, self.options, self.folder = name, options, folder
        self.size = SIZES[name]
        self.batch = options.batch or (8 if options.tiny else self.size.batch)
        self.on_gpu = torch.cuda.is_available()
        write_model(self.size, folder, tiny=options.tiny)
        model = self.model()
        rows = max(options.rows // options.datasets, 2 * self.batch)
        self.pool = {f"set {n}": random_rows(rows, model, n) for n in range(options.datasets)}
        self.dev = {"target": random_rows(256, model, 100)}
        sample = self.pool["set 0"][: min(rows, 500)]
        lengths = [
            [len(ids) for ids in model.tokenizer(sample[column], truncation=True, max_length=most)["input_ids"]]
            for column, most in (("anchor", 64), ("positive", 256))
        ]
        self.tokens = self.batch * sum(fmean(column) for column in lengths)
        self.flops = self._flops(model, [length for column in lengths for length in column])
        trained = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
        self.trained = trained / 2**30

    def _flops(self, model: Any, lengths: list[int]) -> float:
        """Return the operations of a step on real tokens; frozen weights need no gradient of their own."""
        inner = model.transformers_model
        body = sum(p.numel() for name, p in inner.named_parameters() if "embed" not in name and "pooler" not in name)
        passes = 2 if self.size.lora else 3
        attention = sum(length**2 for length in lengths) / sum(lengths)
        config = inner.config
        token = 2 * body + 4 * config.num_hidden_layers * config.hidden_size * attention
        return float(passes * self.tokens * token)

    def model(self) -> Any:
        """Load the encoder of a side."""
        from mixfluence import load_encoder

        lora = {"rank": 16, "alpha": 32, "dropout": 0.0, "targets": "all-linear"} if self.size.lora else None
        pooling: Any = "last" if self.size.lora else "mean"
        return load_encoder(str(self.folder), pooling=pooling, query_length=64, passage_length=256, lora=lora)

    def trainer(self, side: str, callback: Any) -> Any:
        """Return the trainer of a side, which is named by words such as `stock flash 4` or `static compiled`."""
        from datasets import DatasetDict
        from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

        from mixfluence import UNIFORM, InfDDS, MixtureTrainer, Static, info_nce

        words = side.split()
        model = self.model()
        args = SentenceTransformerTrainingArguments(
            tempfile.mkdtemp(dir=self.folder),
            max_steps=self.options.steps,
            per_device_train_batch_size=self.batch,
            bf16=self.on_gpu,
            use_cpu=not self.on_gpu,
            dataloader_num_workers=int(words[-1]) if words[-1].isdigit() else 0,
            torch_compile="stock" in words and "compiled" in words,
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        if "flash" in words:
            model.transformers_model.set_attn_implementation("flash_attention_2")
            model[0].unpad_inputs = True
            if not model[0].can_flatten_inputs:
                raise RuntimeError("sentence-transformers cannot flatten inputs here: no flash attention")
        loss = info_nce(model, 0.05)
        if "stock" in words:
            return SentenceTransformerTrainer(model, args, DatasetDict(self.pool), loss=loss, callbacks=[callback])
        adaptive = "inf-dds" in words
        return MixtureTrainer(
            model,
            args,
            self.pool,
            dev_dataset=self.dev if adaptive else None,
            strategy=InfDDS(init=UNIFORM, update_every=EVERY) if adaptive else Static(init=UNIFORM),
            loss=loss,
            compiled="compiled" in words,
            callbacks=[callback],
        )

    def measure(self, side: str) -> dict[str, Any]:
        """Train a side; return its speed without rounds of probes, and its peak memory above what was held before."""
        import torch

        from mixfluence.runs import read_trace

        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated() if self.on_gpu else 0
        clock = make_clock(self.options)
        started = time.perf_counter()
        trainer = self.trainer(side, clock)
        trainer.train()
        rounds = []
        if "inf-dds" in side:
            trace = read_trace(Path(trainer.args.output_dir) / "trace.jsonl")
            rounds = [(line["step"], line["update"]["seconds"]) for line in trace if "update" in line]
        counted = [seconds for step, seconds in rounds if clock.first < step <= clock.last]
        # The first round allocates, so it counts only where there is no other.
        usual = [seconds for _, seconds in rounds[1:]] or [seconds for _, seconds in rounds]
        step = (clock.seconds - sum(counted)) / (clock.last - clock.first)
        return {
            "steps_per_second": 1 / step,
            "ms": 1000 * step,
            "tokens_per_second": self.tokens / step,
            "of_peak": self.flops / step / PEAK,
            "of_measured_peak": self.flops / step / MEASURED_PEAK,
            "memory": (torch.cuda.max_memory_allocated() - held) / 2**30 if self.on_gpu else 0.0,
            "trained_size": self.trained,
            "round": fmean(usual) if usual else 0.0,
            "steps": clock.last - clock.first,
            "packed": clock.packed,
            "wall": time.perf_counter() - started,
        }


def make_clock(options: argparse.Namespace) -> Any:
    """Return a callback that times the steps after the first ones, and stops after some seconds."""
    import torch
    from transformers import TrainerCallback

    class Clock(TrainerCallback):  # type: ignore[misc]
        first = last = 0
        begun = seconds = 0.0
        packed = False

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            step = state.global_step
            spent = time.perf_counter() - self.begun if self.begun else 0.0
            if step == options.uncounted or step == options.steps or spent > options.seconds:
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                now = time.perf_counter()
                if not self.begun:
                    self.first, self.begun = step, now
                    collate = kwargs["train_dataloader"].collate_fn
                    self.packed = getattr(collate, "keywords", {}).get("packing") is not None
                    return
                self.last, self.seconds = step, now - self.begun
                control.should_training_stop = True

    return Clock()


def sides(options: argparse.Namespace) -> list[str]:
    names = [f"stock {workers}" for workers in options.workers]
    if options.flash:
        names.append(f"stock flash {max(options.workers)}")
    names += ["static", "inf-dds"]
    # Last, because graphs keep memory.
    return names + ([f"stock compiled {max(options.workers)}", "static compiled"] if options.compiled else [])


def run_model(name: str, options: argparse.Namespace) -> None:
    """Measure every side of a model; write a line of JSON for each as it ends."""
    with tempfile.TemporaryDirectory() as scratch, options.out.open("a", encoding="utf-8") as out:
        bench = Bench(name, options, Path(scratch))
        common = {"model": name, "batch": bench.batch, "tokens": round(bench.tokens), "on_gpu": bench.on_gpu}
        for side in sides(options):
            try:
                found = bench.measure(side)
            except Exception as error:  # one side must not end the others
                traceback.print_exc()
                found = {"error": f"{type(error).__name__}: {error}"[:300]}
            print(show(name, side, found), flush=True)
            out.write(json.dumps(common | {"side": side} | found) + "\n")
            out.flush()


def show(name: str, side: str, found: dict[str, Any]) -> str:
    if "error" in found:
        return f"{name:16} {side:18} failed: {found['error']}"
    return (
        f"{name:16} {side:18} {found['steps_per_second']:7.2f} steps/s {found['ms']:8.1f} ms "
        f"{found['tokens_per_second']:10,.0f} tokens/s {found['of_peak']:6.1%} of peak "
        f"({found['of_measured_peak']:.1%} of measured) {found['memory']:6.2f} GiB"
        + (f", a round {found['round']:.3f} s" if found["round"] else "")
        + (", packed" if found["packed"] else "")
    )


def compare(lines: list[dict[str, Any]]) -> None:
    """Print the ratios of each model."""
    from mixfluence import InfDDS

    every = InfDDS().update_every
    for name in dict.fromkeys(line["model"] for line in lines):
        found = {line["side"]: line for line in lines if line["model"] == name and "error" not in line}
        stock = {side: line for side, line in found.items() if side.startswith("stock")}
        if stock:
            best = max(stock, key=lambda side: stock[side]["steps_per_second"])
            for side in found.keys() & {"static", "static compiled"}:
                ratio = found[side]["steps_per_second"] / stock[best]["steps_per_second"]
                print(f"{name}: ours, {side}: {ratio:.2f} of stock at its best ({best})")
        if {"static", "inf-dds"} <= found.keys():
            static, adaptive = found["static"], found["inf-dds"]
            wall = (every * adaptive["ms"] / 1000 + adaptive["round"]) / (every * static["ms"] / 1000)
            more = (adaptive["memory"] - static["memory"]) / static["trained_size"]
            print(f"{name}: Inf-DDS, a round every {every} steps: {wall:.2f} of our static wall-clock", end="")
            print(f", {more:.1f} sizes of the trained parameters more memory" if static["on_gpu"] else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=list(SIZES), default=DEFAULT)
    parser.add_argument("--steps", type=int, default=90, help="steps of a side, at most")
    parser.add_argument("--uncounted", type=int, default=25, help="first steps, which are not counted")
    parser.add_argument("--seconds", type=float, default=8.0, help="seconds of counted steps, at most")
    parser.add_argument("--batch", type=int, help="rows of a batch; by default they depend on the model")
    parser.add_argument("--rows", type=int, default=14_000)
    parser.add_argument("--datasets", type=int, default=7)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 4, 8], help="loader workers of stock")
    parser.add_argument("--flash", action="store_true", help="also run stock with flattened inputs")
    parser.add_argument("--compiled", action="store_true", help="also run both compiled")
    parser.add_argument("--tiny", action="store_true", help="two layers of 32 dimensions, to try the script out")
    parser.add_argument("--out", type=Path, default=Path("sizes.jsonl"))
    parser.add_argument("--one", choices=list(SIZES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run_model(options.one, options)
        return
    options.out.unlink(missing_ok=True)
    for name in options.models:
        command = [sys.executable, __file__, *sys.argv[1:], "--one", name]
        subprocess.run(command, check=False, env={**os.environ, "TQDM_DISABLE": "1"})
    if options.out.exists():
        compare([json.loads(line) for line in options.out.read_text(encoding="utf-8").splitlines()])


if __name__ == "__main__":
    main()

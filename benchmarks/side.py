"""One side of `sizes.py` in a process of its own: a model, a trainer and its speed.

The process prepares everything, says so by creating `FOLDER/NUMBER.ready`, and waits for a line on its standard input
before it trains. Several can so prepare at once, and none is disturbed while another is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

PEAK = 989e12  # dense bf16 operations a second of an H200 by its datasheet; large matrices reach 780e12
EVERY = 8  # steps between measured rounds
LEAST_STEPS = 4, 2 * EVERY + 4  # that are counted, whatever they take; the second if there are rounds


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
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def syllables() -> list[str]:
    return [first + vowel + last for first in "bdfgklmnprstvz" for vowel in "aeiou" for last in "lmnrst"]


def whole_words() -> list[str]:
    parts = syllables()
    return [*parts, *(first + second for first in parts[::6] for second in parts)][:28_000]


def write_tokenizer(folder: Path) -> None:
    """Write a WordPiece tokenizer whose vocabulary is made of syllables."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = [*special, *whole_words(), *(f"##{syllable}" for syllable in syllables())]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"], special, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **names).save_pretrained(folder)


def write_model(size: Size, folder: Path, *, tiny: bool = False) -> None:
    """Write a model with random weights, unless it is there."""
    import torch
    import transformers

    if (folder / "config.json").exists():
        return
    write_tokenizer(folder)
    torch.manual_seed(0)
    shape = size.shape | (TINY | {"vocab_size": 30_522} if tiny else {})
    if tiny and "head_dim" in shape:
        shape |= {"head_dim": 16, "num_key_value_heads": 2}
    config = getattr(transformers, size.config)(**shape)
    transformers.AutoModel.from_config(config).save_pretrained(folder)


def load_model(name: str, folder: Path) -> Any:
    from mixfluence import load_encoder

    lora = {"rank": 16, "alpha": 32, "dropout": 0.0, "targets": "all-linear"} if SIZES[name].lora else None
    pooling: Any = "last" if SIZES[name].lora else "mean"
    return load_encoder(str(folder), pooling=pooling, query_length=64, passage_length=256, lora=lora)


def build_trainer(side: str, model: Any, texts: dict[str, Any], options: argparse.Namespace, callback: Any) -> Any:
    """Return the trainer of a side, which is named by words such as `stock flash 4` or `static compiled`."""
    import torch
    from datasets import Dataset, DatasetDict
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    from mixfluence import UNIFORM, InfDDS, MixtureTrainer, Static, info_nce

    words = side.split()
    pool = {name: Dataset.from_dict(columns) for name, columns in texts.items()}
    dev = {"target": pool.pop("dev")}
    on_gpu = torch.cuda.is_available()
    args = SentenceTransformerTrainingArguments(
        tempfile.mkdtemp(dir=options.folder),
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        bf16=on_gpu,
        use_cpu=not on_gpu,
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
        return SentenceTransformerTrainer(model, args, DatasetDict(pool), loss=loss, callbacks=[callback])
    adaptive = "inf-dds" in words
    trainer = MixtureTrainer(
        model,
        args,
        pool,
        dev_dataset=dev if adaptive else None,
        strategy=InfDDS(init=UNIFORM, warmup_steps=options.uncounted + 2, update_every=EVERY)
        if adaptive
        else Static(init=UNIFORM),
        loss=loss,
        compiled="compiled" in words,
        callbacks=[callback],
    )
    _ = trainer.tokenised  # before anything is measured
    return trainer


def make_clock(options: argparse.Namespace) -> Any:
    """Return a callback that marks the end of each step after the first ones, and stops after some seconds."""
    import torch
    from transformers import TrainerCallback

    class Clock(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.packed = False
            self.steps: list[int] = []
            self._marks: list[Any] = []
            self._begun = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step < options.uncounted:
                return
            if not self.steps:
                collate = kwargs["train_dataloader"].collate_fn
                self.packed = getattr(collate, "keywords", {}).get("packing") is not None
                self._begun = time.perf_counter()
            self.steps.append(state.global_step)
            if torch.cuda.is_available():
                mark: Any = torch.cuda.Event
                self._marks.append(mark(enable_timing=True))
                self._marks[-1].record()
            else:
                self._marks.append(time.perf_counter())
            if (
                len(self.steps) > LEAST_STEPS["inf-dds" in options.side]
                and time.perf_counter() - self._begun > options.seconds
            ):
                control.should_training_stop = True

        def intervals(self) -> list[float]:
            """Return the seconds of each counted step."""
            pairs = list(zip(self._marks, self._marks[1:], strict=False))
            if not torch.cuda.is_available():
                return [later - earlier for earlier, later in pairs]
            torch.cuda.synchronize()
            return [earlier.elapsed_time(later) / 1000 for earlier, later in pairs]

    return Clock()


def arithmetic(model: Any, texts: dict[str, Any], options: argparse.Namespace) -> tuple[float, float]:
    """Return the real tokens of a step and its operations on them; frozen weights need no gradient of their own."""
    sample = texts["set 0"]
    lengths = [
        [len(ids) for ids in model.tokenizer(sample[column][:500], truncation=True, max_length=most)["input_ids"]]
        for column, most in (("anchor", 64), ("positive", 256))
    ]
    tokens = options.batch * sum(fmean(column) for column in lengths)
    inner = model.transformers_model
    body = sum(p.numel() for name, p in inner.named_parameters() if "embed" not in name and "pooler" not in name)
    both = [length for column in lengths for length in column]
    attention = sum(length**2 for length in both) / sum(both)
    token = 2 * body + 4 * inner.config.num_hidden_layers * inner.config.hidden_size * attention
    return tokens, (2 if SIZES[options.model].lora else 3) * tokens * token


def measure(trainer: Any, clock: Any) -> dict[str, Any]:
    """Train; return milliseconds of a step without rounds of probes, and what a round took and was planned at."""
    import torch

    from mixfluence.runs import read_trace

    started = time.perf_counter()
    trainer.train()
    seconds, steps = clock.intervals(), clock.steps
    found: dict[str, Any] = {"round": 0.0}
    if getattr(trainer, "probing", None):
        trace = read_trace(Path(trainer.args.output_dir) / "trace.jsonl")
        rounds = {line["step"]: line["update"]["seconds"] for line in trace if "update" in line}
        # A round takes place after the clock has marked its step. The first one allocates.
        seconds = [own - rounds.get(step, 0.0) for own, step in zip(seconds, steps, strict=False)]
        found["round"] = fmean(list(rounds.values())[1:] or rounds.values())
        found["planned_steps"] = trainer.probing._round_cost(trainer.strategy.probing.method.dev_batch_size)
        found["budget"] = type(trainer.strategy)().budget
    trained = sum(parameter.nbytes for parameter in trainer.model.parameters() if parameter.requires_grad)
    return found | {
        "ms": 1000 * fmean(seconds),
        "median_ms": 1000 * median(seconds),
        "memory": torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0,
        "trained_size": trained / 2**30,
        "steps": len(seconds),
        "packed": clock.packed,
        "wall": time.perf_counter() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="has texts.json, and a folder for each model")
    parser.add_argument("model", choices=list(SIZES))
    parser.add_argument("side", help="`write` to write the model alone")
    parser.add_argument("--number", default="0")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--uncounted", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    options.batch = options.batch or (8 if options.tiny else SIZES[options.model].batch)
    if options.side == "write":
        write_model(SIZES[options.model], options.folder / options.model, tiny=options.tiny)
        return
    os.environ["TQDM_DISABLE"] = "1"
    texts = json.loads((options.folder / "texts.json").read_text(encoding="utf-8"))
    model = load_model(options.model, options.folder / options.model)
    clock = make_clock(options)
    trainer = build_trainer(options.side, model, texts, options, clock)
    tokens, operations = arithmetic(model, texts, options)
    (options.folder / f"{options.number}.ready").touch()
    if not sys.stdin.readline():
        return  # `sizes.py` has ended
    found = measure(trainer, clock)
    step = found["ms"] / 1000
    found |= {
        "batch": options.batch,
        "tokens": round(tokens),
        "tokens_per_second": tokens / step,
        "of_peak": operations / step / PEAK,
    }
    (options.folder / f"{options.number}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()

"""`MixtureTrainer`: the Trainer with a strategy that decides which dataset comes next.

- The right mixture lowers the loss on its task, and the wrong one does not.
- Two runs with one seed are equal to the last bit; new weights act on the very next step.
- The Trainer's log and `trace.jsonl` tell every probability and batch, also with accumulated gradients.
- Epochs instead of steps end where the Trainer would end, also when accumulation does not divide an epoch.
- A loss, prompts and negatives per dataset reach that dataset; a small one trains with smaller batches and says so.
- The dev loss is the loss of the dev rows under the lengths and prompts of training.
- LoRA trains and saves the adapter alone; mixed precision keeps the weights in full precision.
- The saved model loads without mixfluence, and its card lists every dataset, whatever its name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor
from transformers import TrainerCallback

from mixfluence.data.rows import Row
from mixfluence.errors import DataError, RecipeError
from mixfluence.policy import Vector, Weights
from mixfluence.runs import read_trace
from mixfluence.strategies import Static
from mixfluence.training.losses import info_nce
from mixfluence.training.trainer import MixtureTrainer
from tests.conftest import WORDS, row_set
from tests.training.runs import TurnAt, Turning, arguments, build, pool

pytestmark = pytest.mark.slow


@pytest.fixture
def static(make_static: Callable[[], SentenceTransformer]) -> SentenceTransformer:
    return make_static()


def trained_datasets(trainer: MixtureTrainer) -> list[int]:
    lines = read_trace(Path(trainer.args.output_dir) / "trace.jsonl")
    return [dataset for line in lines[1:] for dataset in line["trained"]]


def parameters(model: SentenceTransformer) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


# What is learnt.


def test_the_right_mixture_lowers_the_loss_and_the_wrong_one_does_not(
    make_static: Callable[[], SentenceTransformer], tmp_path: Path
) -> None:
    def answers(shift: int) -> Dataset:
        return Dataset.from_dict(
            {"anchor": [f"w{i}" for i in range(40)], "positive": [f"w{100 + (i + shift) % 40}" for i in range(40)]}
        )

    batches = {"per_device_train_batch_size": 10, "per_device_eval_batch_size": 40, "logging_steps": 50}

    def dev_loss(right: float, steps: int) -> float:
        model = make_static()
        trainer = build(
            model,
            arguments(tmp_path, max_steps=steps, learning_rate=0.1, **batches),
            train_dataset={"right": answers(0), "wrong": answers(7)},
            dev_dataset={"target": answers(0)},
            strategy=Static(init=Weights({"right": right, "wrong": 1 - right})),
            loss=info_nce(model, 0.1),
        )
        trainer.train()
        return float(trainer.evaluate()["eval_target_loss"])

    before, taught, misled = dev_loss(1, 1), dev_loss(1, 40), dev_loss(0, 40)
    assert taught < before / 2
    assert misled > 0.9 * before


def test_runs_are_equal_to_the_last_bit_exactly_when_their_seeds_are(tiny_bert_folder: Path, tmp_path: Path) -> None:
    draws, results = [], []
    for run, seed in enumerate((1, 1, 2)):
        model = SentenceTransformer(str(tiny_bert_folder), device="cpu")
        assert any(isinstance(module, torch.nn.Dropout) and module.p > 0 for module in model.modules())
        trainer = build(model, arguments(tmp_path / str(run), seed=seed))
        trainer.train()
        draws.append(trained_datasets(trainer))
        results.append(parameters(model))
    assert draws[0] == draws[1] != draws[2]
    assert same(results[0], results[1])
    assert not same(results[0], results[2])


def test_the_data_seed_alone_decides_the_order_of_rows(static: SentenceTransformer, tmp_path: Path) -> None:
    draws = []
    for seed, data_seed in ((1, 5), (2, 5), (2, 6)):
        args = arguments(tmp_path / f"{seed}-{data_seed}", max_steps=20, seed=seed, data_seed=data_seed)
        loader = build(static, args, train_dataset={"near": pool()["near"]}).get_train_dataloader()
        draws.append([batch["anchor_input_ids"].tolist() for batch in loader])
    assert draws[0] == draws[1] != draws[2]


def test_new_weights_act_on_the_very_next_step(static: SentenceTransformer, tmp_path: Path) -> None:
    class OneOrOther(Turning):
        def weights(self, progress: float = 0.0) -> Vector:
            return np.array([0.0, 1.0] if self._turns % 2 else [1.0, 0.0])

    strategy = OneOrOther()
    trainer = build(static, arguments(tmp_path), strategy=strategy, callbacks=[TurnAt(strategy, 2, 5)])
    trainer.train()
    assert trained_datasets(trainer) == [0, 0, 1, 1, 1, 0]


# What is told.


@pytest.mark.parametrize("accumulation", [1, 4])
def test_the_trace_tells_every_batch(static: SentenceTransformer, tmp_path: Path, accumulation: int) -> None:
    args = arguments(tmp_path, max_steps=7, gradient_accumulation_steps=accumulation, logging_steps=3)
    trainer = build(static, args)
    trainer.train()
    described, *lines = read_trace(tmp_path / "trace.jsonl")
    assert described["datasets"] == {
        "near": {"rows": 30, "distinct_positives": 30, "batch_size": 4},
        "far": {"rows": 18, "distinct_positives": 18, "batch_size": 4},
    }
    trained = [dataset for line in lines for dataset in line["trained"]]
    rows = [count for line in lines for count in line["rows"]]
    assert len(trained) == len(rows) == 7 * accumulation
    assert np.bincount(trained, rows, minlength=2).tolist() == trainer.sampler.rows_drawn.tolist()
    assert [line["step"] for line in lines] == [3, 6, 7]
    assert [len(line["trained"]) for line in lines] == [3 * accumulation, 3 * accumulation, accumulation]
    assert all(line["weights"] == {"near": 30 / 48, "far": pytest.approx(18 / 48)} for line in lines)
    assert all(line["drawn_ahead"] == [] for line in lines)
    assert [line["seconds"] for line in lines] == sorted(line["seconds"] for line in lines)


def test_the_log_has_probabilities_and_rows_drawn(static: SentenceTransformer, tmp_path: Path) -> None:
    trainer = build(static, arguments(tmp_path))
    trainer.train()
    told = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(told) == 6
    for step, entry in enumerate(told, 1):
        assert entry["sampling/near"] == pytest.approx(30 / 48)
        assert entry["sampling/near"] + entry["sampling/far"] == pytest.approx(1)
        assert entry["rows_drawn/near"] + entry["rows_drawn/far"] == 4 * step
    assert told[-1]["rows_drawn/near"] == 4 * trained_datasets(trainer).count(0)


@pytest.mark.parametrize("accumulation", [1, 5])
def test_epochs_end_where_the_library_would_end(
    static: SentenceTransformer, tmp_path: Path, accumulation: int
) -> None:
    args = arguments(tmp_path, max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=accumulation)
    trainer = build(static, args)
    trainer.train()
    batches = math.ceil(48 / 4)
    assert trainer.state.global_step == 2 * math.ceil(batches / accumulation)
    assert trainer.state.epoch == 2
    assert len(trained_datasets(trainer)) == 2 * batches


def test_no_dataset_is_read_beyond_the_epoch_limit(static: SentenceTransformer, tmp_path: Path) -> None:
    only_far = Weights({"near": 1e-9, "far": 1})
    trainer = build(static, arguments(tmp_path, max_steps=11), strategy=Static(init=only_far, max_epochs=1))
    trainer.train()
    assert trainer.sampler.rows_drawn.tolist() == [28, 16]
    for line in read_trace(tmp_path / "trace.jsonl")[1:]:
        assert sum(line["weights"].values()) == pytest.approx(1)
    with pytest.raises(RecipeError, match=r"max_epochs.* 11 .* 12"):
        build(static, arguments(tmp_path, max_steps=12), strategy=Static(init=only_far, max_epochs=1)).train()


def test_a_small_dataset_trains_with_smaller_batches_and_says_so(
    static: SentenceTransformer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    few = Dataset.from_dict(
        {"anchor": [f"w{i}" for i in range(20)], "positive": [f"w{100 + i % 3}" for i in range(20)]}
    )
    one = Dataset.from_dict({"anchor": ["w30"], "positive": ["w31"]})
    asked = Dataset.from_dict(
        {"anchor": [f"w{i % 2}" for i in range(20)], "positive": [f"w{40 + i}" for i in range(20)]}
    )
    datasets = {"few": few, "one": one, "asked": asked, **pool()}
    args = arguments(tmp_path, max_steps=24)
    trainer = build(static, args, train_dataset=datasets, strategy=Static(init=Weights(dict.fromkeys(datasets, 1))))
    trainer.train()
    described, *lines = read_trace(tmp_path / "trace.jsonl")
    assert [facts["batch_size"] for facts in described["datasets"].values()] == [3, 1, 2, 4, 4]
    assert described["datasets"]["few"]["distinct_positives"] == 3
    seen = {(dataset, rows) for line in lines for dataset, rows in zip(line["trained"], line["rows"], strict=True)}
    assert seen == {(0, 3), (1, 1), (2, 2), (3, 4), (4, 4)}
    said = [record.getMessage() for record in caplog.records if "its batches have" in record.getMessage()]
    assert [message.partition(":")[0] for message in said] == ["few", "one", "asked"]


# What reaches a dataset.


def test_a_loss_per_dataset_gets_the_batches_of_that_dataset(static: SentenceTransformer, tmp_path: Path) -> None:
    seen: list[int] = []

    class Watching(MultipleNegativesRankingLoss):
        def __init__(self, dataset: int) -> None:
            super().__init__(static)
            self.dataset = dataset

        def forward(self, features: list[dict[str, Tensor]], labels: Tensor | None) -> Tensor:
            words = torch.cat([column["input_ids"] for column in features]) - 1
            assert (words >= 100 if self.dataset else words < 100).all()
            seen.append(self.dataset)
            loss: Tensor = super().forward(features, labels)
            return loss

    trainer = build(static, arguments(tmp_path, max_steps=12), loss={"near": Watching(0), "far": Watching(1)})
    trainer.train()
    assert set(seen) == {0, 1}
    assert seen == trained_datasets(trainer)


@pytest.mark.parametrize(
    ("prompts", "near", "far"),
    [
        (None, ("", ""), ("", "")),
        ("w198 ", ("w198 ", "w198 "), ("w198 ", "w198 ")),
        ({"anchor": "w198 ", "positive": "w199 "}, ("w198 ", "w199 "), ("w198 ", "w199 ")),
        ({"near": {"anchor": "w197 "}, "far": {"positive": "w199 "}}, ("w197 ", ""), ("", "w199 ")),
        ({"near": "w197 "}, ("w197 ", "w197 "), ("", "")),
    ],
    ids=["none", "one", "per column", "per dataset and column", "per dataset"],
)
def test_prompts_reach_the_tokens(
    static: SentenceTransformer, tmp_path: Path, prompts: Any, near: tuple[str, str], far: tuple[str, str]
) -> None:
    trainer = build(static, arguments(tmp_path, prompts=prompts))
    for name, (query, document) in (("near", near), ("far", far)):
        rows, records = trainer.tokenised[name], pool()[name]
        passages, _ = rows.candidates(np.arange(len(rows)), rows.least_negatives)
        assert rows.least_negatives == len(records.column_names) - 2
        texts = [rows.queries.token_ids(rows.anchors), *(rows.documents.token_ids(column) for column in passages.T)]
        for column, prompt, ids in zip(records.column_names, (query, document, document), texts, strict=False):
            found = [" ".join(WORDS[number - 1] for number in text) for text in ids]
            assert found == [prompt + text for text in records[column]]


def test_a_prompt_for_nothing_is_refused_by_name(static: SentenceTransformer, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"^prompts: 'query'"):
        build(static, arguments(tmp_path, prompts={"query": "w1 "})).get_train_dataloader()


@pytest.mark.parametrize(("asked", "columns"), [(None, {2, 3}), (0, {2}), (2, {4})])
def test_negatives_are_as_many_as_asked_for(
    static: SentenceTransformer, tmp_path: Path, asked: int | None, columns: set[int]
) -> None:
    loader = build(static, arguments(tmp_path, max_steps=20), num_negatives=asked).get_train_dataloader()
    assert {sum(name.endswith("_input_ids") for name in batch) for batch in loader} == columns


def test_the_dev_loss_is_that_of_the_dev_rows(tiny_bert: SentenceTransformer, tmp_path: Path) -> None:
    def long(start: int) -> str:
        return " ".join(WORDS[start : start + 20])

    rows = [Row(long(i), long(50 + 2 * i)) for i in range(8)]
    trainer = build(
        tiny_bert,
        arguments(tmp_path, max_steps=2, eval_strategy="steps", eval_steps=1, prompts={"anchor": "w9 "}),
        dev_dataset={"target": row_set(*rows), "other": pool()["near"]},
    )
    trainer.train()
    logged = {name for entry in trainer.state.log_history for name in entry if name.startswith("eval_")}
    assert {"eval_target_loss", "eval_other_loss"} <= logged
    found = trainer.evaluate()["eval_target_loss"]
    same_rows = build(tiny_bert, arguments(tmp_path, prompts={"anchor": "w9 "}), train_dataset={"t": row_set(*rows)})
    batch = same_rows.get_train_dataloader().collate_fn(_all_rows(same_rows))
    with torch.no_grad():
        expected = trainer.compute_loss(tiny_bert.eval(), batch)
    assert found == pytest.approx(expected.item(), rel=1e-4)


def _all_rows(trainer: MixtureTrainer) -> Any:
    loader: Any = trainer.get_train_dataloader()
    return loader.dataset.__getitems__(range(len(loader.dataset)))


@pytest.mark.parametrize("datasets", [None, {}])
def test_a_run_without_data_is_refused(static: SentenceTransformer, tmp_path: Path, datasets: Any) -> None:
    with pytest.raises(DataError, match="at least one dataset"):
        build(static, arguments(tmp_path), train_dataset=datasets)


# What the Trainer can do.


def test_lora_trains_and_saves_the_adapter_alone(tiny_bert: SentenceTransformer, tmp_path: Path) -> None:
    tiny_bert.add_adapter(LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False))
    before = parameters(tiny_bert)
    build(tiny_bert, arguments(tmp_path, max_steps=3)).train()
    changed = {name for name, value in parameters(tiny_bert).items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if "lora_" in name}
    trainer = build(tiny_bert, arguments(tmp_path, max_steps=1))
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    assert (tmp_path / "saved" / "adapter_model.safetensors").exists()
    assert not (tmp_path / "saved" / "model.safetensors").exists()
    assert "## Training mixture" in (tmp_path / "saved" / "README.md").read_text(encoding="utf-8")


def test_mixed_precision_keeps_full_weights(tiny_bert: SentenceTransformer, tmp_path: Path) -> None:
    before = parameters(tiny_bert)
    trainer = build(tiny_bert, arguments(tmp_path, max_steps=3, bf16=True))
    result = trainer.train()
    assert math.isfinite(result.training_loss)
    assert {value.dtype for value in tiny_bert.parameters()} == {torch.float32}
    assert not same(parameters(tiny_bert), before)


def test_cached_gradients_train(tiny_bert: SentenceTransformer, tmp_path: Path) -> None:
    before = parameters(tiny_bert)
    trainer = build(tiny_bert, arguments(tmp_path, max_steps=2), loss=info_nce(tiny_bert, mini_batch_size=2))
    assert math.isfinite(trainer.train().training_loss)
    assert not same(parameters(tiny_bert), before)


def test_the_saved_model_loads_without_us_and_its_card_lists_the_mixture(
    static: SentenceTransformer, tmp_path: Path
) -> None:
    names = dict(zip(("a|b", "<b>bold</b>\nline"), pool().values(), strict=True))
    trainer = build(static, arguments(tmp_path), train_dataset=names)
    trainer.train()
    for _ in range(2):
        trainer.save_model(str(tmp_path / "saved"))
    loaded = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert np.array_equal(loaded.encode(["w1 w2", "w150"]), static.encode(["w1 w2", "w150"]))

    card = (tmp_path / "saved" / "README.md").read_text(encoding="utf-8")
    assert card.count("## Training mixture") == 1
    section = card.split("## Training mixture")[1]
    assert f"strategy {trainer.strategy.label};" in section
    header, rule, *table = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    assert header == ["dataset", "rows", "probability", "rows drawn"]
    assert len(rule) == len(header)
    drawn = trainer.sampler.rows_drawn.tolist()
    assert table == [
        ["a&#124;b", "30", "0.625", str(drawn[0])],
        ["&lt;b&gt;bold&lt;/b&gt; line", "18", "0.375", str(drawn[1])],
    ]


def test_the_trace_may_lie_elsewhere_and_survives_a_cut(static: SentenceTransformer, tmp_path: Path) -> None:
    path = tmp_path / "elsewhere" / "run.jsonl"
    build(static, arguments(tmp_path / "out", max_steps=2), trace_path=path).train()
    lines = read_trace(path)
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert not (tmp_path / "out" / "trace.jsonl").exists()
    path.write_text(path.read_text(encoding="utf-8") + json.dumps(lines[-1])[:20], encoding="utf-8")
    assert read_trace(path) == lines


def test_the_history_of_logs_stays_small_with_many_datasets(static: SentenceTransformer, tmp_path: Path) -> None:
    many = {f"d{number}": pool()["near"] for number in range(40)}
    seen: list[dict[str, float]] = []

    class Watch(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append(dict(kwargs["logs"]))

    trainer = build(static, arguments(tmp_path, max_steps=2), train_dataset=many, callbacks=[Watch()])
    trainer.train()
    history = [line for line in trainer.state.log_history if "loss" in line]
    assert [sum(key.startswith("sampling/") for key in line) for line in history] == [10, 10]
    assert all(len(line) < 40 for line in history)
    # Trackers and the trace get all of them.
    assert sum(key.startswith("sampling/") for key in seen[0]) == 40
    assert len(read_trace(tmp_path / "trace.jsonl")[1]["weights"]) == 40

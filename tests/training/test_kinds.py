"""What holds for dense encoders holds for every kind of model, and for one of which only a LoRA adapter is trained.

- A run that probes without acting on it is, to the last bit, the run that does not; one that is stopped and resumed is
  the run that was not. A batch has rows of one dataset.
- A dataset with the rule of the target rises, and one with shuffled answers falls.
- Batches from the token cache are those of the trainer library; metrics are those of its own scores.
- Probes of an adapter need memory for a copy of the adapter, and no more.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import CrossEncoder
from sentence_transformers.base.model import BaseModel
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mixfluence.adapters import merge_lora
from mixfluence.data.tokenize import Tokeniser, tokenise_unkept
from mixfluence.encoders import KINDS, Kind, kind_of, load_encoder
from mixfluence.errors import RecipeError
from mixfluence.influence import Probe, info_nce_metric
from mixfluence.influence.metrics import OTHER_ROWS, DevBatch, Piece, score_batches
from mixfluence.policy import UNIFORM
from mixfluence.strategies import InfDDS, Static
from mixfluence.training.losses import info_nce
from mixfluence.training.trainer import MixtureMixin, MixtureTrainer
from tests.training.runs import arguments, build, pool
from tests.training.test_inf_dds import EVERY_STEP, Frozen, draws, influences, updates
from tests.training.test_inf_dds_resume import assert_equal_tensors, timeless_trace
from tests.training.test_resume import StopAt

pytestmark = pytest.mark.slow
MakeModel = Callable[[], BaseModel]
LORA = {"rank": 2, "alpha": 4.0, "dropout": 0.1, "targets": ["query", "value"]}


@pytest.fixture(params=[*KINDS, "lora"])
def make_model(request: pytest.FixtureRequest, tiny_bert_folder: Path) -> MakeModel:
    """Builds equal tiny transformers of a kind, with dropout; one with an adapter."""
    if request.param == "lora":
        return lambda: load_encoder(str(tiny_bert_folder), lora=LORA, device="cpu")
    return lambda: load_encoder(str(tiny_bert_folder), kind=request.param, passage_length=16, device="cpu")


def new_trainer(model: BaseModel, folder: Path, strategy: Any, **options: Any) -> MixtureMixin:
    ours = {"train_dataset", "dev_dataset", "callbacks", "loss"} & options.keys()
    args = arguments(folder, kind_of(model), **{name: value for name, value in options.items() if name not in ours})
    chosen = {"dev_dataset": {"dev": pool()["near"]}} | {name: options[name] for name in ours}
    return build(model, args, strategy=strategy, **chosen)


def test_a_run_with_frozen_logits_is_the_run_without_probes(make_model: MakeModel, tmp_path: Path) -> None:
    runs = []
    for name, strategy in ("probed", Frozen(**EVERY_STEP, inner_steps=1)), ("plain", Static(init=UNIFORM)):
        trainer = new_trainer(make_model(), tmp_path / name, strategy, max_steps=4)
        start = {key: value.clone() for key, value in trainer.model.state_dict().items()}
        trainer.train()
        runs.append(trainer)
    probed, plain = runs
    assert len(updates(probed)) == 3
    assert any(value != 0 for round_ in influences(probed) for value in round_.values())
    assert draws(probed) == draws(plain)
    assert_equal_tensors(probed.model.state_dict(), plain.model.state_dict())
    states = [trainer.optimizer.state_dict()["state"] for trainer in (probed, plain)]
    assert_equal_tensors(*states)
    assert any(not torch.equal(value, start[name]) for name, value in plain.model.state_dict().items())


def test_a_resumed_run_is_the_run_that_was_not_stopped(make_model: MakeModel, tmp_path: Path) -> None:
    def trainer(folder: str, *callbacks: Any) -> MixtureMixin:
        strategy = InfDDS(update_every=2, warmup_steps=1, freeze_below=0.0, inner_steps=1)
        options = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2, "callbacks": list(callbacks)}
        return new_trainer(make_model(), tmp_path / folder, strategy, **options)

    whole = trainer("whole")
    whole.train()
    trainer("stopped", StopAt(5)).train()
    resumed = trainer("stopped")
    resumed.train(resume_from_checkpoint=str(tmp_path / "stopped" / "checkpoint-4"))
    assert timeless_trace(whole) == timeless_trace(resumed)
    assert whole.mixture_state() == resumed.mixture_state()
    assert_equal_tensors(whole.model.state_dict(), resumed.model.state_dict())


def test_a_batch_has_rows_of_one_dataset(make_model: MakeModel, tmp_path: Path) -> None:
    trainer = new_trainer(make_model(), tmp_path, Static(init=UNIFORM), max_steps=12)
    words = {number: word for word, number in trainer.model.tokenizer.get_vocab().items()}
    found = set()
    for batch in trainer.get_train_dataloader():
        columns, _ = trainer.collect_features(batch)
        texts = [words_of(column, words) for column in columns]
        sides = {int(word[1:]) >= 100 for text in texts for word in text}
        assert len(sides) == 1
        found |= sides
    assert found == {False, True}


def words_of(column: Any, words: dict[int, str]) -> list[str]:
    if isinstance(column, list):
        return [word for text in column for word in text.split()]
    return [words[number] for number in column["input_ids"].flatten().tolist() if words[number].startswith("w")]


def marked(seed: int, *, shuffled: bool = False) -> Dataset:
    """Relevant passages have words from w50 to w99, hard negatives have words from w100 on; or either, if shuffled."""
    draw = random.Random(seed)
    rows = []
    for number in range(50):
        good, bad = (f"w{draw.randrange(first, first + 50)} w{first + number}" for first in (50, 100))
        passages = [good, bad]
        if shuffled and number % 2:
            passages.reverse()
        rows.append((f"w{draw.randrange(50)} w{draw.randrange(50)}", *passages))
    return Dataset.from_dict(dict(zip(("query", "answer", "negative"), zip(*rows, strict=True), strict=True)))


def groups() -> Dataset:
    """Words of one of three groups belong together: what a model knows before an adapter is trained."""
    draw = random.Random(5)

    def words(first: int) -> str:
        return " ".join(f"w{first + draw.randrange(50)}" for _ in range(2))

    pairs = [draw.sample((0, 50, 100), 2) for _ in range(200)]
    rows = [(words(own), words(own), words(other)) for own, other in pairs]
    return Dataset.from_dict(dict(zip(("query", "answer", "negative"), zip(*rows, strict=True), strict=True)))


def adapted(folder: Path, scratch: Path) -> BaseModel:
    """Return a model that knows the groups of words, with a new adapter."""
    model = load_encoder(str(folder), device="cpu")
    options = {"max_steps": 60, "per_device_train_batch_size": 16, "logging_steps": 60, "loss": info_nce(model, 0.2)}
    new_trainer(model, scratch, Static(), train_dataset={"groups": groups()}, **options).train()
    model.save_pretrained(str(scratch / "base"))
    return load_encoder(str(scratch / "base"), lora=LORA | {"rank": 8, "targets": "all-linear"}, device="cpu")


@pytest.mark.parametrize("kind", [*KINDS, "lora"])
def test_a_dataset_like_the_target_rises_and_a_shuffled_one_falls(
    tiny_bert_folder: Path, tmp_path: Path, kind: Any
) -> None:
    if kind == "lora":
        model = adapted(tiny_bert_folder, tmp_path / "groups")
    else:
        model = load_encoder(str(tiny_bert_folder), kind=kind, device="cpu")
    temperature, rate = (0.2, 0.003) if kind in {"dense", "lora"} else (1.0, 0.01)
    probe = Probe(metric=info_nce_metric(temperature, hard_negatives=True), dev_batch_size=32)
    strategy = InfDDS(init=UNIFORM, update_every=2, warmup_steps=4, inner_steps=2, probe=probe)
    options = {"max_steps": 16, "learning_rate": rate, "per_device_train_batch_size": 16, "logging_steps": 8}
    data = {
        "train_dataset": {"right": marked(1), "shuffled": marked(2, shuffled=True)},
        "dev_dataset": {"target": marked(3)},
        "loss": info_nce(model, temperature),
    }
    trainer = new_trainer(model, tmp_path, strategy, **data, **options)
    trainer.train()
    assert trainer.probabilities()["right"] > 0.6


# How texts become features, and features scores.


@pytest.mark.parametrize("attend", [False, True])
def test_expanded_queries_from_the_cache_are_those_of_the_library(tiny_bert_folder: Path, attend: bool) -> None:
    model = load_encoder(str(tiny_bert_folder), kind="multi-vector", device="cpu")
    model[0].query_expansion = {"strategy": "min", "attend": attend, "length": 6}
    texts = ["w1", "w2 w3 w4 w5 w6 w7 w8", ""]
    expected = model.preprocess(texts, task="query")
    side = Tokeniser(model).side("query", "")
    found = side.layout.features(tokenise_unkept(texts, side).token_ids(np.arange(3)))
    tensors = {name: value for name, value in expected.items() if isinstance(value, Tensor)}
    assert "query_expansion_positions" in tensors
    for name, value in tensors.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_model_itself(tiny_bert_folder: Path, kind: Kind) -> None:
    model = load_encoder(str(tiny_bert_folder), kind=kind, device="cpu").eval()
    texts = [[f"w{20 * column + row} w{row}" for row in range(12)] for column in range(3)]
    pieces = [Piece([features(model, column[part]) for column in texts]) for part in (slice(0, 8), slice(8, 12))]
    passages = texts[1] + texts[2]
    with torch.no_grad():
        found = score_batches(model, [DevBatch("dev", [piece]) for piece in pieces[:1]], 1)[0]
        assert found.shape == (8, 16)
        found = score_batches(model, [DevBatch("dev", pieces)], 8)[0]
    if isinstance(model, CrossEncoder):
        pairs = [(query, passage) for query in texts[0] for passage in passages]
        expected = model.predict(pairs, activation_fn=nn.Identity(), convert_to_tensor=True).view(12, 24)
        scored = found.isfinite()
        # Its own two passages, and the positives of other rows.
        assert scored.sum(dim=1).tolist() == [2 + OTHER_ROWS] * 12
        assert scored.diagonal().all()
        assert scored.diagonal(12).all()
        torch.testing.assert_close(found[scored], expected[scored], rtol=1e-4, atol=1e-5)
        return
    queries = model.encode_query(texts[0])
    expected = model.similarity(queries, model.encode_document(passages))
    torch.testing.assert_close(found, expected.to_dense(), rtol=1e-4, atol=1e-5)


def features(model: BaseModel, texts: list[str]) -> Any:
    if isinstance(model, CrossEncoder):
        return texts
    task = "query" if texts[0].split()[0] in {"w0", "w8"} else "document"
    return {**model.preprocess(texts, task=task), "task": task}


def test_a_model_of_another_kind_is_refused_with_the_name_of_its_trainer(
    tiny_bert_folder: Path, tmp_path: Path
) -> None:
    model = load_encoder(str(tiny_bert_folder), kind="sparse", device="cpu")
    with pytest.raises(RecipeError, match="SparseMixtureTrainer"):
        MixtureTrainer(model, arguments(tmp_path), pool())


# Adapters.


class LivePeak(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most bytes of tensors that were alive at once, of those that were made meanwhile."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes: dict[int, int] = {}
        self._now = self.most = 0

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and (place := tensor.untyped_storage()._cdata) not in self._sizes:
                self._sizes[place] = tensor.untyped_storage().nbytes()
                self._now += self._sizes[place]
                finalize(tensor.untyped_storage(), self._free, place)
        self.most = max(self.most, self._now)
        return made

    def _free(self, place: int) -> None:
        self._now -= self._sizes.pop(place)


def test_probes_of_an_adapter_need_memory_for_a_copy_of_the_adapter(tiny_bert_folder: Path, tmp_path: Path) -> None:
    peaks = []
    # Texts are equally long: probes draw further batches, which would need more or less than those of training.
    for strategy in (Static(init=UNIFORM), Frozen(**EVERY_STEP)):
        model = load_encoder(str(tiny_bert_folder), lora=LORA | {"rank": 64}, device="cpu")
        trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
        trainer = new_trainer(model, tmp_path, strategy, train_dataset={"one": marked(1)}, max_steps=3)
        with LivePeak() as live:
            trainer.train()
        peaks.append(live.most)
    assert trained < sum(p.nbytes for p in model.parameters()) / 2
    assert (peaks[1] - peaks[0]) / trained == pytest.approx(1, abs=0.3)
    assert updates(trainer)[0]["update"]["memory"] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("kind", ["dense", "reranker"])
def test_a_merged_model_computes_what_the_adapted_one_does(tiny_bert_folder: Path, tmp_path: Path, kind: Kind) -> None:
    model = load_encoder(str(tiny_bert_folder), kind=kind, lora=LORA, device="cpu")
    new_trainer(model, tmp_path, Static(), max_steps=3).train()
    outputs = []
    merge_lora(model).save_pretrained(str(tmp_path / "merged"))
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    plain = load_encoder(str(tiny_bert_folder), kind=kind, device="cpu")
    for own in (plain, model, load_encoder(str(tmp_path / "merged"), kind=kind, device="cpu")):
        predict = own.predict if isinstance(own, CrossEncoder) else own.encode
        inputs = [("w1", "w2 w3")] if isinstance(own, CrossEncoder) else ["w1 w2 w3"]
        outputs.append(predict(inputs, convert_to_tensor=True))
    assert not torch.allclose(outputs[0], outputs[1], atol=1e-4)
    torch.testing.assert_close(outputs[1], outputs[2], rtol=1e-4, atol=1e-5)

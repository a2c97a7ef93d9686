"""Packed sequences give the embeddings of padded ones, on small encoders.

- Embeddings, losses and gradients are those of padded texts, for positions counted from 0 and from elsewhere.
- All columns pass through the model at once, and so do several targets; a router for queries is padded.
- Inputs that sentence-transformers flattened for flash attention give the loss of its own class.
- A model whose attention cannot be kept within texts is padded, and refused where packing was asked for.
- A packed run trains and probes as a padded run does, and leaves no trace in the saved model.
- The kernel that does it on a GPU still has the signature it is called by.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Router, Transformer
from transformers import (
    DataCollatorWithFlattening,
    MPNetConfig,
    MPNetModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
)

from mixfluence import UNIFORM, InfDDS, Static, info_nce
from mixfluence.errors import RecipeError
from mixfluence.influence import DevBatch, Piece, embed_columns, info_nce_metric
from mixfluence.runs import read_trace
from mixfluence.training.batches import MixtureRows, collate
from mixfluence.training.packing import Packing, learn_packing
from tests.training.runs import arguments, build, pool
from tests.training.test_batches import mixture_rows

pytestmark = pytest.mark.slow

ROWS = [6, 8, 9, 12]


@contextmanager
def passes(model: SentenceTransformer) -> Iterator[list[int]]:
    """Yields a list that grows by the number of tokens of every pass through the model."""
    seen: list[int] = []
    hook = model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]["input_ids"].numel()))
    yield seen
    hook.remove()


def like(folder: Path, tiny_bert_folder: Path, inner: PreTrainedModel) -> SentenceTransformer:
    """A model of another architecture with the tokenizer of the tiny BERT."""
    inner.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text((tiny_bert_folder / name).read_text(encoding="utf-8"), encoding="utf-8")
    transformer = Transformer(str(folder), query_length=8, document_length=16)
    return SentenceTransformer(modules=[transformer, Pooling(16, pooling_mode="mean")], device="cpu")


SMALL = {"vocab_size": 205, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "pad_token_id": 0}


@pytest.fixture
def tiny_roberta(tmp_path: Path, tiny_bert_folder: Path) -> SentenceTransformer:
    torch.manual_seed(0)
    config = RobertaConfig(**SMALL, intermediate_size=32, max_position_embeddings=66, initializer_range=0.5)
    return like(tmp_path / "roberta", tiny_bert_folder, RobertaModel(config))


def learn(model: SentenceTransformer, rows: MixtureRows) -> Packing | None:
    batch = rows.__getitems__(ROWS)
    return learn_packing(model, batch.columns, batch.layouts, nullcontext())


def columns_of(rows: MixtureRows, packing: Packing | None = None) -> list[dict[str, torch.Tensor]]:
    batch = collate(rows.__getitems__(ROWS), packing=packing)
    prefixes = ["anchor_", "positive_", "negative_1_", "negative_2_"]
    return [{k.removeprefix(p): v for k, v in batch.items() if k.startswith(p)} for p in prefixes]


@pytest.mark.parametrize(("name", "first"), [("tiny_bert", 0), ("tiny_roberta", 1)])
def test_embeddings_loss_and_gradients_are_those_of_padded_texts(
    name: str, first: int, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(name).double().eval()
    rows = mixture_rows(model)
    packing = learn(model, rows)
    assert packing == Packing(first)
    found: list[tuple[torch.Tensor, ...]] = []
    for columns in columns_of(rows), columns_of(rows, packing):
        model.zero_grad()
        loss = info_nce(model)(columns, None)
        loss.backward()
        gradient = torch.cat([p.grad.ravel() for p in model.parameters() if p.grad is not None])
        found.append((torch.cat(embed_columns(model, columns)), loss, gradient))
    for padded, packed in zip(*found, strict=True):
        torch.testing.assert_close(packed, padded)


def test_all_columns_pass_at_once_and_without_padding(tiny_bert: SentenceTransformer) -> None:
    rows = mixture_rows(tiny_bert)
    columns = columns_of(rows, learn(tiny_bert, rows))
    with passes(tiny_bert) as seen:
        info_nce(tiny_bert)(columns, None)
    texts = [text for column in rows.__getitems__(ROWS).columns.values() for text in column]
    assert seen == [sum(map(len, texts))]


def test_inputs_that_the_model_flattened_give_the_stock_loss(tiny_bert: SentenceTransformer) -> None:
    tiny_bert.eval()
    flatten = DataCollatorWithFlattening(return_seq_idx=True, return_flash_attn_kwargs=True, return_position_ids=True)
    columns = []
    for texts in ["w1 w2", "w3"], ["w1", "w4 w5 w6"], ["w7 w8", "w9"]:
        inputs = flatten([{"input_ids": ids} for ids in tiny_bert.tokenizer(texts)["input_ids"]])
        columns.append({name: value for name, value in inputs.items() if name != "labels"})
    stock = MultipleNegativesRankingLoss(tiny_bert, scale=20)
    torch.testing.assert_close(info_nce(tiny_bert, 0.05)(columns, None), stock(columns, None))


def test_targets_pass_together_and_are_judged_apart(tiny_bert: SentenceTransformer) -> None:
    tiny_bert.eval()
    rows = mixture_rows(tiny_bert)
    padded, packed = columns_of(rows), columns_of(rows, learn(tiny_bert, rows))
    metric = info_nce_metric(0.05)
    values = {}
    for columns in padded, packed:
        batches = [DevBatch("one", [Piece(columns[:2]), Piece(columns[:2])]), DevBatch("two", [Piece(columns[2:])])]
        with passes(tiny_bert) as seen, torch.no_grad():
            values[len(seen)] = metric.evaluate(tiny_bert, batches)
    assert list(values) == [6, 1]
    assert [len(v) for v in values[1]] == [8, 4]
    for one, other in zip(values[6], values[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_model_with_modules_of_their_own_for_queries_is_padded(tiny_bert_folder: Path) -> None:
    torch.manual_seed(1)
    sides = [Transformer(str(tiny_bert_folder)) for _ in range(2)]
    for parameter in sides[0].parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    router = Router.for_query_document([sides[0], Pooling(16)], [sides[1], Pooling(16)])
    model = SentenceTransformer(modules=[router], device="cpu").eval()
    assert learn(model, mixture_rows(model)) is None


def test_a_model_that_attends_in_another_way_is_padded(tmp_path: Path, tiny_bert_folder: Path) -> None:
    # Its positions are a bias of the attention, which the kernel does not know.
    config = MPNetConfig(**SMALL, intermediate_size=32, max_position_embeddings=66)
    model = like(tmp_path / "mpnet", tiny_bert_folder, MPNetModel(config))
    assert learn(model, mixture_rows(model)) is None
    with pytest.raises(RecipeError, match=r"^packing: "):
        build(model, arguments(tmp_path), packing=True).train()


def without_dropout(model: SentenceTransformer) -> SentenceTransformer:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model[0].auto_model.config.attention_probs_dropout_prob = 0.0
    return model


@pytest.mark.parametrize("strategy", [Static, InfDDS])
def test_a_packed_run_is_a_padded_run(strategy: type, tiny_bert_folder: Path, tmp_path: Path) -> None:
    found = {}
    for packing in False, True:
        model = without_dropout(SentenceTransformer(str(tiny_bert_folder), device="cpu"))
        folder = tmp_path / str(packing)
        chosen = Static(init=UNIFORM) if strategy is Static else InfDDS(init=UNIFORM, update_every=2, warmup_steps=1)
        trainer = build(
            model, arguments(folder, learning_rate=1e-3), strategy=chosen, dev_dataset=pool(), packing=packing
        )
        trainer.train()
        weights = np.concatenate([parameter.detach().numpy().ravel() for parameter in model.parameters()])
        influence = [line["update"]["influence"] for line in read_trace(folder / "trace.jsonl") if "update" in line]
        found[packing] = weights, influence
        assert len(influence) == (0 if strategy is Static else 3)
    np.testing.assert_allclose(found[True][0], found[False][0], atol=2e-4)
    for packed, padded in zip(found[True][1], found[False][1], strict=True):
        np.testing.assert_allclose(list(packed.values()), list(padded.values()), rtol=0.05, atol=1e-4)


def test_the_saved_model_knows_nothing_of_it(tiny_bert: SentenceTransformer, tmp_path: Path) -> None:
    trainer = build(tiny_bert, arguments(tmp_path / "run"), packing=True)
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    text = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "model").rglob("*.json"))
    assert "mixfluence" not in text
    again = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    np.testing.assert_allclose(again.encode(["w1 w2", "w3"]), tiny_bert.eval().encode(["w1 w2", "w3"]), atol=1e-6)
    assert json.loads((tmp_path / "model" / "modules.json").read_text(encoding="utf-8"))


def test_the_kernel_has_the_signature_it_is_called_by() -> None:
    schema = torch.ops.aten._flash_attention_forward.default._schema
    names = [argument.name for argument in schema.arguments]
    assert names[:10] == [
        *("query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k"),
        *("dropout_p", "is_causal", "return_debug_mask"),
    ]
    assert {"scale", "window_size_left", "window_size_right"} <= set(names)
    assert schema.returns[0].name == "output"

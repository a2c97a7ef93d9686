"""An encoder compiled for texts laid end to end.

- A batch is filled up by texts of at least one token and no more than an eighth of it, to one of few sizes.
- Embeddings and gradients stay what they were, and the whole transformer is traced as one, for all sizes at once.
- Padded texts run as before; after training the model has its own code again.
- Where texts are padded, compiling is refused.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer

from mixfluence.errors import RecipeError
from mixfluence.influence import embed_columns
from mixfluence.training.compiling import FILLERS, FilledUp, compile_encoder, fill_up, filled_size
from tests.training.runs import arguments, build
from tests.training.test_batches import mixture_rows
from tests.training.test_packing import columns_of, learn

# Traces as any compiler must, refuses to give up half-way, and needs no C++.
TRACED = partial(torch.compile, dynamic=True, backend="eager", fullgraph=True)


@given(st.integers(1, 1_000_000))
def test_a_batch_is_filled_up_by_little(tokens: int) -> None:
    size = filled_size(tokens)
    assert tokens + FILLERS <= size
    assert size <= (tokens + FILLERS) * (1 + 1 / 8)
    assert filled_size(size - FILLERS) == size


def test_there_are_few_sizes() -> None:
    assert len({filled_size(tokens) for tokens in range(2_000, 64_000)}) < 50


def test_fillers_are_texts_behind_the_others() -> None:
    bounds = torch.tensor([0, 300, 1000], dtype=torch.int32)
    ids = torch.arange(1000)[None]
    inputs = {"input_ids": ids, "position_ids": ids, "cu_seq_lens_q": bounds, "max_length_q": 704, "task": "query"}
    filled = fill_up(inputs)
    assert filled["input_ids"].shape == filled["position_ids"].shape == (1, filled_size(1000))
    assert torch.equal(filled["input_ids"][:, :1000], ids)
    lengths = filled["cu_seq_lens_q"].diff()
    assert lengths[:2].tolist() == [300, 700]
    assert len(lengths) == 2 + FILLERS
    assert lengths.min() >= 1
    assert lengths.max() <= filled["max_length_q"]
    assert filled["cu_seq_lens_q"][-1] == filled["input_ids"].shape[1]
    assert inputs["cu_seq_lens_q"] is bounds
    assert filled["task"] == "query"


def test_embeddings_and_gradients_stay_what_they_were(tiny_bert: SentenceTransformer) -> None:
    model = tiny_bert.double().eval()
    rows = mixture_rows(model)
    packed, padded = columns_of(rows, learn(model, rows)), columns_of(rows)
    found: list[list[torch.Tensor]] = []
    for compiler in None, TRACED:
        if compiler:
            compile_encoder(model, compiler)
        results = []
        for columns in packed, packed[:2], padded:
            model.zero_grad()
            embeddings = torch.cat(embed_columns(model, columns))
            torch.autograd.backward(embeddings.square().sum())
            gradients = [p.grad.ravel() for p in model.parameters() if p.grad is not None]
            results += [embeddings.detach(), torch.cat(gradients)]
        found.append(results)
    for plain, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, plain)


def test_what_is_compiled_is_not_compiled_again(tiny_bert: SentenceTransformer) -> None:
    compile_encoder(tiny_bert, TRACED)
    first = tiny_bert[0].auto_model.forward
    compile_encoder(tiny_bert, TRACED)
    assert isinstance(first, FilledUp)
    assert tiny_bert[0].auto_model.forward is first


def test_after_training_the_model_has_its_own_code(
    tiny_bert: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tiny_bert[0].auto_model
    own, attention = inner.forward, inner.config._attn_implementation
    seen: list[SentenceTransformer] = []

    def compile_traced(model: SentenceTransformer) -> None:
        seen.append(model)
        compile_encoder(model, TRACED)

    monkeypatch.setattr("mixfluence.training.trainer.compile_encoder", compile_traced)
    build(tiny_bert, arguments(tmp_path), packing=True, compiled=True).train()
    assert seen == [tiny_bert]
    assert inner.forward == own
    assert inner.config._attn_implementation == attention


def test_compiling_padded_texts_is_refused(tiny_bert: SentenceTransformer, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="only packed texts"):
        build(tiny_bert, arguments(tmp_path), compiled=True).train()

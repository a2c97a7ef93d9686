"""Encoding of retrieval sets.

- Embeddings equal those of `encode_query` and `encode_document` of sentence-transformers, in the order of the texts:
  for transformers and static models, with prompts of the task or of the model under any name, with truncated texts
  and with truncated dimensions.
- Batches of short texts are larger, and none has more tokens than the first may have.
- Texts are tokenised once, on one core or on several.
- A model whose inputs are more than token ids is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from torch import Tensor

from mixfluence.data import tokenize
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.tokens import Ids
from mixfluence.embedding import _batches
from mixfluence.errors import MixfluenceError
from mixfluence.evaluation.retrieval import tokenised_sides

pytestmark = pytest.mark.slow


@pytest.fixture(params=["static", "transformer"])
def model(
    request: pytest.FixtureRequest, make_static: Callable[[], SentenceTransformer], tiny_bert: SentenceTransformer
) -> SentenceTransformer:
    return make_static() if request.param == "static" else tiny_bert


def by_library(model: SentenceTransformer, task: RetrievalSet) -> tuple[Tensor, Tensor]:
    options: dict[str, Any] = {"convert_to_tensor": True, "normalize_embeddings": True, "show_progress_bar": False}
    queries = model.encode_query(list(task.queries), prompt=task.query_prompt, **options)
    return queries, model.encode_document(list(task.docs), prompt=task.passage_prompt, **options)


def encode_task(model: SentenceTransformer, task: RetrievalSet, batch_size: int) -> tuple[Tensor, Tensor]:
    queries, passages = (
        encoder.encode(texts, batch_size=batch_size) for encoder, texts in tokenised_sides(model, task)
    )
    return queries, passages


def assert_as_by_library(model: SentenceTransformer, task: RetrievalSet) -> None:
    for found, expected in zip(encode_task(model, task, batch_size=7), by_library(model, task), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("prompts", [(None, None), ("w1 w2 ", "w4 w5 w6 "), ("", "w3 ")])
@pytest.mark.parametrize("name", ["document", "passage", "corpus"])
def test_embeddings_equal_those_of_sentence_transformers_for_any_prompt(
    model: SentenceTransformer, task: RetrievalSet, prompts: tuple[str | None, str | None], name: str
) -> None:
    model.prompts = {"query": "w9 ", name: "w8 w7 ", "other": "w1 "}
    model.default_prompt_name = "other"
    assert_as_by_library(model, replace(task, query_prompt=prompts[0], passage_prompt=prompts[1]))


def test_a_model_without_prompts_has_none(model: SentenceTransformer, task: RetrievalSet) -> None:
    model.prompts = {}
    assert_as_by_library(model, task)


def test_fewer_dimensions_are_those_the_model_is_set_to(model: SentenceTransformer, task: RetrievalSet) -> None:
    model.truncate_dim = 5
    assert_as_by_library(model, task)
    assert encode_task(model, task, batch_size=64)[0].shape == (20, 5)


@pytest.mark.parametrize("chunks_per_worker", [1, 1_000], ids=["on all cores", "on one"])
def test_many_chunks_keep_their_order(
    model: SentenceTransformer, task: RetrievalSet, monkeypatch: pytest.MonkeyPatch, chunks_per_worker: int
) -> None:
    monkeypatch.setattr(tokenize, "TEXTS_PER_CHUNK", 9)
    monkeypatch.setattr(tokenize, "CHUNKS_PER_WORKER", chunks_per_worker)
    assert_as_by_library(model, task)


def test_texts_are_tokenised_once(
    model: SentenceTransformer, task: RetrievalSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    of_texts = tokenize.Side.tokenise

    def noting(side: tokenize.Side, texts: list[str]) -> Ids:
        seen.extend(texts)
        return of_texts(side, texts)

    monkeypatch.setattr(tokenize.Side, "tokenise", noting)
    first = encode_task(model, task, batch_size=64)
    assert set(task.docs) <= set(seen)
    seen.clear()
    second = encode_task(model, task, batch_size=64)
    assert not {*task.docs, *task.queries} & set(seen)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    encode_task(model, replace(task, docs=[*task.docs[:-1], "w1 w2 w3"]), batch_size=64)
    assert task.docs[0] in seen, "other texts are not these"


def test_inputs_that_are_more_than_token_ids_are_refused(
    tiny_bert: SentenceTransformer, task: RetrievalSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    preprocess = tiny_bert.preprocess

    def with_positions(texts: list[str], **options: Any) -> dict[str, Any]:
        output = dict(preprocess(texts, **options))
        return output | {"position_ids": torch.ones_like(output["input_ids"])}

    monkeypatch.setattr(tiny_bert, "preprocess", with_positions)
    with pytest.raises(MixfluenceError, match="'position_ids'"):
        encode_task(tiny_bert, task, batch_size=64)


@given(lengths=st.lists(st.integers(0, 50), max_size=40), batch_size=st.integers(1, 6))
def test_batches_cover_all_texts_with_no_more_tokens_than_the_first_may_have(
    lengths: list[int], batch_size: int
) -> None:
    batches = _batches(np.array(lengths, np.int64), batch_size)
    assert sorted(place for batch in batches for place in batch.tolist()) == list(range(len(lengths)))
    for batch in batches[:-1]:
        assert len(batch) >= batch_size
    for batch in batches:
        assert len(batch) * max(1, *(lengths[place] for place in batch)) <= batch_size * max(1, *lengths)

"""Cached embeddings of rows.

- The vector of a row is that of its anchor, of its positive, or the normalised mean of both.
- Vectors equal those of `encode_query` and `encode_document` of sentence-transformers, also for encoders whose inputs
  only it can prepare.
- Chunks do not change the result, on one core or on several; equal texts of a chunk are encoded once.
- Token ids are not cached.
- Rows are encoded again only if they or anything about the encoder changed.
- A text without tokens has a finite vector; vectors that are not finite are refused, and no file is written.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

from mixfluence import embedding
from mixfluence.clustering import tree
from mixfluence.clustering.tree import Points
from mixfluence.data import tokenize
from mixfluence.data.cache import cache_root
from mixfluence.data.rows import Row
from mixfluence.embedding import Embedder, Texts
from mixfluence.encoders import load_encoder
from mixfluence.errors import MixfluenceError
from tests.clustering.topics import rows_on, topic_encoder
from tests.conftest import row_set

pytestmark = pytest.mark.slow

HALF = 1e-3  # what 16 bits keep of a number below 1


def count_texts(encoder: SentenceTransformer) -> list[int]:
    """Return a list to which every forward pass adds its number of texts."""
    passes: list[int] = []

    def note(module: Any, inputs: tuple[dict[str, Any], ...], output: Any) -> None:
        passes.append(len(output["sentence_embedding"]))

    encoder[0].register_forward_hook(note)
    return passes


def files() -> list[Path]:
    return sorted((cache_root() / "embeddings").glob("*/*.npy"))


def test_the_vector_of_a_row_is_half_way_between_its_texts() -> None:
    encoder = topic_encoder()
    with torch.no_grad():
        encoder[0].embedding.weight[1:4] = torch.tensor(
            [[9.0, 0, 0, 0, 0, 0], [0, 0.5, 0, 0, 0, 0], [0, 0, 2, 0, 0, 0]]
        )
    rows = row_set(Row("a0", "a1"), Row("a2", "a2"))
    diagonal = 0.5**0.5
    expected: dict[Texts, list[list[float]]] = {
        "both": [[diagonal, diagonal, 0], [0, 0, 1]],
        "query": [[1, 0, 0], [0, 0, 1]],
        "passage": [[0, 1, 0], [0, 0, 1]],
    }
    for texts, vectors in expected.items():
        found = Embedder(encoder, texts).vectors(rows)
        assert found.dtype == np.float16
        assert isinstance(found.base, np.memmap)
        np.testing.assert_allclose(found[:, :3], vectors, rtol=0, atol=HALF)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_chunks_do_not_change_the_result(
    size: int, tiny_bert: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = row_set(*(Row(f"w{i}", " ".join(f"w{i + k}" for k in range(1 + i % 4))) for i in range(7)))
    whole = np.array(Embedder(tiny_bert, "both").vectors(rows))
    files()[0].unlink()
    monkeypatch.setattr(embedding, "ROWS_PER_CHUNK", size)
    np.testing.assert_allclose(Embedder(tiny_bert, "both").vectors(rows), whole, rtol=0, atol=HALF)
    assert np.linalg.matrix_rank(whole.astype(np.float32)) > 1


def assert_vectors_equal_those_of_sentence_transformers(encoder: SentenceTransformer) -> None:
    rows = row_set(*(Row(f"w{i} w{i * 7 % 90}", " ".join(f"w{i + k}" for k in range(1 + i % 19))) for i in range(20)))
    both = encoder.encode_query(rows.rows["anchor"], normalize_embeddings=True)
    both = both + encoder.encode_document(rows.rows["positive"], normalize_embeddings=True)
    expected = both / np.linalg.norm(both, axis=1, keepdims=True)
    encoder.train()
    np.testing.assert_allclose(Embedder(encoder, "both").vectors(rows), expected, rtol=0, atol=HALF)
    assert encoder.training


def test_vectors_equal_those_of_sentence_transformers(tiny_bert: SentenceTransformer) -> None:
    tiny_bert.prompts = {"query": "w9 ", "passage": "w8 w7 "}
    assert_vectors_equal_those_of_sentence_transformers(tiny_bert)


@pytest.mark.parametrize("chunks_per_worker", [1, 1_000], ids=["on all cores", "on one"])
def test_chunks_encoded_on_all_cores_keep_their_rows_and_no_tokens(
    tiny_bert: SentenceTransformer, monkeypatch: pytest.MonkeyPatch, chunks_per_worker: int
) -> None:
    monkeypatch.setattr(tokenize, "CHUNKS_PER_WORKER", chunks_per_worker)
    monkeypatch.setattr(embedding, "ROWS_PER_CHUNK", 3)
    rows = row_set(*(Row(f"w{20 + i}", f"w{20 + 2 * i} w1") for i in range(7)))
    embedder = Embedder(tiny_bert, "both")
    found = np.array(embedder.vectors(rows))
    monkeypatch.setattr(embedding, "ROWS_PER_CHUNK", 100)
    for file in files():
        file.unlink()
    np.testing.assert_allclose(found, embedder.vectors(rows), rtol=0, atol=HALF)
    assert not (cache_root() / "tokens").exists()


def test_equal_texts_of_a_chunk_are_encoded_once() -> None:
    encoder = topic_encoder()
    passes = count_texts(encoder)
    rows = row_set(Row("a0", "b0"), Row("a1", "b0"), Row("a0", "b0"), Row("a0", "b1"))
    vectors = Embedder(encoder, "both").vectors(rows)
    assert passes == [2, 2]
    np.testing.assert_array_equal(vectors[0], vectors[2])
    assert (vectors[0] != vectors[1]).any()
    assert (vectors[0] != vectors[3]).any()


def test_rows_are_encoded_once_by_encoders_that_are_equal() -> None:
    one, same = topic_encoder(), topic_encoder()
    passes = count_texts(same)
    first = Embedder(one, "both").vectors(rows_on("aabb"))
    times = [file.stat().st_mtime_ns for file in files()]
    np.testing.assert_array_equal(Embedder(same, "both").vectors(rows_on("aabb")), first)
    assert passes == []
    assert [file.stat().st_mtime_ns for file in files()] == times


def change_weight(encoder: SentenceTransformer) -> None:
    with torch.no_grad():
        next(encoder.parameters())[7, 3] += 1e-3


def change_pooling(encoder: SentenceTransformer) -> None:
    encoder[1] = Pooling(16, "cls")


@pytest.mark.parametrize(
    "change",
    [
        change_weight,
        change_pooling,
        lambda encoder: encoder.prompts.update(query="w5"),
        lambda encoder: setattr(encoder, "truncate_dim", 4),
        lambda encoder: setattr(encoder[0], "document_length", 3),
    ],
)
def test_another_encoder_has_its_own_vectors(
    change: Callable[[SentenceTransformer], None], tiny_bert: SentenceTransformer
) -> None:
    rows = row_set(Row("w1 w2", "w3 w4 w5 w6"), Row("w7", "w8"))
    before, key = np.array(Embedder(tiny_bert, "both").vectors(rows)), Embedder(tiny_bert, "both").key(rows)
    change(tiny_bert)
    after = Embedder(tiny_bert, "both")
    assert after.key(rows) != key
    assert after.vectors(rows).shape != before.shape or (after.vectors(rows) != before).any()


def test_the_key_covers_rows_and_options_but_not_the_path_of_the_model(
    tiny_bert: SentenceTransformer, tmp_path: Path
) -> None:
    one, other = row_set(Row("w1", "w2")), row_set(Row("w1", "w3"))
    choices: tuple[Texts, ...] = ("both", "query", "passage")
    keys = [
        embedder.key(rows) for embedder in (Embedder(tiny_bert, texts) for texts in choices) for rows in (one, other)
    ]
    assert len(set(keys)) == 6
    tiny_bert.save_pretrained(str(tmp_path))
    moved = load_encoder(str(tmp_path), device="cpu")
    assert Embedder(moved, "both").key(one) == keys[0]


def test_a_text_without_tokens_has_a_finite_vector() -> None:
    vectors = Embedder(topic_encoder(), "both").vectors(row_set(Row("", ""), Row("a1", "")))
    np.testing.assert_array_equal(vectors[0], 0)
    assert np.linalg.norm(vectors[1].astype(np.float32)) == pytest.approx(1, abs=HALF)


def test_vectors_that_are_not_finite_are_refused_and_leave_no_file() -> None:
    encoder = topic_encoder()
    with torch.no_grad():
        encoder[0].embedding.weight[1] = torch.nan
    with pytest.raises(MixfluenceError, match="not finite"):
        Embedder(encoder, "both").vectors(rows_on("aaaaaaaaaaaaaaaaaaaaaaaa"))
    assert files() == []


def test_points_of_several_files_are_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "ROWS_PER_CHUNK", 3)
    table = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float16)
    points = Points([table[:5], table[5:6], table[6:]])
    assert len(points) == 12
    for rows in ([0, 4, 5, 6, 11], [5], [7, 8], list(range(12))):
        np.testing.assert_array_equal(points.take(np.array(rows)), table[rows])
    pieces = list(points.chunks())
    assert [(rows.start, rows.stop) for rows, _ in pieces] == [(0, 3), (3, 5), (5, 6), (6, 9), (9, 12)]
    np.testing.assert_array_equal(np.concatenate([chunk for _, chunk in pieces]), table)
    assert all(chunk.dtype == np.float32 for _, chunk in pieces)

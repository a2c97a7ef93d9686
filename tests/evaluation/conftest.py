"""A tiny random encoder and a tiny task, quick enough for every test."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import BertConfig, BertModel, BertTokenizerFast

from mixfluence.data.retrieval import RetrievalSet

WORDS = [f"word{i}" for i in range(60)]


@pytest.fixture
def task() -> RetrievalSet:
    rng = random.Random(3)
    docs = [" ".join(rng.choices(WORDS, k=rng.randint(3, 12))) for _ in range(80)]
    positives = [rng.sample(range(80), rng.randint(1, 3)) for _ in range(20)]
    return RetrievalSet(
        name="tiny",
        query_ids=[f"q{i}" for i in range(20)],
        queries=[" ".join(docs[chosen[0]].split()[:3]) for chosen in positives],
        doc_ids=[f"d{i}" for i in range(80)],
        docs=docs,
        qrels={f"q{i}": {f"d{doc}": 1 for doc in chosen} for i, chosen in enumerate(positives)},
    )


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def model(model_folder: Path) -> SentenceTransformer:
    transformer = Transformer(str(model_folder))
    pooling = Pooling(transformer.get_embedding_dimension())
    return SentenceTransformer(modules=[transformer, pooling], device="cpu")

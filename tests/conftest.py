"""Shared by all tests: no network, no user's cache, and encoders small enough to build in milliseconds."""

from __future__ import annotations

import gc
import logging
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Threads cost more than they save on encoders this small, above all when tests run side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from mixfluence.data.rows import Row, RowSet, arrow_schema, fingerprint

# The process that only hands tests to the workers reads this file too, and should not wait for the libraries.
if TYPE_CHECKING:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer

WORDS = [f"w{number}" for number in range(200)]

# A busy machine is no reason to fail, and a failure should come back when the test is run again.
settings.register_profile("mixfluence", deadline=None, derandomize=True)
settings.load_profile("mixfluence")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Before xdist reads the groups: one worker has all tests that need the runs, so that they are made once.
    for item in items:
        if "runs" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("runs"))


def pytest_collection_finish() -> None:
    # The Trainer collects garbage after every training, which takes a quarter of a second if all modules are scanned.
    gc.freeze()


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders that do not exist yet, one for each test."""
    folder = tmp_path_factory.mktemp("caches")
    return (folder / str(number) for number in count())


@pytest.fixture(autouse=True)
def own_cache(caches: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    # Beside the test's own folder, which some tests read as a folder of data.
    monkeypatch.setenv("MIXFLUENCE_CACHE", str(next(caches)))


@pytest.fixture(autouse=True)
def own_log(monkeypatch: pytest.MonkeyPatch) -> None:
    # The command line directs the log to the terminal, where `caplog` of a later test would not see it.
    ours = logging.getLogger("mixfluence")
    for name in ("level", "handlers", "propagate"):
        monkeypatch.setattr(ours, name, getattr(ours, name))


@pytest.fixture(scope="session")
def tiny_bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer BERT with random weights and a vocabulary of the words w0 .. w199, as files."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-bert")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def tiny_bert(tiny_bert_folder: Path) -> SentenceTransformer:
    """A fresh transformer encoder with dropout, mean pooling and lengths 8 and 16."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    transformer = Transformer(str(tiny_bert_folder), query_length=8, document_length=16)
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode="mean")
    return SentenceTransformer(modules=[transformer, pooling], device="cpu")


@pytest.fixture
def make_static() -> Callable[[], SentenceTransformer]:
    """Builds equal static encoders over the words w0 .. w199."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    def make() -> SentenceTransformer:
        tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["[UNK]", *WORDS])}, "[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        torch.manual_seed(0)
        module = StaticEmbedding(tokenizer, embedding_weights=torch.randn(1 + len(WORDS), 8))
        return SentenceTransformer(modules=[module], device="cpu")

    return make


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_bert_folder: Path) -> Path:
    """The folder with the runs of `tests.every_method`, made once for all tests that read them."""
    from tests.every_method import make_runs

    folder = tmp_path_factory.mktemp("runs-of-every-method")
    make_runs(folder, tiny_bert_folder)
    return folder


def rows_in_memory(rows: Iterable[Row]) -> Dataset:
    import pyarrow as pa
    from datasets import Dataset

    return Dataset(pa.Table.from_pylist([row._asdict() for row in rows], arrow_schema()))


def row_set(*rows: Row) -> RowSet:
    """Rows in memory, as a reader would give them."""
    dataset = rows_in_memory(rows)
    return RowSet(dataset, fingerprint(dataset))

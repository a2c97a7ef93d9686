"""Texts on topics that an encoder separates: a word of topic k has a vector close to axis k."""

from __future__ import annotations

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers

from mixfluence.data.rows import Row, RowSet
from tests.conftest import row_set

TOPICS, WORDS_PER_TOPIC, DIMENSIONS = "abcd", 10, 6
VOCABULARY = [f"{topic}{number}" for topic in TOPICS for number in range(WORDS_PER_TOPIC)]


def topic_encoder() -> SentenceTransformer:
    """Return an encoder of the words a0 .. d9; cosines within a topic are above 0.9, across topics below 0.3."""
    vectors = np.repeat(np.eye(len(TOPICS), DIMENSIONS), WORDS_PER_TOPIC, axis=0)
    vectors += np.random.default_rng(0).uniform(-0.08, 0.08, vectors.shape)
    table = torch.tensor(np.vstack([np.zeros(DIMENSIONS), vectors]), dtype=torch.float32)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["[UNK]", *VOCABULARY])}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=table)], device="cpu")


def rows_on(topics: str, seed: int = 0) -> RowSet:
    """Return one row per letter, whose anchor and positive are words of that topic."""
    words = np.random.default_rng([seed, *topics.encode()]).integers(WORDS_PER_TOPIC, size=(len(topics), 2))
    return row_set(*(Row(f"{topic}{a}", f"{topic}{p}") for topic, (a, p) in zip(topics, words, strict=True)))


def topics_of(rows: RowSet) -> str:
    """Return the topic of each row."""
    return "".join(anchor[0] for anchor in rows.rows["anchor"])

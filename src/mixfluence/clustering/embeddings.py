"""Rows become unit vectors, encoded once into memory-mapped files that later runs open instead.

A file is keyed by the rows' content and by all that decides a vector: weights, modules, tokenizer, prompts.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
import xxhash
from datasets import Dataset
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from mixfluence.atomic import replacing
from mixfluence.data.layout import Tokeniser
from mixfluence.data.rows import RowSet, cache_root
from mixfluence.errors import MixfluenceError

logger = logging.getLogger(__name__)
Texts = Literal["both", "query", "passage"]
Matrix = NDArray[np.float32]

CACHE_VERSION = 1
ROWS_PER_CHUNK = 8_192
TEXTS_PER_CALL = 256


class Embedder:
    """An encoder bound to the texts of a row that are to be encoded.

    Args:
        encoder: Any text encoder, with the prompts and lengths it has.
        texts: A row's anchor, its positive, or the direction half-way between both.
    """

    def __init__(self, encoder: SentenceTransformer, texts: Texts) -> None:
        self._encoder = encoder
        self._sides: dict[str, Callable[..., Any]] = {}
        if texts != "passage":
            self._sides["anchor"] = encoder.encode_query
        if texts != "query":
            self._sides["positive"] = encoder.encode_document
        self._identity = f"{texts}-{_identity(encoder)}"

    def key(self, rows: RowSet) -> str:
        """Return what names the vectors of these rows in the cache."""
        return xxhash.xxh3_128_hexdigest(f"{CACHE_VERSION}-{self._identity}-{rows.fingerprint}".encode())

    def vectors(self, rows: RowSet) -> NDArray[np.float16]:
        """Return one unit vector per row, on disk."""
        path = cache_root() / "embeddings" / f"{self.key(rows)}.npy"
        if not path.exists():
            logger.info("encoding %d rows to cluster them", len(rows))
            with replacing(path) as temporary:
                shape = (len(rows), self._encoder.get_embedding_dimension())
                file = np.lib.format.open_memmap(temporary, "w+", np.float16, shape)
                for start, chunk in self._encode(rows.rows):
                    file[start : start + len(chunk)] = chunk
                file.flush()
        vectors: NDArray[np.float16] = np.load(path, mmap_mode="r", allow_pickle=False)
        return vectors

    def _encode(self, rows: Dataset) -> Iterator[tuple[int, Matrix]]:
        chunks = rows.select_columns(list(self._sides)).iter(ROWS_PER_CHUNK)
        for number, batch in enumerate(chunks):
            sides = [_encode_texts(encode, batch[column]) for column, encode in self._sides.items()]
            chunk = _unit(np.sum(sides, axis=0))
            if not np.isfinite(chunk).all():
                raise MixfluenceError("the encoder gives vectors that are not finite, which cannot be clustered")
            yield number * ROWS_PER_CHUNK, chunk


class Points:
    """The vectors of several datasets as one table that is read in pieces."""

    def __init__(self, vectors: Sequence[NDArray[np.float16]]) -> None:
        self._vectors = vectors
        self.starts = np.cumsum([0, *map(len, vectors)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, rows: NDArray[np.int64]) -> Matrix:
        """Return the vectors of these rows, whose numbers must ascend."""
        cuts = np.searchsorted(rows, self.starts)
        parts = [
            vectors[rows[start:stop] - first]
            for vectors, first, start, stop in zip(self._vectors, self.starts[:-1], cuts[:-1], cuts[1:], strict=True)
        ]
        return np.concatenate(parts).astype(np.float32)

    def chunks(self) -> Iterator[tuple[slice, Matrix]]:
        """Yield all vectors in order, each piece after the rows it holds."""
        for vectors, first in zip(self._vectors, self.starts[:-1].tolist(), strict=True):
            for start in range(0, len(vectors), ROWS_PER_CHUNK):
                chunk = vectors[start : start + ROWS_PER_CHUNK].astype(np.float32)
                yield slice(first + start, first + start + len(chunk)), chunk


def _encode_texts(encode: Callable[..., Any], texts: list[str]) -> Matrix:
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    vectors: Matrix = encode(
        list(places), batch_size=TEXTS_PER_CALL, normalize_embeddings=True, show_progress_bar=False
    )
    return vectors[[places[text] for text in texts]].astype(np.float32)


def _unit(vectors: Matrix) -> Matrix:
    """Scale vectors to length 1; one of length 0, of a text without tokens, stays as it is."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1), np.float32)


def _identity(encoder: SentenceTransformer) -> str:
    """Hash all that decides an encoder's vectors, wherever it was loaded from."""
    tokeniser = Tokeniser(encoder)
    sides = [tokeniser.side(task, "").fingerprint for task in ("query", "document")]
    facts = [sides, str(encoder), encoder.prompts, encoder.default_prompt_name, encoder.truncate_dim]
    digest = xxhash.xxh3_128(json.dumps(facts, sort_keys=True).encode())
    for name, weights in encoder.state_dict().items():
        digest.update(f"{name} {weights.dtype} {tuple(weights.shape)}".encode())
        digest.update(weights.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()

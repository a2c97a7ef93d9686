"""Embeddings of rows, computed once and cached in memory-mapped files."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from sentence_transformers import SentenceTransformer

from mixfluence.data.cache import cached
from mixfluence.data.rows import RowSet
from mixfluence.data.tokenize import Task, Tokeniser, in_parallel, tokenise_unkept
from mixfluence.data.tokens import TokenTable, open_array
from mixfluence.embedding import TextEncoder, computes_in_bfloat16, text_encoders
from mixfluence.encoders import BIDIRECTIONAL
from mixfluence.errors import MixfluenceError

logger = logging.getLogger(__name__)
Texts = Literal["both", "query", "passage"]
Matrix = NDArray[np.float32]
# For each column its distinct texts, and the position among them of each row's text.
Chunk = list[tuple[TokenTable, NDArray[np.int64]]]

CACHE_VERSION = 1
FILE = "vectors.npy"
ROWS_PER_CHUNK = 2_048
TEXTS_PER_CALL = 256
COLUMNS: dict[Texts, dict[str, Task]] = {
    "both": {"anchor": "query", "positive": "document"},
    "query": {"anchor": "query"},
    "passage": {"positive": "document"},
}


class Embedder:
    """Embeds rows by their anchor, their positive, or the normalised mean of both.

    The prompt is that of all texts; None for the encoder's own prompts.
    Runs in bfloat16 on GPUs that support it, because the files have 16-bit numbers anyway.
    """

    def __init__(self, encoder: SentenceTransformer, texts: Texts, prompt: str | None = None) -> None:
        self._encoder, self._prompt = encoder, prompt
        self._columns = COLUMNS[texts]
        self._half = computes_in_bfloat16(encoder.device)
        self._identity = f"{texts}-{_identity(encoder)}{'-bfloat16' if self._half else ''}"
        if prompt is not None:
            self._identity += f"-{json.dumps(prompt)}"

    def key(self, rows: RowSet) -> str:
        """Return the cache key of the vectors of these rows."""
        return xxhash.xxh3_128_hexdigest(f"{CACHE_VERSION}-{self._identity}-{rows.fingerprint}".encode())

    def vectors(self, rows: RowSet) -> NDArray[np.float16]:
        """Return one unit vector per row, memory-mapped."""

        def build(folder: Path) -> None:
            logger.info("encoding %d rows", len(rows))
            starts = range(0, len(rows), ROWS_PER_CHUNK)
            chunks = in_parallel(len(starts), lambda number: self._prepare(rows, starts[number]))
            console = Console(stderr=True)
            shape = (len(rows), self._encoder.get_embedding_dimension())
            file = np.lib.format.open_memmap(folder / FILE, "w+", np.float16, shape)
            with torch.autocast("cuda", torch.bfloat16, enabled=self._half):
                bar: Any = {"console": console, "transient": True, "disable": not console.is_terminal}
                for start, chunk in track(zip(starts, chunks, strict=True), "encoding", len(starts), **bar):
                    file[start : start + ROWS_PER_CHUNK] = _encode(chunk, list(self._sides.values()))
            file.flush()

        return cached("embeddings", self.key(rows), lambda folder: open_array(folder / FILE), build)

    def _prepare(self, rows: RowSet, start: int) -> Chunk:
        batch = rows.rows.select_columns(list(self._sides))[start : start + ROWS_PER_CHUNK]
        chunk = []
        for column, encoder in self._sides.items():
            numbers = {text: number for number, text in enumerate(dict.fromkeys(batch[column]))}
            places = np.array([numbers[text] for text in batch[column]], np.int64)
            chunk.append((tokenise_unkept(list(numbers), encoder.side), places))
        return chunk

    @cached_property
    def _sides(self) -> dict[str, TextEncoder]:
        encoders = text_encoders(self._encoder, dict.fromkeys(self._columns.values(), self._prompt))
        return {column: encoders[task] for column, task in self._columns.items()}


class Points:
    """The vectors of several datasets as one table that is read in chunks."""

    def __init__(self, vectors: Sequence[NDArray[np.float16]]) -> None:
        self._vectors = vectors
        self.starts = np.cumsum([0, *map(len, vectors)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, rows: NDArray[np.int64]) -> Matrix:
        """Return the vectors of these rows, which must be in ascending order."""
        cuts = np.searchsorted(rows, self.starts)
        parts = [
            vectors[rows[start:stop] - first]
            for vectors, first, start, stop in zip(self._vectors, self.starts[:-1], cuts[:-1], cuts[1:], strict=True)
        ]
        return np.concatenate(parts).astype(np.float32)

    def chunks(self) -> Iterator[tuple[slice, Matrix]]:
        """Yield all vectors in order, in chunks with their rows."""
        for vectors, first in zip(self._vectors, self.starts[:-1].tolist(), strict=True):
            for start in range(0, len(vectors), ROWS_PER_CHUNK):
                chunk = vectors[start : start + ROWS_PER_CHUNK].astype(np.float32)
                yield slice(first + start, first + start + len(chunk)), chunk


def _encode(chunk: Chunk, encoders: Sequence[TextEncoder]) -> Matrix:
    """Return the unit vectors of a chunk's rows."""
    # All columns are queued on the device before waiting for the first.
    found = [
        encoder.encode(texts, batch_size=TEXTS_PER_CALL) for encoder, (texts, _) in zip(encoders, chunk, strict=True)
    ]
    sides = [vectors.float().cpu().numpy()[places] for vectors, (_, places) in zip(found, chunk, strict=True)]
    vectors = np.sum(sides, axis=0)
    if not np.isfinite(vectors).all():
        raise MixfluenceError("embeddings of the encoder are not finite")
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    # Zero vectors, of texts without tokens, stay zero.
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1), np.float32)


def _identity(encoder: SentenceTransformer) -> str:
    """Hash everything that determines an encoder's vectors, independent of where it was loaded from."""
    tokeniser = Tokeniser(encoder)
    inputs = [tokeniser.side(task, "").fingerprint for task in COLUMNS["both"].values()]
    attention = getattr(getattr(encoder[0], "config", None), BIDIRECTIONAL, None)
    facts = [inputs, attention, str(encoder), encoder.prompts, encoder.default_prompt_name, encoder.truncate_dim]
    digest = xxhash.xxh3_128(json.dumps(facts, sort_keys=True).encode())
    for name, weights in encoder.state_dict().items():
        digest.update(f"{name} {weights.dtype} {tuple(weights.shape)}".encode())
        digest.update(weights.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()

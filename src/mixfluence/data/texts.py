"""A list of texts as token ids: what an encoder reads instead of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from mixfluence.data.layout import Side
from mixfluence.data.token_cache import cached, in_parallel
from mixfluence.data.tokens import TokenTable

CACHE_VERSION = 1
TEXTS_PER_CHUNK = 1_000
NAME = "text"
Ids = tuple[NDArray[np.int32], NDArray[np.int64]]


def tokenise_texts(texts: Sequence[str], side: Side) -> TokenTable:
    """Return the token ids of texts in their order, from the cache when texts and tokenizer are known.

    For rows of a training set use `tokenise`, which keeps equal texts once and knows which row has which; for texts
    that are encoded only once `tokenise_unkept`.

    Args:
        texts: Queries or passages.
        side: The tokenizer with its prompt and its length.
    """
    digest = xxhash.xxh3_128()
    for text in texts:
        content = text.encode()
        digest.update(b"%d " % len(content))
        digest.update(content)
    key = f"texts-{CACHE_VERSION}-{digest.hexdigest()}-{side.fingerprint}"
    return cached(key, partial(TokenTable.open, side=NAME, layout=side.layout), partial(_build, texts, side))[0]


def tokenise_unkept(texts: Sequence[str], side: Side) -> TokenTable:
    """Return the token ids of texts in memory, made on this core; for texts that come back use `tokenise_texts`.

    Args:
        texts: Queries or passages.
        side: The tokenizer with its prompt and its length.
    """
    ids, lengths = side.tokenise(list(texts))
    return TokenTable(side.layout, np.cumsum([0, *lengths]), ids)


def _build(texts: Sequence[str], side: Side, folder: Path) -> None:
    lengths = [np.zeros(1, np.int64)]
    with (folder / f"{NAME}_ids.bin").open("wb") as file:
        for ids, sizes in in_parallel(_Chunks(texts, side)):
            ids.tofile(file)
            lengths.append(sizes)
    np.save(folder / f"{NAME}_starts.npy", np.cumsum(np.concatenate(lengths)))


class _Chunks:
    """Token ids of the texts, a piece of the list at a time."""

    def __init__(self, texts: Sequence[str], side: Side) -> None:
        self._texts = texts
        self._side = side

    def __len__(self) -> int:
        return math.ceil(len(self._texts) / TEXTS_PER_CHUNK)

    def __getitem__(self, number: int) -> Ids:
        start = number * TEXTS_PER_CHUNK
        return self._side.tokenise(list(self._texts[start : start + TEXTS_PER_CHUNK]))

"""Tokenises text once, into memory-mapped files that later runs open.

A batch from the cache equals the batch that sentence-transformers would have made: texts are tokenised by the model's
own `preprocess`, or by the tokenizer underneath where samples show that it gives the same ids in half the time.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from itertools import compress
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import pandas
import torch
import xxhash
from datasets import Dataset
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder
from sentence_transformers.base.model import BaseModel
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader

from mixfluence.data.cache import cached
from mixfluence.data.rows import RowSet, text_key
from mixfluence.data.tokens import Ids, SelectedRows, TokenisedRows, TokenLayout, TokenTable, write_tables
from mixfluence.data.words import WordTable
from mixfluence.errors import DataError, MixfluenceError

ROWS_CACHE_VERSION, TEXTS_CACHE_VERSION = 4, 2
ROWS_PER_CHUNK, TEXTS_PER_CHUNK, TEXTS_PER_CALL = 500, 1_000, 256
TEXTS_COMPARED = 8  # of each chunk, the shortest and the longest among them
CHUNKS_PER_WORKER = 2  # fewer are not worth the start of a worker
# A short text beside one that exceeds any maximum length: the output has padding and shows the truncation.
SENTENCE = "the quick brown fox jumps over the lazy dog "
PROBE = ["a", SENTENCE * 2_000]
# About ten times as fast, and shows the same if the last two are truncated to the same ids.
SHORT_PROBE = ["a", SENTENCE * 64, SENTENCE * 128]
Task = Literal["query", "document"]
Advance = Callable[[int], object]
Chunk = TypeVar("Chunk")
# Shared, because a process can map only some ten thousand files and thousands of clusters would open more.
_shared: WeakValueDictionary[str, TokenisedRows] = WeakValueDictionary()


class Prompts(NamedTuple):
    """Instructions prepended to a dataset's queries and passages."""

    query: str = ""
    document: str = ""


class Tokeniser:
    """A model's own `preprocess`; its layout is determined once per side and prompt."""

    def __init__(self, model: BaseModel) -> None:
        self.model = model
        tokenizer = model.tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if hasattr(backend, "to_str"):
            self.definition = _hash_definition(backend.to_str(), getattr(tokenizer, "truncation_side", None))
        elif hasattr(tokenizer, "get_vocab"):
            self.definition = _hash({"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()})
        else:
            raise MixfluenceError(f"texts of a {type(tokenizer).__name__} cannot be cached as token ids")
        self._sides: dict[tuple[Task, str], Side] = {}

    @cached_property  # copied when the first text is tokenised, which may never happen
    def words(self) -> WordTable | None:
        """A copy of the tokenizer underneath, if there is one, for all sides."""
        backend = getattr(self.model.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return None
        copy = Tokenizer.from_str(backend.to_str())
        copy.no_padding()
        copy.no_truncation()
        return WordTable(copy)

    def side(self, task: Task, prompt: str) -> Side:
        """Return the tokenizer of queries or documents with a prompt."""
        if (task, prompt) not in self._sides:
            pairs = isinstance(self.model, CrossEncoder)
            side = TextSide(prompt) if pairs else Side(self, task, prompt)
            self._sides[task, prompt] = side
        return self._sides[task, prompt]


class Side:
    """The tokenizer with a task and a prompt; the fingerprint differs if the same text gives other ids."""

    def __init__(self, tokeniser: Tokeniser, task: Task, prompt: str) -> None:
        self._tokeniser = tokeniser
        self._model = tokeniser.model
        self._options = {"task": task, "prompt": prompt or None}
        self.layout, probe_ids, self._longest = self._find_layout()
        self.fingerprint = _hash([tokeniser.definition, asdict(self.layout), probe_ids, prompt])

    def tokenise(self, texts: list[str]) -> Ids:
        """Return the ids of all texts in one array, and each text's length in tokens."""
        if not texts:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        by_length = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        sample = [texts[by_length[place]] for place in np.linspace(0, len(texts) - 1, TEXTS_COMPARED).astype(int)]
        ids_of = self._encode(texts) if self._is_exact(sample) else self._preprocess(texts, by_length)
        return np.concatenate(ids_of), np.array([len(ids) for ids in ids_of], np.int64)

    def _is_exact(self, texts: list[str]) -> bool:
        """Return whether the tokenizer underneath gives the ids of `preprocess`."""
        if self._words is None:
            return False
        pairs = zip(self._encode(texts), self._preprocess(texts, range(len(texts))), strict=True)
        return all(np.array_equal(first, second) for first, second in pairs)

    def _encode(self, texts: list[str]) -> list[NDArray[np.int32]]:
        """Return the ids of each text by the tokenizer underneath, without padding."""
        assert self._words is not None
        left = self._model.tokenizer.truncation_side == "left"
        prompt = self._options["prompt"] or ""
        return self._words.encode([prompt + text for text in texts], self._longest, truncate_left=left)

    def _preprocess(self, texts: list[str], by_length: Sequence[int]) -> list[NDArray[np.int32]]:
        """Return the ids of each text by the model's own `preprocess`."""
        ids_of = [np.empty(0, np.int32)] * len(texts)
        # Texts of similar length together: a call is padded to its longest text, which takes most of its time.
        for start in range(0, len(texts), TEXTS_PER_CALL):
            places = by_length[start : start + TEXTS_PER_CALL]
            output = self._model.preprocess([texts[place] for place in places], **self._options)
            ids = output["input_ids"].numpy().astype(np.int32)
            if self.layout.padded:
                mask = _real_tokens(output).numpy()
                ids, starts = ids[mask], np.cumsum(mask.sum(axis=1))[:-1]
            else:
                starts = output["offsets"].numpy()[1:]
            for place, own in zip(places, np.split(ids, starts), strict=True):
                ids_of[place] = own
        return ids_of

    @property
    def _words(self) -> WordTable | None:
        return self._tokeniser.words if self.layout.padded else None

    def _find_layout(self) -> tuple[TokenLayout, list[int], int]:
        """Return the layout, the ids of two texts, and the length of the longest, which is truncated."""
        output = self._probe()
        ids: Tensor = output.pop("input_ids", None)
        constants = {name: output.pop(name) for name in list(output) if not isinstance(output[name], Tensor)}
        constants["task"] = self._options["task"]
        if set(output) == {"offsets"}:
            return TokenLayout(False, 0, False, [], constants), ids.tolist(), len(ids)
        mask = _real_tokens(output)
        for name in ("attention_mask", "query_expansion_positions"):
            output.pop(name, None)
        unknown = [name for name, value in output.items() if value.any()]
        if ids is None or mask is None or unknown:
            raise MixfluenceError(
                "this model's inputs cannot be cached as token ids "
                f"(features {', '.join(map(repr, unknown or output)) or 'none'}); "
                "load it without flash-attention unpadding, or use a text encoder"
            )
        padding = ~mask[0]
        pad_id = int(ids[0][padding][-1]) if padding.any() else 0
        layout = TokenLayout(True, pad_id, bool(padding[0]), sorted(output), constants, self._expansion())
        return layout, ids[mask].tolist(), int(mask.sum(dim=1).max())

    def _probe(self) -> dict[str, Any]:
        output = self._model.preprocess(SHORT_PROBE, **self._options)
        texts = [output[name] for name in ("input_ids", "attention_mask") if name in output]
        if len(texts) < 2 or not all(torch.equal(features[1], features[2]) for features in texts):
            return dict(self._model.preprocess(PROBE, **self._options))
        rows = {name: value[:2] for name, value in output.items() if isinstance(value, Tensor) and value.ndim == 2}
        return {**output, **rows}

    def _expansion(self) -> dict[str, int] | None:
        """Return how the model fills up short queries, as ColBERT does."""
        config = getattr(self._model[0], "query_expansion", None) if self._options["task"] == "query" else None
        if config is None:
            return None
        empty = self._model.preprocess([""], **self._options)
        filled = int(empty["input_ids"][empty["query_expansion_positions"]][0])
        return {"length": config["length"], "token": filled, "attended": int(config["attend"])}


class TextSide(Side):
    """Keeps the text with its prompt, for cross-encoders: they tokenise a query together with a passage."""

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt
        self.layout = TokenLayout(False, 0, False, [], {}, text=True)
        self.fingerprint = xxhash.xxh3_128_hexdigest(f"text {prompt}".encode())

    def tokenise(self, texts: list[str]) -> Ids:
        """Return the code points of all texts in one array, and each text's length in characters."""
        prompted = [self._prompt + text for text in texts]
        codes = np.frombuffer("".join(prompted).encode("utf-32-le", "surrogatepass"), "<i4").astype(np.int32)
        return codes, np.array([len(text) for text in prompted], np.int64)


def _real_tokens(output: dict[str, Any]) -> Any:
    """Return which positions have tokens of the text, neither padding nor added to a query."""
    mask = output.get("attention_mask")
    added = output.get("query_expansion_positions")
    return mask if mask is None else mask.bool() if added is None else mask.bool() & ~added


def _hash_definition(definition: str, truncation_side: str | None) -> str:
    # Without the truncation and padding at its start, which calls change. Not parsed: vocabularies can be large.
    rest = definition[definition.find('"added_tokens"') :]
    return xxhash.xxh3_128_hexdigest(f"{truncation_side} {rest}".encode())


def _hash(value: Any) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True).encode())


def tokenise(rows: RowSet, tokeniser: Tokeniser, prompts: Prompts, advance: Advance = lambda _: None) -> TokenisedRows:
    """Return a dataset's token ids, from the cache if it has them; `advance` gets numbers of finished rows."""
    query, document = tokeniser.side("query", prompts.query), tokeniser.side("document", prompts.document)
    whole = rows.whole
    key = f"{ROWS_CACHE_VERSION}-{whole.fingerprint}-{query.fingerprint}-{document.fingerprint}"
    tokenised = _shared.get(key) if rows.subset else None
    if tokenised is None:
        missing: list[Path] = []

        def build(folder: Path) -> None:
            missing.append(folder)
            _build_rows(whole, {"query": query, "document": document}, advance, folder)

        _shared[key] = tokenised = cached("tokens", key, TokenisedRows, build)
        if not missing:
            advance(len(whole))
    return SelectedRows(tokenised, rows.subset.places) if rows.subset else tokenised


def tokenise_texts(texts: Sequence[str], side: Side) -> TokenTable:
    """Return the token ids of texts in their order, from the cache if it has them. For rows use `tokenise`."""
    digest = xxhash.xxh3_128()
    for text in texts:
        content = text.encode()
        digest.update(b"%d " % len(content))
        digest.update(content)
    key = f"texts-{TEXTS_CACHE_VERSION}-{digest.hexdigest()}-{side.fingerprint}"
    open_table = partial(TokenTable.open, side="text", layout=side.layout)
    return cached("tokens", key, open_table, partial(_build_texts, texts, side))


def tokenise_unkept(texts: Sequence[str], side: Side) -> TokenTable:
    """Return the token ids of texts that are encoded only once, without the cache."""
    ids, lengths = side.tokenise(list(texts))
    return TokenTable(side.layout, np.cumsum([0, *lengths]), ids)


def in_parallel(count: int, work: Callable[[int], Chunk]) -> DataLoader[Chunk]:
    """Return the results of `work(0)` to `work(count - 1)` in order, on all cores if there are enough of them."""
    workers = min(os.cpu_count() or 1, count // CHUNKS_PER_WORKER)
    # Always forked: a spawned worker would import everything again, the user's script included.
    parallel = workers > 1 and sys.platform == "linux"
    return DataLoader(
        range(count),  # type: ignore[arg-type]  # has a Dataset's methods
        batch_size=None,
        num_workers=workers if parallel else 0,
        multiprocessing_context="fork" if parallel else None,
        collate_fn=work,  # type: ignore[arg-type]  # called in the workers, with a number
        # Threads of the tokenizers library do not survive a fork.
        worker_init_fn=lambda _: os.environ.update(TOKENIZERS_PARALLELISM="false"),
        # Its own generator, so that filling the cache does not change the dropout masks of the run.
        generator=torch.Generator(),
    )


def _build_texts(texts: Sequence[str], side: Side, folder: Path) -> None:
    def tokenise_chunk(number: int) -> dict[str, Ids]:
        start = number * TEXTS_PER_CHUNK
        return {"text": side.tokenise(list(texts[start : start + TEXTS_PER_CHUNK]))}

    write_tables(folder, in_parallel(math.ceil(len(texts) / TEXTS_PER_CHUNK), tokenise_chunk))


def _build_rows(rows: RowSet, sides: dict[str, Side], advance: Advance, folder: Path) -> None:
    """Number the distinct texts in a first pass, and tokenise each once in a second."""
    first, starts = _number_texts(rows.rows, folder)

    def tokenise_chunk(number: int) -> dict[str, Ids]:
        """Tokenise the texts that occur first in these rows."""
        start, stop = number * ROWS_PER_CHUNK, min((number + 1) * ROWS_PER_CHUNK, len(rows))
        batch = rows.rows[start:stop]
        texts = {"query": batch["anchor"], "document": _passages(batch)}
        spans = {"query": slice(start, stop), "document": slice(*starts[[start, stop]])}
        return {
            name: side.tokenise(list(compress(texts[name], first[name][spans[name]]))) for name, side in sides.items()
        }

    def chunks() -> Iterator[dict[str, Ids]]:
        for number, chunk in enumerate(in_parallel(math.ceil(len(rows) / ROWS_PER_CHUNK), tokenise_chunk)):
            yield chunk
            advance(min(ROWS_PER_CHUNK, len(rows) - number * ROWS_PER_CHUNK))

    write_tables(folder, chunks())
    layouts = {name: asdict(side.layout) for name, side in sides.items()}
    (folder / "manifest.json").write_text(json.dumps(layouts), encoding="utf-8")


def _number_texts(rows: Dataset, folder: Path) -> tuple[dict[str, NDArray[np.bool_]], NDArray[np.int64]]:
    """Save which texts each row has; return the texts' first occurrences and the passages' starts."""
    keys: dict[str, list[NDArray[np.uint64]]] = {"anchor": [], "passage": []}
    sizes: list[NDArray[np.int64]] = []
    scores: list[NDArray[np.float32]] = []
    for number, batch in enumerate(rows.iter(ROWS_PER_CHUNK)):
        for stem, texts in ("anchor", batch["anchor"]), ("passage", _passages(batch)):
            keys[stem].append(np.fromiter(map(text_key, texts), np.uint64, len(texts)))
        sizes.append(np.array([1 + len(negatives) for negatives in batch["negatives"]], np.int64))
        scores.append(_flat_scores(batch["scores"], sizes[-1], number * ROWS_PER_CHUNK))
    starts = np.cumsum(np.concatenate([[0], *sizes]), dtype=np.int64)
    first = {}
    for stem, side in ("anchor", "query"), ("passage", "document"):
        found = np.concatenate(keys[stem])
        first[side] = ~pandas.Series(found).duplicated().to_numpy()
        np.save(folder / f"{stem}_keys.npy", found)
        # Distinct texts are numbered in order of first occurrence.
        np.save(folder / f"{stem}s.npy", pandas.factorize(found)[0].astype(np.int32))
    np.save(folder / "passage_starts.npy", starts)
    if any(np.isfinite(part).any() for part in scores):
        np.save(folder / "scores.npy", np.concatenate(scores))
    return first, starts


def _passages(batch: dict[str, list[Any]]) -> list[str]:
    columns = zip(batch["positive"], batch["negatives"], strict=True)
    return [text for positive, negatives in columns for text in (positive, *negatives)]


def _flat_scores(scores: list[list[float]], sizes: NDArray[np.int64], start: int) -> NDArray[np.float32]:
    flat: list[float] = []
    for row, (given, size) in enumerate(zip(scores, sizes.tolist(), strict=True), start):
        if given and len(given) != size:
            raise DataError(f"row {row}: {len(given)} teacher scores for {size} passages")
        flat.extend(given or [np.nan] * size)
    return np.array(flat, np.float32)

"""Token ids of texts from those of their words, each of which is tokenised once.

Most tokenizers split texts at spaces before anything else, so that the ids of a text are those of its words one after
another. Looking words up is about ten times as fast as tokenising them again.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

# Pre-tokenizers that drop spaces, and those that make a space part of the word after it.
SEPARATE, JOINED = ("BertPreTokenizer", "Whitespace", "WhitespaceSplit"), ("ByteLevel", "Metaspace")
# The end of the regular expressions of GPT-2 and its successors, by which a single space begins a word.
LEADING_SPACE = r"\s+(?!\S)"
# Normalizers that treat the characters of a word alike in any text.
BY_CHARACTER = {"BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Precompiled"}
SPACE_BEFORE_WORD = re.compile(r"(?<=\S)(?= \S)")
# Splits a text into words, at most so many times.
Split = Callable[[str, int], list[str]]
# With more than these, the words learned so far are forgotten.
MOST_WORDS, MOST_IDS = 500_000, 5_000_000


class WordTable:
    """A tokenizer that keeps the ids of words. It must neither pad nor truncate."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._split = _splitter(json.loads(tokenizer.to_str()))
        self._prefix, self._suffix = _added(tokenizer)
        self._forget()

    def encode(self, texts: Sequence[str], longest: int, *, truncate_left: bool = False) -> list[NDArray[np.int32]]:
        """Return the ids of each text, of at most `longest` tokens, with the special tokens around it."""
        most = longest - len(self._prefix) - len(self._suffix)
        found: list[NDArray[np.int32] | None] = [None] * len(texts)
        if self._split and texts and not truncate_left:
            found = self._look_up(texts, most, self._split)
        wholes = [text for text, ids in zip(texts, found, strict=True) if ids is None]
        encoded = iter(self._tokenizer.encode_batch_fast(wholes, add_special_tokens=False))
        kept = slice(-most if most else None, None) if truncate_left else slice(most)
        bodies = (np.array(next(encoded).ids[kept], np.int32) if ids is None else ids for ids in found)
        return [np.concatenate([self._prefix, body, self._suffix]) for body in bodies]

    def _forget(self) -> None:
        self._numbers = _Numbers()
        self._ids: NDArray[np.int32] = np.empty(0, np.int32)
        # Where the ids of each word start, and the end.
        self._starts: NDArray[np.int64] = np.zeros(1, np.int64)
        self._uncertain: NDArray[np.bool_] = np.empty(0, np.bool_)

    def _look_up(self, texts: Sequence[str], most: int, split: Split) -> list[NDArray[np.int32] | None]:
        """Return the first ids of each text; None for one that must be tokenised as a whole."""
        if len(self._numbers) > MOST_WORDS or len(self._ids) > MOST_IDS:
            self._forget()
        # One word more than fits shows that a text goes on.
        words = [split(text, most + 1)[: most + 1] for text in texts]
        bounds = np.cumsum([0, *map(len, words)])
        numbers = np.fromiter(map(self._numbers.__getitem__, chain.from_iterable(words)), np.int64, bounds[-1])
        self._learn()
        lengths = self._starts[numbers + 1] - self._starts[numbers]
        ends = np.concatenate([[0], np.cumsum(lengths)])
        ids = self._ids[np.arange(ends[-1]) + np.repeat(self._starts[numbers] - ends[:-1], lengths)]
        starts, stops = ends[bounds[:-1]], ends[bounds[1:]]
        uncertain = np.logical_or.reduceat(self._uncertain[numbers], bounds[:-1])
        # Words without a token may leave room for words that were not looked at.
        uncertain |= (np.diff(bounds) > most) & (stops - starts < most)
        stops = np.minimum(stops, starts + most)
        return [
            None if whole else ids[start:stop]
            for whole, start, stop in zip(uncertain.tolist(), starts.tolist(), stops.tolist(), strict=True)
        ]

    def _learn(self) -> None:
        """Tokenise the words that were seen for the first time."""
        new, self._numbers.new = self._numbers.new, []
        if not new:
            return
        # One call for all words is twice as fast as one for each.
        found = self._tokenizer.encode(new, is_pretokenized=True, add_special_tokens=False)
        lengths = np.bincount(np.array(found.word_ids, np.int64), minlength=len(new))
        self._starts = np.concatenate([self._starts, len(self._ids) + np.cumsum(lengths)])
        self._uncertain = np.concatenate([self._uncertain, [_leans_on_space(word) for word in new]])
        self._ids = np.concatenate([self._ids, np.array(found.ids, np.int32)])


class _Numbers(dict[str, int]):
    """Numbers words in the order of their first lookup; `new` are those since it was last emptied."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[str] = []

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        self.new.append(word)
        return number


def _splitter(definition: dict[str, Any]) -> Split | None:
    """Return how a tokenizer with this definition splits texts into words; None if texts are more than that."""
    parts = _parts(definition["pre_tokenizer"], "pretokenizers")
    kinds = {part["type"] for part in _parts(definition["normalizer"], "normalizers")}
    if not parts or not kinds <= BY_CHARACTER or any(part.get("prepend_scheme") == "first" for part in parts):
        return None
    first = parts[0]
    regex = first["pattern"].get("Regex", "") if first["type"] == "Split" and first["behavior"] == "Isolated" else ""
    whole = first.get("use_regex") is False or first.get("split") is False
    joined = LEADING_SPACE in regex or (first["type"] in JOINED and not whole)
    if not joined and first["type"] not in SEPARATE:
        return None
    for token in definition["added_tokens"]:
        if any(map(str.isspace, token["content"])) or (joined and token["rstrip"]):
            return None
    return SPACE_BEFORE_WORD.split if joined else _at_spaces


def _at_spaces(text: str, most: int) -> list[str]:
    return text.replace("\n", " ").replace("\t", " ").replace("\r", " ").split(" ", most)


def _parts(component: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """Return the parts of a normalizer or pre-tokenizer, which may be a sequence of them."""
    if component is None:
        return []
    return list(component[name]) if component["type"] == "Sequence" else [component]


def _added(tokenizer: Tokenizer) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the special tokens before and after every text."""
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a").ids
    before = next(n for n in range(len(whole)) if whole[n : n + len(bare)] == bare)
    return np.array(whole[:before], np.int32), np.array(whole[before + len(bare) :], np.int32)


def _leans_on_space(word: str) -> bool:
    """Return whether a word begins with a mark, which a normalizer may combine with the space before it."""
    first = word.lstrip(" ")[:1]
    return not first.isascii() and unicodedata.category(first)[0] in "MCS"

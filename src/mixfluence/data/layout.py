"""How a model wants its token ids: learned by asking its `preprocess`, not by knowing its class."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch import Tensor

from mixfluence.errors import MixfluenceError

# Short beside long, so that the answer shows padding; the last is long enough to show any maximum length.
PROBES = [["a", "the quick brown fox jumps over the lazy dog " * times] for times in (64, 256, 2_000)]
TEXTS_PER_CALL = 256
Task = Literal["query", "document"]


@dataclass(frozen=True)
class TokenLayout:
    """The features one side of a batch needs around its token ids.

    Attributes:
        padded: A rectangle with an attention mask, as transformers want it; otherwise one flat run of
            ids with the offset of each text, as static embeddings want it.
        pad_id: Fills the rectangle.
        pad_left: Whether padding stands before the text.
        zeros: Further inputs of the rectangle's shape that are zero for a single text (token types).
        constants: Features that are the same for every batch (task, modality, length of the prompt).
    """

    padded: bool
    pad_id: int
    pad_left: bool
    zeros: list[str]
    constants: dict[str, Any]

    def features(self, texts: list[NDArray[np.int32]]) -> dict[str, Any]:
        """Return the model's input for these texts."""
        lengths = np.array([len(ids) for ids in texts], np.int64)
        if not self.padded:
            flat = np.concatenate(texts) if texts else np.empty(0, np.int32)
            offsets = np.cumsum(lengths) - lengths
            ids = torch.from_numpy(flat.astype(np.int64))
            return {"input_ids": ids, "offsets": torch.from_numpy(offsets), **self.constants}
        width = int(lengths.max(initial=0))
        rectangle = np.full((len(texts), width), self.pad_id, np.int64)
        mask = np.zeros((len(texts), width), np.int64)
        for row, text in enumerate(texts):
            place = slice(width - len(text), width) if self.pad_left else slice(0, len(text))
            rectangle[row, place] = text
            mask[row, place] = 1
        tensors = {"input_ids": torch.from_numpy(rectangle), "attention_mask": torch.from_numpy(mask)}
        tensors |= {name: torch.zeros_like(tensors["input_ids"]) for name in self.zeros}
        return {**tensors, **self.constants}


class Tokeniser:
    """A model's own `preprocess`, remembered per side and prompt so that many datasets share one answer."""

    def __init__(self, model: SentenceTransformer) -> None:
        self._model = model
        definition = json.dumps(_tokenizer_definition(model), sort_keys=True)
        self._definition = xxhash.xxh3_128_hexdigest(definition.encode())
        self._sides: dict[tuple[Task, str], Side] = {}

    def side(self, task: Task, prompt: str) -> Side:
        """Return queries or documents under a prompt."""
        if (task, prompt) not in self._sides:
            self._sides[task, prompt] = Side(self._model, task, prompt, self._definition)
        return self._sides[task, prompt]


class Side:
    """Queries or documents: the tokenizer bound to a task and a prompt.

    Attributes:
        layout: The features around the token ids.
        fingerprint: Differs when the same text would give other ids, for whatever reason.
    """

    def __init__(self, model: SentenceTransformer, task: Task, prompt: str, definition: str) -> None:
        self._model = model
        self._options = {"task": task, "prompt": prompt or None}
        self.layout, probe_ids = self._learn_layout()
        known = [definition, asdict(self.layout), probe_ids.tolist(), prompt]
        self.fingerprint = xxhash.xxh3_128_hexdigest(json.dumps(known, sort_keys=True).encode())

    def tokenise(self, texts: list[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the ids of all texts in one run, and each text's length in tokens."""
        # The host pads a call to its longest text, and most of its time goes into padding: like to like.
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        pieces = [np.empty(0, np.int32)] * len(texts)
        for start in range(0, len(texts), TEXTS_PER_CALL):
            places = order[start : start + TEXTS_PER_CALL]
            ids, lengths = self._tokenise([texts[place] for place in places])
            for place, piece in zip(places, np.split(ids, np.cumsum(lengths)[:-1]), strict=True):
                pieces[place] = piece
        sizes = np.array([len(piece) for piece in pieces], np.int64)
        return np.concatenate([np.empty(0, np.int32), *pieces]), sizes

    def _tokenise(self, texts: list[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        output = self._model.preprocess(texts, **self._options)
        ids: Tensor = output["input_ids"]
        if not self.layout.padded:
            starts = output["offsets"].numpy()
            return ids.numpy().astype(np.int32), np.append(starts[1:], len(ids)) - starts
        mask = output["attention_mask"].bool()
        return ids[mask].numpy().astype(np.int32), mask.sum(dim=1).numpy()

    def _ask(self) -> dict[str, Any]:
        """Return what the model makes of a text that it has to cut, if it cuts any."""
        output: dict[str, Any] = {}
        for probe in PROBES:
            shorter, output = output.get("input_ids"), dict(self._model.preprocess(probe, **self._options))
            # A longer text with as many tokens was cut: longer ones, which take the most time, would show no more.
            if shorter is not None and shorter.shape == output["input_ids"].shape:
                break
        return output

    def _learn_layout(self) -> tuple[TokenLayout, NDArray[np.int64]]:
        output = self._ask()
        ids: Tensor = output.pop("input_ids", None)
        constants = {name: output.pop(name) for name in list(output) if not isinstance(output[name], Tensor)}
        constants["task"] = self._options["task"]
        if set(output) == {"offsets"}:
            return TokenLayout(False, 0, False, [], constants), ids.numpy()
        mask = output.pop("attention_mask", None)
        strange = [name for name, value in output.items() if value.any()]
        if ids is None or mask is None or strange:
            raise MixfluenceError(
                "this model's inputs cannot be cached as token ids "
                f"(features {', '.join(map(repr, strange or output)) or 'none'}); "
                "load it without flash-attention unpadding, or use a text encoder"
            )
        missing = mask[0] == 0
        pad_id = int(ids[0][missing][0]) if missing.any() else 0
        layout = TokenLayout(True, pad_id, bool(missing[0]), sorted(output), constants)
        return layout, ids[mask.bool()].numpy()


def _tokenizer_definition(model: SentenceTransformer) -> dict[str, Any]:
    """Return the fast tokenizer as JSON, with the side it cuts but not the lengths that calls leave behind."""
    tokenizer = model.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(backend, "to_str"):
        if not hasattr(tokenizer, "get_vocab"):
            raise MixfluenceError(f"texts of a {type(tokenizer).__name__} cannot be cached as token ids")
        return {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    definition: dict[str, Any] = json.loads(backend.to_str())
    return {**definition, "padding": None, "truncation": getattr(tokenizer, "truncation_side", None)}

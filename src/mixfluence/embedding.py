"""Encode texts to unit vectors, with tokenisation separate from the forward passes, and rows once, into a cache."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
import xxhash
from accelerate.utils import send_to_device
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.base.model import BaseModel
from sentence_transformers.util import truncate_embeddings
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data._utils.pin_memory import pin_memory

from mixfluence.data.cache import cached
from mixfluence.data.rows import RowSet
from mixfluence.data.tokenize import Side, Task, Tokeniser, in_parallel, tokenise_unkept
from mixfluence.data.tokens import TokenTable, open_array
from mixfluence.encoders import BIDIRECTIONAL
from mixfluence.errors import MixfluenceError
from mixfluence.influence.snapshot import preserve, preserve_modes

logger = logging.getLogger(__name__)
Texts = Literal["both", "query", "passage"]
Matrix = NDArray[np.float32]
# For each column its distinct texts, and the position among them of each row's text.
Chunk = list[tuple[TokenTable, NDArray[np.int64]]]
Item = TypeVar("Item")

CACHE_VERSION = 1
FILE = "vectors.npy"
ROWS_PER_CHUNK, TEXTS_PER_CALL = 2_048, 256
COLUMNS: dict[Texts, dict[str, Task]] = {
    "both": {"anchor": "query", "positive": "document"},
    "query": {"anchor": "query"},
    "passage": {"positive": "document"},
}
# Batches of short texts have at most so many times the batch size.
LARGEST_BATCH = 8
# Prompt names that sentence-transformers tries, in this order.
OWN_PROMPTS: dict[Task, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}


def prompt_of(model: BaseModel, task: Task, given: str | None) -> str:
    """Return the prompt of queries or documents: the given one, or the model's own if None."""
    own = next((model.prompts[name] for name in OWN_PROMPTS[task] if name in model.prompts), None) or ""
    return own if given is None else given


def text_encoders(model: BaseModel, prompts: Mapping[Task, str | None]) -> dict[Task, TextEncoder]:
    """Return encoders of queries, documents or both, given the prompt of each; None is the model's own prompt."""
    tokeniser = Tokeniser(model)
    return {
        task: TextEncoder(model, tokeniser.side(task, prompt_of(model, task, prompt)))
        for task, prompt in prompts.items()
    }


class TextEncoder:
    """Encodes the queries or the documents of a model."""

    def __init__(self, model: BaseModel, side: Side) -> None:
        self._model = model
        self.side = side

    @torch.inference_mode()
    def encode(self, texts: TokenTable, *, batch_size: int, show_progress: bool = False, unit: bool = True) -> Tensor:
        """Return unit vectors on the model's device, or vectors of any length, of texts tokenised for its `side`."""
        found, order = [], []
        for places, output in self.outputs(texts, batch_size=batch_size, show_progress=show_progress):
            embeddings = output["sentence_embedding"]
            if self._model.truncate_dim is not None:
                embeddings = truncate_embeddings(embeddings, self._model.truncate_dim)
            found.append(F.normalize(embeddings, dim=-1) if unit else embeddings)
            order.append(torch.from_numpy(places))
        joined = torch.cat(found)
        return torch.empty_like(joined).index_copy_(0, torch.cat(order).to(joined.device), joined)

    @torch.inference_mode()
    def outputs(
        self, texts: TokenTable, *, batch_size: int, show_progress: bool = False
    ) -> Iterator[tuple[NDArray[np.int64], dict[str, Any]]]:
        """Yield the places of some texts, the longest first, and the model's output for them.

        Batches of short texts are larger: a small forward pass takes a GPU as long as a larger one.
        """
        model, batches = self._model, _batches(texts.lengths, batch_size)
        with preserve_modes(model), shape_free_attention():
            model.eval()
            for places in _progress(batches, len(batches), show=show_progress):
                features = texts.layout.features(texts.token_ids(places))
                options = {"task": features["task"]} if isinstance(model, MultiVectorEncoder) else {}
                with float32_products("tf32"):
                    output = model(place(features, model.device), **options)
                yield places, output


def _batches(lengths: NDArray[np.int64], batch_size: int) -> list[NDArray[np.int64]]:
    """Return the places of texts by falling length, in batches with about as many tokens as the first one."""
    order = np.argsort(-lengths, kind="stable")
    falling = np.maximum(lengths[order], 1)
    batches, start = [], 0
    while start < len(order):
        times = min(falling[0] / falling[start], LARGEST_BATCH)
        batches.append(order[start : start + int(batch_size * times)])
        start += len(batches[-1])
    return batches


def _progress(steps: Iterable[Item], count: int, *, show: bool) -> Iterable[Item]:
    return track(steps, "encoding", count, console=Console(stderr=True), transient=True, disable=not show)


def place(batch: Any, device: torch.device) -> Any:
    """Copy a batch to a device; without pinned memory, the processor would first wait for what the device does."""
    if device.type == "cuda":
        batch = pin_memory(batch)  # type: ignore[no-untyped-call]
    return send_to_device(batch, device, non_blocking=True)


def shape_free_attention() -> AbstractContextManager[None]:
    """Disable cuDNN's attention, which builds a new plan for every input shape: 17 s in ten steps on an H200."""
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


def computes_in_bfloat16(device: torch.device) -> bool:
    """Return whether a device has bfloat16 in hardware and is not a CPU, where it is slower than float32."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


@contextmanager
def float32_products(precision: Literal["ieee", "tf32"]) -> Iterator[None]:
    """Set the precision of float32 products on a GPU; on a CPU they are exact either way.

    TF32 rounds factors to 11 bits, which encoding can afford. Scores cannot: different ones would become ties. Torch
    2.9 changed the interface; reading the old one raises once the Trainer's `tf32=True` has set the new one.
    """
    backends: Any = torch.backends  # mypy does not know its attributes
    if not hasattr(backends, "fp32_precision"):
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if precision == "tf32" and torch.cuda.is_available() else "highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
        return
    wanted = {backends.cuda.matmul: precision, backends.mkldnn.matmul: "ieee"}
    with preserve("fp32_precision", wanted):
        for products, own in wanted.items():
            products.fp32_precision = own
        yield


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
            shape = (len(rows), self._encoder.get_embedding_dimension())
            file = np.lib.format.open_memmap(folder / FILE, "w+", np.float16, shape)
            with torch.autocast("cuda", torch.bfloat16, enabled=self._half):
                parts = zip(starts, chunks, strict=True)
                for start, chunk in _progress(parts, len(starts), show=sys.stderr.isatty()):
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

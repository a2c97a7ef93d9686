"""Encode texts to unit vectors, with tokenisation separate from the forward passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import numpy as np
import torch
from accelerate.utils import send_to_device
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.model import BaseModel
from sentence_transformers.util import truncate_embeddings
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data._utils.pin_memory import pin_memory

from mixfluence.data.tokenize import Side, Task, Tokeniser
from mixfluence.data.tokens import TokenTable
from mixfluence.influence.snapshot import preserve, preserve_modes

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
        model, console = self._model, Console(stderr=True)
        batches = _batches(texts.lengths, batch_size)
        with preserve_modes(model), shape_free_attention():
            model.eval()
            for places in track(batches, "encoding", console=console, transient=True, disable=not show_progress):
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

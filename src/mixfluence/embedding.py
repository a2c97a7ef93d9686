"""Encode texts to unit vectors, with tokenisation separate from the forward passes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device, truncate_embeddings
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from mixfluence.data.tokenize import Side, Task, Tokeniser
from mixfluence.data.tokens import TokenTable
from mixfluence.influence.snapshot import preserve_modes

# Prompt names that sentence-transformers tries, in this order.
OWN_PROMPTS: dict[Task, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}


def text_encoders(model: SentenceTransformer, prompts: Mapping[Task, str | None]) -> dict[Task, TextEncoder]:
    """Return encoders of queries, documents or both, given the prompt of each; None is the model's own prompt."""
    tokeniser = Tokeniser(model)
    encoders = {}
    for task, prompt in prompts.items():
        own = next((model.prompts[name] for name in OWN_PROMPTS[task] if name in model.prompts), None) or ""
        encoders[task] = TextEncoder(model, tokeniser.side(task, own if prompt is None else prompt))
    return encoders


class TextEncoder:
    """Encodes the queries or the documents of a model."""

    def __init__(self, model: SentenceTransformer, side: Side) -> None:
        self._model = model
        self.side = side

    @torch.inference_mode()
    def encode(self, texts: TokenTable, *, batch_size: int, show_progress: bool = False, unit: bool = True) -> Tensor:
        """Return unit vectors on the model's device, or vectors of any length, of texts tokenised for its `side`."""
        model, console = self._model, Console(stderr=True)
        order = np.argsort(-texts.lengths, kind="stable")
        found = []
        with preserve_modes(model), shape_free_attention():
            model.eval()
            starts = range(0, len(order), batch_size)
            for start in track(starts, "encoding", console=console, transient=True, disable=not show_progress):
                features = texts.layout.features(texts.token_ids(order[start : start + batch_size]))
                embeddings = model(batch_to_device(features, model.device))["sentence_embedding"]
                if model.truncate_dim is not None:
                    embeddings = truncate_embeddings(embeddings, model.truncate_dim)
                found.append(F.normalize(embeddings, dim=-1) if unit else embeddings)
        joined = torch.cat(found)
        return torch.empty_like(joined).index_copy_(0, torch.from_numpy(order).to(joined.device), joined)


def shape_free_attention() -> AbstractContextManager[None]:
    """Disable cuDNN's attention, which builds a new plan for every input shape: 17 s in ten steps on an H200."""
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])

"""A retrieval set becomes embeddings, with the prompts and lengths that belong to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device, truncate_embeddings
from torch import Tensor
from torch.nn import functional as F

from mixfluence.attention import shape_free_attention
from mixfluence.data.layout import Side, Task, Tokeniser
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.texts import tokenise_texts
from mixfluence.data.tokens import TokenTable
from mixfluence.errors import MixfluenceError
from mixfluence.modes import modes_kept

# Names under which the host looks for a prompt, the first that there is.
OWN_PROMPTS: dict[Task, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}


def encode_task(
    model: SentenceTransformer, task: RetrievalSet, *, batch_size: int, show_progress: bool = False
) -> tuple[Tensor, Tensor]:
    """Encode the queries and the passages of a task, to unit length, on the model's device.

    Texts are tokenised once, by all cores, and kept in the token cache. Lengths are the model's own: the
    `query_length` and `document_length` of its Transformer module. So are the prompts, where the task has none. The
    model is left in the mode it came in and no random number is drawn.

    Args:
        model: Any sentence-transformers model.
        task: Queries, passages and prompts.
        batch_size: Texts per forward pass.
        show_progress: Show progress bars.
    """

    def encode(kind: Task, texts: Sequence[str], prompt: str | None) -> Tensor:
        chosen = _own_prompt(model, kind) if prompt is None else prompt
        if side := _side(model, kind, chosen):
            return _embed(model, tokenise_texts(texts, side), batch_size, show_progress)
        encoder = model.encode_query if kind == "query" else model.encode_document
        embeddings: Tensor = encoder(
            list(texts),
            prompt=chosen,
            batch_size=batch_size,
            show_progress_bar=show_progress,
            convert_to_tensor=True,
            normalize_embeddings=True,
        )
        return embeddings

    with modes_kept(model), shape_free_attention():
        model.eval()
        return encode("query", task.queries, task.query_prompt), encode("document", task.docs, task.passage_prompt)


def _side(model: SentenceTransformer, kind: Task, prompt: str) -> Side | None:
    """Return the tokenizer of one side; None for a model whose inputs are not token ids, which the host encodes."""
    try:
        return Tokeniser(model).side(kind, prompt)
    except MixfluenceError:
        return None


def _own_prompt(model: SentenceTransformer, kind: Task) -> str:
    found = (model.prompts[name] for name in OWN_PROMPTS[kind] if name in model.prompts)
    return next(found, None) or ""


@torch.inference_mode()
def _embed(model: SentenceTransformer, texts: TokenTable, batch_size: int, show_progress: bool) -> Tensor:
    """Return embeddings of unit length, in the order of the texts."""
    order = np.argsort(-texts.lengths, kind="stable")
    found = []
    starts = range(0, len(order), batch_size)
    for start in track(starts, "encoding", console=Console(stderr=True), transient=True, disable=not show_progress):
        features = texts.layout.features(texts.token_ids(order[start : start + batch_size]))
        embeddings = model(batch_to_device(features, model.device))["sentence_embedding"]
        if model.truncate_dim is not None:
            embeddings = truncate_embeddings(embeddings, model.truncate_dim)
        found.append(F.normalize(embeddings, dim=-1))
    joined = torch.cat(found)
    return torch.empty_like(joined).index_copy_(0, torch.from_numpy(order).to(joined.device), joined)

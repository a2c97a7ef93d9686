"""Texts become vectors of unit length: tokenised apart from the model, which then passes from batch to batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device, truncate_embeddings
from torch import Tensor
from torch.nn import functional as F

from mixfluence.attention import shape_free_attention
from mixfluence.data.tokenize import Side, Task, Tokeniser
from mixfluence.data.tokens import TokenTable
from mixfluence.errors import MixfluenceError
from mixfluence.modes import modes_kept

# Names under which the host looks for a prompt, the first that there is.
OWN_PROMPTS: dict[Task, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}
# Texts as an encoder takes them: token ids, or as they are where the host has to encode them.
Prepared = TokenTable | Sequence[str]


def text_encoders(model: SentenceTransformer, prompts: Mapping[Task, str | None]) -> dict[Task, TextEncoder]:
    """Return an encoder of queries, of documents, or of both.

    Args:
        model: Any sentence-transformers model.
        prompts: What stands before the texts of each; None for the model's own prompt.
    """
    try:
        tokeniser = Tokeniser(model)
    except MixfluenceError:
        tokeniser = None
    return {
        task: TextEncoder(model, task, _own_prompt(model, task) if prompt is None else prompt, tokeniser)
        for task, prompt in prompts.items()
    }


class TextEncoder:
    """Queries or documents of a model. Lengths are its own: `query_length` and `document_length` of its Transformer.

    Args:
        model: Gives the vectors, on its device.
        task: Which side of it.
        prompt: Put before every text.
        tokeniser: The model's; None for a model that has none, which the host encodes.
    """

    def __init__(self, model: SentenceTransformer, task: Task, prompt: str, tokeniser: Tokeniser | None) -> None:
        self._model = model
        self._task = task
        self._prompt = prompt
        self._side = _side(tokeniser, task, prompt)

    def prepare(self, texts: Sequence[str], tokenise: Callable[[Sequence[str], Side], TokenTable]) -> Prepared:
        """Return texts as `encode` takes them. Needs no device, so that other processes can do it.

        Args:
            texts: Queries or documents.
            tokenise: `tokenise_texts` for texts that later runs encode again, `tokenise_unkept` for others.
        """
        return tokenise(texts, self._side) if self._side else texts

    def encode(self, texts: Prepared, *, batch_size: int, show_progress: bool = False) -> Tensor:
        """Return vectors of unit length on the model's device, in the order of the texts.

        The model is left in the mode it came in and no random number is drawn.

        Args:
            texts: As `prepare` gives them.
            batch_size: Texts per forward pass.
            show_progress: Show a progress bar.
        """
        with modes_kept(self._model), shape_free_attention():
            self._model.eval()
            if isinstance(texts, TokenTable):
                return _embed(self._model, texts, batch_size, show_progress)
            encode = self._model.encode_query if self._task == "query" else self._model.encode_document
            vectors: Tensor = encode(
                list(texts),
                prompt=self._prompt,
                batch_size=batch_size,
                show_progress_bar=show_progress,
                convert_to_tensor=True,
                normalize_embeddings=True,
            )
            return vectors


def _side(tokeniser: Tokeniser | None, task: Task, prompt: str) -> Side | None:
    """Return the tokenizer of one side; None for a model whose inputs are not token ids."""
    try:
        return tokeniser.side(task, prompt) if tokeniser else None
    except MixfluenceError:
        return None


def _own_prompt(model: SentenceTransformer, task: Task) -> str:
    found = (model.prompts[name] for name in OWN_PROMPTS[task] if name in model.prompts)
    return next(found, None) or ""


@torch.inference_mode()
def _embed(model: SentenceTransformer, texts: TokenTable, batch_size: int, show_progress: bool) -> Tensor:
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

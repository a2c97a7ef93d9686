"""A retrieval set becomes embeddings, with the prompts and lengths that belong to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sentence_transformers import SentenceTransformer
from torch import Tensor

from mixfluence.attention import shape_free_attention
from mixfluence.data.retrieval import RetrievalSet


def encode_task(
    model: SentenceTransformer, task: RetrievalSet, *, batch_size: int, show_progress: bool = False
) -> tuple[Tensor, Tensor]:
    """Encode the queries and the passages of a task, to unit length, on the model's device.

    Lengths are the model's own: the `query_length` and `document_length` of its Transformer module. So are the
    prompts, where the task has none. The model is left in the mode it came in and no random number is drawn.

    Args:
        model: Any sentence-transformers model.
        task: Queries, passages and prompts.
        batch_size: Texts per forward pass.
        show_progress: Show the progress bars of the encoder.
    """

    def encode(encoder: Callable[..., Tensor], texts: Sequence[str], prompt: str | None) -> Tensor:
        return encoder(
            list(texts),
            prompt=prompt,
            batch_size=batch_size,
            show_progress_bar=show_progress,
            convert_to_tensor=True,
            normalize_embeddings=True,
        )

    with _modes_kept(model), shape_free_attention():
        queries = encode(model.encode_query, task.queries, task.query_prompt)
        passages = encode(model.encode_document, task.docs, task.passage_prompt)
    return queries, passages


@contextmanager
def _modes_kept(model: SentenceTransformer) -> Iterator[None]:
    """Undo the host's `eval()` module by module: some parts may have been frozen in that mode on purpose."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training

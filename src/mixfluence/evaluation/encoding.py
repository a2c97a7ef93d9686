"""A retrieval set becomes embeddings, with the prompts and lengths that belong to it."""

from __future__ import annotations

from sentence_transformers import SentenceTransformer
from torch import Tensor

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.tokenize import tokenise_texts
from mixfluence.embedding import text_encoders


def encode_task(
    model: SentenceTransformer, task: RetrievalSet, *, batch_size: int, show_progress: bool = False
) -> tuple[Tensor, Tensor]:
    """Encode the queries and the passages of a task, to unit length, on the model's device.

    Texts are tokenised once, by all cores, and kept in the token cache. Lengths are the model's own, and so are the
    prompts, where the task has none. The model is left in the mode it came in and no random number is drawn.

    Args:
        model: Any sentence-transformers model.
        task: Queries, passages and prompts.
        batch_size: Texts per forward pass.
        show_progress: Show progress bars.
    """
    encoders = text_encoders(model, {"query": task.query_prompt, "document": task.passage_prompt})
    texts = {"query": task.queries, "document": task.docs}
    queries, passages = (
        encoder.encode(
            encoder.prepare(texts[kind], tokenise_texts), batch_size=batch_size, show_progress=show_progress
        )
        for kind, encoder in encoders.items()
    )
    return queries, passages

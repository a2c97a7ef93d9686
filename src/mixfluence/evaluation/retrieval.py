"""A model and a retrieval set become per-query scores."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from sentence_transformers import SentenceTransformer
from torch import Tensor

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.errors import MixfluenceError
from mixfluence.evaluation.encoding import encode_task
from mixfluence.evaluation.metrics import score_run
from mixfluence.evaluation.results import Evaluation
from mixfluence.evaluation.runs import build_run
from mixfluence.evaluation.search import exact_search


def evaluate(
    model: SentenceTransformer,
    task: RetrievalSet,
    *,
    batch_size: int = 64,
    k: int = 100,
    show_progress: bool = False,
) -> Evaluation:
    """Encode a task, search it exactly by cosine similarity and score every query.

    Lengths are the model's own: the `query_length` and `document_length` of its Transformer module. So are
    the prompts, where the task has none. The model is left in the mode it came in and no random number is
    drawn. For embeddings you already have, use `score_embeddings`; to pick checkpoints while training,
    `DevEvaluator`.

    Args:
        model: Any sentence-transformers model; embeddings stay on its device.
        task: Queries, passages and judgements.
        batch_size: Texts per forward pass.
        k: Hits per query; less than 100 makes recall@100 and map@100 those of the first k.
        show_progress: Show the progress bars of the encoder.
    """
    started = perf_counter()
    queries, passages = encode_task(model, task, batch_size=batch_size, show_progress=show_progress)
    seconds = {"encode": perf_counter() - started}
    evaluation = score_embeddings(task, queries, passages, k)
    return replace(evaluation, seconds={**seconds, **evaluation.seconds})


def score_embeddings(task: RetrievalSet, queries: Tensor, passages: Tensor, k: int = 100) -> Evaluation:
    """Search with ready embeddings and score every query; `evaluate` makes them from a model first.

    Args:
        task: Where the embeddings come from.
        queries: One row per query of `task`.
        passages: One row per passage of `task`, on the same device.
        k: Hits per query.
    """
    expected = (len(task.query_ids), len(task.doc_ids))
    if (len(queries), len(passages)) != expected:
        raise ValueError(
            f"{task.name}: expected embeddings of {expected[0]} queries and {expected[1]} passages, "
            f"got {len(queries)} and {len(passages)}"
        )
    started = perf_counter()
    scores, positions = exact_search(queries, passages, k + 1)
    # Not-a-number sorts first, so one such passage is enough to show up here.
    if not scores.isfinite().all():
        raise MixfluenceError(f"{task.name}: the embeddings are not finite; has training diverged?")
    run, removed = build_run(task, scores.tolist(), positions.tolist(), k)
    searched = perf_counter()
    per_query = score_run(run, task.qrels, task.query_ids)
    seconds = {"search": searched - started, "score": perf_counter() - searched}
    return Evaluation(task.name, per_query, removed, seconds)

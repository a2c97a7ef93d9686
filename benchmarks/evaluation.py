"""Encoding and exact search against sentence-transformers' own evaluator, on the union of many corpora.

Every domain's test queries search the passages of all domains. Judgements are binary, as in the evaluator of
sentence-transformers. Each side loads an encoder of its own and is timed from texts to NDCG@10: ours with an empty
token cache, ours again with a full one, ours in bf16, and the evaluator in both precisions.

    MIXFLUENCE_CACHE=$(mktemp -d) python benchmarks/evaluation.py DATA --model minilm
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from mixfluence import load_encoder
from mixfluence.data.beir import BeirSource
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.evaluation.retrieval import evaluate


def union(folders: list[Path]) -> RetrievalSet:
    """Return all tasks as one, with unique ids.

    A copy of a relevant passage is relevant too: two domains share passages, and the order of equal scores is
    arbitrary.
    """
    tasks = [BeirSource(path=folder, split="test").read_task(folder.name) for folder in folders]
    copies: dict[str, list[str]] = defaultdict(list)
    for task in tasks:
        for key, text in zip(task.doc_ids, task.docs, strict=True):
            copies[text].append(f"{task.name} {key}")
    qrels: dict[str, dict[str, int]] = {}
    for task in tasks:
        texts = dict(zip(task.doc_ids, task.docs, strict=True))
        for query, judged in task.qrels.items():
            relevant = [texts[doc] for doc, grade in judged.items() if grade > 0]
            qrels[f"query {task.name} {query}"] = {key: 1 for text in relevant for key in copies[text]}
    return RetrievalSet(
        name="union",
        query_ids=[f"query {task.name} {key}" for task in tasks for key in task.query_ids],
        queries=[text for task in tasks for text in task.queries],
        doc_ids=[f"{task.name} {key}" for task in tasks for key in task.doc_ids],
        docs=[text for task in tasks for text in task.docs],
        qrels=qrels,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    task = union(sorted(path for path in options.data.iterdir() if (path / "corpus.jsonl").exists()))
    print(f"{len(task.queries)} queries, {len(task.docs)} passages", flush=True)
    judged = {query: set(relevant) for query, relevant in task.qrels.items()}
    evaluator = InformationRetrievalEvaluator(
        dict(zip(task.query_ids, task.queries, strict=True)),
        dict(zip(task.doc_ids, task.docs, strict=True)),
        judged,
        batch_size=options.batch,
        write_csv=False,
    )

    def ours(model: Any) -> float:
        return evaluate(model, task, batch_size=options.batch).summary()["ndcg@10"]

    def stock(model: Any) -> float:
        return float(evaluator(model)["cosine_ndcg@10"])

    first: tuple[float, float] | None = None
    sides = {"ours": ours, "ours, tokens cached": ours, "ours, bf16": ours, "stock": stock, "stock, bf16": stock}
    for name, score in sides.items():
        model = load_encoder(options.model, query_length=64, passage_length=192)
        model.encode(task.docs[: options.batch], show_progress_bar=False)  # loads kernels, at the cost of no side
        started = time.perf_counter()
        with torch.autocast(model.device.type, torch.bfloat16, enabled="bf16" in name):
            ndcg = score(model)
        seconds = time.perf_counter() - started
        first = first or (seconds, ndcg)
        print(
            f"{name:20} {seconds:7.1f} s, {seconds / first[0]:.2f} of ours; "
            f"ndcg@10 {ndcg:.6f}, {ndcg - first[1]:+.6f}",
            flush=True,
        )


if __name__ == "__main__":
    main()

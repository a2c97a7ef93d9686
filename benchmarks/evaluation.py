"""Encoding and exact search against sentence-transformers' own evaluator, on the union of many corpora.

Every domain's test queries search the passages of all domains. Judgements are binary, as in the evaluator of
sentence-transformers. Every side has a process of its own with a limit, and is timed from texts to NDCG@10: ours with
an empty token cache and with a full one, in tf32, which is what `evaluate` does, and in fp32, fp16 and bf16, and the
evaluator in fp32 and bf16. Printed are also how far NDCG@10 is from that of the first side, over all queries and in
the domain where it is furthest.

    python benchmarks/evaluation.py DATA --model minilm --passages 250000 500000 1000000
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from tokenising import run

from mixfluence import embedding, load_encoder
from mixfluence.data.beir import BeirSource
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.tokenize import tokenise_texts
from mixfluence.embedding import text_encoders
from mixfluence.evaluation.retrieval import rank_task, score_task

SIDES = ["ours, fp32", "ours", "ours, cached", "ours, fp16", "ours, bf16", "stock", "stock, bf16"]
HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}


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


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Time one side from texts to NDCG@10, and encoding alone of ours."""
    task = union(sorted(path for path in options.data.iterdir() if (path / "corpus.jsonl").exists()))
    if options.one_passages:
        task = enlarged(task, options.one_passages)
    model = load_encoder(options.model, query_length=64, passage_length=192)
    model.encode(task.docs[: options.batch], show_progress_bar=False)  # loads kernels, at the cost of no side
    evaluator = InformationRetrievalEvaluator(
        dict(zip(task.query_ids, task.queries, strict=True)),
        dict(zip(task.doc_ids, task.docs, strict=True)),
        {query: set(relevant) for query, relevant in task.qrels.items()},
        batch_size=options.batch,
        write_csv=False,
    )
    found: dict[str, Any] = {"queries": len(task.queries), "passages": len(task.docs)}
    if "cached" in options.one:
        for task_name, encoder in text_encoders(model, {"query": None, "document": None}).items():
            tokenise_texts(task.queries if task_name == "query" else task.docs, encoder.side)
    if "fp32" in options.one:
        vars(embedding)["float32_products"] = lambda precision: nullcontext()
    half = HALF.get(options.one.split(", ")[-1])
    started = time.perf_counter()
    with torch.autocast(model.device.type, half, enabled=half is not None):
        if "stock" in options.one:
            found["ndcg"] = float(evaluator(model)["cosine_ndcg@10"])
        else:
            rankings = rank_task(model, task, batch_size=options.batch)
            found["searched"] = time.perf_counter() - started
            scored = score_task(task, rankings)
            found["ndcg"] = scored.summary()["ndcg@10"]
    found["seconds"] = time.perf_counter() - started
    if "ours" in options.one:
        domains: dict[str, list[float]] = defaultdict(list)
        for query, scores in scored.per_query.items():
            domains[query.split()[1]].append(scores["ndcg@10"])
        found["domains"] = {name: fmean(scores) for name, scores in domains.items()}
    return found


def enlarged(task: RetrievalSet, passages: int) -> RetrievalSet:
    """Return a task with so many passages, the added ones not relevant: earlier ones with a number."""
    count = len(task.docs)
    added = range(count, passages)
    docs = [*task.docs, *(f"{number} {task.docs[number % count]}" for number in added)]
    return replace(task, docs=docs, doc_ids=[*task.doc_ids, *(f"added {number}" for number in added)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--sides", nargs="*", default=SIDES)
    parser.add_argument("--passages", type=int, nargs="*", default=[], help="larger corpora, for ours")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds that a side may take")
    parser.add_argument("--out", type=Path, default=Path("evaluation.jsonl"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--one-passages", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options)))
        return
    options.out.unlink(missing_ok=True)
    jobs: list[tuple[str, int]] = [(side, 0) for side in options.sides]
    jobs += [("ours", passages) for passages in options.passages]
    first: dict[str, Any] = {}
    for side, passages in jobs:
        command = [sys.executable, __file__, *sys.argv[1:], "--one", side, "--one-passages", str(passages)]
        with tempfile.TemporaryDirectory() as cache:
            os.environ["MIXFLUENCE_CACHE"] = cache
            found = run(command, options.limit)
        with options.out.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"side": side} | found) + "\n")
        if "error" in found:
            print(f"{side:20} failed: {found['error']}", flush=True)
            continue
        first = first or found
        print(
            f"{side:20} {found['queries']:,} queries, {found['passages']:,} passages: {found['seconds']:7.1f} s"
            + (f" (searched after {found['searched']:.1f})" if "searched" in found else "")
            + f", ndcg@10 {found['ndcg']:.6f}, {found['ndcg'] - first['ndcg']:+.6f}"
            + furthest(found, first),
            flush=True,
        )


def furthest(found: dict[str, Any], first: dict[str, Any]) -> str:
    """Return the domain whose NDCG@10 is furthest from that of the first side."""
    if "domains" not in found or "domains" not in first or found["passages"] != first["passages"]:
        return ""
    apart = {name: found["domains"][name] - own for name, own in first["domains"].items()}
    name = max(apart, key=lambda name: abs(apart[name]))
    return f", {name} {apart[name]:+.6f}"


if __name__ == "__main__":
    main()

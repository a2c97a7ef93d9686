"""Compares what was read with what was published: a difference is said, and stops nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mixfluence.data.retrieval import RetrievalSet


def difference(name: str, what: str, found: int, published: int | None) -> Iterator[str]:
    """Yield a remark if there are not as many as were published; nothing is said if that is not known.

    Args:
        name: The dataset, as the remark calls it.
        what: What is counted, in the plural.
        found: How many there are.
        published: How many there should be.
    """
    if published is not None and found != published:
        yield f"{name}: {found:,} {what}, but {published:,} were published"


def task_differences(task: RetrievalSet, published: Mapping[str, int | None]) -> list[str]:
    """Return a remark for each count of a retrieval task that is not as published.

    Args:
        task: The task.
        published: Counts of `queries`, `judgements` and `passages`, as far as they are known.
    """
    found = {
        "queries": len(task.query_ids),
        "judgements": sum(map(len, task.qrels.values())),
        "passages": len(task.doc_ids),
    }
    return [note for what, count in found.items() for note in difference(task.name, what, count, published.get(what))]

"""Read the sources of a recipe."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from mixfluence.config.sources import BeirSource, BgeM3Source, HubSource, MldrSource, PairsSource, PydocsSource, Source
from mixfluence.data.beir import read_beir_retrieval, read_beir_rows
from mixfluence.data.bge_m3 import read_bge_m3
from mixfluence.data.hub import read_hub
from mixfluence.data.mldr import read_mldr_retrieval, read_mldr_rows
from mixfluence.data.pairs import read_pairs
from mixfluence.data.published import difference, task_differences
from mixfluence.data.pydocs import read_pydocs_retrieval, read_pydocs_rows
from mixfluence.data.retrieval import RetrievalSet, retrieval_from_rows
from mixfluence.data.rows import RowSet

logger = logging.getLogger(__name__)

# The keys of a source that say where it is.
PLACE = {"path", "id", "config", "library", "language", "split"}


def read_rows(source: Source) -> RowSet:
    """Read the training or dev rows of a source, and note if there are not as many as were published."""
    rows = _read_rows(source)
    published = source.published.rows if source.published else None
    place = source.model_dump(include=PLACE, exclude_none=True)
    notes = difference(" ".join(map(str, place.values())), "rows", len(rows), published)
    return replace(rows, notes=(*rows.notes, *notes))


def read_task(name: str, source: Source) -> RetrievalSet:
    """Read a source as a retrieval task, with its prompts; counts that are not as published are noted."""
    match source:
        case BeirSource():
            task = read_beir_retrieval(source.path, source.split, name)
        case MldrSource():
            task = read_mldr_retrieval(source.path, source.language, source.split, name)
        case PydocsSource(library=library, split=split):
            task = read_pydocs_retrieval(library, split, name)
        case _:
            task = retrieval_from_rows(name, _read_rows(source))
    differences = task_differences(task, source.published.model_dump()) if source.published else []
    for note in differences:
        logger.warning("%s", note)
    return replace(
        task,
        query_prompt=source.query_prompt,
        passage_prompt=source.passage_prompt,
        notes=(*task.notes, *differences),
    )


def reading_notes(
    train: Mapping[str, RowSet], dev: Mapping[str, RowSet], test: Mapping[str, RetrievalSet]
) -> list[str]:
    """Return what was noted of data as it was read, each note with the dataset that it is about."""
    notes = [
        f"{section} {name}: {note}"
        for section, sets in (("train", train), ("dev", dev))
        for name, rows in sets.items()
        for note in rows.notes
    ]
    return notes + [f"test {note}" for task in test.values() for note in task.notes]


def _read_rows(source: Source) -> RowSet:
    match source:
        case BeirSource():
            return read_beir_rows(source.path, source.split, source.per)
        case PairsSource(per=per, negatives=negatives):
            return read_pairs(source.path, source.columns, per=per, negatives=negatives)
        case HubSource(per=per, negatives=negatives):
            place = source.id, source.revision, source.config, source.split
            return read_hub(*place, source.columns, per=per, negatives=negatives)
        case PydocsSource(library=library, split=split):
            return read_pydocs_rows(library, split)
        case BgeM3Source():
            return read_bge_m3(source.path, source.language)
        case MldrSource():
            return read_mldr_rows(source.path, source.language, source.split)

"""The registry of data formats, and the functions that read a recipe's sources."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import SerializeAsAny, TypeAdapter, ValidationError

from mixfluence.data.beir import BeirSource
from mixfluence.data.benchmarks import IrDatasetsSource, MtebSource
from mixfluence.data.bge_m3 import BgeM3Source
from mixfluence.data.corpus import CorpusSource
from mixfluence.data.debdocs import DebdocsSource
from mixfluence.data.mining import MiningSection, mine_negatives
from mixfluence.data.mldr import MldrSource
from mixfluence.data.pairs import HubSource, PairsSource
from mixfluence.data.pydocs import PydocsSource
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.rows import RowSet, count_difference
from mixfluence.data.source import TRAINING_KEYS, SourceSection
from mixfluence.errors import RecipeError
from mixfluence.schema import error_message, registered, short, unknown_key

logger = logging.getLogger(__name__)

FORMATS: dict[str, type[SourceSection]] = {
    "beir": BeirSource,
    "pairs": PairsSource,
    "hub": HubSource,
    "corpus": CorpusSource,
    "pydocs": PydocsSource,
    "debdocs": DebdocsSource,
    "bge_m3": BgeM3Source,
    "mldr": MldrSource,
    "mteb": MtebSource,
    "ir_datasets": IrDatasetsSource,
}
Source = Annotated[SerializeAsAny[SourceSection], registered(FORMATS, "format")]


def fill_sources(sources: Any, defaults: dict[str, Any], section: str) -> Any:
    """Return the sources of `train`, `dev` or `test` as a mapping, with defaults, names and splits filled in."""
    if isinstance(sources, list):
        if nested := [name for name in sources if not isinstance(name, str | int | float)]:
            raise ValueError(f"{section}: expected names of datasets, found {nested[0]!r}")
        if twice := [name for number, name in enumerate(sources) if name in sources[:number]]:
            raise ValueError(f"{section}: {twice[0]!r} is listed twice")
        sources = dict.fromkeys(map(str, sources))
    if not isinstance(sources, dict):
        raise ValueError(f"{section}: expected names of datasets, or a mapping of them, found {short(sources)}")
    return {name: _fill_source(str(name), own or {}, defaults, section) for name, own in sources.items()}


def _fill_source(name: str, own: Any, defaults: dict[str, Any], section: str) -> Any:
    if not isinstance(own, dict):
        return own
    format_ = FORMATS.get(str(own.get("format", defaults.get("format"))))
    if format_ is None:
        return defaults | own
    # Defaults of other formats are ignored.
    inherited = {key: value for key, value in defaults.items() if key in format_.model_fields}
    split = {"split": section} if "split" in format_.model_fields else {}
    source = split | inherited | own
    return {
        key: value.replace("{name}", name).replace("{format}", str(source["format"]))
        if isinstance(value, str)
        else value
        for key, value in source.items()
    }


def format_at(path: Path) -> str:
    """Return the format of a path that a user names: a folder in BEIR's layout, or else pairs."""
    return "beir" if any((path / name).exists() for name in ("corpus.jsonl", "corpus.jsonl.gz", "corpus")) else "pairs"


def source_at(path: Path, options: Mapping[str, Any]) -> SourceSection:
    """Return a path as a training set, with keys of its format."""
    (source,) = fill_sources({path.name: {"format": format_at(path), "path": path, **options}}, {}, "train").values()
    try:
        found: SourceSection = TypeAdapter(Source).validate_python(source)
    except ValidationError as error:
        places = [".".join(map(str, each["loc"])) for each in error.errors()]
        messages = map(error_message, error.errors())
        lines = [": ".join(filter(None, (str(path), *line))) for line in zip(places, messages, strict=True)]
        raise RecipeError("\n".join(lines)) from error
    return found


def check_defaults(defaults: Any) -> None:
    """Reject a default that no format has."""
    known = {key for format_ in FORMATS.values() for key in format_.model_fields}
    if not isinstance(defaults, dict):
        raise ValueError(f"defaults: expected a mapping with keys such as format and path, found {defaults!r}")
    for key in defaults:
        if key in TRAINING_KEYS:
            raise ValueError(f"defaults.{key}: write it as training.{key}, or in sections of train")
        if key not in known:
            raise ValueError(f"defaults: {unknown_key(key, known)}")


def read_rows(source: Source) -> RowSet:
    """Read the training or dev rows of a source, with mined negatives and notes."""
    rows = source.read_rows()
    mined = isinstance(source.negatives, MiningSection)
    return _finish_rows(source, rows, source.read_task(source.location, rows).docs if mined else ())


def read_task(name: str, source: Source) -> RetrievalSet:
    """Read a source as a retrieval task with its prompts; the reader's notes and other counts are logged."""
    return _with_prompts(name, source, source.read_task(name))


def read_both(name: str, source: Source) -> tuple[RowSet, RetrievalSet]:
    """Read a source as `read_rows` and `read_task` do, its files once."""
    rows, task = source.read_both(name)
    return _finish_rows(source, rows, task.docs), _with_prompts(name, source, task)


def _finish_rows(source: Source, rows: RowSet, passages: Sequence[str] = ()) -> RowSet:
    """Mine negatives among the passages, if the source says so, and note another number than was published."""
    if isinstance(source.negatives, MiningSection):
        rows = mine_negatives(rows, passages, source.negatives, (source.query_prompt, source.passage_prompt))
    published = source.published.rows if source.published else None
    return replace(rows, notes=(*rows.notes, *count_difference(source.location, "rows", len(rows), published)))


def _with_prompts(name: str, source: Source, task: RetrievalSet) -> RetrievalSet:
    notes = list(task.notes)
    for what, count in task.counts.items():
        notes += count_difference(name, what, count, getattr(source.published, what, None))
    for note in notes:
        logger.warning("%s", note)
    return replace(task, query_prompt=source.query_prompt, passage_prompt=source.passage_prompt, notes=tuple(notes))

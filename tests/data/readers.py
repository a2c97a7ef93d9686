"""Sources built and read in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mixfluence.data.beir import BeirSource
from mixfluence.data.bge_m3 import BgeM3Source
from mixfluence.data.mldr import MldrSource
from mixfluence.data.pairs import HubSource, PairsSource
from mixfluence.data.pydocs import PydocsSource
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.rows import RowSet


def read_beir_rows(folder: Path, split: str, **options: Any) -> RowSet:
    return BeirSource(path=folder, split=split, **options).read_rows()


def read_beir_task(folder: Path, split: str, name: str) -> RetrievalSet:
    return BeirSource(path=folder, split=split).read_task(name)


def read_pairs(path: Path, columns: Any = None, **options: Any) -> RowSet:
    return PairsSource(path=path, columns=columns, **options).read_rows()


def read_hub(dataset_id: str, split: str, columns: Any = None, **options: Any) -> RowSet:
    return HubSource(id=dataset_id, split=split, columns=columns, **options).read_rows()


def read_bge_m3(folder: Path, language: str) -> RowSet:
    return BgeM3Source(path=folder, language=language).read_rows()


def read_mldr_rows(folder: Path, language: str, split: Any) -> RowSet:
    return MldrSource(path=folder, language=language, split=split).read_rows()


def read_mldr_task(folder: Path, language: str, split: Any, name: str) -> RetrievalSet:
    return MldrSource(path=folder, language=language, split=split).read_task(name)


def read_pydocs_rows(library: str, split: Any) -> RowSet:
    return PydocsSource(library=library, split=split).read_rows()


def read_pydocs_task(library: str, split: Any, name: str) -> RetrievalSet:
    return PydocsSource(library=library, split=split).read_task(name)

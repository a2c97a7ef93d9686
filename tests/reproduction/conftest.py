"""A study of two rows on tiny data, as a user would write it: recipe, setting and study in files of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_experiment import write_domain

WriteStudy = Callable[..., Path]


@pytest.fixture
def write_study(tmp_path: Path, tiny_bert_folder: Path) -> WriteStudy:
    """Writes data, recipe, setting and study; keys of the setting and the study may be given."""
    for number, (name, queries) in enumerate({"big": 90, "small": 45}.items()):
        write_domain(tmp_path / "elsewhere" / "tiny" / name, queries, number)
    recipe = {
        "name": "tiny",
        "model": {"name": str(tiny_bert_folder), "pooling": "cls", "query_length": 8, "passage_length": 16},
        "defaults": {"format": "beir", "path": "data/tiny/{name}"},
        "train": ["big", "small"],
        "dev": ["big", "small"],
        "test": ["big", "small"],
        "evaluation": {"references": False},
        "training": {"steps": 8, "batch_size": 8, "learning_rate": 1e-3, "log_every": 2, "save_every": 2},
    }
    samplers = {"static": {"name": "static"}, "inf-dds": {"name": "inf-dds", "update_every": 2, "warmup_steps": 2}}
    settings = {"recipe": str(tmp_path / "tiny.yaml"), "samplers": samplers, "references": {"zero-shot": []}}
    paper = {"sampling": "static", "init": float("inf")}
    study = {
        "name": "try",
        "purpose": "A try.",
        "seeds": 2,
        "views": ["scores", "cost"],
        "settings": {"twin": {"setting": str(tmp_path / "setting.yaml"), "paper": ["sentence-transformers"]}},
        "rows": [
            {"label": "static 1", "sampler": "static", "init": 1, "paper": paper},
            {"label": "inf-dds 1", "sampler": "inf-dds", "init": 1},
        ],
    }

    def write(setting: dict[str, Any] | None = None, **keys: Any) -> Path:
        (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
        (tmp_path / "setting.yaml").write_text(yaml.safe_dump(settings | (setting or {})), encoding="utf-8")
        (tmp_path / "study.yaml").write_text(yaml.safe_dump(study | keys), encoding="utf-8")
        return tmp_path / "study.yaml"

    return write

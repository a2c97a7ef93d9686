"""`mixfluence push`, and trackers.

- The model is published with its recipe, its weights and a card of mixture, scores beside the start's, and recipe.
- A dry run shows it and contacts nobody; an error of the hub is one line.
- Installed trackers that need no account are on, others are not. Stages before the last are not tracked.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from transformers import TrainerCallback, TrainingArguments
from transformers.integrations import integration_utils

from mixfluence import build, publish
from mixfluence.build import training_arguments
from mixfluence.experiment import run
from mixfluence.recipe_yaml import load_recipe
from mixfluence.runs import read_run
from tests.recipes import small_recipe
from tests.test_cli import mixfluence_here
from tests.test_experiment import recipe_path

__all__ = ["recipe_path"]


class Hub:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.files: dict[str, bytes] = {}

    def create_repo(self, repository: str, **options: Any) -> None:
        self.calls.append((repository, options))

    def create_commit(self, repository: str, operations: list[Any], *, commit_message: str) -> SimpleNamespace:
        for operation in operations:
            with operation.as_file() as file:
                self.files[operation.path_in_repo] = file.read()
        return SimpleNamespace(commit_url=f"https://hub/{repository}/commit/1")


@pytest.mark.slow
def test_a_run_is_published_with_its_story(recipe_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(load_recipe(recipe_path, ["evaluation.references=true"]))
    hub = Hub()
    monkeypatch.setattr(publish, "HfApi", lambda: hub)

    shown = mixfluence_here("push", "run", "me/tiny", "--dry-run", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert hub.calls == []

    pushed = mixfluence_here("push", "run", "me/tiny", "--private", folder=tmp_path)
    assert (pushed.returncode, pushed.stdout) == (0, "https://hub/me/tiny/commit/1\n"), pushed.stderr
    assert hub.calls == [("me/tiny", {"private": True, "exist_ok": True})]
    assert all(f"me/tiny/{path}" in shown.stdout for path in hub.files)
    assert json.loads(hub.files["mixfluence/weights.json"]).keys() == {"big", "small"}
    card = hub.files["README.md"].decode()
    found = read_run(tmp_path / "run")
    assert card.startswith("---\n")
    assert all(
        re.search(rf"^\| {name} \| [\d,]+ \| {share:.3g} \|", card, re.MULTILINE)
        for name, share in found.weights.items()
    )
    assert card.splitlines() == shown.stdout.splitlines()[-len(card.splitlines()) :]
    assert "zero-shot" in card
    assert 'SentenceTransformer("me/tiny")' in card
    assert hub.files["mixfluence/recipe.yaml"].decode().rstrip() in card

    # What was published is a model of sentence-transformers.
    for path, content in hub.files.items():
        file = tmp_path / "downloaded" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    loaded = SentenceTransformer(str(tmp_path / "downloaded"), device="cpu")
    own = SentenceTransformer(str(tmp_path / "run" / "model"), device="cpu")
    assert (loaded.encode("w1 w2") == own.encode("w1 w2")).all()

    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("401 Client Error\nmore lines")

    monkeypatch.setattr(hub, "create_repo", refuse)
    refused = mixfluence_here("push", "run", "me/tiny", folder=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == ["error: me/tiny: could not be written on the hub (401 Client Error)"]

    (tmp_path / "run" / "record.json").unlink()
    unfinished = mixfluence_here("push", "run", "me/tiny", "--dry-run", folder=tmp_path)
    assert unfinished.returncode == 2
    assert "expected a finished run" in unfinished.stderr


def test_trackers_that_need_no_account_are_on(monkeypatch: pytest.MonkeyPatch, tiny_bert: SentenceTransformer) -> None:
    installed = ["codecarbon", "tensorboard", "trackio", "wandb"]
    monkeypatch.setattr(build, "get_available_reporting_integrations", lambda: installed)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert build._trackers() == ["tensorboard", "trackio"]
    monkeypatch.setenv("WANDB_API_KEY", "key")
    assert build._trackers() == ["tensorboard", "trackio", "wandb"]
    chosen = small_recipe(
        model={"name": "minilm"},
        training={"steps": 2, "batch_size": 2, "trainer_args": {"report_to": "none"}},
    )
    args = training_arguments(chosen, tiny_bert, {})
    assert (args.report_to, args.run_name) == ([], str(chosen.output))


@pytest.mark.slow
def test_trackers_follow_the_last_stage(recipe_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[str | None] = []

    class Tracker(TrainerCallback):
        def on_train_begin(self, args: TrainingArguments, *others: Any, **_: Any) -> None:
            followed.append(args.run_name)

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "own", Tracker)
    recipe = load_recipe(recipe_path, ["strategy=doge", "training.trainer_args={report_to: own}"])
    run(recipe)
    assert (recipe.output / "stages" / "proxy" / "trace.jsonl").exists()
    assert followed == [str(recipe.output)]

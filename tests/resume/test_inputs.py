"""What may change between a run and its continuation.

- A folder in which a living process works is refused; a killed process holds it no longer.
- A moved run folder is resumed where it lies, from any working directory, with its best checkpoint.
- Changed data, judgements, encoders, weights, stages and recipes are refused by name; a cut trace is a warning.
- More steps extend a run, even a finished one, and another interval of logs goes on.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from transformers import TrainerCallback

from mixfluence.errors import DataError, MixfluenceError, RecipeError
from mixfluence.experiment import run
from mixfluence.files import locked
from mixfluence.inputs import in_place
from mixfluence.recipe import Recipe
from mixfluence.recipe_yaml import load_recipe
from mixfluence.runs import read_record, read_trace
from tests.forked import server
from tests.resume.crashes import assert_same_result, write_recipe
from tests.test_experiment import StopAt

pytestmark = pytest.mark.slow


def hold(folder: Path, ready: Connection) -> None:
    with locked(folder):
        child = os.fork()
        if child == 0:
            signal.pause()
        ready.send(child)
        signal.pause()


def test_a_folder_is_held_by_a_living_process_only(tiny_bert_folder: Path, tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(tmp_path, tiny_bert_folder), [f"output={tmp_path}/run"])
    ours, theirs = server.Pipe()
    other = server.Process(target=hold, args=(recipe.output, theirs))
    other.start()
    child = ours.recv()
    try:
        for resume in (False, True):
            with pytest.raises(MixfluenceError, match=f"^{recipe.output}: in use by another process .*{other.pid}"):
                run(recipe, resume=resume)
        other.kill()
        other.join()
        # The orphan of the killed process is alive, but holds nothing.
        assert run(recipe)
    finally:
        os.kill(child, signal.SIGKILL)


def stopped(recipe: Recipe, step: int = 7) -> Recipe:
    with pytest.raises(KeyboardInterrupt):
        run(recipe, callbacks=[StopAt(step)])
    return recipe


def test_a_lock_follows_no_link(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(mine)
    with pytest.raises(MixfluenceError, match=r"run/\.lock"), locked(tmp_path / "run"):
        pass
    assert mine.read_text() == "kept"


def test_a_moved_folder_is_resumed_in_place(
    tiny_bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_recipe(tmp_path, tiny_bert_folder, selection={"every": 3}, save_every=None)
    run(load_recipe(path, [f"output={tmp_path}/whole"]))
    before, after = tmp_path / "before" / "run", tmp_path / "after" / "run"
    stopped(load_recipe(path, [f"output={before}"]))
    after.parent.mkdir()
    shutil.move(before, after)
    monkeypatch.chdir(tmp_path / "after")
    file = Path("run/recipe.yaml")
    recipe = in_place(load_recipe(file), file)
    assert recipe.output == after
    run(recipe, resume=True)
    assert not before.exists()
    assert_same_result(after, tmp_path / "whole")
    assert load_recipe(after / "recipe.yaml").output == after


def test_only_a_run_folder_is_a_place_to_resume_in(tiny_bert_folder: Path, tmp_path: Path) -> None:
    path = write_recipe(tmp_path, tiny_bert_folder).rename(tmp_path / "recipe.yaml")
    recipe = load_recipe(path, [f"output={tmp_path}/run"])
    assert in_place(recipe, path) == recipe


def change_judgements(folder: Path, recipe: Recipe) -> None:
    qrels = folder / "data" / "small" / "qrels" / "dev.tsv"
    lines = qrels.read_text(encoding="utf-8").splitlines()
    qrels.write_text("\n".join([*lines, "q1\td2\t1", ""]), encoding="utf-8")


def change_corpus(folder: Path, recipe: Recipe) -> None:
    with (folder / "data" / "small" / "corpus.jsonl").open("a", encoding="utf-8") as corpus:
        corpus.write(json.dumps({"_id": "new", "title": "", "text": "w1 w2"}) + "\n")


def change_weights(folder: Path, recipe: Recipe) -> None:
    (folder / "weights.json").write_text('{"big": 1, "small": 2}', encoding="utf-8")


def change_encoder(folder: Path, recipe: Recipe) -> None:
    model = SentenceTransformer(recipe.model.name, device="cpu")
    next(model.parameters()).data.mul_(1.1)
    model.save(recipe.model.name)


def change_recipe(folder: Path, recipe: Recipe) -> None:
    inside = recipe.output / "recipe.yaml"
    text = inside.read_text(encoding="utf-8").replace("learning_rate: 0.001", "learning_rate: 0.002")
    inside.write_text(text, encoding="utf-8")


CHANGES: dict[Callable[[Path, Recipe], None], str] = {
    change_judgements: "dev set small|dev task small",
    change_corpus: "dev task small",
    change_weights: "initial weights",
    change_encoder: "encoder",
    change_recipe: "training.learning_rate was 0.001 and is 0.002",
}


def test_what_changed_is_named(tiny_bert_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    model = shutil.copytree(tiny_bert_folder, folder / "model")
    path = write_recipe(folder, model, selection={"every": 3}, save_every=None)
    (folder / "weights.json").write_text('{"big": 2, "small": 1}', encoding="utf-8")
    init = f"strategy={{name: static, init: {{file: {folder}/weights.json}}}}"
    recipe = stopped(load_recipe(path, [f"output={folder}/run", init]))
    unchanged = shutil.copytree(folder, tmp_path / "unchanged")
    for change, named in CHANGES.items():
        change(folder, recipe)
        with pytest.raises(MixfluenceError, match=named):
            run(load_recipe(recipe.output / "recipe.yaml"), resume=True)
        shutil.rmtree(folder)
        shutil.copytree(unchanged, folder)
    # It was the change that was refused.
    run(load_recipe(recipe.output / "recipe.yaml"), resume=True)


def test_a_changed_stage_is_named(tiny_bert_folder: Path, tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(tmp_path, tiny_bert_folder, "doremi"), [f"output={tmp_path}/run"])
    run(recipe)
    (recipe.output / "record.json").unlink()
    for file in ("weights.json", "model/model.safetensors"):
        path = recipe.output / "stages" / "reference" / file
        content = path.read_bytes()
        path.write_bytes(content[:-1] + b" ")
        with pytest.raises(DataError, match=f"reference: {file} has changed"):
            run(recipe, resume=True)
        path.write_bytes(content)


def test_a_cut_trace_is_a_warning(tiny_bert_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recipe = stopped(load_recipe(write_recipe(tmp_path, tiny_bert_folder), [f"output={tmp_path}/run"]))
    trace = recipe.output / "trace.jsonl"
    trace.write_text("".join(trace.read_text(encoding="utf-8").splitlines(keepends=True)[:1]), encoding="utf-8")
    run(recipe, resume=True)
    assert any(f"{trace}: 1 lines are missing" in message for message in caplog.messages)


def test_lost_checkpoints_are_a_warning(
    tiny_bert_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = stopped(load_recipe(write_recipe(tmp_path, tiny_bert_folder), [f"output={tmp_path}/run"]))
    shutil.rmtree(recipe.output / "checkpoints")
    run(recipe, resume=True)
    assert any("starting from step 0" in message for message in caplog.messages)


class Rates(TrainerCallback):
    """Remembers the learning rate of each step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append(kwargs["optimizer"].param_groups[0]["lr"])


def test_more_steps_extend_a_run_and_logs_may_come_at_another_interval(tiny_bert_folder: Path, tmp_path: Path) -> None:
    path = write_recipe(tmp_path, tiny_bert_folder)
    output = f"output={tmp_path}/run"
    run(load_recipe(path, [output]))
    with pytest.raises(RecipeError, match=r"training\.steps"):
        run(load_recipe(path, [output, "training.steps=6"]), resume=True)
    with pytest.raises(RecipeError, match="finished"):
        run(load_recipe(path, [output]), resume=True)
    longer = load_recipe(path, [output, "training.steps=18", "training.log_every=2"])
    with pytest.raises(KeyboardInterrupt):
        run(longer, resume=True, callbacks=[rates := Rates(), StopAt(14)])
    assert rates.seen == pytest.approx([longer.training.learning_rate * left / 18 for left in (6, 5)])
    assert not (tmp_path / "run" / "record.json").exists()
    run(longer, resume=True)
    assert read_record(tmp_path / "run" / "record.json")["steps"] == 18
    lines = read_trace(tmp_path / "run" / "trace.jsonl")
    assert sum(len(line.get("trained", [])) for line in lines) == 18
    assert [line["step"] for line in lines if "loss" in line] == [5, 10, 14, 16, 18]
    assert load_recipe(tmp_path / "run" / "recipe.yaml") == longer


def test_a_run_without_checkpoints_is_not_extended(tiny_bert_folder: Path, tmp_path: Path) -> None:
    path = write_recipe(tmp_path, tiny_bert_folder, save_every=None)
    run(load_recipe(path, [f"output={tmp_path}/run"]))
    with pytest.raises(RecipeError, match="no checkpoint"):
        run(load_recipe(path, [f"output={tmp_path}/run", "training.steps=18"]), resume=True)

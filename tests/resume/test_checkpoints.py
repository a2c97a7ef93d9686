"""Which checkpoint counts, which is resumed from, and which is kept.

- A checkpoint without its manifest, or with a file that is shorter, longer, altered or gone, is ignored by name.
- One whose best checkpoint is damaged is ignored too; one that was named is refused.
- The newest complete one is found; without any, `True` is an error and `"latest"` starts at step 0, with a warning if
  there are damaged ones.
- A checkpoint of other data, other settings or another strategy is refused by what differs; dev sets count only if
  they guide the run.
- Rotation keeps the newest and the best that are complete, and never relies on one that is not.
- The Trainer's own rotation, which comes before a checkpoint is complete, is off while training and restored after it.
- A run whose newest checkpoint is damaged resumes from the one before it; without any it starts again.
- A run that is refused leaves its folder free.
- A run of more than 500 steps is saved every 500 steps unless its recipe says otherwise.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer

from mixfluence import experiment
from mixfluence.build import training_arguments
from mixfluence.data.mixture import Mixture
from mixfluence.data.rows import Row
from mixfluence.errors import DataError, MixfluenceError
from mixfluence.experiment import run
from mixfluence.policy import UNIFORM
from mixfluence.recipe_yaml import load_recipe
from mixfluence.runs import MANIFEST_FILE, list_checkpoints, step_of
from mixfluence.strategies import InfDDS, Static, Strategy
from mixfluence.training.checkpoints import (
    LATEST,
    STATE_FILE,
    damage,
    find_checkpoint,
    newest_complete,
    read_state,
    rotate,
    seal,
    unseal_later,
)
from mixfluence.training.trainer import MixtureTrainer
from tests.conftest import row_set
from tests.resume.crashes import assert_same_result, write_recipe
from tests.training.runs import arguments, build

GUIDED = InfDDS(init=UNIFORM, update_every=5)


def write_checkpoint(folder: Path, step: int, best: int | None = None, sealed: bool = True) -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    (checkpoint / "1_Pooling").mkdir(parents=True)
    (checkpoint / "1_Pooling" / "config.json").write_text("{}", encoding="utf-8")
    (checkpoint / "model.safetensors").write_bytes(bytes(range(256)) * step)
    state = {"best_model_checkpoint": best and f"elsewhere/checkpoint-{best}"}
    (checkpoint / "trainer_state.json").write_text(json.dumps(state), encoding="utf-8")
    if sealed:
        seal(checkpoint)
    return checkpoint


def mixture(**texts: str) -> Mixture:
    return Mixture({name: row_set(Row(text, f"answer to {text}")) for name, text in texts.items()})


def identity(args: Any, strategy: Strategy, train: Mixture, dev: Mixture) -> dict[str, Any]:
    trainer: Any = SimpleNamespace(
        args=args, strategy=strategy, mixture=train, dev=dev, initial_weights=[0.5, 0.5], own_batch_sizes={}
    )
    return MixtureTrainer.identity(trainer)


def same(folder: Path, strategy: Strategy = GUIDED, dev: Mixture | None = None, **options: Any) -> dict[str, Any]:
    """The identity of a run of two datasets."""
    return identity(arguments(folder, **options), strategy, mixture(near="a", far="b"), dev or mixture(aim="c"))


def steps(folder: Path) -> list[int]:
    return [step_of(path) for path in list_checkpoints(folder)]


def alter(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def manifest(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / MANIFEST_FILE).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda folder: alter(folder / "model.safetensors"), "model.safetensors has changed"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "model.safetensors has changed"),
        (lambda folder: (folder / "1_Pooling" / "config.json").unlink(), "1_Pooling/config.json is missing"),
        (lambda folder: (folder / MANIFEST_FILE).unlink(), "not written completely"),
        (manifest("{"), "cannot be read"),
        (manifest('{"trainer_state.json": 1}'), "cannot be"),
        (manifest("{}"), "trainer_state.json"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(
    harm: Callable[[Path], None], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, newest = write_checkpoint(tmp_path, 9), write_checkpoint(tmp_path, 10)
    assert newest_complete(tmp_path) == newest
    assert caplog.messages == []
    harm(newest)
    with caplog.at_level(logging.WARNING):
        assert newest_complete(tmp_path) == before
    (warning,) = caplog.messages
    assert "checkpoint-10" in warning
    assert reason in warning
    with pytest.raises(DataError, match="checkpoint-10"):
        find_checkpoint(tmp_path, newest)
    harm(before)
    assert newest_complete(tmp_path) is None


def test_a_checkpoint_must_exist_only_if_it_is_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wanted: str | bool | None
    for wanted in (None, False, LATEST):
        assert find_checkpoint(tmp_path, wanted) is None
    assert len(caplog.messages) == 1
    with pytest.raises(DataError, match=str(tmp_path)):
        find_checkpoint(tmp_path, True)
    old, new = write_checkpoint(tmp_path, 6), write_checkpoint(tmp_path, 12)
    assert find_checkpoint(tmp_path, str(old)) == old
    for wanted in (True, LATEST):
        assert find_checkpoint(tmp_path, wanted) == new
    alter(new / "model.safetensors")
    for wanted in (True, LATEST):
        assert find_checkpoint(tmp_path, wanted) == old
    alter(old / "model.safetensors")
    caplog.clear()
    assert find_checkpoint(tmp_path, LATEST) is None
    assert "step 0" in caplog.messages[-1]
    with pytest.raises(DataError, match=str(tmp_path)):
        find_checkpoint(tmp_path, True)


def test_a_checkpoint_of_another_run_is_refused_by_what_differs(tmp_path: Path) -> None:
    now, args = same(tmp_path), arguments(tmp_path)

    def read(saved: dict[str, Any]) -> dict[str, Any]:
        (tmp_path / STATE_FILE).write_text(json.dumps(saved), encoding="utf-8")
        return read_state(tmp_path, now)

    assert read(now) == now
    for saved, difference in [
        (same(tmp_path, seed=7), "'seed' .* 7 .* 42"),
        (same(tmp_path, per_device_train_batch_size=8), "'batch size' .* 8 .* 4"),
        (now | {"settings": {**now["settings"], "strategy": "Aioli"}}, "'strategy' .* 'Aioli' .* 'InfDDS'"),
        (same(tmp_path, dev=mixture(goal="c")), "dev sets goal.* aim"),
        (same(tmp_path, dev=mixture(aim="d")), "'aim'"),
        (identity(args, GUIDED, mixture(near="a"), mixture(aim="c")), "training sets near.* near, far"),
        (identity(args, GUIDED, mixture(near="a", far="x"), mixture(aim="c")), "'far'"),
    ]:
        with pytest.raises(DataError, match=f"^{tmp_path}: .*{difference}"):
            read(saved)


def test_dev_sets_that_guide_nothing_may_change(tmp_path: Path) -> None:
    one, other = (same(tmp_path, Static(), dev=mixture(**{name: "c"})) for name in ("aim", "goal"))
    assert one == other


def test_a_file_added_later_does_no_harm(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, 1)
    (checkpoint / "notes.txt").write_text("mine", encoding="utf-8")
    assert damage(checkpoint) is None


def test_a_checkpoint_needs_the_best_one_so_far(tmp_path: Path) -> None:
    best, newest = write_checkpoint(tmp_path, 3, best=3), write_checkpoint(tmp_path, 6, best=3)
    assert newest_complete(tmp_path) == newest
    alter(best / "model.safetensors")
    assert newest_complete(tmp_path) is None
    assert "checkpoint-3" in (damage(newest) or "")


@pytest.mark.parametrize(
    ("limit", "best", "kept"),
    [
        (None, None, [8, 7, 6, 4, 2]),
        (1, None, [7]),
        (2, None, [7, 6]),
        (2, 2, [7, 2]),
        (1, 2, [7, 2]),
        (3, 7, [7, 6, 4]),
    ],
)
def test_rotation_keeps_the_newest_and_the_best_that_are_complete(
    limit: int | None, best: int | None, kept: list[int], tmp_path: Path
) -> None:
    for step in (2, 4, 6, 7):
        write_checkpoint(tmp_path, step)
    write_checkpoint(tmp_path, 8, sealed=False)
    rotate(tmp_path, limit, f"somewhere/checkpoint-{best}" if best else None)
    assert steps(tmp_path) == kept


def test_rotation_keeps_the_newest_whatever_the_clock_says(tmp_path: Path) -> None:
    for step in (3, 6, 9):
        os.utime(write_checkpoint(tmp_path, step) / MANIFEST_FILE, (1_000 - step, 1_000 - step))
    rotate(tmp_path, 1, None)
    assert steps(tmp_path) == [9]


@pytest.mark.slow
def test_a_run_that_starts_again_does_not_keep_checkpoints_of_its_first_attempt(
    make_static: Callable[[], SentenceTransformer], tmp_path: Path
) -> None:
    for step in (9, 12):
        write_checkpoint(tmp_path, step)
    build(make_static(), arguments(tmp_path, save_strategy="steps", save_steps=2, save_total_limit=2)).train()
    assert steps(tmp_path) == [6, 4]


def test_later_checkpoints_no_longer_count_when_a_run_went_back(tmp_path: Path) -> None:
    kept = write_checkpoint(tmp_path, 3)
    write_checkpoint(tmp_path, 6)
    unseal_later(tmp_path, 3)
    assert newest_complete(tmp_path) == kept


@pytest.mark.slow
def test_the_library_does_not_rotate(make_static: Callable[[], SentenceTransformer], tmp_path: Path) -> None:
    args = arguments(tmp_path, save_strategy="steps", save_steps=2, save_total_limit=1)
    trainer = build(make_static(), args)
    write_checkpoint(tmp_path, 5, sealed=False)
    trainer.train()
    assert steps(tmp_path) == [6]
    assert damage(tmp_path / "checkpoint-6") is None
    assert args.save_total_limit == 1


@pytest.mark.slow
def test_a_damaged_checkpoint_costs_a_few_steps_and_no_more(
    tiny_bert_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = write_recipe(tmp_path, tiny_bert_folder, selection={"every": 3, "dev": "halves"}, save_every=None)
    run(load_recipe(recipe, [f"output={tmp_path}/whole"]))
    again = load_recipe(recipe, [f"output={tmp_path}/run"])
    run(again)
    for number, alright in ((0, False), (1, True)):
        (again.output / "record.json").unlink()
        newest = list_checkpoints(again.output / "checkpoints")
        alter(newest[0] / "optimizer.pt")
        if not alright:
            for other in newest[1:]:
                alter(other / "model.safetensors")
        caplog.clear()
        run(again, resume=True)
        warned = [message for message in caplog.messages if "cannot be used" in message]
        assert len(warned) == (1 if alright else len(newest)), number
        assert any("starting from step 0" in message for message in caplog.messages) == (not alright)
        assert_same_result(again.output, tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["strategy={name: static, max_epochs: 0.01}"], "max_epochs allows"),
        (["strategy=inf-dds", "dev={one: {format: pairs, path: PAIRS}}"], "dev set one: needs at least two rows"),
    ],
)
def test_what_cannot_start_does_not_take_the_folder(
    changes: list[str], message: str, tiny_bert_folder: Path, tmp_path: Path
) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('["w1", "w2"]\n["w1", "w3"]\n', encoding="utf-8")
    recipe = write_recipe(tmp_path, tiny_bert_folder)
    output = f"output={tmp_path}/run"
    with pytest.raises(MixfluenceError, match=message):
        run(load_recipe(recipe, [output, *(change.replace("PAIRS", str(pairs)) for change in changes)]))
    assert not (tmp_path / "run" / "trace.jsonl").exists()
    assert run(load_recipe(recipe, [output]))


@pytest.mark.slow
def test_a_run_that_was_killed_before_its_first_step_starts_again(
    tiny_bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe(write_recipe(tmp_path, tiny_bert_folder), [f"output={tmp_path}/run", "strategy=doge"])

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(experiment, "write_inputs", killed)
        with pytest.raises(KeyboardInterrupt):
            run(recipe)
    assert (tmp_path / "run" / "stages").exists(), "made by the trainer library before anything is written"
    assert run(recipe, resume=True)


@pytest.mark.parametrize(
    ("steps", "changes", "expected"),
    [
        (500, {}, None),
        (501, {}, 500),
        (501, {"save_every": 70}, 70),
        (540, {"selection": {"every": 90}}, 90),
    ],
)
def test_a_long_run_has_checkpoints_even_if_its_recipe_asks_for_none(
    steps: int, changes: dict[str, Any], expected: int | None, tiny_bert_folder: Path, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, tiny_bert_folder, steps=steps, **{"save_every": None, **changes})
    model = SentenceTransformer(str(tiny_bert_folder), device="cpu")
    args = training_arguments(load_recipe(recipe, [f"output={tmp_path}/run"]), model, {})
    assert (args.save_strategy == "steps") == (expected is not None)
    assert expected is None or args.save_steps == expected


@pytest.mark.slow
def test_the_model_is_on_disk_before_the_run_counts_as_finished(
    tiny_bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe(write_recipe(tmp_path, tiny_bert_folder), [f"output={tmp_path}/run"])
    flushed: list[str] = []
    flush = os.fsync

    def remember(handle: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{handle}"))
        flush(handle)

    monkeypatch.setattr(os, "fsync", remember)
    run(recipe)
    model = {str(path) for path in (tmp_path / "run" / "model").rglob("*") if path.is_file()}
    record = next(place for place, name in enumerate(flushed) if "record.json" in name)
    assert model <= set(flushed[:record])

"""Runs that are killed, and resumed until they are done, end as the run that nobody disturbed: bit for bit.

- Weights, mixture, draws, trace and scores are the same wherever the kill came: in a step, inside a probe, while a
  checkpoint was being written, between two stages, while testing.
- So they are when kills come at random moments, one after the other, for any method, accumulation and loader, and
  when the folder is moved or a bit of a cache or a checkpoint flips before it goes on. `SOAK_KILLS` sets how many.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from mixfluence.report.compare import compare
from mixfluence.runs import read_run
from tests.resume.conftest import Whole
from tests.resume.crashes import (
    Moment,
    Run,
    after,
    assert_same_result,
    between_stages,
    in_checkpoint,
    in_evaluation,
    in_probe,
    in_step,
)
from tests.test_methods import SETTINGS

SELECTION = {"every": 3, "dev": "halves"}
# Kills of the soak, all together; a scenario has a few of them.
KILLS, KILLS_EACH = int(os.environ.get("SOAK_KILLS", "200")), 5
# Moments that every method has before it tests, and methods that have one more.
KINDS = ["any time", "step", "checkpoint"]
PROBING, REFERRING = {"inf-dds", "multidds", "aioli", "doge"}, {"doremi", "tdro"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "accumulation", "workers", "moment"),
    [
        ("inf-dds", 1, 0, in_probe(8)),
        ("static", 4, 2, in_checkpoint(6)),
        ("doremi", 1, 0, between_stages),
    ],
    ids=["inside a probe", "while a checkpoint is written", "between stages"],
)
def test_a_killed_run_ends_as_the_undisturbed_one(
    method: str,
    accumulation: int,
    workers: int,
    moment: Moment,
    whole_run: Whole,
    tmp_path: Path,
) -> None:
    recipe, whole = whole_run(method, accumulation=accumulation, workers=workers)
    run = Run(recipe, tmp_path / "run")
    assert run.stop_when(moment, signal.SIGKILL), run.said
    assert run.wait() == -signal.SIGKILL
    again = Run(recipe, tmp_path / "run", resume=True)
    assert again.wait() == 0, again.said
    assert again.complaints == []
    assert_same_result(tmp_path / "run", whole)


@pytest.mark.slow
def test_a_run_that_is_moved_after_its_last_step_keeps_its_best_model(whole_run: Whole, tmp_path: Path) -> None:
    recipe, whole = whole_run("static", selection=SELECTION, save_every=None)
    assert read_run(whole).record["selected_step"] < read_run(whole).record["steps"]
    run = Run(recipe, tmp_path / "run")
    assert run.stop_when(in_evaluation, signal.SIGKILL), run.said
    assert run.wait() == -signal.SIGKILL
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    again = Run(recipe, moved, resume=True)
    assert again.wait() == 0, again.said
    assert_same_result(moved, whole)


@pytest.mark.soak
def test_runs_killed_at_random_moments_lose_nothing(
    whole_run: Whole, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("SOAK_SEED", time.time_ns() % 2**32))
    rng = random.Random(seed)
    kills: dict[str, int] = {}
    disturbed: dict[str, int] = {}
    scenarios = 0
    while sum(kills.values()) < KILLS:
        method = rng.choice(list(SETTINGS))
        accumulation, workers, selects = rng.choice([1, 4]), rng.choice([0, 2]), rng.random() < 0.5
        keys = {"selection": SELECTION, "save_every": None} if selects else {}
        recipe, whole = whole_run(method, accumulation=accumulation, workers=workers, **keys)
        output = tmp_path / str(scenarios)
        scenarios += 1
        for number in range(KILLS_EACH):
            kinds = [*KINDS, *(["probe"] * (method in PROBING)), *(["stages"] * (method in REFERRING))]
            # Killed while testing, a run has nothing left to be killed in.
            kind = rng.choice(kinds if number < KILLS_EACH - 1 else ["evaluation"])
            run = Run(recipe, output, resume=number > 0)
            if run.stop_when(moment_of(kind, rng), signal.SIGKILL):
                kills[kind] = kills.get(kind, 0) + 1
            if run.wait() == 0:
                break
            assert run.complaints == [], f"seed {seed}: {run.said}"
            output, what = disturb(output, recipe.parent / "cache", rng)
            disturbed[what] = disturbed.get(what, 0) + 1
        else:
            run = Run(recipe, output, resume=True)
            assert run.wait() == 0, f"seed {seed}: {run.said}"
        assert_same_result(output, whole)
        # The folder lies where it was moved to, and is one to compare.
        assert compare([read_run(output), read_run(whole)]).tests == ("small",)
        with capsys.disabled():
            print(f"seed {seed}: {scenarios} runs, {sum(kills.values())} kills {kills}, {disturbed}", flush=True)  # noqa: T201


def disturb(output: Path, cache: Path, rng: random.Random) -> tuple[Path, str]:
    """Do something to a killed run, or nothing; return where its folder is now, and what was done."""
    what = rng.choice(["nothing", "moved", "cache", "checkpoint"])
    if what == "moved" and output.exists():
        return output.rename(output.with_name(f"{output.name}m")), what
    # Nothing reads the checkpoints of a stage that is finished.
    sealed = [path.parent for path in output.rglob("manifest.json") if not (path.parents[2] / "record.json").exists()]
    files = {"cache": cache.glob("[!l]*/*/*"), "checkpoint": (file for path in sealed for file in path.iterdir())}
    found = sorted(file for file in files.get(what, ()) if file.is_file() and file.stat().st_size)
    if not found:
        return output, "nothing"
    file = rng.choice(found)
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.unlink()
    file.write_bytes(content)
    return output, what


def moment_of(kind: str, rng: random.Random) -> Moment:
    """Return a random moment of a kind, from now on."""
    match kind:
        case "step":
            return in_step(rng.choice([1, 5, 10]))
        case "checkpoint":
            return in_checkpoint(rng.choice([3, 6, 9, 12]))
        case "probe":
            return in_probe(rng.randrange(1, 10))
        case "stages":
            return between_stages
        case "evaluation":
            return in_evaluation
        case _:
            return after(rng.uniform(0.2, 4.0))

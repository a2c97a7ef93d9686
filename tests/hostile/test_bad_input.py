"""Wrong input on the command line: one `error:` line that names the place, the exit code, no traceback.

Nothing that a file contains is run. The wording is checked for one case of each kind only (`Case.says`).
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hostile import cases_data, cases_models, cases_recipes, cases_runs
from tests.hostile.cases_models import PWNED
from tests.hostile.workplace import Case, error_line, prepare, run_program

CASES = {
    f"{kind}: {case.what}": case
    for kind, cases in {
        "recipe": cases_recipes.CASES,
        "data": cases_data.CASES,
        "model": cases_models.CASES,
        "run": cases_runs.RUNS,
        "surroundings": cases_runs.SURROUNDINGS,
    }.items()
    for case in cases
}


# What a plan cannot know, or should not refuse because the run may be meant for another machine.
ONLY_TRAIN = {
    "a hub id without network",
    "the folder of a finished run",
    "an output folder that the system refuses",
    "a full disk at the first checkpoint",
    "compiling without a GPU",
    "an incomplete process group",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_error_line_names_the_place(
    case: Case, tmp_path: Path, finished_run: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "place"
    needs_run = case in cases_runs.RUNS or " run" in case.command
    shutil.copytree(finished_run, folder, symlinks=True, ignore=None if needs_run else shutil.ignore_patterns("run"))
    # Empty, because a cached copy would hide damaged data.
    monkeypatch.setenv("MIXFLUENCE_CACHE", str(folder / "own-cache"))
    prepare(case, folder)
    trains = case.command.startswith("train recipe.yaml") and "--resume" not in case.command
    if trains and case.what not in ONLY_TRAIN:
        plan = replace(case, command=case.command.replace("train", "plan", 1))
        assert run_program(plan, folder) == case.code, "plan accepts what train refuses"
    capfd.readouterr()
    code = run_program(case, folder)
    message = error_line(capfd.readouterr().err, folder)
    assert case.names
    assert [name for name in (*case.names, case.says) if name not in message] == [], message
    assert code == case.code
    assert not list(tmp_path.rglob(PWNED))
    assert not Path(PWNED).exists()

"""Wrong input on the command line: one `error:` line that names the place, the exit code, no traceback.

Nothing that a file contains is run. The wording is checked for one case of each kind only (`Case.says`).
"""

from __future__ import annotations

import shutil
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
    capfd.readouterr()
    code = run_program(case, folder)
    message = error_line(capfd.readouterr().err, folder)
    assert case.names
    assert [name for name in (*case.names, case.says) if name not in message] == [], message
    assert code == case.code
    assert not list(tmp_path.rglob(PWNED))
    assert not Path(PWNED).exists()

"""Every row of the tables in docs/BAD-INPUT.md, done for real.

- The program ends with one line that says what the table says, and with the exit code for it: no traceback, no hang.
- Nothing that a file brought with it was run.
- There are at least sixty rows, ten in each class, and none that is not tried.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile import cases_checkpoints, cases_data, cases_environment, cases_models, cases_recipes
from tests.hostile.cases_models import PWNED
from tests.hostile.workplace import Case, fits, prepare, run_program, told

TABLES = Path(__file__).parents[2] / "docs" / "BAD-INPUT.md"
CLASSES = {
    "Recipes": cases_recipes.CASES,
    "Data files": cases_data.CASES,
    "Models": cases_models.CASES,
    "Checkpoints and runs": cases_checkpoints.CASES,
    "Environment": cases_environment.CASES,
}


def table_rows() -> Iterator[tuple[str, str, str]]:
    """Yield class, what is wrong and what a user is told, as the document has them."""
    heading = ""
    for line in TABLES.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif match := re.fullmatch(r"\| (.+?) \| `(.+)` \|", line):
            yield heading, match[1], match[2]


EXPECTED = {(heading, what): error for heading, what, error in table_rows()}
CASES = [(heading, case) for heading, cases in CLASSES.items() for case in cases]


def test_the_tables_hold_what_is_tried_and_nothing_else() -> None:
    assert sorted(EXPECTED) == sorted((heading, case.what) for heading, case in CASES)
    assert len(EXPECTED) >= 60
    assert all(len(cases) >= 10 for cases in CLASSES.values())


@pytest.mark.slow
@pytest.mark.parametrize(("heading", "case"), CASES, ids=[f"{heading}: {case.what}" for heading, case in CASES])
def test_a_user_is_told_what_the_table_says(
    heading: str,
    case: Case,
    tmp_path: Path,
    finished_run: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "place"
    needs_run = heading == "Checkpoints and runs" or " run" in case.command
    shutil.copytree(finished_run, folder, symlinks=True, ignore=None if needs_run else shutil.ignore_patterns("run"))
    # Empty, or what is damaged might be known from before.
    monkeypatch.setenv("MIXFLUENCE_CACHE", str(folder / "own-cache"))
    prepare(case, folder)
    capfd.readouterr()
    code = run_program(case, folder)
    message = told(capfd.readouterr().err, folder)
    assert fits(message, EXPECTED[heading, case.what]), message
    assert code == case.code
    assert not list(tmp_path.rglob(PWNED))
    assert not Path(PWNED).exists()

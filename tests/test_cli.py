"""The command line: exit codes, messages on the right stream. A process where the process is the point."""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from mixfluence import __version__
from tests.hostile.workplace import Case, run_program
from tests.test_experiment import recipe_path

__all__ = ["recipe_path"]

pytestmark = pytest.mark.slow


def mixfluence(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("mixfluence")
    return subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def mixfluence_here(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process, which saves the imports of a new one."""
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        code = run_program(Case("nothing", shlex.join(words)), folder)
    return subprocess.CompletedProcess(words, code, output.getvalue(), errors.getvalue())


def test_the_program_and_the_module_print_the_version(tmp_path: Path) -> None:
    assert mixfluence("--version", folder=tmp_path).stdout == f"mixfluence {__version__}\n"
    module = [sys.executable, "-m", "mixfluence", "--version"]
    assert subprocess.run(module, capture_output=True, text=True, check=True).stdout.endswith(f" {__version__}\n")


@pytest.mark.parametrize("words", [["-h"], ["--help"], []])
def test_help_lists_the_verbs(words: list[str], tmp_path: Path) -> None:
    result = mixfluence_here(*words, folder=tmp_path)
    assert all(verb in result.stdout for verb in ("demo", "train", "evaluate", "recipes", "Exit codes"))
    assert "--install-completion" in result.stdout
    assert "KEY=VALUE" in mixfluence_here("train", "-h", folder=tmp_path).stdout


def test_train_then_evaluate(recipe_path: Path, tmp_path: Path) -> None:
    trained = mixfluence_here("train", str(recipe_path), "evaluation.references=true", folder=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert "NDCG@10" in trained.stdout
    assert "Traceback" not in trained.stderr
    assert "big: 80 rows" in trained.stderr
    assert "big: tokens: anchor" in trained.stderr

    again = mixfluence_here("train", str(recipe_path), folder=tmp_path)
    assert again.returncode == 2
    assert again.stderr.count("error: ") == 1
    assert "--resume" in again.stderr

    judged = mixfluence_here("evaluate", "run", "--bm25", "--measure", "recall@100", "--to", "scores", folder=tmp_path)
    assert judged.returncode == 0, judged.stderr
    assert "RECALL@100" in judged.stdout
    assert "BM25" in judged.stdout
    assert "wrote scores/BM25" in judged.stderr, "the folders that `compare` reads"
    # `compare` reads what was written.
    compared = mixfluence_here("compare", "run", "scores/BM25", "-o", "table.md", folder=tmp_path)
    assert compared.returncode == 0, compared.stderr
    assert "| 2 | BM25 |" in (tmp_path / "table.md").read_text(encoding="utf-8")
    refused = mixfluence_here("compare", "run", "-o", "table.xlsx", folder=tmp_path)
    assert (refused.returncode, (tmp_path / "table.xlsx").exists()) == (2, False)
    assert ".xlsx" in refused.stderr
    absent = mixfluence_here("status", "runs/nothere", folder=tmp_path)
    assert (absent.returncode, absent.stderr) == (2, "error: runs/nothere: no such folder\n")
    shown = [line.split()[0] for line in trained.stdout.splitlines() if line[:1].isalpha()]
    assert shown[1:5] == ["tiny", "zero-shot", "BM25", "tiny"]


def test_mistakes_exit_with_2_and_one_line_each(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("name: x\nmodle: {}\n", encoding="utf-8")
    result = mixfluence("train", "wrong.yaml", folder=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    missing, unknown = result.stderr.splitlines()
    assert missing == "error: wrong.yaml:1: model and 2 more: this key is missing"
    assert unknown == "error: wrong.yaml:2: unknown key 'modle'; did you mean 'model'?"
    assert mixfluence_here("train", folder=tmp_path).returncode == 2
    assert "english13" in mixfluence_here("train", "nothing", folder=tmp_path).stderr


def test_recipes_can_be_listed_shown_copied_and_checked(tmp_path: Path, recipe_path: Path) -> None:
    assert "pydocs" in mixfluence_here("recipes", folder=tmp_path).stdout
    shown = mixfluence_here("recipes", "show", "pydocs", folder=tmp_path).stdout
    assert mixfluence_here("recipes", "copy", "pydocs", folder=tmp_path).returncode == 0
    assert (tmp_path / "pydocs.yaml").read_text(encoding="utf-8") == shown
    assert mixfluence_here("recipes", "copy", "pydocs", folder=tmp_path).returncode == 2
    checked = mixfluence_here("recipes", "check", str(recipe_path), "training.steps=24", folder=tmp_path)
    assert checked.returncode == 0
    assert "steps: 24" in checked.stdout

"""The command line as a user meets it: real processes, exit codes, messages on the right stream."""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from tests.hostile.workplace import Case, run_program
from tests.test_experiment import recipe_path

__all__ = ["recipe_path"]

pytestmark = pytest.mark.slow


def mixfluence(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("mixfluence")
    return subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def mixfluence_here(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process, which has imported already what a new one would import for seconds."""
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        code = run_program(Case("nothing", shlex.join(words)), folder)
    return subprocess.CompletedProcess(words, code, output.getvalue(), errors.getvalue())


def test_help_is_there_and_loads_nothing_heavy(tmp_path: Path) -> None:
    result = mixfluence("--help", folder=tmp_path)
    assert result.returncode == 0
    assert all(verb in result.stdout for verb in ("demo", "train", "evaluate", "recipes"))
    modules = subprocess.run(
        [sys.executable, "-c", "import sys, mixfluence.cli; print('torch' in sys.modules, 'numpy' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert modules.stdout.split() == ["False", "False"]


def test_train_then_evaluate(recipe_path: Path, tmp_path: Path) -> None:
    trained = mixfluence("train", str(recipe_path), folder=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert "NDCG@10" in trained.stdout
    assert "Traceback" not in trained.stderr

    again = mixfluence_here("train", str(recipe_path), folder=tmp_path)
    assert again.returncode == 2
    assert again.stderr.count("error: ") == 1
    assert "--resume" in again.stderr

    judged = mixfluence_here("evaluate", "run", "--bm25", "--measure", "recall@100", "--to", "scores", folder=tmp_path)
    assert judged.returncode == 0, judged.stderr
    assert "RECALL@100" in judged.stdout
    assert "BM25" in judged.stdout
    assert sorted(path.name for path in (tmp_path / "scores" / "run").iterdir()) == ["big.jsonl", "small.jsonl"]


def test_mistakes_exit_with_2_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("name: x\nmodle: {}\n", encoding="utf-8")
    result = mixfluence("train", "wrong.yaml", folder=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.strip() == "error: wrong.yaml:1: unknown key 'modle'; did you mean 'model'?"
    assert mixfluence("train", folder=tmp_path).returncode == 2
    assert "english13" in mixfluence("train", "nothing", folder=tmp_path).stderr


def test_recipes_can_be_listed_shown_copied_and_checked(tmp_path: Path) -> None:
    assert "pydocs" in mixfluence("recipes", folder=tmp_path).stdout
    shown = mixfluence("recipes", "show", "pydocs", folder=tmp_path).stdout
    assert mixfluence("recipes", "copy", "pydocs", folder=tmp_path).returncode == 0
    assert (tmp_path / "pydocs.yaml").read_text(encoding="utf-8") == shown
    assert mixfluence("recipes", "copy", "pydocs", folder=tmp_path).returncode == 2
    checked = mixfluence("recipes", "check", "pydocs.yaml", "training.steps=200", folder=tmp_path)
    assert checked.returncode == 0
    assert "steps: 200" in checked.stdout

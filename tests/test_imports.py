"""Which parts of the package may import what."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import mixfluence

SOURCE = Path(mixfluence.__file__).parent
HEAVY = {
    "torch",
    "numpy",
    "pydantic",
    "scipy",
    "datasets",
    "transformers",
    "sentence_transformers",
    "plotly",
    "pandas",
}
TRAINERS = {"Trainer", "TrainerCallback", "SentenceTransformerTrainer"}


@cache
def imports() -> list[tuple[str, str, str]]:
    """Return every import of the package: the path of the module, the package imported from and the last name."""
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            place = path.relative_to(SOURCE).as_posix()
            found += [(place, name.split(".")[0], name.split(".")[-1]) for name in names]
    return found


def test_the_command_line_starts_without_heavy_packages() -> None:
    code = "import sys, mixfluence.cli; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "typer" in loaded
    assert HEAVY & set(loaded) == set()


def test_the_package_imports_nothing_of_the_checkout() -> None:
    assert len(imports()) > 500
    assert [
        path for path, package, _ in imports() if package in {"reproduction", "tests", "benchmarks", "examples"}
    ] == []


def test_only_training_knows_the_trainer() -> None:
    users = {path.split("/")[0] for path, _, name in imports() if name in TRAINERS}
    assert users <= {"training", "build.py", "experiment.py"}


def test_probabilities_need_neither_tensors_nor_trainer() -> None:
    users = [
        (path, package)
        for path, package, _ in imports()
        if path.split("/")[0] in {"policy", "strategies"}
        and package in {"torch", "transformers", "sentence_transformers", "accelerate"}
    ]
    assert users == []


def test_every_public_name_can_be_imported() -> None:
    names = dir(mixfluence)
    assert {"MixtureTrainer", "InfDDS", "Static", "MixfluenceError"} <= set(names)
    assert all(getattr(mixfluence, name) is not None for name in names)

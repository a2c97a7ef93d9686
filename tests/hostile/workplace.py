"""A folder with a small recipe, its data and a model, and the command line run in this process."""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

from mixfluence.cli import main

RECIPE = """\
name: tiny
model: {name: model}
defaults: {format: pairs, path: "data/{name}.jsonl"}
train: [near, far]
dev: [dev]
test: [test]
training:
  steps: 4
  batch_size: 4
  save_every: 2
output: run
"""


@dataclass(frozen=True)
class Case:
    """One mistake.

    Attributes:
        what: The mistake, in a few words.
        command: Words after `mixfluence`.
        names: What the error must name: files, lines, keys, values.
        says: Part of its sentence, for one case of each kind.
        recipe: Texts of the recipe that are replaced by others.
        files: Files that are written, with their content; None removes a file or folder.
        arrange: Any other preparation of the folder.
        environment: Variables that are set.
        missing: A package that is not installed.
        disk: How many bytes a file may have before the disk is full.
        code: The exit code.
    """

    what: str
    command: str = "train recipe.yaml"
    names: tuple[str, ...] = ()
    says: str = ""
    recipe: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str | bytes | None] = field(default_factory=dict)
    arrange: Callable[[Path], object] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    missing: str | None = None
    disk: int | None = None
    code: int = 2


def write_workplace(folder: Path, model: Path) -> None:
    """Write a valid recipe with its data, and link the model."""
    (folder / "data").mkdir(parents=True)
    for number, name in enumerate(("near", "far", "dev", "test")):
        rows = [[f"w{20 * number + i} w{i}", f"w{100 + 20 * number + i}"] for i in range(12)]
        (folder / "data" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (folder / "recipe.yaml").write_text(RECIPE, "utf-8")
    (folder / "model").symlink_to(model)


def prepare(case: Case, folder: Path) -> None:
    """Make the mistake."""
    path = folder / "recipe.yaml"
    for old, new in case.recipe.items():
        text = path.read_text("utf-8")
        assert old in text, f"{old!r} is not in the recipe"
        path.write_text(text.replace(old, new), "utf-8")
    for name, content in case.files.items():
        _put(folder / name, content)
    if case.arrange:
        case.arrange(folder)


def _put(path: Path, content: str | bytes | None) -> None:
    if path.is_symlink():
        path.unlink()
    elif content is None and path.is_dir():
        shutil.rmtree(path)
    elif content is None:
        path.unlink()
    if content is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def own_model(folder: Path) -> Path:
    """Replace the link to the model by a copy that may be damaged."""
    model = folder / "model"
    target = model.resolve()
    model.unlink()
    shutil.copytree(target, model)
    return model


def run_program(case: Case, folder: Path) -> int:
    """Run the command line in this process and return its exit code; unexpected exceptions are raised."""
    with _as_program(case, folder), pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


@contextmanager
def _as_program(case: Case, folder: Path) -> Iterator[None]:
    """Restore what the command line changes in its process."""
    place, words, environment = Path.cwd(), sys.argv, dict(os.environ)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    modules = {name: sys.modules[name] for name in list(sys.modules) if case.missing in (name, name.split(".")[0])}
    users = {
        name: module for name, module in sys.modules.items() if case.missing and _uses(name, module, case.missing)
    }
    try:
        os.chdir(folder)
        os.environ.update(case.environment)
        sys.argv = ["mixfluence", *shlex.split(case.command)]
        if case.missing:
            sys.modules |= dict.fromkeys([case.missing, *modules])  # type: ignore[arg-type]
            for name in users:
                del sys.modules[name]
        if case.disk is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (case.disk, limits[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        if case.missing:
            del sys.modules[case.missing]
        sys.modules |= modules | users
        os.chdir(place)
        sys.argv = words
        os.environ.clear()
        os.environ.update(environment)


def _uses(name: str, module: ModuleType, package: str) -> bool:
    """Return whether one of our modules imported something from a package."""
    taken = (getattr(value, "__module__", None) or "" for value in vars(module).values())
    return name.startswith("mixfluence.") and any(str(place).split(".")[0] == package for place in taken)


def error_line(errors: str, folder: Path) -> str:
    """Return the errors, the last lines printed, one each, with paths relative to the folder."""
    # A progress bar goes back to the start of its line.
    lines = errors.replace(f"{folder}/", "./").replace("\r", "\n").rstrip("\n").split("\n")
    found = [line for line in lines if line.startswith("error: ")]
    assert found, errors
    assert found == lines[-len(found) :], errors
    assert "Traceback" not in errors
    return "\n".join(line.removeprefix("error: ") for line in found)

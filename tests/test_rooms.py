"""The program's rooms and the doors between them.

- Every module is in a room, and imports no room but those its own may see.
- The host's trainer is known to `training` and to what puts a run together; probabilities know no tensor.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mixfluence

SOURCE = Path(mixfluence.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))

TOOLS = {"errors", "atomic", "modes", "run_folder", "display"}
PARTS = {*TOOLS, "attention", "encoders", "influence", "policy", "strategies", "data", "clustering", "evaluation"}
PARTS |= {"training"}
# Room -> the other rooms it may import. Only what puts a run together knows recipes, and only `cli` the user.
DOORS: dict[str, set[str]] = {
    "errors": set(),
    "atomic": set(),
    "modes": set(),
    "run_folder": {"errors"},
    "display": set(),
    "attention": set(),
    "paper": TOOLS,
    "record": TOOLS,
    "encoders": TOOLS,
    "policy": TOOLS,
    "influence": TOOLS,
    "strategies": {*TOOLS, "influence", "policy"},
    "data": TOOLS,
    "embedding": {*TOOLS, "attention", "data"},
    "clustering": {*TOOLS, "data", "embedding"},
    "evaluation": {*TOOLS, "data", "embedding"},
    "training": {*TOOLS, "attention", "influence", "policy", "strategies", "data"},
    "report": {*TOOLS, "config", "data", "evaluation"},
    "config": TOOLS,
    "assembly": {*PARTS, "config"},
    "stages": {*PARTS, "config"},
    "stage_run": {*PARTS, "config", "assembly", "record", "stages"},
    "experiment": {*PARTS, "config", "assembly", "record", "stages", "stage_run"},
    "planning": {*PARTS, "config", "assembly", "stages", "stage_run", "experiment"},
    "study": {*TOOLS, "config", "assembly", "experiment", "report", "paper"},
    "cli": {*PARTS, "config", "assembly", "experiment", "report", "planning", "study"},
}
# Package -> the rooms that may know it.
GUESTS: dict[str, set[str]] = {
    "transformers": {"training", "stage_run", "experiment", "cli"},
    "accelerate": {"training", "stage_run", "experiment", "cli"},
    "sentence_transformers": {
        *{"training", "encoders", "data", "embedding", "clustering", "evaluation"},
        *{"assembly", "stage_run", "experiment"},
    },
    "torch": {
        *{"influence", "training", "encoders", "data", "embedding", "clustering", "evaluation", "attention", "modes"},
        *{"assembly", "stage_run", "experiment"},
    },
    "datasets": {"training", "data", "clustering", "cli"},
    "pydantic": {"config", "study", "run_folder"},
    "typer": {"cli"},
}


def room_of(module: Path) -> str:
    return module.relative_to(SOURCE).with_suffix("").parts[0]


def imports(module: Path) -> Iterator[list[str]]:
    """Yield the parts of every name a module imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute"
            yield from ([*(node.module or "").split("."), alias.name] for alias in node.names)


IMPORTS = [(module.relative_to(SOURCE), room_of(module), name) for module in MODULES for name in imports(module)]


def test_every_module_is_in_a_room() -> None:
    assert len(MODULES) > 20
    assert {room_of(module) for module in MODULES} - {"__init__", "__main__"} == set(DOORS)


@pytest.mark.parametrize("room", sorted(DOORS))
def test_a_room_imports_only_the_rooms_it_may_see(room: str) -> None:
    allowed = DOORS[room] | {room}
    wrong = [
        f"{module} imports {'.'.join(name)}"
        for module, importer, name in IMPORTS
        if importer == room and name[0] == "mixfluence" and name[1] not in allowed
    ]
    assert wrong == []


@pytest.mark.parametrize("package", sorted(GUESTS))
def test_a_package_is_known_only_where_it_is_needed(package: str) -> None:
    wrong = [str(module) for module, room, name in IMPORTS if name[0] == package and room not in GUESTS[package]]
    assert wrong == []

"""Machines that lack something, and words that mean nothing to the program."""

from __future__ import annotations

from pathlib import Path

from tests.hostile.workplace import Case


def into(what: str, output: str, code: int = 2) -> Case:
    """An output folder that cannot be."""
    return Case(what, f"train recipe.yaml output={output}", code=code)


def nowhere(folder: Path) -> None:
    (folder / "run").symlink_to("/absent/folder")


def odd_name(folder: Path) -> None:
    (folder / "run").rename(folder / "run\udcff")


def variable(what: str, name: str, value: str) -> Case:
    """A variable of a launcher or of accelerate's."""
    return Case(what, environment={name: value})


CASES = [
    into("an output folder that is a file", "recipe.yaml"),
    into("an output folder below a file", "recipe.yaml/run"),
    into("an output folder that the system refuses", "/proc/run"),
    into("an output folder of 300 letters", "r" * 300, code=1),
    Case("an output folder that is a link to nowhere", arrange=nowhere),
    Case("a cache that is a file", environment={"MIXFLUENCE_CACHE": "recipe.yaml"}, code=1),
    Case("a cache that the system refuses", environment={"MIXFLUENCE_CACHE": "/proc/cache"}, code=1),
    Case("a disk that is full when data is converted", disk=1_000, code=1),
    Case("a disk that is full at the first checkpoint", disk=20_000, code=1),
    Case("an encoder's package that is missing", "train recipe.yaml model.name=wordllama", missing="wordllama"),
    Case(
        "faiss that is missing",
        "train recipe.yaml training.batch_size=2 'strategy={name: crisp, encoder: model, branching: 2}'",
        missing="faiss",
    ),
    Case("matplotlib that is missing", "report run --figures figures", missing="matplotlib"),
    Case("compiling without a GPU", "train recipe.yaml training.compiled=true"),
    Case("a page that is a folder", "report run -o data"),
    Case("figures to a folder that is a file", "report run --figures recipe.yaml"),
    Case("a run whose name is not UTF-8", "report run\udcff", arrange=odd_name),
    Case("weights to a folder that is a file", "weights run -o recipe.yaml/weights.json"),
    Case("scores to a folder that is a file", "evaluate model --recipe recipe.yaml --to recipe.yaml", code=1),
    Case("a copy to a folder that is not there", "recipes copy pydocs absent/mine.yaml", code=1),
    Case("a copy over a file", "recipes copy pydocs recipe.yaml"),
    Case("a size that is no number", "plan recipe.yaml --sizes near=many"),
    Case("a size of 5,000 digits", f"plan recipe.yaml --sizes near={'9' * 5000}"),
    Case("a size of no dataset", "plan recipe.yaml --sizes nera=5"),
    Case("a library that the demo does not know", "demo --target scikit --to demo"),
    Case("runs side by side on the same GPUs", "study mldr --processes 2"),
    variable("a process of no group", "LOCAL_RANK", "0"),
    variable("a rank beyond the group", "RANK", "3"),
    variable("a rank that is no number", "LOCAL_RANK", "first"),
    variable("a precision that there is not", "ACCELERATE_MIXED_PRECISION", "fp7"),
    variable("a switch that is neither on nor off", "ACCELERATE_USE_FSDP", "perhaps"),
]

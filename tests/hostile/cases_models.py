"""Encoders that cannot be loaded, or should not be."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.hostile.workplace import Case, own_model

Arrange = Callable[[Path], None]
Tensors = dict[str, Tensor]
LAYER = "encoder.layer.0.output.dense"
PWNED = "pwned"
CODE = f"open({PWNED!r}, 'w')\nclass Evil: pass\n"
TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
DENSE = {"idx": 1, "name": "1", "path": "dense", "type": "sentence_transformers.models.Dense"}


class Payload:
    """Creates a file when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (PWNED, "w")


EVIL = pickle.dumps(Payload(), protocol=2)


def named(what: str, name: str) -> Case:
    return Case(what, f"train recipe.yaml 'model.name={name}'")


def with_file(name: str, content: bytes | str | None, without: str | None = None) -> Arrange:
    """Write or take away a file of the model."""

    def arrange(folder: Path) -> None:
        path = own_model(folder) / name
        path.parent.mkdir(exist_ok=True)
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        if without:
            (folder / "model" / without).unlink()

    return arrange


def with_config(**changes: Any) -> Arrange:
    def arrange(folder: Path) -> None:
        path = own_model(folder) / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")
        (path.parent / "evil.py").write_text(CODE, "utf-8")

    return arrange


def with_modules(*modules: dict[str, Any], dense: bytes | None = None) -> Arrange:
    """Say what the model is made of, perhaps with the pickled weights of a layer."""

    def arrange(folder: Path) -> None:
        model = own_model(folder)
        (model / "modules.json").write_text(json.dumps(modules), "utf-8")
        (model / "evil.py").write_text(CODE, "utf-8")
        if dense is not None:
            (model / "dense").mkdir()
            (model / "dense" / "config.json").write_text('{"in_features": 16, "out_features": 8}', "utf-8")
            (model / "dense" / "pytorch_model.bin").write_bytes(dense)

    return arrange


def change_weights(model: Path, change: Callable[[Tensors], Tensors]) -> None:
    """Write other weights than those that the model was saved with."""
    path = model / "model.safetensors"
    changed = change(load_file(path))
    save_file({name: tensor.contiguous() for name, tensor in changed.items()}, path, metadata={"format": "pt"})


def with_weights(change: Callable[[Tensors], Tensors]) -> Arrange:
    return lambda folder: change_weights(own_model(folder), change)


def with_tensors(change: Callable[[Tensor], Tensor]) -> Arrange:
    return with_weights(lambda all: {name: change(tensor) for name, tensor in all.items()})


def cut_short(folder: Path) -> None:
    path = own_model(folder) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def without_words(folder: Path) -> None:
    for path in list(own_model(folder).iterdir()):
        if path.name.startswith(("token", "vocab")):
            path.unlink()


def empty(folder: Path) -> None:
    (folder / "empty").mkdir()


CASES = [
    named("an id of the hub, and no network", "nobody/nothing"),
    named("a folder that is not there", "./absent"),
    named("a name with spaces", "a b c"),
    named("an address", "https://example.org/model"),
    named("a file", "recipe.yaml"),
    Case("an empty folder", "train recipe.yaml model.name=empty", arrange=empty),
    Case("no weights", arrange=with_file("model.safetensors", None)),
    Case("weights cut short", arrange=cut_short),
    Case("weights that are none", arrange=with_file("model.safetensors", "nothing")),
    Case("weights that are not numbers", arrange=with_tensors(lambda tensor: torch.full_like(tensor, torch.nan))),
    Case("weights of another shape", arrange=with_tensors(lambda tensor: tensor[:1])),
    Case(
        "weights that lack a layer",
        arrange=with_weights(lambda all: {k: v for k, v in all.items() if not k.startswith(LAYER)}),
    ),
    Case(
        "weights under other names",
        arrange=with_weights(lambda all: {f"module.{name}": tensor for name, tensor in all.items()}),
    ),
    Case(
        "one tensor of another shape",
        arrange=with_weights(lambda all: all | {f"{LAYER}.bias": all[f"{LAYER}.bias"][:3]}),
    ),
    Case("a config that is no JSON", arrange=with_file("config.json", "{")),
    Case("a config 100,000 brackets deep", arrange=with_file("config.json", "[" * 100_000)),
    Case("an unknown architecture", arrange=with_config(model_type="unheard-of")),
    Case("a text for a size", arrange=with_config(hidden_size="x")),
    Case("no tokenizer", arrange=without_words),
    Case("a damaged tokenizer", arrange=with_file("tokenizer.json", "{")),
    Case("no pooling", arrange=with_modules(TRANSFORMER)),
    Case("a list of modules without paths", arrange=with_modules({"idx": 0})),
    Case(
        "pickled weights that would run code",
        arrange=with_file("pytorch_model.bin", EVIL, without="model.safetensors"),
    ),
    Case(
        "pickled weights in pieces",
        arrange=with_file("pytorch_model-00001-of-00001.bin", EVIL, without="model.safetensors"),
    ),
    Case("a pickle called safetensors", arrange=with_file("model.safetensors", EVIL)),
    Case("pickled weights of a layer in a folder of its own", arrange=with_modules(TRANSFORMER, DENSE, dense=EVIL)),
    Case(
        "a model that brings code",
        arrange=with_config(model_type="evil", auto_map={"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}),
    ),
    Case("a module that is code of the folder", arrange=with_modules(TRANSFORMER | {"type": "evil.Evil"})),
    Case("a module that is a program", arrange=with_modules(TRANSFORMER | {"type": "os.system"})),
    Case("a passage length beyond the positions", "train recipe.yaml model.passage_length=1000"),
    Case("lengths of a static model", "train recipe.yaml model.name=wordllama model.query_length=5"),
    Case("an unknown pooling", "train recipe.yaml model.pooling=max"),
    Case("a revision of a folder", "train recipe.yaml model.revision=main"),
    Case("no model where one is to be scored", "evaluate data --recipe recipe.yaml"),
]

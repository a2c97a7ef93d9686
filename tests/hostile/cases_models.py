"""Encoders that cannot or must not be loaded."""

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
    return Case(what, f"train recipe.yaml 'model.name={name}'", (name,))


def damaged(what: str, arrange: Arrange, *names: str, says: str = "") -> Case:
    return Case(what, "train recipe.yaml", names or ("'model'",), says, arrange=arrange)


def with_file(name: str, content: bytes | str | None, without: str | None = None) -> Arrange:
    """Write or remove a file of the model."""

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
    """Replace the list of modules; `dense` are the pickled weights of a layer."""

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
    """Replace the weights of a saved model."""
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


def without_tokenizer(folder: Path) -> None:
    for path in list(own_model(folder).iterdir()):
        if path.name.startswith(("token", "vocab")):
            path.unlink()


def empty(folder: Path) -> None:
    (folder / "empty").mkdir()


CASES = [
    named("a hub id without network", "nobody/nothing"),
    named("a missing folder", "./absent"),
    named("a name with spaces", "a b c"),
    named("an address", "https://example.org/model"),
    named("a file", "recipe.yaml"),
    Case("an empty folder", "train recipe.yaml model.name=empty", ("'empty'",), arrange=empty),
    damaged("no weights", with_file("model.safetensors", None)),
    damaged("truncated weights", cut_short, says="cannot be loaded"),
    damaged("weights that are text", with_file("model.safetensors", "nothing")),
    damaged("NaN weights", with_tensors(lambda tensor: torch.full_like(tensor, torch.nan))),
    damaged("weights of another shape", with_tensors(lambda tensor: tensor[:1]), "model/model.safetensors"),
    damaged(
        "weights without a layer",
        with_weights(lambda all: {k: v for k, v in all.items() if not k.startswith(LAYER)}),
        *("model/model.safetensors", f"{LAYER}.weight"),
    ),
    damaged(
        "weights under other names",
        with_weights(lambda all: {f"module.{name}": tensor for name, tensor in all.items()}),
        "model/model.safetensors",
    ),
    damaged(
        "one tensor of another shape",
        with_weights(lambda all: all | {f"{LAYER}.bias": all[f"{LAYER}.bias"][:3]}),
        *("model/model.safetensors", f"{LAYER}.bias"),
    ),
    damaged("a config that is not JSON", with_file("config.json", "{")),
    damaged("an unknown architecture", with_config(model_type="unheard-of")),
    damaged("text for a size", with_config(hidden_size="x")),
    damaged("no tokenizer", without_tokenizer),
    damaged("a damaged tokenizer", with_file("tokenizer.json", "{")),
    damaged("no pooling", with_modules(TRANSFORMER)),
    damaged("a list of modules without paths", with_modules({"idx": 0})),
    damaged(
        "pickled weights",
        with_file("pytorch_model.bin", EVIL, without="model.safetensors"),
        says="safetensors",
    ),
    damaged(
        "pickled weights in pieces",
        with_file("pytorch_model-00001-of-00001.bin", EVIL, without="model.safetensors"),
    ),
    damaged("a pickle called safetensors", with_file("model.safetensors", EVIL)),
    damaged("pickled weights of a layer in a folder of its own", with_modules(TRANSFORMER, DENSE, dense=EVIL)),
    damaged(
        "a model with custom code",
        with_config(model_type="evil", auto_map={"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}),
    ),
    damaged("a module that is custom code", with_modules(TRANSFORMER | {"type": "evil.Evil"}), "evil.Evil"),
    damaged("a module that is a program", with_modules(TRANSFORMER | {"type": "os.system"}), "os.system"),
    Case("a passage length too long", "train recipe.yaml model.passage_length=1000", ("'model'", "1000")),
    Case("lengths of a static model", "train recipe.yaml model.name=wordllama model.query_length=5", ("'wordllama'",)),
    Case("an unknown pooling", "train recipe.yaml model.pooling=max", ("recipe.yaml:2", "model.pooling", "'max'")),
    Case("a revision of a folder", "train recipe.yaml model.revision=main", ("'model'", "revision")),
    Case("a folder that is not a model", "evaluate data --recipe recipe.yaml", ("'data'",)),
]

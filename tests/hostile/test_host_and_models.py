"""What the trainer library would fail on after hours, refused before any data is read.

- Whatever one of `training.trainer_args` is set to, it is accepted or refused by name; a number in quotes is a number.
- Of several arguments only the wrong one is named.
- Variables of a launcher make a whole group or none.
- Weights may lack what no text passes through, and hold what no model asks for; all else is refused by name.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from transformers import BertForMaskedLM, BertModel
from transformers.utils import is_liger_kernel_available

from mixfluence.build import LAUNCHER, check_environment, check_training_arguments, training_arguments
from mixfluence.encoders import load_encoder
from mixfluence.errors import DataError, RecipeError
from mixfluence.experiment import run
from mixfluence.recipe import Recipe
from mixfluence.recipe_yaml import load_recipe
from tests.hostile.cases_models import LAYER, change_weights
from tests.hostile.workplace import Case, error_line, run_program, write_workplace

pytestmark = pytest.mark.slow

Load = Callable[..., Recipe]
WHOLE_GROUP = {
    "WORLD_SIZE": "2",
    "RANK": "1",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}


# Without one that transformers would remember after its error.
ARGUMENTS = signature(SentenceTransformerTrainingArguments).parameters.keys() - {"deepspeed"}


def refusal(recipe: Recipe) -> str | None:
    try:
        check_training_arguments(recipe)
    except RecipeError as error:
        return str(error)
    return None


@pytest.fixture
def place(tmp_path: Path, tiny_bert_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe that works, in the folder it is read from."""
    write_workplace(tmp_path / "place", tiny_bert_folder)
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


@pytest.fixture
def load(place: Path) -> Load:
    """Reads the recipe with `training.trainer_args`."""

    def read(**options: Any) -> Recipe:
        recipe = load_recipe(place / "recipe.yaml")
        return recipe.model_copy(update={"training": recipe.training.model_copy(update={"trainer_args": options})})

    return read


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher has set anything."""
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
@pytest.mark.parametrize("value", ["nonsense", -1, 2.5, [["x"]], {"x": {"y": 1}}])
def test_whatever_an_argument_is_set_to_it_is_taken_or_named(load: Load, value: Any) -> None:
    refused = {name: refusal(load(**{name: value})) for name in ARGUMENTS}
    assert any(refused.values())
    for name, message in refused.items():
        assert message is None or message.startswith(
            (f"training.trainer_args.{name}: ", f"training.trainer_args: {name!r} is set by")
        )
        assert "\n" not in (message or "")


def test_a_number_in_quotes_is_a_number(load: Load, tiny_bert: SentenceTransformer) -> None:
    recipe = load(adam_epsilon="1e-7", dataloader_num_workers="2")
    args = training_arguments(recipe, tiny_bert, {})
    assert (args.adam_epsilon, args.dataloader_num_workers) == (1e-7, 2)


@pytest.mark.parametrize("value", [5, 0.0, -1])
def test_noise_is_refused_for_as_long_as_the_trainer_cannot_add_it(
    load: Load, tiny_bert: SentenceTransformer, value: float
) -> None:
    check_training_arguments(load(neftune_noise_alpha=None))
    with pytest.raises(RecipeError, match=r"^training\.trainer_args\.neftune_noise_alpha: "):
        check_training_arguments(load(neftune_noise_alpha=value))
    # What transformers asks for its embeddings.
    assert not hasattr(tiny_bert, "get_input_embeddings")


def test_kernels_are_refused_where_none_are_installed(load: Load) -> None:
    check_training_arguments(load(use_liger_kernel="no"))
    message = refusal(load(use_liger_kernel=True))
    assert (message is None) == is_liger_kernel_available()
    assert message is None or message.startswith("training.trainer_args.use_liger_kernel: ")


def test_it_is_refused_before_any_data_is_read(load: Load, place: Path) -> None:
    (place / "data" / "near.jsonl").write_text("{", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"^training\.trainer_args\.adam_beta2: "):
        run(load(adam_beta2=7))
    with pytest.raises(DataError, match=r"near\.jsonl"):
        run(load(adam_beta2=0.9))


def test_deepspeed_is_refused_with_its_reason_whether_it_is_installed_or_not(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = r"deepspeed: .*probes cannot restore"
    with pytest.raises(RecipeError, match=rf"^training\.trainer_args\.{reason}"):
        check_training_arguments(load(deepspeed="zero.json"))
    # As accelerate's launcher does.
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(RecipeError, match=f"^{reason}"):
        check_training_arguments(load())


def test_only_the_wrong_one_is_named(load: Load) -> None:
    right = {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 2, "report_to": "none"}
    check_training_arguments(load(**right))
    with pytest.raises(RecipeError, match=r"^training\.trainer_args\.optim_args: "):
        check_training_arguments(load(**right, optim_args="beta"))


def test_arguments_that_contradict_each_other_are_both_named(load: Load) -> None:
    with pytest.raises(
        RecipeError, match=r"^training\.trainer_args\.fp16_full_eval, training\.trainer_args\.bf16_full_eval: "
    ):
        check_training_arguments(load(fp16_full_eval=True, bf16_full_eval=True, max_grad_norm=2))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("changes", [{}, {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}])
def test_a_whole_group_is_taken_as_it_is(changes: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (WHOLE_GROUP | changes).items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    check_environment()
    assert dict(os.environ) == before


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("missing", sorted(LAUNCHER))
def test_a_part_of_a_group_is_refused_by_name(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in WHOLE_GROUP.items():
        if name != missing:
            monkeypatch.setenv(name, value)
    with pytest.raises(RecipeError, match=missing):
        check_environment()


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_a_process_of_a_group_ends_at_once_with_one_error_line(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    assert run_program(Case("an incomplete process group", environment={"WORLD_SIZE": "2"}), place) == 2
    assert ended == [2]
    assert error_line(capfd.readouterr().err, place).startswith("WORLD_SIZE without RANK, ")
    assert not (place / "run" / "trace.jsonl").exists()


@pytest.fixture
def model(tmp_path: Path, tiny_bert_folder: Path) -> Path:
    """A copy of an encoder, which may be damaged."""
    return Path(shutil.copytree(tiny_bert_folder, tmp_path / "model"))


def load_cpu(model: Path) -> SentenceTransformer:
    return load_encoder(str(model), device="cpu")


@pytest.mark.parametrize("lacking", [f"{LAYER}.weight", f"{LAYER}.bias", "embeddings.LayerNorm.weight"])
def test_weights_that_lack_a_tensor_are_refused_by_its_name(model: Path, lacking: str) -> None:
    change_weights(model, lambda all: {name: tensor for name, tensor in all.items() if name != lacking})
    with pytest.raises(DataError, match=rf"model\.safetensors: holds no tensor of the right shape for {lacking}$"):
        load_cpu(model)


def test_a_tensor_of_another_shape_is_refused_by_its_name(model: Path) -> None:
    change_weights(model, lambda all: all | {f"{LAYER}.bias": all[f"{LAYER}.bias"][:3].clone()})
    with pytest.raises(DataError, match=rf"holds no tensor of the right shape for {LAYER}\.bias$"):
        load_cpu(model)


def test_a_pooler_may_be_missing_and_heads_may_be_left_over(model: Path) -> None:
    whole = load_cpu(model).encode("w1 w2 w3")
    bare = BertModel.from_pretrained(model)
    masked = BertForMaskedLM(bare.config)
    masked.bert.load_state_dict(bare.state_dict(), strict=False)
    masked.save_pretrained(model)
    names = load_file(model / "model.safetensors").keys()
    assert any(name.startswith("cls.") for name in names)
    assert not any("pooler" in name for name in names)
    found = load_cpu(model)
    assert (found.encode("w1 w2 w3") == whole).all()
    assert all(parameter.grad is None for parameter in found.parameters())


def test_a_transformer_in_a_folder_of_its_own_is_looked_at_too(model: Path, tmp_path: Path) -> None:
    load_cpu(model).save_pretrained(str(tmp_path / "saved"))
    saved, inner = tmp_path / "saved", tmp_path / "saved" / "0_Transformer"
    modules = json.loads((saved / "modules.json").read_text(encoding="utf-8"))
    modules[0]["path"] = inner.name
    (saved / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    inner.mkdir()
    for path in list(saved.iterdir()):
        if path.is_file() and path.name not in {"modules.json", "config_sentence_transformers.json"}:
            path.rename(inner / path.name)
    assert (load_cpu(saved).encode("w1") == load_cpu(model).encode("w1")).all()
    change_weights(inner, lambda all: {name: tensor for name, tensor in all.items() if LAYER not in name})
    with pytest.raises(DataError, match=rf"0_Transformer/model\.safetensors: .*{LAYER}"):
        load_cpu(saved)


def test_weights_in_pieces_are_looked_at_together(model: Path) -> None:
    bare = BertModel.from_pretrained(model)
    (model / "model.safetensors").unlink()
    bare.save_pretrained(model, max_shard_size="10KB")
    assert len(list(model.glob("*.safetensors"))) > 1
    load_cpu(model)
    index = json.loads((model / "model.safetensors.index.json").read_text(encoding="utf-8"))
    piece = model / index["weight_map"].pop(f"{LAYER}.weight")
    (model / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    save_file({k: v for k, v in load_file(piece).items() if k != f"{LAYER}.weight"}, piece, metadata={"format": "pt"})
    with pytest.raises(DataError, match=rf"^encoder '.*': holds no tensor of the right shape for {LAYER}\.weight$"):
        load_cpu(model)


def test_an_adapter_lacks_nothing(model: Path, tmp_path: Path) -> None:
    adapted = load_cpu(model)
    adapted.add_adapter(LoraConfig(r=2, target_modules=["query"]))
    adapted.save_pretrained(str(tmp_path / "adapted"))
    assert not list((tmp_path / "adapted").glob("model*.safetensors"))
    assert (load_cpu(tmp_path / "adapted").encode("w1 w2") == adapted.encode("w1 w2")).all()

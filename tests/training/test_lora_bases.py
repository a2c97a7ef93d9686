"""The frozen weights below a LoRA adapter may be of lower precision than what is trained.

- An adapter is trained in fp32 whatever its base, and the base stays as it was.
- Quantised bases train and probe where bitsandbytes is installed, on a CPU too; elsewhere they are refused.
- A resumed run loads what was trained, and leaves the base as it is.
- A quantised model cannot be merged with its adapter, which the recipe says at once.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3Model

from mixfluence.encoders import Kind, load_encoder
from mixfluence.errors import RecipeError
from mixfluence.recipe import LoraSection
from mixfluence.strategies import InfDDS
from mixfluence.training.trainer import MixtureMixin
from tests.training.runs import arguments, build, pool
from tests.training.test_inf_dds import EVERY_STEP, updates
from tests.training.test_inf_dds_resume import assert_equal_tensors

LORA = {"rank": 2, "alpha": 4.0, "dropout": 0.0, "targets": ["q_proj", "v_proj"]}
QUANTISED = ["int8", "nf4"]
INSTALLED = find_spec("bitsandbytes") is not None
QUANTISED_CASES = [("dense", base) for base in QUANTISED if INSTALLED]


@pytest.fixture(scope="module")
def decoder_folder(tiny_bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder whose layers are as wide as the smallest block of weights that bitsandbytes quantises."""
    folder = tmp_path_factory.mktemp("tiny-decoder")
    shutil.copytree(tiny_bert_folder, folder, dirs_exist_ok=True)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 32, "pad_token_id": 0}
    config = Qwen3Config(vocab_size=205, num_attention_heads=2, num_key_value_heads=2, **sizes)
    Qwen3Model(config).save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("base", ["fp32", "bf16", *(QUANTISED if INSTALLED else [])])
def test_the_adapter_is_trained_in_fp32_and_its_base_is_not(decoder_folder: Path, tmp_path: Path, base: str) -> None:
    model = load_encoder(str(decoder_folder), lora=LORA | {"base": base}, device="cpu")
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    strategy = InfDDS(**EVERY_STEP, inner_steps=1)
    args = arguments(tmp_path, "dense", max_steps=4)
    trainer = build(model, args, strategy=strategy, dev_dataset={"dev": pool()["near"]})
    trainer.train()
    after = model.state_dict()
    assert trained
    assert all("lora_" in name for name in trained)
    assert {after[name].dtype for name in trained} == {torch.float32}
    assert {name for name in before if not torch.equal(before[name], after[name])} == trained
    expected = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8, "nf4": torch.uint8}
    assert model[0].model.layers[0].self_attn.q_proj.weight.dtype == expected[base]
    assert len(updates(trainer)) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "base"),
    [("dense", "bf16"), *((kind, "fp32") for kind in ("multi-vector", "reranker")), *QUANTISED_CASES],
)
def test_a_run_is_resumed_without_its_base(
    decoder_folder: Path, tiny_bert_folder: Path, tmp_path: Path, kind: Kind, base: str
) -> None:
    shutil.copytree(decoder_folder if kind == "dense" else tiny_bert_folder, tmp_path / "base")
    targets = LORA["targets"] if kind == "dense" else ["query", "value"]

    def trainer() -> MixtureMixin:
        settings = LORA | {"base": base, "targets": targets}
        model = load_encoder(str(tmp_path / "base"), kind=kind, lora=settings, device="cpu")
        args = arguments(tmp_path / "run", kind, max_steps=4, save_strategy="steps", save_steps=2)
        strategy = InfDDS(**EVERY_STEP, inner_steps=1)
        return build(model, args, strategy=strategy, dev_dataset={"dev": pool()["near"]})

    whole, again = trainer(), trainer()
    # It would otherwise be read again, in another precision.
    shutil.rmtree(tmp_path / "base")
    whole.train()
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert again.mixture_state() == whole.mixture_state()
    assert_equal_tensors(whole.model.state_dict(), again.model.state_dict())


@pytest.mark.parametrize("base", QUANTISED)
def test_a_quantised_base_needs_its_package_and_a_separate_adapter(
    tiny_bert_folder: Path, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mixfluence.adapters.find_spec", lambda name: None)
    with pytest.raises(RecipeError, match="bitsandbytes"):
        load_encoder(str(tiny_bert_folder), lora=LORA | {"base": base}, device="cpu")
    with pytest.raises(ValueError, match="merged"):
        LoraSection.model_validate({"base": base})
    assert LoraSection.model_validate({"base": base, "merged": False}).base == base

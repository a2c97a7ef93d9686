"""The frozen weights below a LoRA adapter may be of lower precision than what is trained.

- An adapter is trained in fp32 whatever its base, and the base stays as it was.
- Quantised bases train and probe where bitsandbytes is installed, on a CPU too; elsewhere they are refused.
- A quantised model cannot be merged with its adapter, which the recipe says at once.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3Model

from mixfluence.encoders import load_encoder
from mixfluence.errors import RecipeError
from mixfluence.recipe import LoraSection
from mixfluence.strategies import InfDDS
from tests.training.runs import arguments, build, pool
from tests.training.test_inf_dds import EVERY_STEP, updates

LORA = {"rank": 2, "alpha": 4.0, "dropout": 0.0, "targets": ["q_proj", "v_proj"]}
QUANTISED = ["int8", "nf4"]
INSTALLED = find_spec("bitsandbytes") is not None


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

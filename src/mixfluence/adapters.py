"""LoRA adapters of a model: added before training, and merged into its weights to save a plain model."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder
from sentence_transformers.base.model import BaseModel

from mixfluence.errors import DataError, RecipeError

# The switch of bitsandbytes' linear layers.
PACKS_FOR_INFERENCE = "support_avx512bf16_for_cpu"


def base_weights(precision: str) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` for the frozen weights below an adapter, by the word of recipes."""
    if precision in {"fp32", "bf16"}:
        return {"dtype": {"fp32": "float32", "bf16": "bfloat16"}[precision]}
    if find_spec("bitsandbytes") is None:
        raise RecipeError(f"model.lora.base: {precision} needs a package: pip install bitsandbytes")
    from transformers import BitsAndBytesConfig

    if precision == "int8":
        quantised = BitsAndBytesConfig(load_in_8bit=True)
    else:
        quantised = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
    return {"dtype": "bfloat16", "quantization_config": quantised}


def add_lora(model: BaseModel, settings: Mapping[str, Any]) -> None:
    """Add an adapter to the transformer of a model, whose other weights are then frozen.

    Layers outside of the transformer, such as the projection of a multi-vector encoder, are trained as a whole, and so
    is the head of a cross-encoder. `settings` has the keys of `LoraSection`.
    """
    if find_spec("peft") is None:
        raise RecipeError("model.lora: needs an extra: pip install 'mixfluence[peft]'")
    if not model.has_peft_compatible_model():
        raise RecipeError("model.lora: the model has no transformer to adapt")
    config = lora_config(settings, head=isinstance(model, CrossEncoder))
    # The same in every run, which a resumed one depends on.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        try:
            model.add_adapter(config)
        except ValueError as error:
            raise RecipeError(f"model.lora: refused by PEFT ({error})") from error
    # PEFT makes adapters in the precision of their base, in which small updates would be lost.
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def lora_config(settings: Mapping[str, Any], *, head: bool) -> Any:
    """Return PEFT's configuration of an adapter; the head of a cross-encoder is trained as a whole."""
    from peft import LoraConfig, TaskType

    return LoraConfig(
        task_type=TaskType.SEQ_CLS if head else TaskType.FEATURE_EXTRACTION,
        r=settings["rank"],
        lora_alpha=settings["alpha"],
        lora_dropout=settings["dropout"],
        target_modules=settings["targets"],
        modules_to_save=["classifier", "score"] if head else None,
    )


def has_adapter(model: BaseModel) -> bool:
    """Return whether only an adapter of a model is trained."""
    return bool(getattr(model.transformers_model, "_hf_peft_config_loaded", False))


def keep_four_bits(model: BaseModel) -> None:
    """Make 4-bit weights stay as they are on a CPU.

    There bitsandbytes packs them for inference at their first use in eval mode, and an adapter below gets no gradient
    from then on.
    """
    for part in model.modules():
        if hasattr(part, PACKS_FOR_INFERENCE):
            setattr(part, PACKS_FOR_INFERENCE, False)


def load_trained(model: BaseModel, folder: Path) -> None:
    """Load a checkpoint of a model with an adapter: the adapter and the layers outside of the transformer.

    The frozen weights stay: sentence-transformers would load the base once more, as it was before it was quantised.
    """
    from peft import set_peft_model_state_dict

    inner, saved = model.transformers_model, load_file(folder / "adapter_model.safetensors")
    tensors = {name.removeprefix("base_model.model."): value for name, value in saved.items()}
    found = set_peft_model_state_dict(inner, tensors, inner.active_adapters()[0])
    if found.unexpected_keys:
        raise DataError(f"{folder}: holds another adapter, with {found.unexpected_keys[0]}")
    for module in json.loads((folder / "modules.json").read_text(encoding="utf-8"))[1:]:
        if model[module["idx"]].state_dict():
            model[module["idx"]].load_state_dict(load_file(folder / module["path"] / "model.safetensors"))


def merge_lora(model: BaseModel) -> BaseModel:
    """Return a copy of a model in CPU memory with its adapter merged into the weights."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import ModulesToSaveWrapper

    merged = copy.deepcopy(model).cpu()
    inner = merged.transformers_model
    for name, layer in list(inner.named_modules()):
        if isinstance(layer, BaseTunerLayer):
            layer.merge(safe_merge=True)
            inner.set_submodule(name, layer.get_base_layer())
        elif isinstance(layer, ModulesToSaveWrapper):
            inner.set_submodule(name, layer.modules_to_save[layer.active_adapters[0]])
    inner._hf_peft_config_loaded = False
    del inner.peft_config
    return merged

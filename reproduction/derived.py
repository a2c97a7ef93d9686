"""Training rows made from others: drawn from train and dev together, or with negatives and a teacher's scores.

Each file is written once, beside the run folders; its name contains a digest of the sources it is made of.

The teacher is BM25 over character trigrams (Lucene's formula): it needs no word boundaries and therefore works for
every language. It is not a neural teacher, and tables that use it say so.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import xxhash

import mixfluence
from mixfluence import RecipeError, SourceSection
from mixfluence.recipe import Recipe
from mixfluence.recipe_yaml import dump_recipe, load_recipe

NEGATIVES = 8
# The first rows of a set get scores. The others are trained on without, like some of BGE-M3's.
MOST_SCORED = 2_000


@dataclass(frozen=True)
class Derivation:
    """A file of rows to make.

    Attributes:
        path: The file.
        sources: The rows to score, or train and dev to draw from.
        seed: The seed of the draw; None for rows that are scored.
    """

    path: Path
    sources: tuple[SourceSection, ...]
    seed: int | None = None

    def write(self) -> None:
        """Write the file, unless it exists."""
        if self.path.exists():
            return
        rows = _scored(self.sources[0]) if self.seed is None else _drawn(self.sources, self.seed)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".unfinished")
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        temporary.replace(self.path)


def derive(recipe: Recipe, folder: Path, *, resampled: bool, teacher: bool) -> tuple[Recipe, tuple[Derivation, ...]]:
    """Return a recipe that reads derived rows, and the files it needs.

    Args:
        recipe: The recipe to change.
        folder: The folder of the files.
        resampled: Replace each training set by as many rows drawn from train and dev by the recipe's seed, and remove
            the dev sets. Every training set needs a dev set of the same name.
        teacher: Add negatives and scores by BM25 to training and dev rows.
    """
    made: dict[str, dict[str, Derivation]] = {}
    if resampled:
        if missing := [name for name in recipe.train if name not in recipe.dev]:
            raise RecipeError(f"train.{missing[0]}: no dev set of this name to merge with")
        seed, kind = recipe.seed, f"mix{recipe.seed}"
        made["train"] = {
            name: Derivation(_path(folder, kind, name, (own, recipe.dev[name])), (own, recipe.dev[name]), seed)
            for name, own in recipe.train.items()
        }
    elif teacher:
        for section in ("train", "dev"):
            sources = getattr(recipe, section).items()
            made[section] = {
                name: Derivation(_path(folder, f"{section}-bm25", name, (own,)), (own,)) for name, own in sources
            }
    if not made:
        return recipe, ()
    sources = {section: {name: _pairs(file) for name, file in files.items()} for section, files in made.items()}
    changes = [f"{section}={json.dumps(sources.get(section, {}))}" for section in ("train", "dev")]
    with TemporaryDirectory() as temporary:
        path = Path(temporary) / "recipe.yaml"
        path.write_text(dump_recipe(recipe), encoding="utf-8")
        derived = load_recipe(path, changes, files_may_be_missing=True)
    return derived, tuple(file for files in made.values() for file in files.values())


def _path(folder: Path, kind: str, name: str, sources: Sequence[SourceSection]) -> Path:
    parts = [source.model_dump_json() for source in sources]
    return folder / kind / f"{name}-{xxhash.xxh3_64_hexdigest(json.dumps(parts).encode())[:8]}.jsonl"


def _pairs(file: Derivation) -> dict[str, str]:
    prompts = {key: getattr(file.sources[0], key) for key in ("query_prompt", "passage_prompt")}
    return {
        "format": "pairs",
        "path": str(file.path),
        **{key: text for key, text in prompts.items() if text is not None},
    }


def _drawn(sources: Sequence[SourceSection], seed: int) -> Iterator[dict[str, Any]]:
    """Yield as many rows as the first source has, drawn from all sources without replacement."""
    sets = [mixfluence.read_rows(source).rows for source in sources]
    places = [(rows, place) for rows in sets for place in range(len(rows))]
    for chosen in sorted(random.Random(seed).sample(range(len(places)), len(sets[0]))):
        rows, place = places[chosen]
        row = rows[place]
        record = {"query": row["anchor"], "pos": [row["positive"]], "neg": row["negatives"]}
        if row["scores"]:
            record |= {"pos_scores": row["scores"][:1], "neg_scores": row["scores"][1:]}
        yield record


def _scored(source: SourceSection) -> Iterator[dict[str, Any]]:
    """Yield rows with the passages that BM25 ranks highest as negatives, judged ones excluded, and its scores.

    Scores are standardised over the passages of a row, so that their softmax is neither flat nor one-hot.
    """
    # Importing bm25s starts jax where it is installed, which reserves three quarters of the GPU's memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import bm25s

    task = mixfluence.read_task("task", source)
    passages = dict(zip(task.doc_ids, task.docs, strict=True))
    judged = {
        query: {passages[doc] for doc in task.qrels[id]}
        for id, query in zip(task.query_ids, task.queries, strict=True)
    }
    places = {text: place for place, text in enumerate(task.docs)}
    index = bm25s.BM25()
    index.index([trigrams(text) for text in task.docs], show_progress=False)
    for number, row in enumerate(mixfluence.read_rows(source).rows):
        query, positive = row["anchor"], row["positive"]
        if number >= MOST_SCORED:
            yield {"query": query, "pos": [positive], "neg": []}
            continue
        scores = index.get_scores(trigrams(query))
        best = np.argsort(-scores, kind="stable")[: NEGATIVES + len(judged[query]) + 1]
        chosen = [place for place in best.tolist() if task.docs[place] not in judged[query]][:NEGATIVES]
        own = _standardised(scores[[places[positive], *chosen]])
        negatives = [task.docs[place] for place in chosen]
        yield {"query": query, "pos": [positive], "neg": negatives, "pos_scores": own[:1], "neg_scores": own[1:]}


def trigrams(text: str) -> list[str]:
    """Return the overlapping three-character pieces of a text in lower case; a shorter text is one piece."""
    text = " ".join(text.lower().split())
    return [text[place : place + 3] for place in range(max(1, len(text) - 2))]


def _standardised(scores: Any) -> list[float]:
    spread = float(scores.std())
    if spread == 0:
        return [0.0] * len(scores)
    return [round(float(value), 4) for value in (scores - scores.mean()) / spread]

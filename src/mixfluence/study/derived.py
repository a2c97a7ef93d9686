"""Training rows that no file holds: drawn anew from train and dev, or with negatives and a teacher's scores.

They are written once, beside the run folders, as pairs that any recipe can read; what a file is made of is part of
its name. The fingerprint of the rows is in the record of every run that used them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from mixfluence.data.formats import Source
from mixfluence.data.pairs import PairsSource
from mixfluence.errors import RecipeError
from mixfluence.files import replacing
from mixfluence.recipe import Recipe


@dataclass(frozen=True)
class Derivation:
    """A file of rows to be made.

    Attributes:
        path: Where it will be.
        sources: What it is made of: the rows to score, or train and dev to draw from.
        seed: Of the draw; None for rows that are scored.
    """

    path: Path
    sources: tuple[Source, ...]
    seed: int | None = None

    def write(self) -> None:
        """Make the file, unless it is there."""
        if self.path.exists():
            return
        lines = _scored(self.sources[0]) if self.seed is None else _drawn(self.sources, self.seed)
        with replacing(self.path) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def derive(recipe: Recipe, folder: Path, *, resampled: bool, teacher: bool) -> tuple[Recipe, tuple[Derivation, ...]]:
    """Return a recipe that reads derived rows, and the files it needs for that.

    Args:
        recipe: What to change.
        folder: Where the files will be.
        resampled: Training sets become as many rows of train and dev together, drawn by the recipe's seed; no dev set
            is left. Every training set needs a dev set of its name.
        teacher: Training and dev rows get negatives and scores by BM25, see `mixfluence.study.teacher`.
    """
    made: dict[str, dict[str, Derivation]] = {"train": {}, "dev": {}}
    if resampled:
        for name, source in recipe.train.items():
            if name not in recipe.dev:
                raise RecipeError(f"train.{name}: has no dev set of its name to be merged with")
            made["train"][name] = _derivation(
                folder, f"mix{recipe.seed}", name, (source, recipe.dev[name]), recipe.seed
            )
        recipe = recipe.model_copy(update={"dev": {}})
    elif teacher:
        for section in ("train", "dev"):
            for name, source in getattr(recipe, section).items():
                made[section][name] = _derivation(folder, f"{section}-bm25", name, (source,))
    updates = {
        section: getattr(recipe, section) | {name: _pairs(derivation) for name, derivation in files.items()}
        for section, files in made.items()
    }
    return recipe.model_copy(update=updates), tuple(file for files in made.values() for file in files.values())


def _derivation(
    folder: Path, kind: str, name: str, sources: tuple[Source, ...], seed: int | None = None
) -> Derivation:
    parts = [source.model_dump_json() for source in sources]
    digest = xxhash.xxh3_64_hexdigest(json.dumps(parts).encode())[:8]
    return Derivation(folder / kind / f"{name}-{digest}.jsonl", sources, seed)


def _pairs(derivation: Derivation) -> PairsSource:
    first = derivation.sources[0]
    return PairsSource.model_validate(
        {
            "format": "pairs",
            "path": derivation.path,
            "query_prompt": first.query_prompt,
            "passage_prompt": first.passage_prompt,
        },
        context={"files_may_be_missing": True},
    )


def _drawn(sources: Sequence[Source], seed: int) -> Iterator[dict[str, Any]]:
    """Yield as many rows as the first source has, drawn from all sources without repetition."""
    from mixfluence.data.formats import read_rows

    sets = [read_rows(source).rows for source in sources]
    places = [(rows, place) for rows in sets for place in range(len(rows))]
    for chosen in sorted(random.Random(seed).sample(range(len(places)), len(sets[0]))):
        rows, place = places[chosen]
        yield _record(rows[place])


def _record(row: Mapping[str, Any]) -> dict[str, Any]:
    record = {"query": row["anchor"], "pos": [row["positive"]], "neg": row["negatives"]}
    scores = {"pos_scores": row["scores"][:1], "neg_scores": row["scores"][1:]} if row["scores"] else {}
    return record | scores


def _scored(source: Source) -> Iterator[dict[str, Any]]:
    from mixfluence.study.teacher import scored_rows

    return scored_rows(source)

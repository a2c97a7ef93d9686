"""From documents and a few queries to an adapted model: the recipe that is made of them, and the verdict.

Every kind of pair that the documents contain is a training set. Half of the labelled queries guide sampling and select
the checkpoint, the other half are held back for the verdict. Without labelled queries, held-out documents select and
judge, and sampling is uniform: guided by documents it was worse (docs/results.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mixfluence.data.corpus import PAIRS, CorpusSource, Kind, Split, read_documents, take_split
from mixfluence.data.formats import format_at
from mixfluence.data.pairs import EXTENSIONS
from mixfluence.errors import DataError, MixfluenceError, RecipeError
from mixfluence.report.compare import LEVEL, Comparison, Contrast, Difference, compare, contrast_between
from mixfluence.runs import Run

TARGET = "queries"
# The kind of pair that most resembles a query, if none are labelled.
STAND_INS = ("title", "heading", "first-sentence", "crop")
# A kind with fewer pairs would fill no batch.
MIN_PAIRS = 64
# Formats of datasets that are given as FORMAT:NAME, and the key that NAME is.
NAMED_FORMATS = {"mteb": "task", "hub": "id", "ir_datasets": "id", "pydocs": "library"}
# Other references that are tested, by their names in run folders.
LEXICAL = {"bm25": "BM25 alone", "fusion": "Rank fusion with BM25"}
# A static embedding has no layers whose knowledge a large learning rate would destroy.
STATIC = {"learning_rate": 1e-3, "temperature": 0.05}
TRANSFORMER = {"learning_rate": 2e-5, "temperature": 0.02}


def make_recipe(
    model: str,
    corpus: Path,
    queries: Path | None,
    *,
    pool: Sequence[str] = (),
    guards: Sequence[str] = (),
    steps: int = 300,
    static: bool = False,
) -> dict[str, Any]:
    """Return the values of a recipe that adapts a model to documents."""
    documents = {"format": "corpus", "path": str(corpus)}
    kinds = kinds_of_pairs(corpus, "all" if queries else "train")
    strategy: dict[str, Any]
    if queries:
        # All documents are known when a model is adapted; only their queries are not.
        target, split = documents | {"kind": "queries", "queries": str(queries)}, {"split": "all"}
        strategy = {"name": "inf-dds", "init": "uniform", "update_every": max(1, steps // 12)}
    else:
        target, split = documents | {"kind": next(kind for kind in STAND_INS if kind in kinds)}, {}
        strategy = {"name": "static", "init": "uniform"}
    train: dict[str, Any] = {kind: documents | {"kind": kind} | split for kind in kinds}
    for word in pool:
        _add(train, word, {"mteb": "train", "pydocs": "all"})
    test: dict[str, Any] = {TARGET: target}
    for word in guards:
        _add(test, word, {"mteb": "test", "pydocs": "test"})
    rates = STATIC if static else TRANSFORMER
    every = next(n for n in range(max(1, steps // 3), steps + 1) if steps % n == 0)
    return {
        "name": "adapted",
        "model": {"name": model},
        "train": train,
        "dev": {TARGET: target | {"negatives": {"mine": 4, "filter": "bm25", "range": [2, 50]}}},
        "test": test,
        "strategy": strategy,
        "training": {"steps": steps, "batch_size": 64, "warmup_steps": steps // 15, **rates},
        "selection": {"every": every},
    }


def kinds_of_pairs(corpus: Path, split: Split) -> list[Kind]:
    """Return the kinds of pairs that the documents of a split have enough of."""
    documents = take_split(read_documents(corpus), split)
    words, seed = (CorpusSource.model_fields[key].default for key in ("words", "seed"))
    counts = {
        kind: sum(1 for document in documents for _ in make(document, words, seed))
        for kind, (make, _) in PAIRS.items()
    }
    if enough := [kind for kind, count in counts.items() if count >= MIN_PAIRS]:
        return enough
    found = ", ".join(f"{kind} {count}" for kind, count in counts.items())
    raise DataError(f"{corpus}: too few pairs to train on ({found}), expected {MIN_PAIRS} of a kind")


def _add(sources: dict[str, Any], word: str, splits: dict[str, str]) -> None:
    """Add the dataset that a user names: a path, `FORMAT:NAME`, or the name of a task of mteb."""
    format_, colon, value = word.partition(":")
    path = Path(word)
    if path.exists():
        name, source = path.name.partition(".")[0], {"format": format_at(path), "path": word}
    elif word.lower().endswith(EXTENSIONS):
        raise RecipeError(f"{word}: no such file")
    elif colon:
        if format_ not in NAMED_FORMATS:
            raise RecipeError(f"{word}: no such file; expected a path, or FORMAT:NAME of {', '.join(NAMED_FORMATS)}")
        name, source = value.rpartition("/")[2], {"format": format_, NAMED_FORMATS[format_]: value}
    elif word.isidentifier() or word.replace("-", "").replace(".", "").isalnum():
        name, source = word, {"format": "mteb", "task": word}
    else:
        raise RecipeError(f"{word}: no such file or folder")
    if name in sources:
        raise RecipeError(f"{word}: another dataset is named {name!r}")
    split = splits.get(str(source["format"]))
    sources[name] = source | ({"split": split} if split else {})


@dataclass(frozen=True)
class Verdict:
    """What adaptation did, by paired tests of per-query scores, all of them from comparisons of the same runs.

    Attributes:
        start: The adapted model minus the start.
        uniform: The adapted model minus the one that was trained with uniform sampling; None without labelled
            queries, where it is that one.
        lexical: Each of `LEXICAL` minus the adapted model.
    """

    comparison: Comparison
    start: Contrast
    uniform: Contrast | None
    lexical: Mapping[str, Contrast]

    @property
    def helped(self) -> bool:
        """Whether the adapted model is better on the held-back queries."""
        return _sign(self.start.tests[TARGET]) > 0

    @property
    def forgotten(self) -> dict[str, Difference]:
        """Guards on which the adapted model is worse than the start."""
        return {name: found for name, found in self.start.tests.items() if name != TARGET and _sign(found) < 0}

    def sentences(self) -> Iterator[str]:
        """Yield the verdict in plain words."""
        guards = dict(self.start.tests)
        target = guards.pop(TARGET)
        kind = "held-back queries" if self.uniform else "queries made from held-out documents"
        verb = {1: "helped", -1: "made it worse", 0: "did not help"}[_sign(target)]
        yield f"Adaptation {verb}: {self._change(self.start, TARGET)} on {target.queries} {kind}."
        for name, found in guards.items():
            word = "Forgotten" if name in self.forgotten else "Kept"
            yield f"{word}: {self._change(self.start, name)} on {found.queries} queries of {name}."
        if self.uniform:
            own = self.uniform.tests[TARGET]
            yield f"Guided sampling {_compared(own)} uniform sampling: {_signed(own)}."
        else:
            yield "No labelled queries were given: real queries may say otherwise. Label fifty before relying on this."
        for name, contrast in self.lexical.items():
            own = contrast.tests[TARGET]
            score = f"{self.comparison.measure.upper()} {self._score(contrast.first, TARGET):.1f}"
            yield f"{LEXICAL[name]} {_compared(own)} the adapted model: {score} ({_signed(own)})."
        if not self.helped:
            yield "Do not deploy the adapted model: keep the start."
        elif self.forgotten:
            yield f"Deploy it only if losing on {', '.join(self.forgotten)} does not matter to you."
        else:
            yield "The adapted model can replace the start."
        if better := [name for name, contrast in self.lexical.items() if _sign(contrast.tests[TARGET]) > 0]:
            best = max(better, key=lambda name: self._score(self.lexical[name].first, TARGET))
            yield f"Best on these queries: {LEXICAL[best]}."

    def _change(self, contrast: Contrast, test: str) -> str:
        before, after = (self._score(place, test) for place in (contrast.second, contrast.first))
        measure = self.comparison.measure.upper()
        return f"{measure} {before:.1f} -> {after:.1f} ({_signed(contrast.tests[test])})"

    def _score(self, row: int, test: str) -> float:
        return self.comparison.rows[row].scores(self.comparison.measure)[test].mean


def judge(adapted: Sequence[Run], uniform: Sequence[Run] = ()) -> Verdict:
    """Compare adapted models with the start, and with uniform sampling if there is any; several runs are seeds."""
    found = compare([*adapted, *uniform])
    # Reversed, so that the first of several wins: the fusion with the adapted model.
    places = {row.runs[0].untrained: place for place, row in reversed(list(enumerate(found.rows)))}
    if "zero-shot" not in places:
        raise MixfluenceError(f"{adapted[0].path}: the start was not scored; see evaluation.references")
    lexical = {name: contrast_between(found, places[name], 0) for name in LEXICAL if name in places}
    start = contrast_between(found, 0, places["zero-shot"])
    return Verdict(replace(found, contrast=start), start, contrast_between(found, 0, 1) if uniform else None, lexical)


def _compared(found: Difference) -> str:
    return {1: "did better than", -1: "did worse than", 0: "did not differ significantly from"}[_sign(found)]


def _sign(found: Difference) -> int:
    """Return 1 for significantly better, -1 for worse, and 0 otherwise."""
    return (1 if found.difference > 0 else -1) if found.p < LEVEL else 0


def _signed(found: Difference) -> str:
    p = "p < 0.001" if found.p < 0.001 else f"p = {found.p:.3f}"
    return f"{found.difference:+z.1f}, {p}"

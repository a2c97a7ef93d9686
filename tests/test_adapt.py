"""`mixfluence adapt`.

- The recipe has a training set of each kind of pair and each dataset of the pool; guards are test sets.
- The verdict is that of `compare` between the adapted model and the start, in words; a model that is not better on
  held-back queries is not to be deployed.
- BM25 is told beside it, with the numbers of `compare`.
- While runs train, their progress is printed.
- The same command continues; a recipe that was edited is not overwritten.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer

from mixfluence.adapt import TARGET, Verdict, judge, make_recipe
from mixfluence.cli.sweep import write_files
from mixfluence.data.pydocs import PydocsSource
from mixfluence.data.reading import read_data
from mixfluence.errors import DataError, RecipeError
from mixfluence.recipe import Recipe
from mixfluence.runs import read_run
from tests.conftest import WORDS
from tests.forked import forked_jobs
from tests.test_cli import mixfluence_here

STEPS = 6


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """Documents, labelled queries, and pairs for the pool and as a guard."""
    rng = random.Random(0)
    documents = [" ".join(rng.choices(WORDS, k=40)) for _ in range(120)]
    records: dict[str, list[Any]] = {
        "docs": [{"_id": i, "title": " ".join(text.split()[5:9]), "text": text} for i, text in enumerate(documents)],
        "labelled": [{"query": " ".join(documents[i].split()[20:26]), "doc_id": i} for i in range(60)],
        "general": [{"query": " ".join(rng.choices(WORDS, k=3)), "answer": d} for d in documents[:80]],
        "other": [{"query": " ".join(rng.choices(WORDS, k=4)), "answer": d} for d in documents[40:90]],
    }
    for name, own in records.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, own)), encoding="utf-8")
    return tmp_path


def recipe_of(folder: Path, *, queries: bool = True, **options: Any) -> Recipe:
    labelled = folder / "labelled.jsonl" if queries else None
    return Recipe.model_validate(make_recipe("wordllama", folder / "docs.jsonl", labelled, static=True, **options))


def test_each_kind_of_pair_and_each_pool_is_a_training_set(workplace: Path) -> None:
    pool, guard = [str(workplace / f"{name}.jsonl") for name in ("general", "other")]
    recipe = recipe_of(workplace, pool=[pool], guards=[guard])
    assert list(recipe.train) == ["title", "crop", "general"]
    assert list(recipe.dev) == [TARGET]
    assert list(recipe.test) == [TARGET, "other"]
    assert {len(recipe.train[kind].read_rows()) for kind in ("title", "crop")} == {120}
    guiding, held_back = (
        set(source.read_rows().rows["anchor"]) for source in (recipe.dev[TARGET], recipe.test[TARGET])
    )
    assert (len(guiding), len(held_back), len(guiding & held_back)) == (30, 30, 0)
    assert list(recipe.warnings()) == []


def test_without_labels_held_out_documents_are_queries(workplace: Path) -> None:
    recipe = recipe_of(workplace, queries=False)
    sizes = {
        section: len(getattr(recipe, section)["title" if section == "train" else TARGET].read_rows())
        for section in ("train", "dev", "test")
    }
    assert sizes == {"train": 96, "dev": 12, "test": 12}
    assert list(recipe.warnings()) == []


@pytest.mark.parametrize("steps", [3, 7, 100, 300])
def test_the_last_step_is_always_a_candidate(workplace: Path, steps: int) -> None:
    recipe = recipe_of(workplace, steps=steps)
    assert recipe.selection is not None
    assert steps % recipe.selection.every == 0


def test_datasets_are_named_by_path_or_format(workplace: Path) -> None:
    (workplace / "nq" / "qrels").mkdir(parents=True)
    (workplace / "nq" / "corpus.jsonl").touch()
    values = make_recipe(
        "wordllama",
        workplace / "docs.jsonl",
        None,
        pool=[str(workplace / "nq"), "hub:team/questions", "pydocs:numpy"],
        guards=["NFCorpus"],
    )
    train = values["train"]
    assert values["strategy"] == {"name": "static", "init": "uniform"}
    assert train["nq"] == {"format": "beir", "path": str(workplace / "nq")}
    assert train["questions"] == {"format": "hub", "id": "team/questions"}
    assert train["numpy"] == {"format": "pydocs", "library": "numpy", "split": "all"}
    assert values["test"]["NFCorpus"] == {"format": "mteb", "task": "NFCorpus", "split": "test"}


@pytest.mark.parametrize(
    "words", [["absent/file.jsonl"], ["absent.CSV"], ["s3:bucket"], ["pydocs:numpy", "pydocs:numpy"]]
)
def test_unknown_and_equal_names_are_refused(workplace: Path, words: list[str]) -> None:
    with pytest.raises(RecipeError, match=re.escape(words[0])):
        recipe_of(workplace, pool=words)


def test_too_few_documents_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text(json.dumps({"title": "a short title", "text": "too short"}))
    with pytest.raises(DataError, match=r"docs\.jsonl: too few pairs"):
        make_recipe("wordllama", path, path)


def changed(verdict: Verdict, differences: dict[str, tuple[float, float]]) -> str:
    """Return the words for other differences and p-values."""
    tests = {
        name: replace(verdict.start.tests[name], difference=difference, p=p)
        for name, (difference, p) in differences.items()
    }
    return " ".join(replace(verdict, start=replace(verdict.start, tests=tests)).sentences())


@pytest.mark.slow
def test_documents_become_a_model_with_a_verdict(
    workplace: Path, make_static: Callable[[], SentenceTransformer]
) -> None:
    make_static().save(str(workplace / "encoder"))
    words = ["adapt", "encoder", "--corpus", "docs.jsonl", "--queries", "labelled.jsonl", "--steps", str(STEPS)]
    words += ["--pool", "general.jsonl", "--guard", "other.jsonl", "-o", "out"]
    planned = mixfluence_here(*words, "--dry-run", folder=workplace)
    assert planned.returncode == 0, planned.stderr
    assert "general" in planned.stdout
    assert sorted(path.name for path in (workplace / "out").iterdir()) == ["adapted.yaml"]

    with forked_jobs():
        result = mixfluence_here(*words, folder=workplace)
    assert result.returncode == 0, result.stderr
    assert (workplace / "out" / "recipe" / "0" / "model").is_dir()
    for job in ("recipe/0", "uniform/0"):
        assert re.search(rf"^{job}: (step|testing|mining) .", result.stderr, re.MULTILINE)

    # The numbers are those of `compare`.
    folders = [f"out/{sampler}/0" for sampler in ("recipe", "uniform")]
    rows = json.loads(mixfluence_here("compare", *folders, "--format", "json", folder=workplace).stdout)["rows"]
    start = next(place for place, row in enumerate(rows, 1) if row["name"].startswith("zero-shot"))
    between = ["--between", "1", str(start), "--format", "json"]
    found = json.loads(mixfluence_here("compare", *folders, *between, folder=workplace).stdout)["contrast"]
    for name in (TARGET, "other"):
        before, after = rows[start - 1]["tests"][name]["mean"], rows[0]["tests"][name]["mean"]
        difference = found["tests"][name]["difference"]
        assert f"NDCG@10 {before:.1f} -> {after:.1f} ({difference:+z.1f}, p " in result.stdout
        assert after - before == pytest.approx(difference)
    lexical = next(place for place, row in enumerate(rows, 1) if row["name"] == "BM25")
    between = ["--between", str(lexical), "1", "--format", "json"]
    found = json.loads(mixfluence_here("compare", *folders, *between, folder=workplace).stdout)["contrast"]
    score, difference = rows[lexical - 1]["tests"][TARGET]["mean"], found["tests"][TARGET]["difference"]
    assert re.search(rf"^BM25 .* {score:.1f} \({re.escape(f'{difference:+z.1f}')}, ", result.stdout, re.MULTILINE)

    adapted, uniform = ([read_run(workplace / folder)] for folder in folders)
    verdict = judge(adapted, uniform)
    assert all(sentence in result.stdout for sentence in verdict.sentences())
    assert "can replace the start" in changed(verdict, {TARGET: (2.0, 0.01), "other": (-1.0, 0.4)})
    assert "Do not deploy" in changed(verdict, {TARGET: (2.0, 0.2), "other": (1.0, 0.4)})
    assert "made it worse" in changed(verdict, {TARGET: (-2.0, 0.01), "other": (1.0, 0.4)})
    assert "only if losing on other" in changed(verdict, {TARGET: (2.0, 0.01), "other": (-1.0, 0.01)})
    # What is significantly better than the adapted model, and only that, may be the best.
    for p, best in {0.01: "bm25", 0.2: None}.items():
        own = verdict.lexical["bm25"]
        tests = {TARGET: replace(own.tests[TARGET], difference=5.0, p=p)}
        said = list(replace(verdict, lexical={"bm25": replace(own, tests=tests)}).sentences())
        assert (said[-1] == "Best on these queries: BM25 alone.") == (best == "bm25")
    # Without labelled queries there is one run, which samples uniformly.
    unlabelled = " ".join(judge(adapted).sentences())
    assert "No labelled queries" in unlabelled
    assert "uniform sampling" not in unlabelled

    # The same command starts nothing again, and an edited recipe is left alone.
    record = workplace / "out" / "recipe" / "0" / "record.json"
    written = record.stat().st_mtime_ns
    again = mixfluence_here(*words, folder=workplace).stdout
    assert result.stdout.endswith(again)
    assert next(iter(verdict.sentences())) in again
    assert record.stat().st_mtime_ns == written
    recipe = workplace / "out" / "adapted.yaml"
    recipe.write_text(recipe.read_text().replace("batch_size: 64", "batch_size: 32"))
    refused = mixfluence_here(*words, folder=workplace)
    assert refused.returncode == 2
    assert "adapted.yaml" in refused.stderr


def test_the_demo_replaces_its_own_files_only(tmp_path: Path) -> None:
    for name in ("mine.txt", "adapted.yaml", "recipe/0/record.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old")
    documents, queries = write_files("numpy", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["docs.jsonl", "labelled.jsonl", "mine.txt"]
    recipe = Recipe.model_validate(make_recipe("wordllama", documents, queries, static=True))
    assert {"first-sentence", "crop"} <= set(recipe.train)
    labelled = [row["query"] for row in map(json.loads, queries.read_text(encoding="utf-8").splitlines())]
    held_back = recipe.test[TARGET].read_rows()
    assert len(recipe.dev[TARGET].read_rows()) + len(held_back) == len(labelled)
    summaries = PydocsSource(library="numpy", split="all").read_rows().rows
    answers = dict(zip(summaries["anchor"], summaries["positive"], strict=True))
    assert all(answers[row["anchor"]] == row["positive"] for row in held_back.rows)


def test_a_recipe_is_replaced_until_someone_edits_it_or_trains(
    workplace: Path, make_static: Callable[[], SentenceTransformer]
) -> None:
    make_static().save(str(workplace / "encoder"))
    words = ["adapt", "encoder", "--corpus", "docs.jsonl", "--queries", "labelled.jsonl", "--dry-run", "-o", "out"]
    assert mixfluence_here(*words, "--guard", "typo.jsonl", folder=workplace).returncode == 2
    assert mixfluence_here(*words, "--guard", "NoTaskOfThisName", folder=workplace).returncode == 2
    assert mixfluence_here(*words, "--guard", "other.jsonl", folder=workplace).returncode == 0
    recipe = workplace / "out" / "adapted.yaml"
    written = recipe.read_text(encoding="utf-8")
    (workplace / "out" / "recipe").mkdir()
    assert mixfluence_here(*words, folder=workplace).returncode == 2, "a run has started"
    (workplace / "out" / "recipe").rmdir()
    recipe.write_text(written.replace("batch_size: 64", "batch_size: 32"), encoding="utf-8")
    assert mixfluence_here(*words, folder=workplace).returncode == 2, "edited"
    recipe.write_text(written, encoding="utf-8")
    assert mixfluence_here(*words, folder=workplace).returncode == 0


def test_a_missing_file_is_named(workplace: Path) -> None:
    result = mixfluence_here("adapt", "wordllama", "--corpus", "absent.jsonl", folder=workplace)
    assert (result.returncode, result.stderr) == (2, "error: absent.jsonl: no such file or folder\n")


def test_an_unknown_document_is_reported_once(workplace: Path) -> None:
    with (workplace / "labelled.jsonl").open("a") as file:
        file.write('\n{"query": "w1 w2", "doc_id": "gone"}')
    with pytest.raises(DataError) as error:
        read_data(recipe_of(workplace))
    assert str(error.value).count("'gone'") == 1, "though the file has the dev and the test queries"

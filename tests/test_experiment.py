"""Whole runs, from files to numbers, on tiny data.

- A run folder holds the files that reports read, and its model loads in plain sentence-transformers.
- A run stopped half-way and resumed ends as the uninterrupted one; a finished or foreign folder is refused.
- Rows that ask a test query are dropped and listed, or the run is refused, as the recipe says.
- The halves of a dev set are disjoint and complete, for rows and retrieval sets alike.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from sentence_transformers import SentenceTransformer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mixfluence import build
from mixfluence.data.formats import read_rows, read_task
from mixfluence.data.reading import read_data
from mixfluence.encoders import load_encoder
from mixfluence.errors import DataError, MixfluenceError, RecipeError
from mixfluence.evaluation import read_evaluation
from mixfluence.evaluation.retrieval import DevEvaluator, evaluate
from mixfluence.experiment import run
from mixfluence.plan import plan_run
from mixfluence.policy.initial import read_weights
from mixfluence.recipe import Recipe
from mixfluence.recipe_yaml import load_recipe
from mixfluence.report.curves import dev_evals
from mixfluence.runs import read_run, read_trace
from tests.conftest import WORDS

pytestmark = pytest.mark.slow


def write_domain(folder: Path, queries: int, seed: int) -> None:
    """A domain in BEIR layout: a query is three words of its passage; train, dev and test take turns."""
    rng = random.Random(seed)
    (folder / "qrels").mkdir(parents=True)
    passages = [" ".join(rng.sample(WORDS, 8)) for _ in range(queries)]
    corpus = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(passages)]
    asked = [{"_id": f"q{i}", "text": " ".join(text.split()[:3])} for i, text in enumerate(passages)]
    for name, rows in ("corpus", corpus), ("queries", asked):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for part, split in enumerate(("train", "dev", "test")):
        lines = [f"q{i}\td{i}\t1\n" for i in range(queries) if i % 3 == part]
        (folder / "qrels" / f"{split}.tsv").write_text(
            "query-id\tcorpus-id\tscore\n" + "".join(lines), encoding="utf-8"
        )


@pytest.fixture
def recipe_path(tmp_path: Path, tiny_bert_folder: Path) -> Path:
    for number, (name, queries) in enumerate({"big": 240, "small": 60}.items()):
        write_domain(tmp_path / "data" / name, queries, number)
    recipe = {
        "name": "tiny",
        "model": {"name": str(tiny_bert_folder), "pooling": "cls", "query_length": 8, "passage_length": 16},
        "defaults": {"format": "beir", "path": f"{tmp_path}/data/{{name}}"},
        "train": ["big", "small"],
        "dev": ["small"],
        "test": ["small", "big"],
        "evaluation": {"references": False},
        "training": {"steps": 12, "batch_size": 8, "learning_rate": 1e-3, "log_every": 2},
        "selection": {"every": 6, "dev": "halves"},
        "output": str(tmp_path / "run"),
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


class StopAt(TrainerCallback):
    """Ends training early, as an interruption between two checkpoints would."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if state.global_step == self._step:
            raise KeyboardInterrupt


class StopInRun(StopAt):
    """Ends one of the trainings of a method of several, counted from 1."""

    def __init__(self, step: int, run: int) -> None:
        super().__init__(step)
        self._run = run
        self._begun = 0

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._begun += 1

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        if self._begun == self._run:
            super().on_step_end(*args, **kwargs)


def test_a_run_folder_holds_the_whole_story(recipe_path: Path) -> None:
    recipe = load_recipe(recipe_path, ["evaluation.references=true"])
    scores = run(recipe)
    folder = recipe.output
    assert load_recipe(folder / "recipe.yaml") == recipe

    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    assert record["steps"] == 12
    assert record["selected_step"] in {6, 12}
    assert set(record["seconds"]) == {"data", "tokenise", "train", "probe", "evaluate"}
    assert set(record["versions"]) >= {"mixfluence", "torch", "sentence-transformers"}
    assert sum(record["rows_drawn"].values()) == 12 * 8

    trained = [dataset for line in read_trace(folder / "trace.jsonl")[1:] for dataset in line["trained"]]
    assert len(trained) == 12
    assert sum(read_weights(folder / "weights.json").values()) == pytest.approx(1)
    assert len(list(folder.glob("references/*/big.jsonl"))) == 3
    assert not list(folder.glob("model/**/*.bin"))
    for name in recipe.test:
        kept = read_evaluation(folder / "eval" / f"{name}.jsonl")
        assert kept.per_query == scores[name].per_query
        assert record["scores"][name]["ndcg@10"] == pytest.approx(kept.mean("ndcg@10"))


def test_the_model_loads_in_plain_sentence_transformers_and_scores_the_same(recipe_path: Path) -> None:
    recipe = load_recipe(recipe_path)
    scores = run(recipe)
    model = SentenceTransformer(str(recipe.output / "model"), device="cpu")
    again = evaluate(model, read_task("small", recipe.test["small"]))
    assert again.mean("ndcg@10") == pytest.approx(scores["small"].mean("ndcg@10"), abs=1e-6)
    card = (recipe.output / "model" / "README.md").read_text(encoding="utf-8")
    assert "## Training mixture" in card
    assert all(f"| {name} |" in card for name in recipe.train)
    assert "## Test scores" in card


@pytest.mark.parametrize(
    "model",
    [
        {"kind": "sparse"},
        {"kind": "multi-vector"},
        {"kind": "reranker"},
        {"lora": {"rank": 2, "targets": ["query", "value"]}},
        {"lora": {"rank": 2, "targets": ["query", "value"], "merged": False}},
    ],
    ids=["sparse", "multi-vector", "reranker", "merged adapter", "adapter alone"],
)
def test_every_kind_of_model_is_trained_selected_and_tested(
    recipe_path: Path, caplog: pytest.LogCaptureFixture, model: dict[str, Any]
) -> None:
    values = yaml.safe_load(recipe_path.read_text(encoding="utf-8"))
    values["model"] = {"name": values["model"]["name"], "passage_length": 16, **model}
    values["strategy"] = {"name": "inf-dds", "update_every": 4, "warmup_steps": 4, "inner_steps": 1}
    recipe_path.write_text(yaml.safe_dump(values), encoding="utf-8")
    recipe = load_recipe(recipe_path)
    assert plan_run(recipe).checked.absent == []
    with caplog.at_level("INFO"):
        scores = run(recipe)
    assert any(re.search(r"probes took \d\.\d s", message) for message in caplog.messages)
    saved = recipe.output / "model"
    again = load_encoder(str(saved), kind=recipe.model.kind, device="cpu")
    rescored = evaluate(again, read_task("small", recipe.test["small"]))
    assert rescored.mean("ndcg@10") == pytest.approx(scores["small"].mean("ndcg@10"), abs=1e-6)
    assert any("update" in line for line in read_trace(recipe.output / "trace.jsonl"))
    assert (saved / "adapter_config.json").exists() == (model.get("lora", {}).get("merged") is False)


def test_a_plan_without_the_test_data_tries_the_adapter(recipe_path: Path) -> None:
    changes = ["test={far: {format: beir, path: nowhere}}", "strategy=static"]
    for targets, right in ("[query, value]", True), ("[no_layer]", False):
        lora = f"model.lora={{rank: 2, targets: {targets}}}"
        recipe = load_recipe(recipe_path, [*changes, lora], files_may_be_missing=True)
        if right:
            assert plan_run(recipe).checked.absent == ["test.far"]
        else:
            with pytest.raises(RecipeError, match=r"^model\.lora: "):
                plan_run(recipe)


def test_a_resumed_run_ends_as_the_uninterrupted_one(recipe_path: Path, tmp_path: Path) -> None:
    whole = load_recipe(recipe_path)
    expected = run(whole)
    broken = load_recipe(recipe_path, [f"output={tmp_path}/broken"])
    with pytest.raises(KeyboardInterrupt):
        run(broken, callbacks=[StopAt(9)])
    resumed = run(broken, resume=True)
    assert {name: scores.per_query for name, scores in resumed.items()} == {
        name: scores.per_query for name, scores in expected.items()
    }
    traces = [read_trace(recipe.output / "trace.jsonl") for recipe in (whole, broken)]
    record = json.loads((broken.output / "record.json").read_text(encoding="utf-8"))
    assert record["seconds"]["train"] >= traces[1][-1]["seconds"]
    for line in (line for trace in traces for line in trace):
        line.pop("seconds")
    assert traces[0] == traces[1]


def test_the_start_is_the_first_point_of_the_dev_curve_and_changes_no_training(
    recipe_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe(recipe_path)
    run(recipe)
    points = dev_evals(read_run(recipe.output))["small"]
    start = DevEvaluator(read_data(recipe).selection)(build.build_model(recipe.model))["ndcg@10"]
    assert [step for step, _ in points] == [0, 6, 12]
    assert points[0][1] == pytest.approx(100 * start)
    again = load_recipe(recipe_path, [f"output={tmp_path}/again"])
    with pytest.raises(KeyboardInterrupt):
        run(again, callbacks=[StopAt(8)])
    run(again, resume=True)
    assert dev_evals(read_run(again.output))["small"] == points
    own = build._own_arguments
    monkeypatch.setattr(build, "_own_arguments", lambda *given: own(*given) | {"eval_on_start": False})
    run(load_recipe(recipe_path, [f"output={tmp_path}/without"]))
    models = [folder / "model" / "model.safetensors" for folder in (recipe.output, tmp_path / "without")]
    assert models[0].read_bytes() == models[1].read_bytes()
    # Whoever may read the folder may read the model.
    assert models[0].stat().st_mode & 0o044 == recipe.output.stat().st_mode & 0o044


def test_a_run_stopped_before_its_first_checkpoint_starts_again(recipe_path: Path, tmp_path: Path) -> None:
    expected = run(load_recipe(recipe_path))
    broken = load_recipe(recipe_path, [f"output={tmp_path}/broken"])
    with pytest.raises(KeyboardInterrupt):
        run(broken, callbacks=[StopAt(3)])
    assert run(broken, resume=True)["big"].per_query == expected["big"].per_query


def test_a_run_that_could_not_start_leaves_the_folder_free(recipe_path: Path) -> None:
    with pytest.raises(MixfluenceError):
        run(load_recipe(recipe_path, ["strategy.floor=0.9"]))
    assert set(run(load_recipe(recipe_path))) == {"small", "big"}


def test_a_taken_folder_is_refused(recipe_path: Path) -> None:
    recipe = load_recipe(recipe_path)
    run(recipe)
    with pytest.raises(RecipeError, match="already holds a run"):
        run(recipe)
    with pytest.raises(RecipeError, match="finished, nothing to resume"):
        run(recipe, resume=True)
    with pytest.raises(RecipeError, match="another recipe"):
        run(load_recipe(recipe_path, ["seed=1"]), resume=True)


def leak(recipe: Recipe) -> str:
    """Let a training row of `big` ask a test query of `small`, shouting and with other spacing."""
    query = read_task("small", recipe.test["small"]).queries[0]
    queries = recipe.output.parent / "data" / "big" / "queries.jsonl"
    lines = queries.read_text(encoding="utf-8").splitlines()
    lines[0] = json.dumps({"_id": "q0", "text": "  ".join(query.upper().split())})
    queries.write_text("\n".join(lines), encoding="utf-8")
    return query


def test_rows_that_ask_a_test_query_are_dropped_and_listed(
    recipe_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = load_recipe(recipe_path)
    query = leak(recipe)
    run(recipe)
    record = json.loads((recipe.output / "record.json").read_text(encoding="utf-8"))
    assert record["overlap_dropped"] == {"big": 1}
    (dropped,) = (recipe.output / "overlap.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(dropped) == {"dataset": "big", "row": 0, "anchor": "  ".join(query.upper().split())}
    assert record["datasets"]["big"]["rows"] == 79
    assert any("big" in message and query.split()[0].upper() in message for message in caplog.messages)


def test_rows_that_ask_a_test_query_stop_a_run_that_says_so(recipe_path: Path) -> None:
    recipe = load_recipe(recipe_path, ["overlap=refuse"])
    leak(recipe)
    with pytest.raises(DataError, match=r"^big: "):
        run(recipe)


def test_the_halves_of_a_dev_set_are_disjoint_and_complete(recipe_path: Path) -> None:
    recipe = load_recipe(recipe_path)
    data = read_data(recipe)
    guides = set(data.dev["small"].rows["anchor"])
    selects = set(data.selection[0].queries)
    assert guides
    assert selects
    assert not guides & selects
    assert guides | selects == set(read_rows(recipe.dev["small"]).rows["anchor"])


def test_weights_of_an_earlier_run_can_be_replayed(recipe_path: Path, tmp_path: Path) -> None:
    run(load_recipe(recipe_path, ["strategy.init={weights: {big: 1, small: 3}}"]))
    replay = load_recipe(
        recipe_path, [f"output={tmp_path}/replay", f"strategy.init={{file: {tmp_path}/run/weights.json}}"]
    )
    run(replay)
    assert read_weights(tmp_path / "replay" / "weights.json") == pytest.approx({"big": 0.25, "small": 0.75})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.name=nowhere", "nowhere"),
        ("train.big.split=later", "later"),
        ("strategy.init={weights: {big: 1}}", "no weight for 'small'"),
        ("strategy.init={weights: {big: 1, smal: 1, small: 1}}", "did you mean 'small'"),
        ("strategy.floor=0.6", "floor of 0.6 for 2 datasets"),
        ("strategy.max_epochs=0.1", "max_epochs allows 1 batches but the run needs 12"),
        ("training.trainer_args={max_step: 3}", "'max_step'"),
        ("training.trainer_args={learning_rate: 1.0}", "'learning_rate' is set by"),
    ],
)
def test_what_cannot_work_is_one_clear_error(recipe_path: Path, override: str, message: str) -> None:
    changes = [override]
    if override.startswith("train."):
        changes = ["train={big: {}, small: {}}", override]
    with pytest.raises(MixfluenceError, match=message):
        run(load_recipe(recipe_path, changes))


def test_a_model_folder_that_does_not_exist_is_refused_before_data_is_read(recipe_path: Path) -> None:
    missing = str(recipe_path.parent / "no-model")
    recipe = load_recipe(recipe_path, [f"model.name={missing}"])
    shutil.rmtree(recipe_path.parent / "data")
    with pytest.raises(RecipeError, match=missing):
        run(recipe)


def test_a_text_may_be_tested_without_a_corpus(recipe_path: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(
        "".join(json.dumps([f"w{i} w{i + 1}", f"w{i} w{i + 2}"]) + "\n" for i in range(20)), encoding="utf-8"
    )
    recipe = load_recipe(recipe_path, [f"test={{own: {{format: pairs, path: {pairs}}}}}"])
    scores = run(recipe)
    assert len(scores["own"].per_query) == 20


@pytest.mark.parametrize(("name", "section"), [("检" * 28, "test"), ("检" * 28, "dev"), ("half \ud83d", "test")])
def test_a_name_that_no_file_can_have_is_refused_before_step_1(name: str, section: str, recipe_path: Path) -> None:
    recipe = load_recipe(recipe_path)
    source = getattr(recipe, section)["small"]
    odd = recipe.model_copy(update={section: {**getattr(recipe, section), name: source}})
    with pytest.raises(RecipeError, match="results could not be written"):
        run(odd)
    assert not (recipe.output / "trace.jsonl").exists()
    assert list(recipe.output.glob(".try-*")) == []

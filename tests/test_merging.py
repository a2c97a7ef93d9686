"""Models merged by weights.

- A merge is the weighted sum of all parameters; a weight of one gives exactly that model.
- Two linear models whose best combination is known: the search finds it by real NDCG@10.
- Vectors of a static model, which is linear, are those of the merged model; nothing is encoded twice.
- An interrupted search repeats no evaluation and ends where the uninterrupted one does.
- A recipe trains experts, merges them and records what both cost; interrupted in any stage it ends bitwise alike.
- `mixfluence merge` merges finished runs, with a share of the start, and its folder can be compared with runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import TrainerCallback
from typer.testing import CliRunner

from mixfluence import experiment
from mixfluence.cli import app
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.encoders import Kind, load_encoder
from mixfluence.errors import DataError, RecipeError
from mixfluence.evaluation.retrieval import evaluate
from mixfluence.merging import DevScorer, Merged, Merger, MergeSearch, merge_scorer, merged_mixture
from mixfluence.plan import plan_run
from mixfluence.policy import Vector
from mixfluence.policy.initial import read_weights
from mixfluence.recipe_yaml import load_recipe
from mixfluence.report.compare import compare
from mixfluence.report.curves import step_equivalents
from mixfluence.report.page import render_page
from mixfluence.report.status import read_status
from mixfluence.runs import read_run, read_trace
from mixfluence.strategies.merge import Merge
from tests.test_experiment import StopInRun, recipe_path
from tests.test_methods import assert_complete
from tests.training.runs import start_processes

__all__ = ["recipe_path"]

Make = Callable[[], SentenceTransformer]
# A query of the first kind finds its document if the ratio of the experts' weights is above its threshold, one of the
# second kind if it is below: all do between 1.5 and 2.
ABOVE, BELOW = np.linspace(0.2, 1.5, 20), np.linspace(2.0, 6.0, 20)
QUERIES = [f"w{number}" for number in range(2, 42)]


def linear_models(make: Make, folder: Path) -> tuple[SentenceTransformer, list[Path]]:
    """Return a start that is always wrong, and the folders of two experts; embeddings have two dimensions."""
    models = [make() for _ in range(3)]
    for number, model in enumerate(models):
        vectors = torch.zeros(201, 8)
        # Word w<n> has row n + 1.
        vectors[1, 0] = vectors[2, 1] = 1.0
        for query, threshold in enumerate([*ABOVE, *BELOW]):
            wrong = 1 if query < len(ABOVE) else 0
            vectors[query + 3, [wrong, 0, 1][number]] = [1.0, 1.0, threshold][number]
        model[0].embedding.weight.data = vectors
        if number:
            model.save_pretrained(str(folder / f"expert-{number}"))
    return models[0], [folder / "expert-1", folder / "expert-2"]


def task() -> RetrievalSet:
    relevant = ["d0"] * len(ABOVE) + ["d1"] * len(BELOW)
    qrels = {query: {document: 1} for query, document in zip(QUERIES, relevant, strict=True)}
    return RetrievalSet("dev", QUERIES, QUERIES, ["d0", "d1"], ["w0", "w1"], qrels)


def test_a_merge_is_the_weighted_sum(make_static: Make, tmp_path: Path) -> None:
    start, folders = linear_models(make_static, tmp_path)
    rows = [start[0].embedding.weight.data.clone()]
    rows += [SentenceTransformer(str(folder), device="cpu")[0].embedding.weight.data for folder in folders]
    merger = Merger(start, folders)
    for corner, expected in zip(np.eye(3), rows, strict=True):
        assert torch.equal(merger.merge(corner.tolist())[0].embedding.weight.data, expected)
    mixed = merger.merge([0.5, 0.2, 0.3])[0].embedding.weight.data
    assert torch.allclose(mixed, 0.5 * rows[0] + 0.2 * rows[1] + 0.3 * rows[2])


def test_the_best_combination_of_two_linear_models_is_found(make_static: Make, tmp_path: Path) -> None:
    start, folders = linear_models(make_static, tmp_path)
    scorer = merge_scorer(Merger(start, folders), DevScorer(start, [task()], 8))
    mixtures = {"one": {"a": 1.0, "b": 0.0}, "two": {"a": 0.0, "b": 1.0}}
    search = MergeSearch(mixtures, scorer, tmp_path / "trace.jsonl", {"a": {}, "b": {}})
    found = search.run(Merge().merge_weights)
    assert found.score == 1.0
    assert 1.5 < found.weights["one"] / found.weights["two"] < 2.0
    assert found.mixture["a"] == pytest.approx(found.weights["one"] / (found.weights["one"] + found.weights["two"]))
    # Neither an expert, nor the start, nor the soup is as good.
    tried = {tuple(line["update"]["merged"].values()): line for line in read_trace(tmp_path / "trace.jsonl")[1:-1]}
    for weights in (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0.5, 0.5):
        assert tried[weights]["update"]["dev"]["dev"] < 0.95
    assert tried[tuple(found.weights.values())]["step"] == found.step
    assert len(tried) == found.evaluations <= 100


@pytest.mark.parametrize("weights", [[0.2, 0.5, 0.3], [0.0, 1.0, 0.0], [0.5, 0.25, 0.25]])
def test_vectors_of_a_static_model_are_added_instead_of_encoded_again(
    weights: list[float], make_static: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, folders = linear_models(make_static, tmp_path)
    merger, scorer = Merger(start, folders), DevScorer(start, [task()], 8)
    added = merge_scorer(merger, scorer)
    merger.merge(weights)
    vectors, scores = scorer.encode(unit=True), scorer.scores()
    monkeypatch.setattr(scorer, "encode", None)
    assert added(np.array(weights)) == scores
    given: list[torch.Tensor] = []
    monkeypatch.setattr(scorer, "score", given.extend)
    added(np.array(weights))
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(given, vectors, strict=True))


@pytest.mark.parametrize("kind", ["dense", "sparse", "reranker"])
def test_a_transformer_of_any_kind_is_merged_and_scored(kind: Kind, tiny_bert_folder: Path, tmp_path: Path) -> None:
    start, expert = (load_encoder(str(tiny_bert_folder), kind=kind, device="cpu") for _ in range(2))
    with torch.no_grad():
        for parameter in expert.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    expert.save_pretrained(str(tmp_path / "expert"))
    expected = [{"dev": evaluate(model, task(), k=10).mean("ndcg@10")} for model in (start, expert)]
    scorer = merge_scorer(Merger(start, [tmp_path / "expert"]), DevScorer(start, [task()], 8))
    assert [scorer(weights) for weights in np.eye(2)] == expected


def test_an_interrupted_search_repeats_no_evaluation(make_static: Make, tmp_path: Path) -> None:
    measured: list[int] = []

    def measure(scores: Callable[[Vector], dict[str, float]], stop: int, weights: Vector) -> dict[str, float]:
        if len(measured) == stop:
            raise KeyboardInterrupt
        measured.append(1)
        return scores(weights)

    def search(name: str, stop: int = 10**9) -> Merged:
        folder = tmp_path / name
        start, folders = linear_models(make_static, folder)
        scores = merge_scorer(Merger(start, folders), DevScorer(start, [task()], 8))
        own = partial(measure, scores, stop)
        mixtures = {"one": {"a": 1.0}, "two": {"a": 1.0}}
        return MergeSearch(mixtures, own, folder / "trace.jsonl", {"a": {}}).run(Merge(evaluations=30).merge_weights)

    whole = search("whole")
    count, measured[:] = len(measured), []
    with pytest.raises(KeyboardInterrupt):
        search("broken", stop=13)
    assert search("broken") == whole
    assert len(measured) == count
    traces = [read_trace(tmp_path / name / "trace.jsonl") for name in ("whole", "broken")]
    for line in (line for trace in traces for line in trace):
        line.pop("seconds")
        line.get("update", {}).pop("seconds", None)
    assert traces[0] == traces[1]


def test_models_of_another_shape_are_refused(make_static: Make, tiny_bert_folder: Path) -> None:
    with pytest.raises(DataError, match=str(tiny_bert_folder)):
        Merger(make_static(), [tiny_bert_folder])


def test_the_mixture_of_a_merge_leaves_the_start_out() -> None:
    experts = [{"a": 1.0, "b": 0.0}, {"a": 0.5, "b": 0.5}]
    assert merged_mixture(np.array([0.5, 0.125, 0.375]), experts) == pytest.approx({"a": 0.625, "b": 0.375})
    assert merged_mixture(np.array([1.0, 0.0, 0.0]), experts) == pytest.approx({"a": 0.75, "b": 0.25})


MERGE = "strategy={name: merge, expert_steps: 8, evaluations: 12, dev_queries: 8, dev_passages: 40}"


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


@pytest.mark.slow
def test_a_recipe_trains_experts_and_merges_them(recipe_path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(recipe_path, [MERGE])
    scores = experiment.run(recipe)
    run = read_run(recipe.output)
    experts = [parameters(recipe.output / "stages" / f"expert-{name}") for name in ("big", "small")]
    start = load_file(Path(recipe.model.name) / "model.safetensors")
    evaluations = {line["step"]: line["update"] for line in run.trace if "update" in line}
    best = evaluations[run.record["selected_step"]]
    assert np.mean(list(best["dev"].values())) == max(np.mean(list(u["dev"].values())) for u in evaluations.values())
    weights = list(best["merged"].values())
    assert sum(weights) == pytest.approx(1)
    for name, merged in parameters(recipe.output).items():
        if name in start:
            expected = weights[0] * start[name] + weights[1] * experts[0][name] + weights[2] * experts[1][name]
            assert torch.allclose(merged, expected, atol=1e-6)
    assert len(evaluations) == run.record["steps"] == run.record["probing"]["rounds"]
    assert run.record["seconds"]["train"] == 0
    # Every merge of a transformer encodes the dev samples; of a linear model only the start and the experts would.
    assert run.record["encodings"] == len(evaluations)
    linear = replace(run, record=run.record | {"encodings": 3})
    encoding = (8 + 40) / (2 * recipe.training.batch_size) / 3
    assert step_equivalents(run) - step_equivalents(linear) == pytest.approx((len(evaluations) - 3) * encoding)
    assert run.hours(on_gpu=False)["stages"] > 0
    assert run.hours(on_gpu=False)["probing"] > 0
    assert set(scores) == {"small", "big"}
    assert_complete(recipe.output, "merge")
    # The weights start another run.
    again = load_recipe(recipe_path, [f"strategy.init={{file: {recipe.output}/weights.json}}", f"output={tmp_path}/b"])
    experiment.run(again)
    assert read_weights(again.output / "weights.json") == pytest.approx(read_weights(recipe.output / "weights.json"))
    found = compare([read_run(recipe.output), read_run(again.output)])
    assert [group.recipe.strategy.label for group in found.groups] == ["Merge", "Static"]
    status = read_status(recipe.output, now=1e12)
    assert (status.state, status.step) == ("finished", len(evaluations))
    assert status.history[-1] == pytest.approx(read_weights(recipe.output / "weights.json"))
    page = render_page([read_run(recipe.output), read_run(again.output)])
    assert "Merge" in page
    assert "Stage expert-small" in page
    assert "Stage final: mixture that each merge stands for" in page
    # The start and all experts evenly were tried, and none of them is better.
    note = run.record["notes"][-1]
    assert note in page
    best, *others = (float(number) for number in re.findall(r"(0\.\d{4})(?:,|$)", note.rpartition(":")[2]))
    assert len(others) == 2
    assert best >= max(others)


@pytest.mark.slow
@pytest.mark.parametrize(
    "stages", [("first expert", "merge"), pytest.param(("second expert",), marks=pytest.mark.soak)]
)
def test_interrupted_in_any_stage_it_ends_bitwise_alike(
    stages: tuple[str, ...], recipe_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load_recipe(recipe_path, [MERGE, "selection.every=2"])
    expected = experiment.run(whole)
    measure = DevScorer.scores
    for stage in stages:
        broken = load_recipe(recipe_path, [MERGE, "selection.every=2", f"output={tmp_path}/broken {stage}"])
        asked: list[int] = []

        def stopping(scorer: DevScorer, asked: list[int] = asked, stage: str = stage) -> dict[str, float]:
            # Experts are not scored.
            found = measure(scorer)
            asked.extend([1] if found else [])
            if len(asked) == 5 and stage == "merge":
                raise KeyboardInterrupt
            return found

        with monkeypatch.context() as patch:
            patch.setattr(DevScorer, "scores", stopping)
            stop = StopInRun(5, {"first expert": 1, "second expert": 2}.get(stage, 0))
            with pytest.raises(KeyboardInterrupt):
                experiment.run(broken, callbacks=[stop])
        resumed = experiment.run(broken, resume=True)
        for name in ("stages/expert-big", "stages/expert-small", "."):
            ours, theirs = parameters(broken.output / name), parameters(whole.output / name)
            assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
        assert read_weights(broken.output / "weights.json") == read_weights(whole.output / "weights.json")
        assert resumed["big"].per_query == expected["big"].per_query


@pytest.mark.slow
def test_an_added_dataset_takes_one_more_expert(recipe_path: Path, tmp_path: Path) -> None:
    class Counting(TrainerCallback):
        steps = 0

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.steps += 1

    first = load_recipe(recipe_path, [MERGE, "train=[big]"])
    experiment.run(first)
    # Without a number of their own, added experts have the steps of those that are used again.
    again = MERGE.replace("expert_steps: 8", f"experts: {first.output}")
    counting = Counting()
    second = load_recipe(recipe_path, [again, f"output={tmp_path}/second"])
    assert [stage.step_cost for stage in plan_run(second).stages[:2]] == [0, 1]
    experiment.run(second, callbacks=[counting])
    assert counting.steps == 8
    theirs, ours = (parameters(recipe.output / "stages" / "expert-big") for recipe in (first, second))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert set(read_weights(second.output / "weights.json")) == {"big", "small"}
    assert read_run(second.output).hours(on_gpu=False)["stages"] > read_run(first.output).hours(on_gpu=False)["stages"]
    # Without the dataset that was added, and with another learning rate.
    third = load_recipe(recipe_path, [again.replace("/run,", "/second,"), "train=[small]", f"output={tmp_path}/third"])
    experiment.run(third, callbacks=[counting])
    assert counting.steps == 8
    # What cannot be used again is refused by the plan, and before the expert that is missing is trained.
    other = [f"output={tmp_path}/fourth", "train=[small, big]"]
    changed = load_recipe(recipe_path, [again, "training.learning_rate=1e-4", *other])
    for refuse in (plan_run, experiment.run):
        with pytest.raises(RecipeError, match=r"expert-big.*training"):
            refuse(changed)
    assert not (tmp_path / "fourth" / "stages").exists()
    nothing = load_recipe(recipe_path, [again.replace("/run,", "/absent,"), *other])
    with pytest.raises(RecipeError, match="absent: has no finished expert-small or expert-big"):
        experiment.run(nothing)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "experts"),
    [("branching: 2", ["1", "2"]), ("mixtures: {flat: uniform, natural: proportional}", ["flat", "natural"])],
    ids=["clusters", "mixtures"],
)
def test_experts_of_clusters_and_of_mixtures(own: str, experts: list[str], recipe_path: Path, tmp_path: Path) -> None:
    strategy = MERGE.replace("{", f"{{{own}, ")
    whole = load_recipe(recipe_path, [strategy, "selection.every=2"])
    assert [stage.steps for stage in plan_run(whole).stages] == [8, 8, 12]
    experiment.run(whole)
    run = read_run(whole.output)
    found = {name.removeprefix("expert-"): facts["found"] for name, facts in run.record["stages"].items()}
    assert list(found) == experts
    if "mixtures" in own:
        assert found["flat"] == pytest.approx({"big": 0.5, "small": 0.5})
        assert found["natural"] == pytest.approx({"big": 0.8, "small": 0.2})
    else:
        assert [list(mixture.values()) for mixture in found.values()] == [[1, 0], [0, 1]]
    weights = read_weights(whole.output / "weights.json")
    assert weights.keys() == {"big", "small"}
    assert sum(weights.values()) == pytest.approx(1)
    assert f"Stage expert-{experts[0]}" in render_page([run])
    broken = load_recipe(recipe_path, [strategy, "selection.every=2", f"output={tmp_path}/broken"])
    with pytest.raises(KeyboardInterrupt):
        experiment.run(broken, callbacks=[StopInRun(5, 2)])
    experiment.run(broken, resume=True)
    ours, theirs = parameters(broken.output), parameters(whole.output)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def merge_command(*words: str | Path) -> str:
    result = CliRunner().invoke(app, ["merge", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


@pytest.mark.slow
def test_finished_runs_can_be_merged(recipe_path: Path, tmp_path: Path) -> None:
    runs = []
    for name, weights in ("one", "{big: 1, small: 3}"), ("two", "{big: 3, small: 1}"):
        changes = [f"strategy.init={{weights: {weights}}}", f"output={tmp_path}/{name}", f"name={name}"]
        recipe = load_recipe(recipe_path, changes)
        experiment.run(recipe)
        runs.append(recipe.output)
    start, one, two = (
        load_file(path)
        for path in (
            Path(recipe.model.name) / "model.safetensors",
            *(run / "model" / "model.safetensors" for run in runs),
        )
    )
    printed = merge_command(*runs, "--with-base", "0.3", "-o", tmp_path / "soup")
    assert "0.300  start" in printed
    assert "dev NDCG" not in printed, "a soup is not scored on dev sets"
    soup = parameters(tmp_path / "soup")
    for name in one.keys() & start.keys():
        assert torch.allclose(soup[name], 0.3 * start[name] + 0.35 * one[name] + 0.35 * two[name], atol=1e-6)
    assert read_weights(tmp_path / "soup" / "weights.json") == pytest.approx({"big": 0.5, "small": 0.5})
    merge_command(*runs, "--dev", "small", "--evaluations", "9", "-o", tmp_path / "searched")
    record = json.loads((tmp_path / "searched" / "record.json").read_text(encoding="utf-8"))
    assert sum(record["merged"].values()) == pytest.approx(1)
    assert len(read_trace(tmp_path / "searched" / "trace.jsonl")) == 1 + 9 + 1
    found = compare([read_run(path) for path in (*runs, tmp_path / "soup", tmp_path / "searched")])
    assert len(found.groups) == 4
    assert "merge of start, one, two" in render_page([read_run(tmp_path / "soup"), read_run(runs[0])])


@pytest.mark.slow
def test_what_cannot_be_merged_is_one_clear_error(recipe_path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(recipe_path, ["training.steps=2", "selection=null"])
    experiment.run(recipe)

    def refused(*words: str | Path) -> str:
        result = CliRunner().invoke(app, ["merge", *map(str, words)])
        assert result.exception is not None
        return str(result.exception)

    assert "'smal'" in refused(recipe.output, "--dev", "smal", "-o", tmp_path / "out")
    assert "already holds a run" in refused(recipe.output, "-o", recipe.output)
    written = recipe.output / "recipe.yaml"
    plain = written.read_text(encoding="utf-8")
    written.write_text(plain.replace("trust_remote_code: false", "trust_remote_code: true"), encoding="utf-8")
    assert "--trust-remote-code" in refused(recipe.output, "-o", tmp_path / "out")
    written.write_text(plain, encoding="utf-8")
    (recipe.output / "record.json").unlink()
    assert "not a finished" in refused(recipe.output, "-o", tmp_path / "out")


def train_together(recipe_path: Path, changes: list[str]) -> None:
    """Train as one of several processes."""
    experiment.run(load_recipe(recipe_path, changes))


@pytest.mark.soak
def test_two_processes_agree_on_a_merge(recipe_path: Path) -> None:
    start_processes(train_together, recipe_path, [MERGE, "training.batch_size=4"])
    run = read_run(recipe_path.parent / "run")
    assert run.finished
    assert run.record["probing"]["rounds"] == run.record["steps"] <= 12
    assert sum(run.weights.values()) == pytest.approx(1)

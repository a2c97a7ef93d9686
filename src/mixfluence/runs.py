"""Run folders: names of their files, one writer, one reader, and groups of runs that differ only in their seed.

Most of the package imports from here, so this module imports the package inside functions only.
"""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean, stdev
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from mixfluence.errors import DataError, RecipeError
from mixfluence.files import write_text

if TYPE_CHECKING:
    from mixfluence.data.retrieval import RetrievalSet
    from mixfluence.evaluation.results import DevQuery, Evaluation
    from mixfluence.recipe import Recipe

    Scores = Mapping[str, Evaluation]

RECIPE_FILE, RECORD_FILE, WEIGHTS_FILE = "recipe.yaml", "record.json", "weights.json"
TRACE_FILE, OVERLAP_FILE = "trace.jsonl", "overlap.jsonl"
MODEL_FOLDER, STAGES_FOLDER, EVAL_FOLDER, CHECKPOINTS_FOLDER = "model", "stages", "eval", "checkpoints"
DEV_FOLDER, REFERENCES_FOLDER = "dev", "references"
MANIFEST_FILE = "manifest.json"  # written last: a checkpoint without it is incomplete

MEASURE = "ndcg@10"
# Tested beside a run: the untrained model, BM25, and the rank fusion of BM25 with the trained model.
REFERENCES = ("zero-shot", "bm25", "fusion")
PARTS = ("training", "probing", "stages", "clustering", "selecting")
_PART_OF = {"train": "training", "probe": "probing", "cluster": "clustering", "select": "selecting"}
FORMAT = 2  # version 0.1.0 wrote format 1, which has neither "format" nor "kind"
Kind = Literal["run", "stage", "test"]
_REQUIRED: dict[str, tuple[str, ...]] = {
    "run": ("versions", "device", "datasets", "tests", "selected_step", "seconds", "gpu_hours", "scores"),
    "stage": ("steps", "probing", "seconds"),
    "test": ("scores",),
}
_PACKAGES = ("mixfluence", "sentence-transformers", "transformers", "accelerate", "datasets", "torch", "numpy")

TraceLine = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """Contents of a run folder. Record, scores and weights are empty if the run has not finished.

    Attributes:
        trace: Lines of the trace, in order; see `MixtureCallback`.
        scores: Per-query scores of each test set.
        weights: Final probability of each dataset.
        stages: Traces of the earlier stages, for a method of several.
        dev: Queries of each dev set with their ranks.
        references: Scores of models without this training, such as "bm25"; of all test sets or none.
    """

    path: Path
    recipe: Recipe
    record: dict[str, Any] = field(default_factory=dict)
    trace: list[TraceLine] = field(default_factory=list)
    scores: dict[str, Evaluation] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    stages: dict[str, list[TraceLine]] = field(default_factory=dict)
    dev: dict[str, list[DevQuery]] = field(default_factory=dict)
    references: dict[str, dict[str, Evaluation]] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether its record has been written."""
        return bool(self.record)

    @property
    def untrained(self) -> str | None:
        """Name of a model that was only tested, such as "zero-shot" or "bm25"; None for a training run."""
        return self.record["reference"] if self.record.get("kind") == "test" else None

    def hours(self, on_gpu: bool) -> dict[str, float]:
        """Return hours by part, without those that cost the same for every sampler; empty if nothing was trained."""
        if self.untrained or not self.finished:
            return {}
        scale = 1.0 if on_gpu else 1 / 3600
        hours = dict.fromkeys(PARTS, 0.0)
        for part, spent in self.record["gpu_hours" if on_gpu else "seconds"].items():
            if name := "stages" if part.startswith("stage ") else _PART_OF.get(part):
                hours[name] += spent * scale
        return hours


@dataclass(frozen=True)
class Score:
    """A measure in points (x 100), one value per seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return fmean(self.values)

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None for a single one."""
        return stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Group:
    """Runs whose recipes are equal but for name, seed and output; each has a short unique label."""

    labels: tuple[str, ...]
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        """The folder whose subfolders are the runs, as in a sweep, or else the name of the first run."""
        folder, *others = {label.rpartition("/")[0] for label in self.labels}
        return folder if folder and not others and len(self.labels) > 1 else self.labels[0]

    @property
    def recipe(self) -> Recipe:
        """Recipe of the first run."""
        return self.runs[0].recipe

    @property
    def finished(self) -> bool:
        """Whether its runs have finished."""
        return self.runs[0].finished

    def scores(self, measure: str = MEASURE) -> dict[str, Score]:
        """Return the scores by test set, of the sets that all its runs were tested on."""
        tables = [run.record.get("scores", {}) for run in self.runs]
        shared = [test for test in tables[0] if all(test in table for table in tables)]
        return {test: Score(tuple(100 * table[test][measure] for table in tables)) for test in shared}

    def average(self, tests: Sequence[str], measure: str = MEASURE) -> Score | None:
        """Return the unweighted mean over test sets, by seed; None if one of them is missing or there is none."""
        scores = self.scores(measure)
        if not tests or not set(tests) <= scores.keys():
            return None
        return Score(tuple(map(fmean, zip(*(scores[test].values for test in tests), strict=True))))

    def hours(self, on_gpu: bool) -> dict[str, float]:
        """Return the mean over runs of `Run.hours`."""
        parts = [run.hours(on_gpu) for run in self.runs]
        return {part: fmean(hours[part] for hours in parts) for part in PARTS} if all(parts) else {}


class Stopwatch:
    """Adds up seconds by part: `with watch("train"): ...`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Add the duration of a block to a part."""
        started = perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + perf_counter() - started


def group_by_seed(runs: Sequence[Run]) -> list[Group]:
    """Group runs that differ only in their seed; a seed that occurs twice, as in a copy, starts another group."""
    members: dict[tuple[str, int], list[tuple[str, Run]]] = {}
    seen: Counter[tuple[str, int]] = Counter()
    for number, (label, run) in enumerate(zip(run_labels([run.path for run in runs]), runs, strict=True)):
        same = run.recipe.model_dump(exclude={"name", "seed", "output"}) if run.finished else number
        key = repr((run.untrained, same))
        members.setdefault((key, seen[key, run.recipe.seed]), []).append((label, run))
        seen[key, run.recipe.seed] += 1
    return [Group(*zip(*group, strict=True)) for group in members.values()]


def run_labels(paths: Sequence[Path]) -> list[str]:
    """Return the last part of each path, the last two if it is a seed, or all paths if two could be confused."""
    names = [f"{own.parent.name}/{own.name}" if own.name.isdigit() else own.name for own in map(Path.resolve, paths)]
    distinct = len(set(names)) == len(names) and not {name.rpartition("/")[0] for name in names} & set(names)
    return names if distinct else [str(path) for path in paths]


def step_of(checkpoint: Path | str) -> int:
    """Return the step of a checkpoint."""
    return int(Path(checkpoint).name.rpartition("-")[2])


def list_checkpoints(folder: Path | str) -> list[Path]:
    """Return the checkpoints in a folder, newest first, complete or not."""
    found = Path(folder).glob("checkpoint-*/")
    return sorted((path for path in found if path.name.rpartition("-")[2].isdigit()), key=step_of, reverse=True)


def checkpoint_files(folder: Path, name: str) -> list[Path]:
    """Return a file of each checkpoint of a run, newest first; a script's own are directly in its folder."""
    found = [*list_checkpoints(folder / CHECKPOINTS_FOLDER), *list_checkpoints(folder)]
    return [file for checkpoint in found if (file := checkpoint / name).exists()]


def read_run_recipe(path: Path) -> Recipe:
    """Read the recipe of a run folder; `read_run` reads everything."""
    from mixfluence.recipe_yaml import load_recipe

    if not path.is_dir():
        raise DataError(f"{path}: no such folder")
    if not (path / RECIPE_FILE).is_file():
        inside = sorted(str(file.parent) for level in ("*", "*/*") for file in path.glob(f"{level}/{RECIPE_FILE}"))
        hint = f"; it contains runs: {', '.join(inside)}" if inside else ", which a run writes before its first step"
        raise DataError(f"{path}: not a run folder, it has no {RECIPE_FILE}{hint}")
    try:
        return load_recipe(path / RECIPE_FILE, files_may_be_missing=True, upgrade=_upgrade)
    except RecipeError as error:
        writer = read_record(path / RECORD_FILE).get("versions", {}).get("mixfluence", "")
        if writer in ("", own := _version("mixfluence")):
            raise
        raise DataError(f"{path}: written by mixfluence {writer}, not readable by version {own} ({error})") from error


def _upgrade(recipe: dict[str, Any]) -> None:
    """Rename or drop keys of earlier versions, whose recipes in run folders have all defaults filled in."""
    training, strategy = recipe.get("training"), recipe.get("strategy")
    if isinstance(training, dict) and "host" in training:
        training["trainer_args"] = training.pop("host")
    if isinstance(recipe.get("evaluation"), dict):
        recipe["evaluation"].pop("bm25", None)
    if not isinstance(strategy, dict):
        return
    if (strategy.get("probe") or {}).get("snapshot") == "host":
        strategy["probe"]["snapshot"] = "cpu"
    dropped = dict(focus=1.0, ridge=1.0, subset_by="random", optimizer="adam", aggregate="mean")
    dropped |= dict(lookahead=False, name="trial")
    for section in (strategy, *(strategy.get(key) or {} for key in ("rule", "probe", "alignment"))):
        for key in [key for key, default in dropped.items() if section.get(key) == default]:
            del section[key]


def read_run(path: Path | str) -> Run:
    """Read a run folder; a `DataError` names the file that is damaged."""
    path = Path(path)
    from mixfluence.evaluation.results import read_dev_queries, read_evaluation
    from mixfluence.policy.initial import read_weights

    recipe, record = read_run_recipe(path), read_record(path / RECORD_FILE)
    tested = list(record.get("scores", {}))

    def scores_in(folder: Path) -> dict[str, Evaluation]:
        found = {own.dataset: own for own in map(read_evaluation, folder.glob("*.jsonl"))}
        return {name: found[name] for name in tested if name in found}

    scores = scores_in(path / EVAL_FOLDER)
    references = {name: scores_in(path / REFERENCES_FOLDER / name) for name in REFERENCES}
    if missing := [name for name in tested if name not in scores]:
        raise DataError(f"{path / EVAL_FOLDER}: the per-query scores of {', '.join(missing)} are missing")
    dev = dict(map(read_dev_queries, (path / DEV_FOLDER).glob("*.jsonl")))
    traces = {stage.name: path / STAGES_FOLDER / stage.name / TRACE_FILE for stage in recipe.strategy.stages(recipe)}
    found = {name: read_trace(file) for name, file in traces.items() if file.exists()}
    trace = read_trace(path / TRACE_FILE) if (path / TRACE_FILE).exists() else []
    weights = read_weights(path / WEIGHTS_FILE) if record.get("kind") == "run" else {}
    dev = {name: dev[name] for name in recipe.dev if name in dev}
    complete = {name: own for name, own in references.items() if tested and len(own) == len(tested)}
    return Run(path, recipe, record, trace, scores, weights, found, dev, complete)


def read_trace(path: Path) -> list[TraceLine]:
    """Return the lines of a trace, without a last line that was cut off by a crash; see `MixtureCallback`."""
    trace: list[TraceLine] = []
    for number, text in enumerate(read_bytes(path).split(b"\n")[:-1], start=1):
        required = ("step", "seconds", "weights") if trace else ("step", "seconds", "datasets")
        if text:
            trace.append(_parse(text, required, f"{path}: line {number} is not a line of a trace"))
    return trace


def read_record(path: Path) -> dict[str, Any]:
    """Return the record of a run, of a stage or of a model that was only tested, with its "kind"; empty if missing."""
    if not path.exists():
        return {}
    record = _parse(read_bytes(path), (), f"{path}: not a record")
    if record.get("format", 1) > FORMAT:
        writer = record.get("versions", {}).get("mixfluence", "unknown")
        raise DataError(f"{path}: written by mixfluence {writer}, a newer version than {_version('mixfluence')}")
    of_stage = path.parent.parent.name == STAGES_FOLDER
    record.setdefault("kind", "test" if "reference" in record else "stage" if of_stage else "run")
    return _require(record, _REQUIRED.get(record["kind"], ()), f"{path}: not a record")


def write_record(path: Path, facts: Mapping[str, Any], kind: Kind = "run") -> None:
    """Write a record, the last file of a run, of a stage or of a test: whatever has one is finished."""
    write_text(path, json.dumps({"format": FORMAT, "kind": kind, **facts}, indent=1) + "\n")


def write_test(
    folder: Path, recipe: Recipe, name: str, tasks: Mapping[str, RetrievalSet], scores: Scores, **more: Any
) -> None:
    """Write the folder of a model that was only tested, which `read_run` reads, with `more` facts in its record."""
    from mixfluence.evaluation.results import write_evaluation
    from mixfluence.recipe_yaml import dump_recipe

    for evaluation in scores.values():
        write_evaluation(evaluation, folder / EVAL_FOLDER)
    write_text(folder / RECIPE_FILE, dump_recipe(recipe))
    tests = {test: {"fingerprint": task.fingerprint} for test, task in tasks.items()}
    summaries = {test: evaluation.summary() for test, evaluation in scores.items()}
    facts = {"name": recipe.name, "reference": name, "seed": recipe.seed, "tests": tests, "scores": summaries, **more}
    write_record(folder / RECORD_FILE, facts, kind="test")


def read_bytes(path: Path) -> bytes:
    """Read a file of a run folder."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def _parse(text: bytes, required: Sequence[str], problem: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise DataError(f"{problem} ({error})") from error
    if not isinstance(data, dict):
        raise DataError(f"{problem} (expected a mapping)")
    return _require(data, required, problem)


def _require(data: dict[str, Any], keys: Sequence[str], problem: str) -> dict[str, Any]:
    if missing := [key for key in keys if key not in data]:
        raise DataError(f"{problem} ({missing[0]!r} is missing)")
    return data


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect results."""
    return {"python": platform.python_version(), **{package: _version(package) for package in _PACKAGES}}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"

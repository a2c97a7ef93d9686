"""Scores in the result format of mteb, for its leaderboard and tools."""

from __future__ import annotations

from pathlib import Path

from mixfluence.data.benchmarks import MtebSource
from mixfluence.data.source import SourceSection
from mixfluence.evaluation.results import Evaluation

FOLDER = "mteb"


def write_mteb_result(source: SourceSection, evaluation: Evaluation, folder: Path, seconds: float) -> None:
    """Write `mteb/TASK.json` into the folder of scores if the test set is a task of mteb.

    Scores have mteb's names. Passages with the id of their query are left out unless judged relevant, as everywhere in
    this package; mteb does so for some tasks.
    """
    if not isinstance(source, MtebSource):
        return
    from mteb.results import TaskResult  # an extra

    task = source.load_task()
    scores = {name.replace("@", "_at_"): value for name, value in evaluation.summary().items()}
    scores["main_score"] = scores["ndcg_at_10"]
    split, subset = source.split_of(task), source.subset(task)
    result = TaskResult.from_task_results(task, {split: {subset: scores}}, evaluation_time=seconds)
    path = folder / FOLDER / f"{task.metadata.name}{f'-{source.language}' if source.language else ''}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    result.to_disk(path)

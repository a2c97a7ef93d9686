"""Commands that train several runs and compare them: `sweep`, `adapt`, and `demo`, which adapts to docstrings."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from typer import Argument, Option

from mixfluence.cli.recipes import plan_view
from mixfluence.cli.runs import compare
from mixfluence.cli.terminal import Overrides, RecipeName, note, output, print_line, show_log, writing
from mixfluence.errors import RecipeError
from mixfluence.files import write_text

if TYPE_CHECKING:
    from mixfluence.sweep import Job

FAILED = 1
RECIPE = "adapted.yaml"
# The strategy of the recipe, and its control.
SAMPLERS = ("recipe", "uniform")
HEADER = """\
# Made by: mixfluence adapt. Edit it and train it with: mixfluence train {path}
#
# train: pairs made from the documents, a training set of each kind, and the pool.
# dev:   guides sampling and selects the checkpoint; test has the queries that are held back, and the guards.
# checksum: {checksum} (of what follows; with it, adapt knows a recipe that nobody has edited)
"""
# Of the demo: one summary in `LABELLED` becomes a labelled query.
ENCODER = "wordllama"
POOL, GUARDS = ("numpy", "scipy"), ("pandas",)
LABELLED = 4


def sweep(
    recipe: RecipeName,
    overrides: Overrides = None,
    strategies: Annotated[
        str, Option(help="Such as 'uniform,{name: inf-dds, preset: thorough}'; `recipe` is the recipe's own.")
    ] = "recipe",
    seeds: Annotated[int, Option(min=1, help="Runs of each combination.")] = 1,
    axes: Annotated[list[str] | None, Option("--axis", metavar="KEY=VALUE,VALUE", help="Values of a key.")] = None,
    processes: Annotated[int, Option(min=1, help="Runs at the same time.")] = 1,
    gpus: Annotated[int, Option(min=1, help="GPUs of each run.")] = 1,
    folder: Annotated[Path | None, Option("--output", "-o", metavar="DIR", help="Folder of all runs.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="List the runs with their cost; start none.")] = False,
    keep_models: Annotated[bool, Option("--keep-models", help="Keep models of finished runs.")] = False,
) -> None:
    """Train every combination of strategies, values and seeds, then compare. The same command continues a sweep."""
    from mixfluence.sweep import build_jobs, describe_jobs

    _, words = parse_axis(f"strategies={strategies}")
    values = dict(map(parse_axis, axes or []))
    jobs = build_jobs(recipe, overrides or [], strategies=words, axes=values, seeds=seeds, output=folder)
    show_log(verbose=not dry_run)
    if dry_run:
        for line in describe_jobs(jobs, gpus):
            print_line(line)
        return
    failed = _run(jobs, processes=processes, gpus=gpus, keep_models=keep_models)
    if tested := [job.folder for job in jobs if job.name not in failed and job.recipe.test]:
        compare(tested)
    else:
        note("no finished run with test sets to compare")
    if failed:
        raise typer.Exit(FAILED)


def _run(jobs: list[Job], **options: Any) -> dict[str, str]:
    from mixfluence.sweep import run_jobs

    try:
        return run_jobs(jobs, **options)
    except KeyboardInterrupt as stop:
        note("stopped; the same command continues", "red")
        raise typer.Exit(128 + (stop.args[0] if stop.args else SIGINT)) from stop


def parse_axis(text: str) -> tuple[str, list[str]]:
    """Split `KEY=VALUE,VALUE` into the key and its values, each still YAML; commas inside brackets do not split."""
    key, equals, values = text.partition("=")
    source = f"[{values}]"
    try:
        nodes = yaml.compose(source, yaml.SafeLoader).value if key and equals else []
    except yaml.YAMLError as error:
        raise RecipeError(f"--axis {text}: the values are not valid YAML") from error
    if not nodes:
        raise RecipeError(f"--axis {text}: expected KEY=VALUE,VALUE, such as training.learning_rate=1e-5,2e-5")
    return key, [source[node.start_mark.index : node.end_mark.index] for node in nodes]


def adapt(
    model: Annotated[str, Argument(help="The encoder to adapt: a folder, a hub id, wordllama or minilm.")],
    corpus: Annotated[Path, Option(help="Your documents: a file with title and text, or a folder of text files.")],
    queries: Annotated[Path | None, Option(help="Labelled queries: query and doc_id, or query and positive.")] = None,
    pool: Annotated[
        list[str] | None, Option(metavar="NAME", help="Further training data: a path, FORMAT:NAME or a task of mteb.")
    ] = None,
    guard: Annotated[
        list[str] | None, Option(metavar="NAME", help="Test data on which the model should not get worse.")
    ] = None,
    steps: Annotated[int, Option(min=3, help="Training steps.")] = 300,
    seeds: Annotated[int, Option(min=1, help="Runs of each sampler.")] = 1,
    processes: Annotated[int, Option(min=1, help="Runs at the same time.")] = 1,
    folder: Annotated[Path, Option("--output", "-o", metavar="DIR", help="Folder of recipe and runs.")] = Path(
        "runs/adapt"
    ),
    overrides: Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="Change the recipe.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Write the recipe and its plan; train nothing.")] = False,
) -> None:
    """Adapt an encoder to documents, and say whether it helped. The same command continues after an interruption."""
    show_log()
    from mixfluence.adapt import judge
    from mixfluence.plan import plan_run
    from mixfluence.report.summary import to_terminal
    from mixfluence.runs import MODEL_FOLDER, read_run
    from mixfluence.sweep import State, build_jobs

    path = folder / RECIPE
    _write_recipe(path, model, corpus, queries, pool or [], guard or [], steps)
    # Without labelled queries the recipe samples uniformly, and there is no other to compare it with.
    samplers = SAMPLERS if queries else SAMPLERS[:1]
    jobs = build_jobs(str(path), overrides or [], strategies=list(samplers), seeds=seeds, output=folder)
    if jobs[0].state() is State.NEW:
        output.print(plan_view(plan_run(jobs[0].recipe)), highlight=False)
    if dry_run:
        return
    if _run(jobs, processes=processes, keep_models=True):
        raise typer.Exit(FAILED)
    groups = [[read_run(job.folder) for job in jobs if job.name.startswith(word)] for word in samplers]
    verdict = judge(*groups)
    output.print(to_terminal(verdict.comparison))
    for sentence in verdict.sentences():
        print_line(sentence)
    print_line(f"The adapted model: {jobs[0].folder / MODEL_FOLDER}")


def _write_recipe(
    path: Path, model: str, corpus: Path, queries: Path | None, pool: list[str], guards: list[str], steps: int
) -> None:
    from mixfluence.adapt import make_recipe
    from mixfluence.encoders import is_static, load_encoder

    for given in (corpus, queries):
        if given and not given.exists():
            raise RecipeError(f"{given}: no such file or folder")
    static = is_static(load_encoder(model))
    recipe = make_recipe(model, corpus, queries, pool=pool, guards=guards, steps=steps, static=static)
    body = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=119, default_flow_style=None)
    text = HEADER.format(path=path, checksum=_checksum(body)) + body
    started = any((path.parent / sampler).exists() for sampler in SAMPLERS)
    if path.exists() and path.read_text(encoding="utf-8") != text and (started or _edited(path)):
        instead = f"train it with mixfluence train {path}, or choose another --output"
        raise RecipeError(f"{path}: differs from the recipe of this command; {instead}")
    with writing(path):
        write_text(path, text)


def _checksum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def _edited(path: Path) -> bool:
    """Return whether a recipe is not as a command has written it."""
    header, _, body = path.read_text(encoding="utf-8").partition(" (of what follows")
    return _checksum(body.partition("\n")[2]) != header.rpartition(" ")[2]


def demo(
    target: Annotated[str, Option(help="The library to adapt to.")] = "scikit-learn",
    to: Annotated[Path, Option(help="Folder for files and runs; earlier ones are replaced.")] = Path("runs/demo"),
) -> None:
    """Adapt an encoder to the documentation of a library on this machine: files are written, `adapt` does the rest."""
    show_log()
    note("reading the docstrings of installed libraries (half a minute the first time)")
    documents, queries = write_files(target, to)
    pool, guards = ([f"pydocs:{name}" for name in names if name != target] for names in (POOL, GUARDS))
    options = [f" --pool {name}" for name in pool] + [f" --guard {name}" for name in guards]
    print_line(f"mixfluence adapt {ENCODER} --corpus {documents} --queries {queries}{''.join(options)} -o {to}")
    adapt(ENCODER, documents, queries, pool, guards, folder=to)


def write_files(target: str, folder: Path) -> tuple[Path, Path]:
    """Write docstrings without their summaries as documents, and some of the summaries as labelled queries."""
    from mixfluence.data.pydocs import PydocsSource

    task = PydocsSource(library=target, split="all").read_task(target)
    # Only what an earlier demo wrote: the folder may be anyone's.
    (folder / RECIPE).unlink(missing_ok=True)
    for sampler in SAMPLERS:
        shutil.rmtree(folder / sampler, ignore_errors=True)
    documents, queries = folder / "docs.jsonl", folder / "labelled.jsonl"
    texts = zip(task.doc_ids, task.docs, strict=True)
    _write_records(documents, [{"_id": id, "text": text} for id, text in texts])
    labelled = list(zip(task.query_ids, task.queries, strict=True))[::LABELLED]
    _write_records(queries, [{"query": text, "doc_ids": list(task.qrels[id])} for id, text in labelled])
    return documents, queries


def _write_records(path: Path, records: list[dict[str, Any]]) -> None:
    with writing(path):
        write_text(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))

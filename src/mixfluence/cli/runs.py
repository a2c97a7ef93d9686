"""Commands that read run folders: `status`, `evaluate`, `compare`, `report`, `weights`, `push` and `merge`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.live import Live
from typer import Argument, Option

from mixfluence.cli.terminal import (
    Measure,
    OutputFile,
    errors,
    note,
    output,
    print_line,
    read_recipe,
    show_log,
    writing,
)
from mixfluence.display import printable
from mixfluence.errors import DataError, RecipeError
from mixfluence.files import write_text

if TYPE_CHECKING:
    from mixfluence.data.formats import Source
    from mixfluence.recipe import Recipe

TrustOption = Annotated[bool, Option("--trust-remote-code", help="Let models run code that comes with them.")]
RunFolder = Annotated[Path, Argument(metavar="RUN", help="A run folder.")]
Format = Literal["terminal", "markdown", "latex", "csv", "json"]
WATCH_SECONDS = 2.0
ENDINGS: dict[str, Format] = {".txt": "terminal", ".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json"}


def status(
    run: RunFolder,
    watch: Annotated[bool, Option("--watch", "-w", help="Refresh every 2 seconds until the run ends.")] = False,
) -> None:
    """Show the progress of a run and, once it has finished, its scores. Reads the folder alone."""
    from mixfluence.report.status import read_status, status_view

    found = read_status(run)
    if watch:
        with Live(console=output, auto_refresh=False, transient=True) as live:
            while not found.ended:
                live.update(status_view(found), refresh=True)
                time.sleep(WATCH_SECONDS)
                found = read_status(run)
    output.print(status_view(found), highlight=False)


def evaluate(
    systems: Annotated[list[str], Argument(metavar="RUN_OR_MODEL", help="Runs, model folders or encoder names.")],
    recipe: Annotated[str | None, Option(help="Recipe with the test sets; default: that of the first run.")] = None,
    bm25: Annotated[bool, Option("--bm25", help="Add a row for BM25.")] = False,
    measure: Measure = "ndcg@10",
    to: Annotated[Path | None, Option(help="Write a folder for `compare` of each system into this one.")] = None,
    mteb: Annotated[
        list[str] | None,
        Option(metavar="TASK", help="Test on this task of mteb instead, TASK or TASK:LANGUAGE; repeatable."),
    ] = None,
    overrides: Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="Change the recipe.")] = None,
    trust: TrustOption = False,
) -> None:
    """Score runs or models on test sets, per dataset and per query."""
    parsed = _recipe_for(systems, recipe, overrides or [], mteb or [])
    _refuse_code(parsed, trust)
    models = [_model_of(system) for system in systems]
    show_log()
    from mixfluence.build import build_model
    from mixfluence.data.formats import read_task
    from mixfluence.evaluation.retrieval import evaluate_bm25
    from mixfluence.report.tables import score_table
    from mixfluence.runs import EVAL_FOLDER, run_labels, write_test
    from mixfluence.testing import evaluate_tasks

    tasks = {name: read_task(name, source) for name, source in parsed.test.items()}
    rows = {}
    if bm25:
        rows["BM25"] = {name: evaluate_bm25(task) for name, task in tasks.items()}
    for path, label in zip(models, run_labels([Path(system) for system in systems]), strict=True):
        # Other models have no such revision.
        revision = parsed.model.revision if path == parsed.model.name else None
        saved = {"name": path, "revision": revision, "trust_remote_code": trust, "lora": None}
        note(f"scoring {label}")
        model = build_model(parsed.model.model_copy(update=saved))
        folder = to / label.replace("/", "-") / EVAL_FOLDER if to else None
        rows[label] = evaluate_tasks(model, tasks, parsed, folder, show_progress=errors.is_terminal)
    if to:
        for label, scores in rows.items():
            name = "bm25" if label == "BM25" else label
            with writing(folder := to / label.replace("/", "-")):
                write_test(folder, parsed, name, tasks, scores)
    output.print(score_table(rows, measure))


def _model_of(system: str) -> str:
    """Return the folder of the model of a run; the name of another system is that of its model."""
    from mixfluence.runs import MODEL_FOLDER, RECIPE_FILE

    model = Path(system) / MODEL_FOLDER
    if not model.is_dir() and (Path(system) / RECIPE_FILE).is_file():
        raise DataError(f"{model}: the run has no model; a sweep keeps those of its runs with --keep-models")
    return str(model) if model.is_dir() else system


def _refuse_code(recipe: Recipe, trust: bool) -> None:
    # A run folder is data: whoever wrote it must not decide what runs here.
    if recipe.model.trust_remote_code and not trust:
        raise RecipeError("model.trust_remote_code: add --trust-remote-code to run code that comes with the model")


def mteb_sources(tasks: list[str]) -> dict[str, Source]:
    """Return tasks of mteb as test sets, each `TASK` or `TASK:LANGUAGE`."""
    from mixfluence.data.benchmarks import TEST, MtebSource

    words = {word: word.partition(":") for word in tasks}
    return {word: MtebSource(task=task, split=TEST, language=own or None) for word, (task, _, own) in words.items()}


def untrained_recipe(model: str, test: dict[str, Source]) -> Recipe:
    """Return a recipe for models that are only tested; its training part describes nothing."""
    from mixfluence.recipe import Recipe

    nothing = {"format": "pairs", "path": "not-trained"}
    described = {"name": "evaluation", "model": {"name": model}, "train": {"none": nothing}, "test": test}
    training = {"training": {"steps": 1, "batch_size": 1}}
    return Recipe.model_validate(described | training, context={"files_may_be_missing": True})


def _recipe_for(systems: list[str], name: str | None, overrides: list[str], mteb: list[str]) -> Recipe:
    """Return the recipe with the test sets: that of a run, the one named, or none but tasks of mteb."""
    runs = [str(path) for path in (Path(system) / "recipe.yaml" for system in systems) if path.is_file()]
    if name is None and not runs:
        if not mteb:
            raise RecipeError(f"{systems[0]}: not a run folder; give the test sets with --recipe or --mteb")
        return untrained_recipe(systems[0], mteb_sources(mteb))
    recipe = read_recipe(name or runs[0], overrides, files_may_be_missing=bool(mteb))
    if mteb:
        return recipe.model_copy(update={"test": mteb_sources(mteb)})
    if not recipe.test:
        raise RecipeError(f"{name or runs[0]}: the recipe has no test sets")
    return recipe


def compare(
    runs: Annotated[list[Path], Argument(metavar="RUN", help="Folders of finished runs.")],
    measure: Measure = "ndcg@10",
    between: Annotated[
        tuple[str, str] | None,
        Option(metavar="A B", help="Rows to test, by position or by name of a run; default: the two best."),
    ] = None,
    test: Annotated[Literal["t", "randomisation"], Option(help="Paired test on per-query scores.")] = "t",
    bootstrap: Annotated[bool, Option("--bootstrap", help="Add intervals of the differences.")] = False,
    format_: Annotated[Format | None, Option("--format", help="Default: by the ending of FILE.")] = None,
    file: OutputFile = None,
) -> None:
    """Compare runs: scores, significance tests, cost. Seeds of one recipe share a row."""
    from mixfluence.report.compare import compare as compare_runs
    from mixfluence.report.summary import FORMATS, to_terminal
    from mixfluence.runs import read_run

    found = compare_runs(
        [read_run(run) for run in runs], measure=measure, between=between, test=test, bootstrap=bootstrap
    )
    chosen = format_ or (_format_of(file) if file else "terminal")
    if chosen == "terminal" and not file:
        output.print(to_terminal(found))
    else:
        _write(FORMATS[chosen](found), file)


def _format_of(file: Path) -> Format:
    ending = file.suffix.lower() or ".txt"
    if ending not in ENDINGS:
        raise RecipeError(f"{file}: unknown ending {ending!r}, expected one of {', '.join(ENDINGS)}, or give --format")
    return ENDINGS[ending]


def report(
    runs: Annotated[list[Path], Argument(metavar="RUN", help="Run folders, finished or not.")],
    file: Annotated[Path, Option("--output", "-o", help="The page to write.")] = Path("report.html"),
) -> None:
    """Show runs on one page that opens in any browser without a network."""
    from mixfluence.report.page import render_page
    from mixfluence.runs import read_run

    _write(render_page([read_run(run) for run in runs]), file)


def weights(
    run: RunFolder,
    which: Annotated[Literal["final", "average"], Option(help="Final weights, or their mean over batches.")] = "final",
    file: OutputFile = None,
) -> None:
    """Print the mixture a run learned, as JSON for `strategy.init.file` or another toolkit."""
    from mixfluence.runs import WEIGHTS_FILE, read_run_recipe
    from mixfluence.strategies.controls import replayed_weights

    recipe = read_run_recipe(run)
    if which == "final" and not (run / WEIGHTS_FILE).exists():
        raise DataError(f"{run}: the run has not finished and has no {WEIGHTS_FILE}; use --which average")
    found = replayed_weights(run, which)
    if clusters := [name for name in found if name not in recipe.train]:
        raise DataError(f"{run}: its trace has weights of clusters such as {clusters[0]}; use --which final")
    _write(json.dumps(found, indent=1) + "\n", file)


def _write(text: str, file: Path | None) -> None:
    if file:
        with writing(file):
            write_text(file, text)
    else:
        # Not through rich, which would interpret names as markup and wrap lines.
        typer.echo(printable(text, keep="\n\t"), nl=False)


def push(
    run: Annotated[Path, Argument(metavar="RUN", help="A finished run.")],
    repository: Annotated[str, Argument(metavar="REPO", help="A repository of the hub, such as me/my-retriever.")],
    private: Annotated[bool, Option("--private", help="Create the repository as a private one.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Show what would be published, with the card.")] = False,
) -> None:
    """Publish the model of a run on the Hugging Face hub, with its mixture, scores and recipe.

    The card contains a few training rows as examples, and the recipe has the paths of your files.

    Look at both with --dry-run first.
    """
    show_log()
    from mixfluence.publish import card_of, files_of
    from mixfluence.publish import push as publish
    from mixfluence.runs import read_run

    found = read_run(run)
    if not dry_run:
        print_line(publish(found, repository, private=private))
        return
    for path, source in files_of(found, repository).items():
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        print_line(f"{size / 1e6:10,.2f} MB  {repository}/{path}")
    for line in card_of(found, repository).splitlines():
        print_line(line)


def merge(
    runs: Annotated[list[Path], Argument(metavar="RUN", help="Folders of finished runs with the same start.")],
    folder: Annotated[Path, Option("--output", "-o", metavar="DIR", help="Folder of the merged model.")],
    dev: Annotated[
        str | None, Option(metavar="NAMES", help="Dev sets of the first run to search weights on, or `all`.")
    ] = None,
    base: Annotated[
        float | None, Option("--with-base", min=0, max=1, metavar="SHARE", help="Share of the start in the merge.")
    ] = None,
    evaluations: Annotated[int, Option(min=1, help="Most merges to score.")] = 300,
    trust: TrustOption = False,
) -> None:
    """Merge the models of finished runs: evenly, or by the weights with the best NDCG@10 on dev sets; then test."""
    from mixfluence.build import build_model
    from mixfluence.data.formats import read_task
    from mixfluence.merging import merge_runs
    from mixfluence.report.tables import score_table
    from mixfluence.runs import EVAL_FOLDER, MODEL_FOLDER, RECIPE_FILE, read_run, write_test
    from mixfluence.strategies import Merge
    from mixfluence.testing import evaluate_tasks

    show_log()
    if (folder / RECIPE_FILE).exists():
        raise RecipeError(f"{folder}: already holds a run; choose another output")
    found = [read_run(run) for run in runs]
    recipe = _recipe_of_merge(found[0].recipe, folder, dev)
    _refuse_code(recipe, trust)
    for run in runs:
        _model_of(str(run))  # refuses a run without one
    merged = merge_runs(found, Merge(soup=dev is None, start_share=base, evaluations=evaluations), recipe, folder)
    tasks = {name: read_task(name, source) for name, source in recipe.test.items()}
    model = build_model(recipe.model, folder / MODEL_FOLDER)
    scores = evaluate_tasks(model, tasks, recipe, folder / EVAL_FOLDER, show_progress=errors.is_terminal)
    title = f"merge of {', '.join(name for name, weight in merged.weights.items() if weight)}"
    write_test(folder, recipe, title, tasks, scores, merged=merged.weights)
    for name, weight in merged.weights.items():
        print_line(f"{weight:.3f}  {name}")
    if scores:
        output.print(score_table({recipe.name: scores}))
    print_line(f"merged model: {folder / MODEL_FOLDER}")


def _recipe_of_merge(first: Recipe, folder: Path, dev: str | None) -> Recipe:
    """Return the recipe of a merge: that of the first run, with the dev sets that were named."""
    from mixfluence.schema import unknown_key
    from mixfluence.strategies import Static

    names = list(first.dev) if dev in {None, "all"} else [name.strip() for name in (dev or "").split(",")]
    if unknown := [name for name in names if name not in first.dev]:
        raise RecipeError(f"--dev: {unknown_key(unknown[0], first.dev)}")
    if dev and not names:
        raise RecipeError(f"--dev: the recipe of {first.output} has no dev sets")
    changes = {"name": folder.name, "output": folder, "strategy": Static()}
    return first.model_copy(update=changes | {"dev": {name: first.dev[name] for name in names}})

"""Commands about what a run is given, before it starts: `recipes`, `plan`, `data` and `cache`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from mixfluence.cli.terminal import Overrides, RecipeName, output, print_line, read_recipe, show_log
from mixfluence.display import counted, duration, facts_table, percent, plain_table, printable
from mixfluence.errors import MixfluenceError, RecipeError, collecting

if TYPE_CHECKING:
    from mixfluence.plan import Plan, StagePlan

Sources = Annotated[
    list[str], Argument(metavar="SOURCE", help="Recipes, files and folders of pairs, or folders of BEIR.")
]


def plan(
    recipe: RecipeName,
    overrides: Overrides = None,
    processes: Annotated[int, Option(min=1, metavar="N", help="Processes that train together, one per GPU.")] = 1,
) -> None:
    """Estimate the cost of a run before it starts: epochs, overhead, memory, and likely mistakes."""
    parsed = read_recipe(recipe, overrides, files_may_be_missing=True)
    show_log(verbose=False)
    from mixfluence.plan import plan_run

    planned = plan_run(parsed, processes=processes)
    if planned.checked.data:
        from mixfluence.data.reading import preview, token_counter
        from mixfluence.preflight import encoder_here

        model = encoder_here(parsed.model)
        count = None if model is None else token_counter(model)
        for line in (line for name, rows in planned.checked.data.train.items() for line in preview(name, rows, count)):
            print_line(line)
    output.print(plan_view(planned), highlight=False)


def plan_view(plan: Plan) -> Group:
    """Return a plan as tables and sentences; names are not interpreted as markup."""
    recipe, training = plan.recipe, plan.recipe.training
    processes = f" on {plan.processes:,} processes" if plan.processes > 1 else ""
    batches = f" x {training.gradient_accumulation}" if training.gradient_accumulation > 1 else ""
    what = f"{training.steps:,} steps of {training.batch_size * plan.processes:,} rows{batches}"
    title = printable(f"{recipe.name}{processes}: {recipe.strategy.name} on {recipe.model.name}, {what}")
    view = Group(Text(title, "bold"), "", _datasets(plan), "", facts_table(_costs(plan)))
    if plan.concerns:
        sentences = [Text(printable(f"- {sentence}")) for sentence in plan.concerns]
        view.renderables.extend([Text("\nwarnings:", "bold yellow"), *sentences])
    return view


def _datasets(plan: Plan) -> Table:
    stage = f" in stage {plan.stages[0].name}" if len(plan.stages) > 1 and not plan.stages[-1].merges else ""
    table = plain_table("dataset", "rows", "share", f"epochs{stage}")
    for dataset in plan.datasets:
        share = "from encodings" if dataset.share is None else percent(dataset.share)
        epochs = "" if dataset.epochs is None else f"{dataset.epochs:,.{2 if dataset.epochs < 10 else 0}f}"
        table.add_row(Text(printable(dataset.name)), f"{dataset.rows:,}", share, epochs)
    return table


def _costs(plan: Plan) -> Iterator[tuple[str, str]]:
    if absent := plan.checked.absent:
        names = ", ".join(absent[:3]) + (f" and {len(absent) - 3} more" if len(absent) > 3 else "")
        yield "absent", f"{names}: not on this machine, so train will refuse to start; sizes are the published ones"
    if plan.guides:
        yield "guided by", ", ".join(f"{name} ({rows:,} rows)" for name, rows in plan.guides.items())
    for purpose, (cost, text) in plan.checked.encodings.items():
        size = " if it is as large as the model" if purpose == "encoding" else ""
        yield purpose, f"{text}; as much as {cost:,.0f} training steps{size}"
    for text, same in groupby(plan.stages, _stage):
        stages = list(same)
        if len(stages) > 2:
            yield f"{len(stages)} stages", f"{stages[0].name} to {stages[-1].name}, each {text}"
            continue
        for stage in stages:
            if len(plan.stages) > 1:
                yield f"stage {stage.name}", text
            elif stage.dev_batch_size:
                yield "measuring", _updates(stage)
    steps = plan.recipe.training.steps
    yield "cost", f"{plan.cost:,.0f} training steps, {plan.times_static:.2f} times a static run of {steps:,}"
    yield from _memory(plan)


def _memory(plan: Plan) -> Iterator[tuple[str, str]]:
    from mixfluence.memory import in_shards, plan_memory

    place = " on each process" if plan.processes > 1 else ""
    found = plan_memory(plan.recipe, plan.processes, plan.sampler_memory)
    if found is None:
        training = f"{plan.memory - plan.sampler_memory:g} parameter sizes to train with Adam{place}"
        yield "memory", f"{training}, {plan.sampler_memory:g} for the sampler; activations come on top"
        return
    yield "memory", f"about {_gib(found)}{place}"
    if plan.processes > 1:
        yield "in shards", f"about {_gib(in_shards(found, plan.processes))} with FSDP2, and layers that are gathered"


def _gib(parts: Mapping[str, float]) -> str:
    shown = ", ".join(f"{name} {value:,.2f}" for name, value in parts.items() if value)
    return f"{sum(parts.values()):,.1f} GiB: {shown}"


def _stage(stage: StagePlan) -> str:
    if stage.merges:
        return f"{stage.steps:,} merges scored on dev, each {stage.step_cost:.1f} training steps"
    if not stage.step_cost:
        return "taken from an earlier run"
    cost = "" if stage.step_cost == 1 else f" of {stage.step_cost:.2f} training steps each"
    scored = f", scored on dev for {stage.scoring_cost:.1f} more" if stage.scoring_cost else ""
    return f"{stage.steps:,} steps{cost}{scored}" + (f"; {_updates(stage)}" if stage.dev_batch_size else "")


def _updates(stage: StagePlan) -> str:
    if not stage.updates:
        return "no update"
    each = f"each {stage.update_cost:.1f} training steps (+{stage.measuring_cost / stage.steps:.0%})"
    rows = f"on {stage.dev_batch_size:,} rows of each dev set"
    return f"{counted(stage.updates, 'update')} from step {stage.first_update:,} on, {each}, {rows}"


def data(
    sources: Sources,
    model: Annotated[
        str | None, Option(metavar="NAME", help="Count its tokens; default: of the recipe's encoder, or words.")
    ] = None,
) -> None:
    """Show a sample row of datasets, with the roles of columns, lengths, duplicates, and rows that were left out.

    Words with a = are options of the sources, such as columns.anchor=question or delimiter=';'.
    """
    show_log(verbose=False)
    changes = [word for word in sources if "=" in word]
    from mixfluence.data.reading import preview_sources, token_counter
    from mixfluence.encoders import load_encoder
    from mixfluence.preflight import encoder_here

    named = load_encoder(model) if model else None
    for word in (word for word in sources if "=" not in word):
        path = Path(word)
        if path.exists() and path.suffix not in {".yaml", ".yml"}:
            found, own = {path.name: _source(path, changes)}, named
        else:
            recipe = read_recipe(word, changes, files_may_be_missing=True)
            own = encoder_here(recipe.model) if named is None else named
            found = recipe.train | {f"dev {name}": source for name, source in recipe.dev.items()}
        for line in preview_sources(found, None if own is None else token_counter(own)):
            print_line(line)


def _source(path: Path, changes: list[str]) -> Any:
    from mixfluence.data.formats import source_at
    from mixfluence.recipe_yaml import apply_override

    options: dict[str, Any] = {}
    for change in changes:
        apply_override(change, options)
    return source_at(path, options)


def cache(
    clean: Annotated[bool, Option("--clean", help="Delete what is listed.")] = False,
    unused: Annotated[float, Option(min=0, metavar="DAYS", help="Only what was not used for so many days.")] = 0.0,
) -> None:
    """List converted rows, token ids, embeddings and clusters on disk, or delete them; they are built again if needed.

    The folder is $MIXFLUENCE_CACHE, by default mixfluence in the user's cache folder.

    With $MIXFLUENCE_CACHE_LIMIT (such as 200GB), what was not used for longest is deleted beyond that size.
    """
    from mixfluence.data.cache import cache_root, delete, entries

    now = time.time()
    found = [entry for entry in entries() if now - entry.used >= unused * 86_400]
    table = plain_table("content", "entries", "size", "last used")
    for kind in sorted({entry.folder.parent.name for entry in found}):
        own = [entry for entry in found if entry.folder.parent.name == kind]
        used = f"{duration(now - max(entry.used for entry in own))} ago"
        table.add_row(kind, f"{len(own):,}", f"{sum(entry.size for entry in own) / 1e6:,.1f} MB", used)
    print_line(f"{cache_root()}: {sum(entry.size for entry in found) / 1e6:,.1f} MB")
    if found:
        output.print(table)
    if clean:
        for entry in found:
            delete(entry)
        print_line(f"deleted {len(found)} entries")


recipes = typer.Typer(help="The recipes that ship with mixfluence.", invoke_without_command=True)


@recipes.callback()
def list_recipes(context: typer.Context) -> None:
    """List the recipes that ship with mixfluence."""
    if context.invoked_subcommand:
        return
    from mixfluence.recipe_yaml import shipped_recipes

    for path in shipped_recipes():
        purpose = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        print_line(f"{path.stem:<22} {purpose}")


@recipes.command()
def show(recipe: RecipeName) -> None:
    """Print a recipe as written; `check` adds its defaults."""
    from mixfluence.recipe_yaml import find_recipe

    # Also refuses a file that is not a recipe.
    read_recipe(recipe, files_may_be_missing=True)
    for line in find_recipe(recipe).read_text(encoding="utf-8").rstrip().splitlines():
        print_line(line)


@recipes.command()
def copy(
    recipe: RecipeName,
    target: Annotated[Path | None, Argument(help="Default: the name of the recipe, in this folder.")] = None,
) -> None:
    """Copy a recipe to edit it."""
    from mixfluence.recipe_yaml import find_recipe

    source = find_recipe(recipe)
    path = target or Path(source.name)
    if path.exists():
        raise RecipeError(f"{path}: already exists")
    shutil.copyfile(source, path)
    print_line(f"wrote {path}")


@recipes.command()
def check(recipe: RecipeName, overrides: Overrides = None) -> None:
    """Check a recipe and its data as `train` would, and print the recipe with all defaults."""
    from mixfluence.plan import plan_run
    from mixfluence.recipe_yaml import dump_recipe

    missing: list[MixfluenceError] = []
    with collecting(missing):
        read_recipe(recipe, overrides)
    # Any problem other than missing files is raised here.
    parsed = read_recipe(recipe, overrides, files_may_be_missing=True)
    show_log(verbose=False)
    plan_run(parsed, missing=missing)
    for line in dump_recipe(parsed).rstrip().splitlines():
        print_line(line)

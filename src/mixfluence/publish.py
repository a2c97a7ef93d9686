"""Publishing the model of a run on the Hugging Face hub: the files that go there, and the card."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi

from mixfluence.errors import DataError, RecipeError, first_line
from mixfluence.report.compare import Comparison, compare, contrast_between
from mixfluence.report.summary import make_sheets
from mixfluence.report.tables import markdown_table, markdown_text
from mixfluence.runs import MODEL_FOLDER, RECIPE_FILE, WEIGHTS_FILE, Run
from mixfluence.training.folder import CARD_HEADING

CARD = "README.md"
# The files of the run, apart from those of the model.
FOLDER = "mixfluence"
# Stands for the model in the example of a card that sentence-transformers wrote before it had a place on the hub.
NAMELESS = "sentence_transformers_model_id"


def files_of(run: Run, repository: str) -> dict[str, Path | bytes]:
    """Return what is published there: path in the repository -> a file or its content."""
    model = run.path / MODEL_FOLDER
    if not run.finished or not model.is_dir():
        raise DataError(f"{run.path}: expected a finished run with its model, found none")
    files: dict[str, Path | bytes] = {
        file.relative_to(model).as_posix(): file for file in sorted(model.rglob("*")) if file.is_file()
    }
    files[CARD] = card_of(run, repository).encode()
    return files | {f"{FOLDER}/{name}": run.path / name for name in (RECIPE_FILE, WEIGHTS_FILE)}


def card_of(run: Run, repository: str) -> str:
    """Return the card of the model in a repository: its mixture, its scores beside the start's, and its recipe."""
    file = run.path / MODEL_FOLDER / CARD
    card = file.read_text(encoding="utf-8").rstrip() if file.exists() else f"# {run.recipe.name}"
    # A trained model lists its mixture already, a merged one does not.
    mixture = [] if CARD_HEADING in card else [_mixture(run)]
    card = card.replace(f'"{NAMELESS}"', f'"{repository}"')
    return "\n\n".join([card, *mixture, *_sections(run)]) + "\n"


def push(run: Run, repository: str, *, private: bool) -> str:
    """Publish a run in a repository, which is created if it does not exist; return the address of the commit."""
    api = HfApi()
    operations = [CommitOperationAdd(path, source) for path, source in files_of(run, repository).items()]
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.create_commit(repository, operations, commit_message=f"mixfluence: {run.recipe.name}")
    except Exception as error:  # the hub client and its transport have their own classes
        raise RecipeError(f"{repository}: could not be written on the hub ({first_line(error)})") from error
    return str(commit.commit_url)


def _mixture(run: Run) -> str:
    mixture = sorted(run.weights.items(), key=lambda item: -item[1])
    shares = "\n".join(f"| {markdown_text(name)} | {share:.1%} |" for name, share in mixture)
    return f"{CARD_HEADING}\n\n| dataset | probability |\n|---|---:|\n{shares}"


def _sections(run: Run) -> Iterator[str]:
    if run.scores:
        tables = "\n".join(markdown_table(sheet) for sheet in make_sheets(_compared(run))[:2])
        yield f"## Before and after training\n\n{tables.rstrip()}"
    recipe = (run.path / RECIPE_FILE).read_text(encoding="utf-8").rstrip()
    where = f"Trained with mixfluence; `{RECIPE_FILE}` and `{WEIGHTS_FILE}` are in the folder `{FOLDER}`."
    yield f"## Recipe\n\n{where}\n\n```yaml\n{recipe}\n```"


def _compared(run: Run) -> Comparison:
    """Return the run beside its references, tested against the start if that was scored."""
    found = compare([run])
    start = next((place for place, row in enumerate(found.rows) if row.runs[0].untrained == "zero-shot"), None)
    return replace(found, contrast=contrast_between(found, 0, start)) if start else found

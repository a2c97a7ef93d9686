"""`mixfluence demo`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from mixfluence.cli.adapt import RECIPE, SAMPLERS, adapt
from mixfluence.cli.terminal import note, print_line, show_log, writing

ENCODER = "wordllama"
POOL, GUARDS = ("numpy", "scipy"), ("pandas",)
# One of so many summaries is a labelled query.
LABELLED = 4


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
    from mixfluence.files import write_text

    task = PydocsSource(library=target, split="all").read_task(target)
    # Only what an earlier demo wrote: the folder may be anyone's.
    (folder / RECIPE).unlink(missing_ok=True)
    for sampler in SAMPLERS:
        shutil.rmtree(folder / sampler, ignore_errors=True)
    documents = [{"_id": id, "text": text} for id, text in zip(task.doc_ids, task.docs, strict=True)]
    queries = [
        {"query": text, "doc_ids": list(task.qrels[id])} for id, text in zip(task.query_ids, task.queries, strict=True)
    ]
    files: dict[Path, list[Any]] = {folder / "docs.jsonl": documents, folder / "labelled.jsonl": queries[::LABELLED]}
    for path, records in files.items():
        with writing(path):
            write_text(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    first, second = files
    return first, second

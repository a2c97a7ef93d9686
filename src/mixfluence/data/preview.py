"""A look at datasets before training: a sample row with the roles of its columns, lengths, and duplicates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING

from mixfluence.data.formats import Source, read_rows
from mixfluence.data.rows import ROWS_PER_BATCH, RowSet, text_key
from mixfluence.display import counted
from mixfluence.schema import short

if TYPE_CHECKING:
    from sentence_transformers.base.model import BaseModel

# Of large datasets a part is looked at.
LENGTH_ROWS, DUPLICATE_BATCHES = 200, 100
ROLES = ("anchor", "positive")
# A role and texts -> their lengths.
Count = Callable[[str, list[str]], Sequence[int]]


def preview(name: str, rows: RowSet, count: Count | None = None) -> Iterator[str]:
    """Yield a few lines about a dataset; lengths are in words unless a model's tokens are counted."""
    batches = islice(rows.rows.select_columns(list(ROLES)).iter(ROWS_PER_BATCH), DUPLICATE_BATCHES)
    keys = [text_key("\0".join(pair)) for batch in batches for pair in zip(*batch.values(), strict=True)]
    twice = len(keys) - len(set(keys))
    looked = f" among the first {len(keys):,}" if len(keys) < len(rows) else ""
    size = f"{counted(len(rows), 'row')}, {counted(twice, 'duplicate')}{looked}"
    yield f"{name}: {size}; {lengths(rows, count)}"
    first = rows.rows[0]
    for role in ROLES:
        yield f"  {role}{_columns(rows, role)}: {short(first[role])}"
    if negatives := first["negatives"]:
        more = f" and {len(negatives) - 1} more" if len(negatives) > 1 else ""
        yield f"  negatives{_columns(rows, 'negatives')}: {short(negatives[0])}{more}"
    if first["scores"]:
        yield f"  scores{_columns(rows, 'scores')}: {short(first['scores'])}"


def lengths(rows: RowSet, count: Count | None = None) -> str:
    """Return the median and the largest length of a sample of anchors and positives."""
    measure = count or (lambda role, texts: [len(text.split()) for text in texts])
    sample = rows.rows[:: -(-len(rows) // LENGTH_ROWS)]
    found = {role: measure(role, sample[role]) for role in ROLES}
    shown = ", ".join(f"{role} {median(own):.0f} (up to {max(own)})" for role, own in found.items())
    return f"{'tokens' if count else 'words'}: {shown}"


def preview_sources(sources: Mapping[str, Source], count: Count | None = None) -> Iterator[str]:
    """Yield a few lines about each source on this machine, with the notes of its reader."""
    for name, source in sources.items():
        if source.on_disk:
            rows = read_rows(source)
            yield from preview(name, rows, count)
            yield from (f"  {note}" for note in rows.notes)
        else:
            yield f"{name}: not on this machine ({source.location})"


def token_counter(model: BaseModel) -> Count:
    """Return a function that counts the tokens which a model makes of texts, after truncation."""
    from sentence_transformers import CrossEncoder

    from mixfluence.data.tokenize import Tokeniser

    if isinstance(model, CrossEncoder):  # which truncates pairs
        return lambda role, texts: [len(ids) for ids in model.tokenizer(texts)["input_ids"]]
    tokeniser = Tokeniser(model)
    sides = {"anchor": tokeniser.side("query", ""), "positive": tokeniser.side("document", "")}
    return lambda role, texts: sides[role].tokenise(texts)[1].tolist()


def _columns(rows: RowSet, role: str) -> str:
    return f" ({', '.join(rows.columns[role])})" if rows.columns.get(role) else ""

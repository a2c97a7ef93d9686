"""Hard negatives for rows that have none: passages of the corpus that an encoder or BM25 ranks high."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import xxhash
from numpy.typing import NDArray
from pydantic import model_validator

from mixfluence.data.cache import cache_root, checksum
from mixfluence.data.retrieval import RetrievalSet, retrieval_from_rows
from mixfluence.data.rows import Facts, Row, RowSet, convert_once
from mixfluence.files import replacing
from mixfluence.schema import Count, PositiveShare, Section, WholeNumber

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

BM25 = "bm25"
# Texts encoded between two saves: an interruption loses at most so many vectors.
TEXTS_PER_CHUNK = 1_024
# Query and passage prompts; None is the encoder's own.
Prompts = tuple[str | None, str | None]
# Query -> its negatives, the best first.
Mined = dict[str, list[str]]


class MiningSection(Section):
    """Mine hard negatives for rows that have none, among all passages of the source.

    Those are its corpus if the format has one, and else the passages of its rows. Results are cached. A note counts
    what was found; a row for which nothing was found has no negatives.

    Attributes:
        mine: Negatives of each row.
        filter: The encoder that ranks passages, by name as in `model.name`, or `bm25`.
        margin: A passage is skipped if its similarity exceeds this share of the positive's: it may be an answer as
            well. Null skips none, as does `bm25`.
        range: `[10, 100]` takes the 100 best passages, skips by the margin, and leaves out the first ten of the rest.
    """

    mine: Count
    filter: str
    margin: PositiveShare | None = None
    range: list[WholeNumber] = [10, 100]  # noqa: RUF012 - pydantic copies it

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if len(self.range) != 2 or self.range[1] - self.range[0] < self.mine:
            raise ValueError(f"range: expected two ranks at least {self.mine} apart, found {self.range}")
        if self.filter == BM25 and self.margin is not None:
            raise ValueError("margin: scores of bm25 have no margin; leave it out, or filter by an encoder")
        return self


def mine_negatives(
    rows: RowSet, passages: Sequence[str], section: MiningSection, prompts: Prompts = (None, None)
) -> RowSet:
    """Return the rows with negatives among these passages and those of the rows.

    They come from the cache if neither texts, options nor encoder have changed.
    """
    task = retrieval_from_rows("mining", rows, filter(str.strip, passages))
    model = [(file.name, checksum(file)) for file in sorted(Path(section.filter).rglob("*.*")) if file.is_file()]
    options = {
        "rows": rows.fingerprint,
        "task": task.fingerprint,
        "mined": section.model_dump(),
        "prompts": prompts,
        "model": model,
    }

    # Kept until mining is done, so that an interrupted run continues from them.
    vectors = cache_root() / "mining" / xxhash.xxh3_128_hexdigest(json.dumps(options).encode())

    def read(facts: Facts) -> Iterator[Row]:
        bare = [not row["negatives"] and not row["scores"] for row in rows.rows]
        pairs = rows.rows.select(np.flatnonzero(bare))
        logger.info("mining hard negatives of %d rows with %s", len(pairs), section.filter)
        mined: Mined = {}
        if len(pairs):
            lexical = section.filter == BM25
            mined = _lexical(task, section) if lexical else _dense(task, pairs, section, prompts, vectors, facts)
        found = Counter[int]()
        for row, lacks_negatives in zip(rows.rows, bare, strict=True):
            if lacks_negatives:
                row["negatives"] = mined.get(row["anchor"], [])
                found[len(row["negatives"])] += 1
            yield Row(**row)
        kept = f"; {len(rows) - len(pairs):,} keep their own" if len(pairs) < len(rows) else ""
        short = sum(found.values()) - found[section.mine] - found[0]
        full = f"{found[section.mine]:,} rows have {section.mine}"
        counts = f"{full}, {short:,} have fewer, {found[0]:,} have none{kept}"
        facts.notes.append(f"hard negatives mined with {section.filter}: {counts}")

    result = convert_once([], options, read)
    return replace(result, notes=(*rows.notes, *result.notes), parts=rows.parts, columns=rows.columns)


def _dense(
    task: RetrievalSet, pairs: Dataset, section: MiningSection, prompts: Prompts, vectors: Path, facts: Facts
) -> Mined:
    """Mine with an encoder, whose vectors are in a folder until that is done."""
    from sentence_transformers.util import mine_hard_negatives

    from mixfluence.encoders import load_encoder

    encoder = load_encoder(section.filter)
    for name in ("encode_query", "encode_document"):
        setattr(encoder, name, partial(_encode_in_chunks, getattr(encoder, name), vectors / name))
    printed = StringIO()
    with redirect_stdout(printed):  # the only place where the function tells what it skipped
        mined = mine_hard_negatives(
            pairs.select_columns(["anchor", "positive"]),
            encoder,
            corpus=list(task.docs),
            range_min=section.range[0],
            range_max=section.range[1],
            relative_margin=None if section.margin is None else round(1 - section.margin, 9),
            num_negatives=section.mine,
            query_prompt=prompts[0],
            corpus_prompt=prompts[1],
            output_format="labeled-list",
            use_faiss=find_spec("faiss") is not None,
        )
    shutil.rmtree(vectors, ignore_errors=True)
    facts.notes += [
        f"hard negatives: {line}" for line in printed.getvalue().splitlines() if line.startswith("Skipped")
    ]
    return {
        anchor: [text for text in negatives if text != anchor]
        for anchor, (_, *negatives) in zip(mined["anchor"], mined["positive"], strict=True)
    }


def _encode_in_chunks(
    encode: Callable[..., NDArray[np.float32]], folder: Path, texts: list[str], **options: Any
) -> NDArray[np.float32]:
    """Return the vectors of texts; each chunk of them is kept in a folder, and not encoded again if it is there."""
    options |= {"show_progress_bar": sys.stderr.isatty()}
    chunks: list[NDArray[np.float32]] = []
    starts = range(0, len(texts), TEXTS_PER_CHUNK)
    for start in starts:
        if len(chunks) % max(1, len(starts) // 10) == 0:
            logger.info("mining hard negatives: %d of %d texts encoded", start, len(texts))
        file = folder / f"{start}.npy"
        if not file.exists():
            with replacing(file) as temporary, temporary.open("wb") as stream:
                np.save(stream, encode(texts[start : start + TEXTS_PER_CHUNK], **options))
        chunks.append(np.load(file, allow_pickle=False))
    return np.concatenate(chunks)


def _lexical(task: RetrievalSet, section: MiningSection) -> Mined:
    """Mine with BM25, at the ranks of the section after all positives of a query are left out."""
    from mixfluence.evaluation.retrieval import rank_bm25

    texts = dict(zip(task.doc_ids, task.docs, strict=True))
    most_positives = max(map(len, task.qrels.values()))
    mined = {}
    for (id, hits), query in zip(
        rank_bm25(task, section.range[1] + most_positives).items(), task.queries, strict=True
    ):
        others = [texts[doc] for doc in hits if doc not in task.qrels[id] and texts[doc] != query]
        mined[query] = others[slice(*section.range)][: section.mine]
    return mined

"""The format `corpus`: training pairs from bare documents, and labelled queries of the same documents.

Each kind of pair that documents contain without any labels is a training set of its own, so that a sampler can tell
which of them helps.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Self

from pydantic import model_validator

from mixfluence.data.pairs import RecordReader
from mixfluence.data.retrieval import RetrievalSet, positives_of, retrieval_from_texts
from mixfluence.data.rows import Facts, Row, RowSet, convert_once, hash_order
from mixfluence.data.source import (
    ExistingPath,
    FileSource,
    Record,
    note_dropped,
    read_objects,
    read_records,
    read_text,
    text_field,
)
from mixfluence.display import counted
from mixfluence.errors import DataError
from mixfluence.schema import Count, WholeNumber, short

Kind = Literal["title", "first-sentence", "crop", "heading"]
Split = Literal["all", "train", "dev", "test"]
TEXT_FILES = (".markdown", ".md", ".txt")
ID_COLUMNS = ("_id", "id", "doc_id", "docid")
# Share of the documents that dev and test get each, and their maximum number.
HELD_OUT_SHARE, MAX_HELD_OUT = 0.1, 1_000
# Shorter queries and passages are left out.
MIN_QUERY_WORDS, MIN_PASSAGE_WORDS = 3, 12
# Labelled queries, of which half are for dev.
LEAST_QUERIES = 4
# Words of a crop, and the largest share of its passage that it may take.
CROP_WORDS, CROP_SHARE = (4, 24), 1 / 3
# Scripts without spaces (Thai to Khmer, kana and Chinese): each character counts as a word.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[{UNSPACED}]\s*|[^\s{UNSPACED}]+\s*")
HEADING = re.compile(r"(#{1,6})\s+(.+?)\s*#*")
CODE_FENCES = ("```", "~~~")
SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*(?=\s)|[。！？]|\n\s*\n")
# Columns of labelled queries that have ids of documents.
REFERENCES = ("doc_id", "doc_ids", "docid", "document_id", "corpus_id", "corpus-id")


class CorpusSource(FileSource):
    """Pairs made from documents, or labelled queries of them.

    `path` is a file of records with `text` and perhaps `title` (jsonl, json, csv, tsv or parquet), or a folder of text
    and Markdown files. The splits `dev` and `test` are the pairs of a tenth of the documents each, at most 1,000, by a
    hash of their text; `train` is the rest, and `all` everything. Of labelled queries, half are `dev` and half `test`.
    The passages of a task are those of all documents.

    Attributes:
        kind: What the query of a pair is: the `title`, the `first-sentence`, a random `crop` of each passage, the
            `heading` of a section after the title, or labelled (`queries`). The passage is the rest, or the section.
        queries: A file of labelled queries as in the format pairs. The positive is the text of a document; a column
            `doc_id` or `doc_ids` has ids of documents instead.
        words: The most words of a passage. A long document has several, of which all are cropped and the first is used
            for the other kinds.
        seed: Determines the crops.
    """

    format: Literal["corpus"] = "corpus"
    kind: Kind | Literal["queries"]
    split: Split
    queries: ExistingPath | None = None
    words: Count = 200
    seed: WholeNumber = 0

    @model_validator(mode="after")
    def _labelled_queries(self) -> Self:
        if self.kind == "queries":
            if self.queries is None:
                raise ValueError("queries: the kind 'queries' needs a file of labelled queries")
            if self.split == "train":
                raise ValueError("split: labelled queries are dev and test; train on others with the format pairs")
        return self

    @property
    def on_disk(self) -> bool:
        return super().on_disk and (self.queries is None or self.queries.exists())

    def read_rows(self) -> RowSet:
        files = document_files(self.path)
        if self.queries and self.kind == "queries":
            files.append(self.queries)
        options = self.model_dump(mode="json", include={"format", "kind", "split", "words", "seed"})
        return convert_once(files, options, self._rows)

    def read_task(self, name: str, rows: RowSet | None = None) -> RetrievalSet:
        facts = Facts()
        if self.kind == "queries":
            documents = read_documents(self.path)
            labelled = self._labelled(documents, facts)
            texts = [document.whole for document in documents if document.whole]
        else:
            labelled = positives_of(self.read_rows().rows)
            texts = list(self.model_copy(update={"split": "all"}).read_rows().rows["positive"])
        # Labelled positives may be the text of no document; the task has all positives.
        return retrieval_from_texts(name, labelled, texts, [f"{name}: {note}" for note in facts.notes])

    def _rows(self, facts: Facts) -> Iterator[Row]:
        documents = read_documents(self.path)
        if self.kind == "queries":
            yield from (Row(query, texts[0]) for query, texts in self._labelled(documents, facts).items())
            return
        make, lack = PAIRS[self.kind]
        chosen = take_split(documents, self.split)
        without = []
        for document in chosen:
            rows = list(make(document, self.words, self.seed))
            if not rows:
                without.append(f"'{document.id}'")
            yield from rows
        if len(without) == len(chosen):
            raise DataError(f"{self.path}: no pairs of the kind '{self.kind}': found only documents {lack}")
        note_dropped(facts.notes, self.path, f"documents {lack}", without, len(chosen))

    def _labelled(self, documents: Sequence[Document], facts: Facts) -> dict[str, list[str]]:
        """Return the labelled queries of the split with the texts of the documents that answer them."""
        assert self.queries is not None  # checked when the recipe was read
        by_id = {document.id: document.whole for document in documents}
        known = {text: document.whole for document in documents for text in (document.text, document.whole)}
        found: dict[str, list[str]] = {}
        unknown = []
        for row in RecordReader(str(self.queries)).read([_with_texts(self.queries, by_id)], facts):
            text = known.get(row.positive.strip())
            if not text and row.positive.strip() in by_id:
                wrong = f"the positive of {short(row.anchor)} is the id of a document, expected its text"
                raise DataError(f"{self.queries}: {wrong}; name a column of ids 'doc_id'")
            if not text:
                unknown.append(short(row.anchor))
            found.setdefault(row.anchor, []).append(text or row.positive)
        if unknown:
            what = "positives are the text of no document and were added to the passages"
            facts.notes.append(f"{self.queries}: {len(unknown)} {what}, such as that of {unknown[0]}")
        # A dev set of one row has no other passage to tell from its own.
        if len(found) < LEAST_QUERIES and self.split != "all":
            wanted = f"at least {LEAST_QUERIES} labelled queries, half of them for dev"
            raise DataError(f"{self.queries}: expected {wanted}, found {len(found)}")
        order, half, labelled = hash_order(found), len(found) // 2, list(found.items())
        chosen = {"dev": order[:half], "test": order[half:]}.get(self.split, order)
        return dict(labelled[place] for place in sorted(chosen))


def _with_texts(file: Path, documents: dict[str, str]) -> Iterator[Record]:
    """Yield labelled queries with texts in place of the ids of documents."""
    for where, record in read_records(file):
        column = next((name for name in REFERENCES if name in record), None) if isinstance(record, dict) else None
        if column is None:
            yield where, record
            continue
        ids = record[column] if isinstance(record[column], list) else [record[column]]
        if unknown := [id for id in ids if str(id) not in documents]:
            raise DataError(f"{where}: found {short(unknown[0])} as '{column}', expected the id of a document")
        others = {name: value for name, value in record.items() if name != column}
        yield where, others | {"positive": [documents[str(id)] for id in ids]}


class Document(NamedTuple):
    """A document. `text` does not repeat the title."""

    id: str
    title: str
    text: str

    @property
    def whole(self) -> str:
        """Title and text, as they are searched."""
        return f"{self.title} {self.text}".strip()


def document_files(path: Path) -> list[Path]:
    """Return the files of a corpus, in order."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in TEXT_FILES and file.is_file())
    if not files:
        raise DataError(f"{path}: expected files ending in {', '.join(TEXT_FILES)} in it, found none")
    return files


def read_documents(path: Path) -> list[Document]:
    """Return the documents of a file of records, or of a folder, where ids are relative paths."""
    if path.is_dir():
        return [_parse_file(file, file.relative_to(path).as_posix()) for file in document_files(path)]
    documents: dict[str, Document] = {}
    for number, (where, record) in enumerate(read_objects(path), 1):
        column = next((column for column in ID_COLUMNS if record.get(column) is not None), None)
        id = str(record[column]) if column else str(number)
        if id in documents:
            raise DataError(f"{where}: the id {id!r} already exists")
        title = "" if record.get("title") is None else text_field(record, "title", where)
        documents[id] = Document(id, " ".join(title.split()), text_field(record, "text", where).strip())
    if not documents:
        raise DataError(f"{path}: contains no documents")
    return list(documents.values())


def take_split(documents: Sequence[Document], split: Split) -> list[Document]:
    """Return the documents of a split, in their order; it depends on their texts alone."""
    if split == "all":
        return list(documents)
    count = min(MAX_HELD_OUT, round(HELD_OUT_SHARE * len(documents)))
    if count == 0:
        found = counted(len(documents), "document")
        raise DataError(f"{found}, too few to hold out a tenth of them; use the split 'all'")
    order = hash_order(document.whole for document in documents)
    parts = {"dev": order[:count], "test": order[count : 2 * count], "train": order[2 * count :]}
    return [documents[place] for place in sorted(parts[split])]


def _title_pairs(document: Document, words: int, seed: int) -> Iterator[Row]:
    yield from _pair(document.title, next(passages(document.text, words), ""))


def _sentence_pairs(document: Document, words: int, seed: int) -> Iterator[Row]:
    first = next(passages(document.text, words), "")
    for match in SENTENCE_END.finditer(first):
        # A shorter one is a heading, or ends with an abbreviation.
        if _count(sentence := first[: match.end()]) > MIN_QUERY_WORDS:
            yield from _pair(sentence, first[match.end() :])
            return


def _crop_pairs(document: Document, words: int, seed: int) -> Iterator[Row]:
    rng = random.Random(f"{seed} {document.whole}")
    for passage in passages(document.text, words):
        pieces = _words(passage)
        longest = min(CROP_WORDS[1], int(len(pieces) * CROP_SHARE))
        if longest >= CROP_WORDS[0]:
            start = rng.randrange(len(pieces) - longest)
            end = start + rng.randint(CROP_WORDS[0], longest)
            yield from _pair("".join(pieces[start:end]), "".join(pieces[:start] + pieces[end:]))


def _heading_pairs(document: Document, words: int, seed: int) -> Iterator[Row]:
    for heading, section in sections(document.text):
        # Most headings say little without the title.
        query = f"{document.title}: {heading}" if document.title else heading
        if heading:
            yield from _pair(query, next(passages(section, words), ""), min_words=1)


# By kind: the function that makes pairs of (document, words of a passage, seed), and what other documents lack.
PAIRS: dict[Kind, tuple[Callable[[Document, int, int], Iterator[Row]], str]] = {
    "title": (_title_pairs, "without a title and a text"),
    "first-sentence": (_sentence_pairs, "without a first sentence and a rest"),
    "crop": (_crop_pairs, "that are too short to be cropped"),
    "heading": (_heading_pairs, "without headings"),
}


def sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield every Markdown heading with the text up to the next one; text before the first has an empty heading."""
    heading, fenced = "", False
    lines: list[str] = []
    for line in text.split("\n"):
        fenced ^= line.lstrip().startswith(CODE_FENCES)
        if not fenced and (match := HEADING.fullmatch(line.strip())):
            yield heading, "\n".join(lines)
            heading, lines = match[2], []
        else:
            lines.append(line)
    yield heading, "\n".join(lines)


def passages(text: str, words: int) -> Iterator[str]:
    """Yield consecutive passages of at most so many words."""
    pieces = _words(text)
    for start in range(0, len(pieces), words):
        yield "".join(pieces[start : start + words]).strip()


def _parse_file(file: Path, id: str) -> Document:
    """Return a file; a Markdown heading of the first level at its top is its title."""
    text = read_text(file).strip()
    first, _, rest = text.partition("\n")
    match = HEADING.fullmatch(first.strip())
    return Document(id, match[2], rest.strip()) if match and match[1] == "#" else Document(id, "", text)


def _pair(query: str, passage: str, min_words: int = MIN_QUERY_WORDS) -> Iterator[Row]:
    if _count(query) >= min_words and _count(passage) >= MIN_PASSAGE_WORDS:
        yield Row(" ".join(query.split()), passage.strip())


def _count(text: str) -> int:
    return len(_words(text))


def _words(text: str) -> list[str]:
    """Return the words, each with the spaces after it."""
    return WORD.findall(text.strip())

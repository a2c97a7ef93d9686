"""Documents, and the pairs of query and passage that they contain without any labels."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import xxhash

from mixfluence.data.rows import Row
from mixfluence.data.source import read_objects, read_text, text_field
from mixfluence.errors import DataError

Kind = Literal["title", "first-sentence", "crop", "heading"]
Split = Literal["all", "train", "dev", "test"]
TEXT_FILES = (".markdown", ".md", ".txt")
ID_COLUMNS = ("_id", "id", "doc_id", "docid")
# Dev and test have so large a share of the documents each, and at most so many.
HELD_OUT_SHARE, MAX_HELD_OUT = 0.1, 1_000
# A shorter query or passage says too little.
MIN_QUERY_WORDS, MIN_PASSAGE_WORDS = 3, 12
# A crop is as long as a query, and leaves most of its passage.
CROP_WORDS, CROP_SHARE = (4, 24), 1 / 3
# Scripts without spaces (Thai to Khmer, kana and Chinese): each character counts as a word.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[{UNSPACED}]\s*|[^\s{UNSPACED}]+\s*")
HEADING = re.compile(r"(#{1,6})\s+(.+?)\s*#*")
CODE_FENCES = ("```", "~~~")
SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*(?=\s)|[。！？]|\n\s*\n")


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
    return list(documents.values())


def take_split(documents: Sequence[Document], split: Split) -> list[Document]:
    """Return the documents of a split, in their order; it depends on their texts alone."""
    if split == "all":
        return list(documents)
    count = min(MAX_HELD_OUT, round(HELD_OUT_SHARE * len(documents)))
    if count == 0:
        raise DataError(f"{len(documents)} documents are too few to hold out a tenth of them; use the split 'all'")
    hashes = [xxhash.xxh3_128_hexdigest(document.whole.encode()) for document in documents]
    order = sorted(range(len(documents)), key=lambda place: (hashes[place], place))
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


# Each takes a document, the most words of a passage and a seed; and what a document without such pairs lacks.
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

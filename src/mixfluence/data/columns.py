"""Roles of columns: which one is the anchor, which the positive, which are negatives or teacher scores.

Roles are given as `columns`, or found by name; order says nothing. Ids are never text. Whatever is ambiguous is an
error that lists the columns and shows what to write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from mixfluence.errors import DataError

ColumnMap = Mapping[str, str | list[str]]

# The first name of each list wins; of the others there may be only one.
ANCHORS = ("anchor", "query", "question", "sentence1", "text1", "premise")
POSITIVES = ("positive", "pos", "passage", "answer", "document", "response", "sentence2", "text2", "hypothesis")
NEGATIVE = re.compile(r"(hard_)?neg(ative)?s?_?\d*|n_?\d+")
ID = re.compile(r"(.*[_-])?(ids?|idx|index|uuid)|(doc|query|q|p)id")
LABELS = ("label", "labels", "score", "similarity")
SCORES = ("pos_scores", "neg_scores")


class Roles(NamedTuple):
    """The columns of an object by role; teacher scores of positives and of negatives may have a column each."""

    anchor: str
    positive: str
    negatives: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()

    def columns(self) -> list[str]:
        return [self.anchor, self.positive, *self.negatives, *self.scores]


def mapped_roles(columns: ColumnMap) -> Roles:
    """Return the roles that a user has given."""
    if not {"anchor", "positive"} <= columns.keys() <= set(Roles._fields):
        raise DataError(f"columns: found {names(columns)}, expected anchor, positive, optionally negatives, scores")
    named = {role: [given] if isinstance(given, str) else given for role, given in columns.items()}
    for role, given in named.items():
        if role != "negatives" and len(given) != 1:
            raise DataError(f"columns: found {len(given)} columns for {role}, expected one")
    negatives, scores = named.get("negatives", ()), named.get("scores", ())
    return Roles(named["anchor"][0], named["positive"][0], tuple(negatives), tuple(scores))


def find_roles(record: Mapping[str, Any], where: str, option: str) -> Roles:
    """Return the roles of a record's columns; `option` is where a user gives them, with `{}` for the mapping."""
    scores: tuple[str, ...]
    lowered = {column.strip().lower(): column for column in record}
    negatives = [column for name, column in lowered.items() if NEGATIVE.fullmatch(name)]
    ids = [column for name, column in lowered.items() if ID.fullmatch(name)]
    labels = [column for name, column in lowered.items() if name in LABELS]
    scores = SCORES if any(name in record for name in SCORES) else ()
    if not scores and isinstance(record.get("scores"), list):
        scores = ("scores",)
    known = {*negatives, *ids, *labels, *SCORES, "scores"}
    texts = [column for column, value in record.items() if column not in known and _may_be_text(value)]
    anchors, positives = (_first_or_all(lowered, choices) for choices in (ANCHORS, POSITIVES))
    if not anchors and "context" in lowered and "response" in lowered:
        anchors = [lowered["context"]]
    others = [column for column in texts if column not in {*anchors, *positives}]
    if len(others) == 1 and len(anchors) + len(positives) == 1:
        anchors, positives = anchors or others, positives or others
    example = json.dumps(dict(zip(("anchor", "positive"), [*texts, "...", "..."], strict=False)), ensure_ascii=False)
    if len(anchors) != 1 or len(positives) != 1:
        found = f"found the columns {names(record)}, which do not tell the anchor and the positive"
        raise DataError(f"{where}: {found}; write {option.format(example)}")
    if labels:
        example = json.dumps({"anchor": anchors[0], "positive": positives[0]}, ensure_ascii=False)
        found = f"found the column '{labels[0]}', but every row is trained as a positive pair"
        raise DataError(f"{where}: {found}; keep only rows that are, and write {option.format(example)}")
    return Roles(anchors[0], positives[0], tuple(negatives), scores)


def is_known(column: str) -> bool:
    """Tell whether a text is a usual name of a column."""
    name = column.strip().lower()
    usual = {*ANCHORS, *POSITIVES, *LABELS, *SCORES, "scores", "context", "title", "text", "body", "q", "a", "p"}
    return name in usual or bool(NEGATIVE.fullmatch(name) or ID.fullmatch(name))


def names(columns: Iterable[str]) -> str:
    """Return columns as messages list them."""
    return ", ".join(f"'{column}'" for column in columns) or "none"


def _first_or_all(columns: Mapping[str, str], choices: tuple[str, ...]) -> list[str]:
    found = [columns[name] for name in choices if name in columns]
    return found[:1] if choices[0] in columns else found


def _may_be_text(value: Any) -> bool:
    return value is None or isinstance(value, str) or (isinstance(value, list) and _may_be_text((value or [""])[0]))

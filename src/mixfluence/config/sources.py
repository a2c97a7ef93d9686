"""Where a recipe's data comes from: one section per format, defaults shared by all sources."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from mixfluence.schema import PathLike, Section, unknown_key

Whole = Annotated[int, Field(ge=0)]
Rows = Annotated[int, Field(ge=1)]


class PublishedSection(Section):
    """What a dataset is known to hold: what is read is compared with it, and a plan counts by it without the data."""

    rows: Rows | None = None
    queries: Rows | None = None
    judgements: Rows | None = None
    passages: Rows | None = None


class SourceSection(Section):
    """What every source may say besides where it is.

    A prompt stands before every text, in training and in testing; without one the model's own is used. Counts that
    are not as published are noted, and stop nothing.
    """

    query_prompt: str | None = None
    passage_prompt: str | None = None
    published: PublishedSection | None = None

    @property
    def on_disk(self) -> bool:
        """Whether reading it can be tried on this machine."""
        return True


class FileSource(SourceSection):
    """A source on this machine."""

    path: PathLike

    @property
    def on_disk(self) -> bool:
        """Whether the path exists."""
        return self.path.exists()

    @field_validator("path")
    @classmethod
    def _exists(cls, path: Path, info: ValidationInfo) -> Path:
        if (info.context or {}).get("files_may_be_missing"):
            return path
        try:
            found = path.exists()
        except OSError as error:  # a name that is too long, a folder that may not be looked into
            raise ValueError(f"cannot be looked for ({error.strerror})") from error
        if not found:
            raise ValueError(f"no such file or folder: {path.absolute()}")
        return path


class BeirSource(FileSource):
    """A folder in BEIR's layout. `per` makes one training row per query or per (query, positive) pair."""

    format: Literal["beir"]
    split: str
    per: Literal["query", "pair"] = "query"


class PairsSource(FileSource):
    """Pairs, triplets or lists in jsonl, csv, tsv or parquet files.

    `per` makes one row per positive or per record, `negatives` is the most hard negatives that a row keeps.
    """

    format: Literal["pairs"]
    columns: dict[str, str | list[str]] | None = None
    per: Literal["query", "pair"] = "pair"
    negatives: Whole | None = None


class HubSource(SourceSection):
    """A dataset of the Hugging Face hub, by id and revision; `per` and `negatives` are as for pairs."""

    format: Literal["hub"]
    id: str
    split: str
    revision: str | None = None
    config: str | None = None
    columns: dict[str, str | list[str]] | None = None
    per: Literal["query", "pair"] = "pair"
    negatives: Whole | None = None


class BgeM3Source(FileSource):
    """One language of BGE-M3's training data, all its sources together."""

    format: Literal["bge_m3"]
    language: str


class MldrSource(FileSource):
    """One language of MLDR: rows to train on or be guided by, and tasks with the language's corpus."""

    format: Literal["mldr"]
    language: str
    split: Literal["train", "dev", "test"]


class PydocsSource(SourceSection):
    """Docstrings of an installed library. The split `all` is for libraries that are no target."""

    format: Literal["pydocs"]
    library: str
    split: Literal["all", "train", "dev", "test"]


Source = Annotated[
    BeirSource | PairsSource | HubSource | PydocsSource | BgeM3Source | MldrSource, Field(discriminator="format")
]
FORMATS: dict[str, type[SourceSection]] = {
    "beir": BeirSource,
    "pairs": PairsSource,
    "hub": HubSource,
    "pydocs": PydocsSource,
    "bge_m3": BgeM3Source,
    "mldr": MldrSource,
}


def fill_sources(sources: Any, defaults: dict[str, Any], section: str) -> Any:
    """Return the sources of `train`, `dev` or `test` as a mapping, with defaults, names and splits filled in."""
    if isinstance(sources, list):
        if nested := [name for name in sources if not isinstance(name, str | int | float)]:
            raise ValueError(f"{section}: expected names of datasets, found {nested[0]!r}")
        if twice := [name for number, name in enumerate(sources) if name in sources[:number]]:
            raise ValueError(f"{section}: {twice[0]!r} is listed twice")
        sources = dict.fromkeys(map(str, sources))
    if not isinstance(sources, dict):
        return sources
    return {name: _fill_source(str(name), own or {}, defaults, section) for name, own in sources.items()}


def _fill_source(name: str, own: Any, defaults: dict[str, Any], section: str) -> Any:
    if not isinstance(own, dict):
        return own
    format_ = FORMATS.get(str(own.get("format", defaults.get("format"))))
    if format_ is None:
        return defaults | own
    # A default that another format knows does not concern this one.
    inherited = {key: value for key, value in defaults.items() if key in format_.model_fields}
    split = {"split": section} if "split" in format_.model_fields else {}
    source = split | inherited | own
    return {key: _spell_out(value, name, str(source["format"])) for key, value in source.items()}


def _spell_out(value: Any, name: str, format_: str) -> Any:
    return value.replace("{name}", name).replace("{format}", format_) if isinstance(value, str) else value


def check_defaults(defaults: Any) -> None:
    """Refuse a default that no format knows."""
    known = {key for format_ in FORMATS.values() for key in format_.model_fields}
    if not isinstance(defaults, dict):
        raise ValueError(f"defaults: expected a mapping with keys such as format and path, found {defaults!r}")
    for key in defaults:
        if key not in known:
            raise ValueError(f"defaults: {unknown_key(key, known)}")

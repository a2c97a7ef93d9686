"""What a recipe may say. Keys are strict: a misspelt one is an error that names the nearest valid key."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

PathLike = Annotated[Path, Field(strict=False)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """Base of every part of a recipe: strict types, no unknown keys, unchangeable."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            raise ValueError(f"expected a mapping with keys such as {', '.join(list(cls.model_fields)[:3])}")
        for key in data:
            if key not in cls.model_fields:
                raise ValueError(_unknown(key, cls.model_fields))
        return data


class SourceSection(Section):
    """What every source may say besides where it is.

    A prompt stands before every text, in training and in testing; without one the model's own is used.
    """

    query_prompt: str | None = None
    passage_prompt: str | None = None


class FileSource(SourceSection):
    """A source on this machine."""

    path: PathLike

    @field_validator("path")
    @classmethod
    def _exists(cls, path: Path, info: ValidationInfo) -> Path:
        if not (info.context or {}).get("files_may_be_missing") and not path.exists():
            raise ValueError(f"no such file or folder: {path.absolute()}")
        return path


class BeirSource(FileSource):
    """A folder in BEIR's layout. `per` makes one training row per query or per (query, positive) pair."""

    format: Literal["beir"]
    split: str
    per: Literal["query", "pair"] = "query"


class PairsSource(FileSource):
    """Pairs, triplets or lists in jsonl, csv, tsv or parquet files."""

    format: Literal["pairs"]
    columns: dict[str, str | list[str]] | None = None


class HubSource(SourceSection):
    """A dataset of the Hugging Face hub, by id and revision."""

    format: Literal["hub"]
    id: str
    split: str
    revision: str | None = None
    config: str | None = None
    columns: dict[str, str | list[str]] | None = None


class PydocsSource(SourceSection):
    """Docstrings of an installed library. The split `all` is for libraries that are no target."""

    format: Literal["pydocs"]
    library: str
    split: Literal["all", "train", "dev", "test"]


Source = Annotated[BeirSource | PairsSource | HubSource | PydocsSource, Field(discriminator="format")]
FORMATS: dict[str, type[SourceSection]] = {
    "beir": BeirSource,
    "pairs": PairsSource,
    "hub": HubSource,
    "pydocs": PydocsSource,
}


class ModelSection(Section):
    """The encoder: `minilm` or `wordllama` from installed packages, a folder, or an id of the hub."""

    name: str
    pooling: Literal["cls", "mean"] | None = None
    query_length: Count | None = None
    passage_length: Count | None = None
    revision: str | None = None
    trust_remote_code: bool = False


class InitialSection(Section):
    """The starting distribution: exactly one of a temperature, weights, or a file of weights.

    The words `uniform` and `proportional` stand for the temperatures infinity and 1.
    """

    temperature: Positive | None = None
    weights: dict[str, float] | None = None
    file: PathLike | None = None

    @model_validator(mode="before")
    @classmethod
    def _words(cls, data: Any) -> Any:
        words = {"uniform": {"temperature": float("inf")}, "proportional": {"temperature": 1.0}}
        if isinstance(data, str):
            if data not in words:
                raise ValueError(f"expected uniform, proportional, temperature, weights or file, found {data!r}")
            return words[data]
        return data

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in ("temperature", "weights", "file") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of temperature, weights and file, found {', '.join(given) or 'none'}")
        return self


class StrategySection(Section):
    """Which sampler, where it starts, and the bounds it keeps. A bare word is the name alone."""

    name: Literal["static"] = "static"
    init: InitialSection = InitialSection(temperature=1.0)
    floor: Share = 0.0
    max_epochs: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, data: Any) -> Any:
        return {"name": data} if isinstance(data, str) else data


class TrainingSection(Section):
    """Optimisation. `host` passes further arguments to the host's trainer by their own names."""

    steps: Count
    batch_size: Count
    learning_rate: Positive = 2e-5
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    temperature: Positive = 0.02
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    gradient_accumulation: Count = 1
    hard_negatives: Annotated[int, Field(ge=0)] | None = None
    mini_batch_size: Count | None = None
    cross_device_negatives: bool = True
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    save_every: Count | None = None
    log_every: Count = 10
    host: dict[str, Any] = {}


class SelectionSection(Section):
    """Which checkpoint is kept: the one with the best mean NDCG@10 on the dev sets.

    With `dev: halves` every dev set is cut in two, one half to guide sampling and the other to select, for
    every strategy alike. The corpus is sampled down to `corpus` passages, judged ones always included.
    """

    every: Count
    dev: Literal["shared", "halves"] = "shared"
    corpus: Count = 20_000


class EvaluationSection(Section):
    """How test sets are judged at the end."""

    batch_size: Count = 128
    bm25: bool = False


class Recipe(Section):
    """One run, from files to numbers.

    `train`, `dev` and `test` are lists of names or mappings of name -> source. Keys of `defaults` hold for
    every source that does not set them, `{name}` in a text stands for the source's name, and the split is
    that of the section unless said otherwise.
    """

    name: str
    seed: int = 0
    model: ModelSection
    train: Annotated[dict[str, Source], Field(min_length=1)]
    dev: dict[str, Source] = {}
    test: dict[str, Source] = {}
    overlap: Literal["drop", "refuse"] = "drop"
    strategy: StrategySection = StrategySection()
    training: TrainingSection
    selection: SelectionSection | None = None
    evaluation: EvaluationSection = EvaluationSection()
    output: PathLike

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        defaults = data.pop("defaults", {})
        _check_defaults(defaults)
        for section in ("train", "dev", "test"):
            if section in data:
                data[section] = _fill_sources(data[section], defaults, section)
        return {"output": f"runs/{data.get('name')}"} | data

    @model_validator(mode="after")
    def _selection_has_dev(self) -> Self:
        if self.selection is None:
            return self
        if not self.dev:
            raise ValueError("selection needs at least one dev set")
        if self.training.steps % self.selection.every:
            raise ValueError(
                f"selection.every ({self.selection.every}) must divide training.steps ({self.training.steps}), "
                "or the last step would never be a candidate"
            )
        return self


def _fill_sources(sources: Any, defaults: dict[str, Any], section: str) -> Any:
    if isinstance(sources, list):
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
    return {key: value.replace("{name}", name) if isinstance(value, str) else value for key, value in source.items()}


def _check_defaults(defaults: Any) -> None:
    known = {key for format_ in FORMATS.values() for key in format_.model_fields}
    if not isinstance(defaults, dict):
        raise ValueError(f"defaults: expected a mapping with keys such as format and path, found {defaults!r}")
    for key in defaults:
        if key not in known:
            raise ValueError(f"defaults: {_unknown(key, known)}")


def _unknown(key: object, known: Iterable[str]) -> str:
    near = get_close_matches(str(key), known, n=1, cutoff=0.5)
    return f"unknown key {key!r}; " + (f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}")

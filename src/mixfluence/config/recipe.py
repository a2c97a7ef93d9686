"""What a recipe may say. Keys are strict: a misspelt one is an error that names the nearest valid key."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from mixfluence.config.sources import PathLike, Section, Source, check_defaults, fill_sources

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]


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
    host: dict[str, Any] = Field(default_factory=dict)


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
    dev: dict[str, Source] = Field(default_factory=dict)
    test: dict[str, Source] = Field(default_factory=dict)
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
        check_defaults(defaults)
        for section in ("train", "dev", "test"):
            if section in data:
                data[section] = fill_sources(data[section], defaults, section)
        return {"output": f"runs/{data.get('name')}"} | data

    @model_validator(mode="after")
    def _selection_has_dev(self) -> Self:
        if self.selection is None:
            return self
        if not self.dev:
            raise ValueError("selection needs at least one dev set")
        if self.training.save_every is not None:
            raise ValueError("training.save_every: leave it out, selection saves a checkpoint whenever it looks")
        if self.training.steps % self.selection.every:
            raise ValueError(
                f"selection.every ({self.selection.every}) must divide training.steps ({self.training.steps}), "
                "or the last step would never be a candidate"
            )
        return self

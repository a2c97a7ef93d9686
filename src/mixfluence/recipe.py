"""What a recipe may say. Keys are strict: a misspelt one is an error that names the nearest valid key."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from mixfluence.config.samplers import CrispSection, StaticSection
from mixfluence.config.strategy import Strategy
from mixfluence.data.formats import Source, check_defaults, fill_sources
from mixfluence.schema import LARGEST, Count, PathLike, Positive, Section

# Samplers that cannot work without a dev set.
GUIDED = {"inf-dds", "multidds", "doge", "crisp", "aioli", "target-only"}
# A short list of negatives is repeated to this length, so that nothing but memory would end a larger number.
MOST_NEGATIVES = 10_000


class ModelSection(Section):
    """The encoder: `minilm` or `wordllama` from installed packages, a folder, or an id of the hub."""

    name: str
    pooling: Literal["cls", "mean"] | None = None
    query_length: Count | None = None
    passage_length: Count | None = None
    revision: str | None = None
    trust_remote_code: bool = False


class TrainingSection(Section):
    """Optimisation. `host` passes further arguments to the host's trainer by their own names.

    The loss `m3-kd` learns from a teacher's scores where rows have them, and is InfoNCE where they have none.
    `packing` and `compiled` make a GPU faster; see `MixtureTrainer`.
    """

    steps: Count
    batch_size: Count
    loss: Literal["info-nce", "m3-kd"] = "info-nce"
    learning_rate: Positive = 2e-5
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    temperature: Positive = 0.02
    weight_decay: Annotated[float, Field(ge=0, le=LARGEST)] = 0.0
    gradient_accumulation: Count = 1
    hard_negatives: Annotated[int, Field(ge=0, le=MOST_NEGATIVES)] | None = None
    mini_batch_size: Count | None = None
    cross_device_negatives: bool = True
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    packing: bool | None = None
    compiled: bool = False
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
    every source that does not set them, `{name}` and `{format}` in a text stand for the source's, and the split is
    that of the section unless said otherwise.
    """

    name: str
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    model: ModelSection
    train: Annotated[dict[str, Source], Field(min_length=1)]
    dev: dict[str, Source] = Field(default_factory=dict)
    test: dict[str, Source] = Field(default_factory=dict)
    overlap: Literal["drop", "refuse"] = "drop"
    strategy: Strategy = StaticSection()
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
    def _guided_by_dev(self) -> Self:
        if self.strategy.name in GUIDED and not self.dev:
            raise ValueError(f"strategy {self.strategy.name} needs at least one dev set to be guided by")
        for name in self.train.keys() & self.dev.keys():
            ours, theirs = ((s.query_prompt, s.passage_prompt) for s in (self.train[name], self.dev[name]))
            if ours != theirs:
                raise ValueError(f"dev.{name}: its prompts differ from those of train.{name}")
        return self

    @model_validator(mode="after")
    def _proxies_see_every_query(self) -> Self:
        if self.strategy.name in {"doremi", "tdro"} and self.training.mini_batch_size is not None:
            raise ValueError(f"training.mini_batch_size: the proxy of {self.strategy.name} needs every query's loss")
        return self

    @model_validator(mode="after")
    def _clusters_have_one_prompt(self) -> Self:
        prompts = {(source.query_prompt, source.passage_prompt) for source in self.train.values()}
        if isinstance(self.strategy, CrispSection) and self.strategy.per == "pool" and len(prompts) > 1:
            raise ValueError("strategy.per: a cluster of the whole pool needs one prompt; use per: dataset")
        return self

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

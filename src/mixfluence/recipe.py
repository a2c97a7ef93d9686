"""The schema of a recipe. Keys are strict: a misspelt one is an error that names the nearest valid key."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, SerializeAsAny, model_validator

from mixfluence.data.formats import Source, check_defaults, fill_sources
from mixfluence.data.source import TRAINING_KEYS
from mixfluence.errors import DataError
from mixfluence.losses import InfoNCELoss, Loss, LossSection
from mixfluence.schema import Count, NonNegative, PathLike, Positive, Section, WholeNumber, registered
from mixfluence.strategies import STRATEGIES, Static, Strategy

# The temperature of scores that are not cosines.
PLAIN_TEMPERATURE = 1.0


class LoraSection(Section):
    """A LoRA adapter through PEFT: only low-rank changes of the linear layers are trained.

    `targets` are names of layers, or `all-linear`. `base` is the precision of the frozen weights; `int8` and `nf4`
    are quantised by bitsandbytes. The saved model has the adapter `merged` into its weights, or is the adapter alone,
    which needs the original model to be loaded.
    """

    rank: Count = 16
    alpha: Positive = 32.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    targets: Literal["all-linear"] | list[str] = "all-linear"
    base: Literal["fp32", "bf16", "int8", "nf4"] = "fp32"
    merged: bool = True

    @model_validator(mode="after")
    def _quantised(self) -> Self:
        if self.merged and self.base in {"int8", "nf4"}:
            raise ValueError(f"merged: an adapter cannot be merged into weights in {self.base}; set merged to false")
        return self


class ModelSection(Section):
    """The encoder: `minilm` or `wordllama` from installed packages, a folder, or a Hugging Face id.

    `kind` is that of the model: one vector per text, sparse vectors (SPLADE), a vector per token (ColBERT), or a
    cross-encoder that ranks the hits of BM25 again. A plain transformer, encoder or decoder, gets a pooling: `mean`,
    `cls`, or `last`, the vector of the end token. `padding` is the side of padding, and `bidirectional` lets the
    tokens of a decoder see later ones.
    """

    name: str
    kind: Literal["dense", "sparse", "multi-vector", "reranker"] = "dense"
    pooling: Literal["cls", "mean", "last"] | None = None
    padding: Literal["left", "right"] | None = None
    bidirectional: bool | None = None
    query_length: Count | None = None
    passage_length: Count | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    lora: LoraSection | None = None

    @model_validator(mode="after")
    def _static_embedding(self) -> Self:
        others = self.pooling, self.padding, self.bidirectional, self.query_length, self.passage_length, self.lora
        if self.name == "wordllama" and any(value is not None for value in others):
            raise ValueError("'wordllama' is a static model; write model={name: wordllama}")
        if self.lora and not self.lora.merged and self.bidirectional is not None:
            # Adapters are saved without the configuration of their base.
            raise ValueError("lora.merged: must be true with bidirectional, which an adapter alone does not save")
        return self


def _folder_name(value: str) -> str:
    # The default output is `runs/NAME`.
    if Path(value).name != value or "\\" in value:
        raise ValueError(f"expected a name that can be a folder's, found {value!r}")
    return value


class TrainingSection(Section):
    """Optimisation. `trainer_args` are passed to the training arguments of sentence-transformers by their own names.

    A training set may have a `loss`, `batch_size` and `hard_negatives` of its own.
    `packing` and `compiled` make training on a GPU faster; see `MixtureTrainer`.
    """

    steps: Count
    batch_size: Count
    loss: Loss = Field(default_factory=InfoNCELoss)
    learning_rate: Positive = 2e-5
    warmup_steps: WholeNumber = 0
    temperature: Positive = 0.02
    weight_decay: NonNegative = 0.0
    gradient_accumulation: Count = 1
    hard_negatives: WholeNumber | None = None
    mini_batch_size: Count | None = None
    cross_device_negatives: bool = True
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    packing: bool | None = None
    compiled: bool = False
    save_every: Count | None = None
    log_every: Count = 10
    trainer_args: dict[str, Any] = Field(default_factory=dict)

    @property
    def rows_per_step(self) -> int:
        """Rows of one step of a process."""
        return self.batch_size * self.gradient_accumulation


class SelectionSection(Section):
    """Which checkpoint is kept: the one with the best mean NDCG@10 on the dev sets.

    With `dev: halves` every dev set is split in two, one half to guide sampling and the other to select, for
    every strategy alike. The corpus is sampled down to `corpus` passages, which include all judged ones.
    """

    every: Count
    dev: Literal["shared", "halves"] = "shared"
    corpus: Count = 20_000


class SelectSection(Section):
    """Which training rows are kept before sampling: the share `keep` of each dataset, at least 2 rows.

    `alignment` keeps the rows whose gradients are most similar to those of a dev set (as LESS does), on a linear layer
    after the encoder. It drops rows that teach the opposite of the dev sets, and many mislabelled ones where dev rows
    are of the same kind. It compares rows of one dataset with each other; how often a dataset is drawn is the
    strategy's concern.
    """

    by: Literal["alignment"] = "alignment"
    keep: Annotated[float, Field(gt=0, lt=1)]


def rows_to_keep(name: str, rows: int, keep: float) -> int:
    """Return how many rows of a dataset `SelectSection` keeps; refuse fewer than two, which have no negatives."""
    kept = math.ceil(round(keep * rows, 6))
    if kept < 2:
        raise DataError(f"{name}: select.keep of {keep:g} leaves {kept} of its {rows} rows, at least 2 are needed")
    return kept


class EvaluationSection(Section):
    """How test sets are evaluated at the end."""

    batch_size: Count = 128
    references: bool = True


class Recipe(Section):
    """One run, from files to numbers.

    `train`, `dev` and `test` are lists of names or mappings of name -> source. Keys of `defaults` apply to every
    source that does not set them, `{name}` and `{format}` in a text stand for the source's, and the split is that of
    the section unless given.
    """

    name: Annotated[str, AfterValidator(_folder_name)]
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    model: ModelSection
    train: Annotated[dict[str, Source], Field(min_length=1)]
    dev: dict[str, Source] = Field(default_factory=dict)
    test: dict[str, Source] = Field(default_factory=dict)
    overlap: Literal["drop", "refuse"] = "drop"
    select: SelectSection | None = None
    strategy: Annotated[SerializeAsAny[Strategy], registered(STRATEGIES, default="static")] = Field(
        default_factory=Static
    )
    training: TrainingSection
    selection: SelectionSection | None = None
    evaluation: EvaluationSection = EvaluationSection()
    output: PathLike

    @property
    def halves(self) -> bool:
        """Whether dev sets are split, one half to guide sampling and the other to select a checkpoint."""
        return self.selection is not None and self.selection.dev == "halves"

    def loss_of(self, dataset: str) -> LossSection:
        """Return the loss of a training set."""
        return self.train[dataset].loss or self.training.loss

    def batch_size_of(self, dataset: str) -> int:
        """Return the rows per batch and process of a training set; for other names, those of `training`."""
        source = self.train.get(dataset)
        return source.batch_size if source and source.batch_size else self.training.batch_size

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
        model, training = data.get("model"), data.get("training")
        if isinstance(model, dict) and isinstance(training, dict) and model.get("kind", "dense") != "dense":
            data["training"] = {"temperature": PLAIN_TEMPERATURE} | training
        return {"output": f"runs/{data.get('name')}"} | data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if problems := list(self._problems()):
            raise ValueError("\n".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        try:
            self.strategy.check(self)
        except ValueError as error:
            yield str(error)
        yield from self._model_problems()
        yield from self._loss_problems()
        for name in self.train.keys() & self.dev.keys():
            ours, theirs = ((s.query_prompt, s.passage_prompt) for s in (self.train[name], self.dev[name]))
            if ours != theirs:
                yield f"dev.{name}: its prompts differ from those of train.{name}"
        if self.select and not self.dev:
            yield "select: needs at least one dev set"
        if self.selection is None:
            return
        every, steps = self.selection.every, self.training.steps
        if not self.dev:
            yield "selection: needs at least one dev set"
        if self.training.save_every is not None:
            yield "training.save_every: leave it out, selection saves a checkpoint at every evaluation"
        if steps % every:
            candidate = "or the last step would never be a candidate"
            yield f"selection.every: {every} must divide training.steps ({steps}), {candidate}"

    def _model_problems(self) -> Iterator[str]:
        if self.model.lora and any(stage.merges for stage in self.strategy.stages(self)):
            yield f"model.lora: strategy {self.strategy.name} merges whole models; leave lora out"
        if self.model.kind != "dense":
            for needing in self._needs_dense():
                yield f"model.kind: {needing} needs a dense encoder, found {self.model.kind}"

    def _loss_problems(self) -> Iterator[str]:
        own = {f"train.{name}.loss": source.loss for name, source in self.train.items() if source.loss}
        for place, loss in {"training.loss": self.training.loss, **own}.items():
            found = loss.problems(self.model.kind, mini_batches=self.training.mini_batch_size is not None)
            yield from (f"{place}: {problem}" for problem in found)
        by_dataset = own or any(stage.against for stage in self.strategy.stages(self))
        if by_dataset and (dotted := [name for name in self.train if "." in name]):
            yield f"train.{dotted[0]}: names must not contain a dot if datasets have losses of their own"
        for section in ("dev", "test"):
            for name, source in getattr(self, section).items():
                for key in TRAINING_KEYS:
                    if getattr(source, key) is not None:
                        yield f"{section}.{name}.{key}: only training sets have one"

    def _needs_dense(self) -> Iterator[str]:
        """Yield the parts of the recipe that work with dense encoders only."""
        for name in ("pooling", "padding", "bidirectional"):
            if getattr(self.model, name) is not None:
                yield f"model.{name}"
        if self.select:
            yield "select"
        if any(stage.against for stage in self.strategy.stages(self)):
            yield f"strategy {self.strategy.name}"
        if getattr(self.strategy, "encoder", "none") is None:
            yield f"strategy {self.strategy.name} without an encoder of its own"
        for name in ("packing", "compiled"):
            if getattr(self.training, name):
                yield f"training.{name}"

    def warnings(self) -> Iterator[str]:
        """Yield a sentence for each dataset that is used twice, as dev data and for training or testing."""
        consequences = {"train": "it is trained on", "test": "test scores would be too good"}
        for name, source in self.dev.items():
            for section, consequence in consequences.items():
                for other, same in getattr(self, section).items():
                    if type(source) is type(same) and source.location == same.location:
                        yield f"dev.{name} is the same data as {section}.{other}: {consequence}"


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the keys that only one of two mappings has, or that have other values."""
    return [key for key in {**before, **now} if (key in before, before.get(key)) != (key in now, now.get(key))]


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by dotted key."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {prefix + key: value}
    return found

"""Samplers beside Inf-DDS: what a recipe may say of each. Defaults are those of the strategies' own constructors."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from mixfluence.config.parts import Bounds, InitialSection, ProbeSection, Temperature
from mixfluence.schema import LARGEST, Count, PathLike, Positive, Section, Share

Part = Annotated[float, Field(ge=0, lt=1)]
Rows = Annotated[int, Field(ge=2)]
UNIFORM, PROPORTIONAL = InitialSection(temperature=math.inf), InitialSection(temperature=1.0)


class StaticSection(Bounds):
    """Sampling that never changes: where it is, and the bounds it keeps."""

    name: Literal["static"] = "static"
    init: InitialSection = PROPORTIONAL


class CooldownSection(Bounds):
    """A high temperature first, a low one from `switch` on."""

    name: Literal["cooldown"]
    hot: Temperature = 5.0
    cold: Temperature = 1.0
    shape: Literal["step", "linear"] = "step"
    switch: Annotated[float, Field(gt=0, le=1)] = 0.5


class TargetOnlySection(Section):
    """Only the training sets that are named like a dev set."""

    name: Literal["target-only"]
    init: InitialSection = UNIFORM
    max_epochs: Positive | None = None


class ReplaySection(Section):
    """The weights another run ended with, or had on average."""

    name: Literal["replay"]
    run: PathLike
    which: Literal["final", "average"] = "average"
    max_epochs: Positive | None = None


class AlignmentSection(Section):
    """How gradients are compared; see `mixfluence.influence.Alignment`."""

    preconditioned: bool = False
    lookahead: bool = False
    batch_size: Rows | None = None
    dev_batch_size: Rows = 256
    metric: Literal["info-nce", "info-nce-hard", "soft-ndcg", "distillation", "training-loss"] = "info-nce"


class MultiDDSSection(Bounds):
    """Sampling by the cosine of training and dev gradients."""

    name: Literal["multidds"]
    init: InitialSection = PROPORTIONAL
    update_every: Count = 50
    warmup_steps: Annotated[int, Field(ge=0)] = 25
    alignment: AlignmentSection = AlignmentSection()
    rate: Positive = 1e-3
    iterations: Count = 200
    freeze_below: Share = 0.0


class DoGESection(Section):
    """A proxy run that looks for the mixture by gradients, then a run with it. Stages are as long as the last one."""

    name: Literal["doge"]
    init: InitialSection = UNIFORM
    rounds: Annotated[int, Field(ge=1, le=2)] = 1
    proxy_steps: Count | None = None
    update_every: Count = 10
    step: Positive = 0.1
    clip: Positive = 5.0
    smoothing: Part = 1e-3
    alignment: AlignmentSection = AlignmentSection()
    max_epochs: Positive | None = None


class GroupDROSection(Section):
    """A reference run, a proxy run that is compared with it, then a run with what it found."""

    init: InitialSection = PROPORTIONAL
    reference_steps: Count | None = None
    proxy_steps: Count | None = None
    rate: Positive = 0.02
    max_epochs: Positive | None = None


class DoReMiSection(GroupDROSection):
    """By the worst excess loss."""

    name: Literal["doremi"]
    smoothing: Part = 1e-3


class TDROSection(GroupDROSection):
    """By the ratio of losses over a query's own negatives."""

    name: Literal["tdro"]
    keep: Annotated[float, Field(gt=0, le=1)] | None = None


class AioliSection(Section):
    """Influences measured on the way, without going back."""

    name: Literal["aioli"]
    init: InitialSection = UNIFORM
    update_every: Count = 100
    warmup_steps: Annotated[int, Field(ge=0)] = 25
    block_steps: Count = 4
    focus: Annotated[float, Field(gt=0, le=1)] = 1.0
    step: Positive = 0.3
    memory: Part | None = None
    probe: ProbeSection = ProbeSection()
    freeze_below: Share = 0.1
    floor: Share = 0.0


class CrispSection(Section):
    """Clusters of the pool, drawn as often as the dev sets fall into them."""

    name: Literal["crisp"]
    encoder: str = "minilm"
    levels: Annotated[int, Field(ge=1, le=3)] = 1
    branching: Annotated[int, Field(ge=2)] = 32
    per: Literal["pool", "dataset"] = "pool"
    texts: Literal["both", "query", "passage"] = "both"
    smoothing: Annotated[float, Field(ge=0, le=LARGEST)] = 0.0
    max_epochs: Positive | None = None

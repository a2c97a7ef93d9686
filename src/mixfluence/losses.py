"""The losses of recipes by their names. What computes them is in `mixfluence.training.losses`, which needs torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, SerializeAsAny, model_validator

from mixfluence.schema import Count, NonNegative, Positive, Section, registered

if TYPE_CHECKING:
    from sentence_transformers.base.model import BaseModel
    from torch import nn

    from mixfluence.training.losses import LossSettings

DENSE, SPARSE, MULTI_VECTOR, RERANKER = "dense", "sparse", "multi-vector", "reranker"


class MatryoshkaSection(Section):
    """Trains the first dimensions of an embedding to be embeddings themselves: the loss is summed over `dims`.

    Attributes:
        dims: Numbers of dimensions. Include that of the model.
        weights: The weight of each; 1 if null.
    """

    dims: Annotated[list[Count], Field(min_length=1)]
    weights: list[Positive] | None = None

    @model_validator(mode="after")
    def _one_weight_each(self) -> Self:
        if self.weights is not None and len(self.weights) != len(self.dims):
            raise ValueError(f"weights: expected {len(self.dims)}, one for each of dims, found {len(self.weights)}")
        return self


class FlopsSection(Section):
    """Weights of SPLADE's regularisation, which keeps vectors sparse; they rise over the first third of the steps.

    Attributes:
        query: Weight for queries.
        passage: Weight for passages.
    """

    query: NonNegative = 5e-5
    passage: NonNegative = 3e-5


class LossSection(Section):
    """A loss. A new one is a subclass with a literal `name` and a line in `LOSSES`.

    `training.temperature` divides the scores of the model in every loss.

    Attributes:
        name: The word for it.
        kinds: The kinds of models that it is for.
        cached: The kinds of models for which `training.mini_batch_size` works.
        matryoshka: Also train the first dimensions of the embeddings, for dense encoders.
        flops: Weights of the regularisation of sparse encoders, which have it with every loss; null for the defaults.
    """

    kinds: ClassVar[tuple[str, ...]] = (DENSE,)
    cached: ClassVar[tuple[str, ...]] = (DENSE,)
    name: str
    matryoshka: MatryoshkaSection | None = None
    flops: FlopsSection | None = None

    @abstractmethod
    def build(self, model: BaseModel, settings: LossSettings) -> nn.Module:
        """Return the loss without `matryoshka` and regularisation."""

    def problems(self, kind: str, *, mini_batches: bool) -> Iterator[str]:
        """Yield what does not fit a kind of model, or mini-batches."""
        if kind not in self.kinds:
            known = ", ".join(word for word, loss in LOSSES.items() if kind in loss.kinds)
            yield f"{self.name} is not for {kind} models; expected one of {known}"
        elif mini_batches and kind not in self.cached:
            yield f"{self.name} does not work with training.mini_batch_size on {kind} models"
        if self.matryoshka and kind != DENSE:
            yield f"matryoshka needs a dense encoder, found {kind}"
        if self.flops and kind != SPARSE:
            yield f"flops needs a sparse encoder, found {kind}"


class InfoNCELoss(LossSection):
    """InfoNCE with in-batch and hard negatives. With `training.mini_batch_size` it is the cached form (GradCache)."""

    kinds = cached = DENSE, SPARSE, MULTI_VECTOR, RERANKER
    name: Literal["info-nce"] = "info-nce"

    def build(self, model: BaseModel, settings: LossSettings) -> nn.Module:
        from mixfluence.training.losses import info_nce

        return info_nce(model, **settings._asdict())


class M3KDLoss(LossSection):
    """InfoNCE with distillation from a teacher's scores, as BGE-M3 is trained; rows without scores use InfoNCE."""

    name: Literal["m3-kd"] = "m3-kd"

    def build(self, model: BaseModel, settings: LossSettings) -> nn.Module:
        from mixfluence.training.m3_kd import M3Distillation

        return M3Distillation(model, **settings._asdict())


class GistLoss(LossSection):
    """InfoNCE without the negatives that a guide model finds as similar as the positive (GISTEmbed).

    Prefer it where batches contain unlabelled answers. A step also encodes the batch with the guide. Sequences are
    padded, and rows have at most one hard negative unless `training.mini_batch_size` is set.

    Attributes:
        guide: The guide: a dense encoder by name or folder, as in `model.name`.
        margin: A negative is ignored if the guide's similarity exceeds that of the positive minus this.
    """

    name: Literal["gist"] = "gist"
    guide: str
    margin: NonNegative = 0.0

    def build(self, model: BaseModel, settings: LossSettings) -> nn.Module:
        from mixfluence.training.losses import gist

        return gist(model, self.guide, self.margin, settings)


class MarginMSELoss(LossSection):
    """Squared error of the score margins between positive and hard negatives, against those of a teacher.

    Every row needs a hard negative and a teacher's score for each passage. There are no in-batch negatives.
    """

    kinds = DENSE, SPARSE, MULTI_VECTOR, RERANKER
    cached = SPARSE, MULTI_VECTOR
    name: Literal["margin-mse"] = "margin-mse"

    def build(self, model: BaseModel, settings: LossSettings) -> nn.Module:
        from mixfluence.training.losses import MARGIN_MSE, taught

        return taught(MARGIN_MSE, model, settings)


class DistillKLLoss(LossSection):
    """KL divergence from a teacher's distribution over a row's passages; needs what `margin-mse` needs.

    Prefer it if the teacher's scores have another scale than the model's.
    """

    kinds = DENSE, SPARSE, MULTI_VECTOR
    cached = SPARSE, MULTI_VECTOR
    name: Literal["distill-kl"] = "distill-kl"

    def build(self, model: BaseModel, settings: LossSettings) -> nn.Module:
        from mixfluence.training.losses import DISTILL_KL, taught

        return taught(DISTILL_KL, model, settings, temperature=1.0)


LOSSES: dict[str, type[LossSection]] = {
    "info-nce": InfoNCELoss,
    "m3-kd": M3KDLoss,
    "gist": GistLoss,
    "margin-mse": MarginMSELoss,
    "distill-kl": DistillKLLoss,
}
Loss = Annotated[SerializeAsAny[LossSection], registered(LOSSES, default="info-nce")]

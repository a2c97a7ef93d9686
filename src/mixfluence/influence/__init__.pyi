from .influences import Influences
from .learner import Learner, Meter, refuse_without_moments
from .metrics import (
    METRICS,
    DevBatch,
    Metric,
    Piece,
    distillation_metric,
    embed_columns,
    info_nce_metric,
    loss_metric,
    packed,
    resolve_metric,
    soft_ndcg_metric,
)
from .probe import Prober, relative_rate
from .settings import Aggregate, Alignment, Measurement, Probe, Probing, Projection, Reptile

__all__ = [
    "METRICS",
    "Aggregate",
    "Alignment",
    "DevBatch",
    "Influences",
    "Learner",
    "Measurement",
    "Meter",
    "Metric",
    "Piece",
    "Probe",
    "Prober",
    "Probing",
    "Projection",
    "Reptile",
    "distillation_metric",
    "embed_columns",
    "info_nce_metric",
    "loss_metric",
    "packed",
    "refuse_without_moments",
    "relative_rate",
    "resolve_metric",
    "soft_ndcg_metric",
]

from .influences import Influences
from .metrics import (
    METRICS,
    Metric,
    distillation_metric,
    info_nce_metric,
    loss_metric,
    resolve_metric,
    soft_ndcg_metric,
)
from .probe import Prober, relative_rate
from .scoring import DevBatch, Piece, embed_columns, packed
from .settings import (
    Aggregate,
    Alignment,
    Learner,
    Measurement,
    Meter,
    Probe,
    Probing,
    Projection,
    Reptile,
    RoundCost,
    refuse_without_moments,
)

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
    "RoundCost",
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

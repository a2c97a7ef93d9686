from .columns import embed_columns, packed
from .influences import Influences
from .learner import Learner, Meter
from .metrics import (
    METRICS,
    DevBatch,
    Metric,
    Piece,
    distillation_metric,
    info_nce_metric,
    loss_metric,
    resolve_metric,
    soft_ndcg_metric,
)
from .probe import Prober, relative_rate
from .settings import Aggregate, Alignment, Measurement, Probe, Probing, Projection, Reptile
from .steps import refuse_without_moments

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

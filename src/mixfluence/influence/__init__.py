"""What is a dataset worth now: probes that train on it, look at the dev sets and go back."""

from mixfluence.influence.alignment import Alignment
from mixfluence.influence.columns import embed_columns, packed
from mixfluence.influence.influences import Influences
from mixfluence.influence.learner import Learner, Measurement, Meter
from mixfluence.influence.metrics import (
    DevBatch,
    Metric,
    Piece,
    distillation_metric,
    info_nce_metric,
    loss_metric,
    soft_ndcg_metric,
)
from mixfluence.influence.probe import Probe, Prober, relative_rate
from mixfluence.influence.reptile import Reptile
from mixfluence.influence.steps import refuse_without_moments

__all__ = [
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
    "Reptile",
    "distillation_metric",
    "embed_columns",
    "info_nce_metric",
    "loss_metric",
    "packed",
    "refuse_without_moments",
    "relative_rate",
    "soft_ndcg_metric",
]

"""Influence of datasets on the dev sets: probes, gradient alignment, metrics and Reptile."""

from mixfluence.influence.alignment import Alignment
from mixfluence.influence.influences import Influences
from mixfluence.influence.learner import Learner, Measurement, Meter, refuse_without_moments
from mixfluence.influence.metrics import (
    DevBatch,
    Metric,
    Piece,
    distillation_metric,
    embed_columns,
    info_nce_metric,
    loss_metric,
    packed,
    soft_ndcg_metric,
)
from mixfluence.influence.probe import Probe, Prober, relative_rate
from mixfluence.influence.reptile import Reptile

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

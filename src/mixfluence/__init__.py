"""Choose, while training, which dataset the next batch comes from."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixfluence.data.mixture import Mixture
    from mixfluence.encoders import load_encoder
    from mixfluence.errors import MixfluenceError
    from mixfluence.evaluation import evaluate
    from mixfluence.influence import Metric, Probe, Reptile, distillation_metric, info_nce_metric, soft_ndcg_metric
    from mixfluence.policy import UNIFORM, Anchored, Matching, Mirror, PolicyGradient, Temperature, Weights
    from mixfluence.strategies import InfDDS, Static, Strategy
    from mixfluence.training.losses import info_nce
    from mixfluence.training.trainer import MixtureTrainer

__all__ = [
    "UNIFORM",
    "Anchored",
    "InfDDS",
    "Matching",
    "Metric",
    "Mirror",
    "MixfluenceError",
    "Mixture",
    "MixtureTrainer",
    "PolicyGradient",
    "Probe",
    "Reptile",
    "Static",
    "Strategy",
    "Temperature",
    "Weights",
    "distillation_metric",
    "evaluate",
    "info_nce",
    "info_nce_metric",
    "load_encoder",
    "soft_ndcg_metric",
]

_HOMES = {
    "UNIFORM": "policy",
    "Anchored": "policy",
    "InfDDS": "strategies",
    "Matching": "policy",
    "Metric": "influence",
    "Mirror": "policy",
    "MixfluenceError": "errors",
    "Mixture": "data.mixture",
    "MixtureTrainer": "training.trainer",
    "PolicyGradient": "policy",
    "Probe": "influence",
    "Reptile": "influence",
    "Static": "strategies",
    "Strategy": "strategies",
    "Temperature": "policy",
    "Weights": "policy",
    "distillation_metric": "influence",
    "evaluate": "evaluation",
    "info_nce": "training.losses",
    "info_nce_metric": "influence",
    "load_encoder": "encoders",
    "soft_ndcg_metric": "influence",
}


def __getattr__(name: str) -> Any:
    """Import public names when they are used: the command line must start without loading torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

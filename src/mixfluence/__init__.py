"""Choose, while training, which dataset the next batch comes from."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixfluence.clustering import partition
    from mixfluence.data.mixture import Mixture
    from mixfluence.encoders import load_encoder
    from mixfluence.errors import MixfluenceError
    from mixfluence.evaluation.retrieval import evaluate
    from mixfluence.influence import (
        Alignment,
        Metric,
        Probe,
        Reptile,
        distillation_metric,
        info_nce_metric,
        soft_ndcg_metric,
    )
    from mixfluence.policy import UNIFORM, Anchored, Matching, Mirror, PolicyGradient, Temperature, Weights
    from mixfluence.strategies import (
        CRISP,
        TDRO,
        Aioli,
        Cooldown,
        DoGE,
        DoReMi,
        InfDDS,
        MultiDDS,
        Replay,
        Static,
        Strategy,
        TargetOnly,
    )
    from mixfluence.training.group_dro import group_losses
    from mixfluence.training.losses import info_nce
    from mixfluence.training.trainer import MixtureTrainer

__all__ = [
    "CRISP",
    "TDRO",
    "UNIFORM",
    "Aioli",
    "Alignment",
    "Anchored",
    "Cooldown",
    "DoGE",
    "DoReMi",
    "InfDDS",
    "Matching",
    "Metric",
    "Mirror",
    "MixfluenceError",
    "Mixture",
    "MixtureTrainer",
    "MultiDDS",
    "PolicyGradient",
    "Probe",
    "Replay",
    "Reptile",
    "Static",
    "Strategy",
    "TargetOnly",
    "Temperature",
    "Weights",
    "distillation_metric",
    "evaluate",
    "group_losses",
    "info_nce",
    "info_nce_metric",
    "load_encoder",
    "partition",
    "soft_ndcg_metric",
]

_HOMES = {
    "CRISP": "strategies",
    "TDRO": "strategies",
    "Aioli": "strategies",
    "Alignment": "influence",
    "Cooldown": "strategies",
    "DoGE": "strategies",
    "DoReMi": "strategies",
    "MultiDDS": "strategies",
    "Replay": "strategies",
    "TargetOnly": "strategies",
    "group_losses": "training.group_dro",
    "partition": "clustering",
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
    "evaluate": "evaluation.retrieval",
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

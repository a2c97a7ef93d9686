"""Choose, while training, which dataset the next batch comes from."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixfluence.data.mixture import Mixture
    from mixfluence.encoders import load_encoder
    from mixfluence.errors import MixfluenceError
    from mixfluence.evaluation import evaluate
    from mixfluence.policy import UNIFORM, Temperature, Weights
    from mixfluence.strategies import Static, Strategy
    from mixfluence.training.losses import info_nce
    from mixfluence.training.trainer import MixtureTrainer

__all__ = [
    "UNIFORM",
    "MixfluenceError",
    "Mixture",
    "MixtureTrainer",
    "Static",
    "Strategy",
    "Temperature",
    "Weights",
    "evaluate",
    "info_nce",
    "load_encoder",
]

_HOMES = {
    "UNIFORM": "policy",
    "Mixture": "data.mixture",
    "MixfluenceError": "errors",
    "MixtureTrainer": "training.trainer",
    "Static": "strategies",
    "Strategy": "strategies",
    "Temperature": "policy",
    "Weights": "policy",
    "evaluate": "evaluation",
    "info_nce": "training.losses",
    "load_encoder": "encoders",
}


def __getattr__(name: str) -> Any:
    """Import public names when they are used: the command line must start without loading torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

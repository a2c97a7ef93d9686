"""Which dataset next: one small module per method."""

from mixfluence.strategies.base import Strategy
from mixfluence.strategies.inf_dds import InfDDS
from mixfluence.strategies.static import Static

STRATEGIES: dict[str, type[Strategy]] = {"static": Static, "inf-dds": InfDDS}

__all__ = ["STRATEGIES", "InfDDS", "Static", "Strategy"]

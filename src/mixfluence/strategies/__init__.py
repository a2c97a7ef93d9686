"""Which dataset next: one small module per method."""

from mixfluence.strategies.base import Strategy
from mixfluence.strategies.static import Static

STRATEGIES: dict[str, type[Strategy]] = {"static": Static}

__all__ = ["STRATEGIES", "Static", "Strategy"]

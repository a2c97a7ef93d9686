"""What a run cost and what it ran on."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from time import perf_counter

PACKAGES = ("mixfluence", "sentence-transformers", "transformers", "accelerate", "datasets", "torch", "numpy")


class Stopwatch:
    """Adds up seconds by part: `with watch("train"): ...`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Count the time of a block towards a part."""
        started = perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + perf_counter() - started


def versions() -> dict[str, str]:
    """Return the versions that decide a result."""
    return {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}}

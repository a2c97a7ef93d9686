"""Tests. A template is compiled once: the library would do so for the card of every saved model, in 0.2 s."""

from __future__ import annotations

from functools import lru_cache

from jinja2 import Environment

Environment.compile = lru_cache(Environment.compile)  # type: ignore[method-assign, assignment]

"""Figures of the compilations of this process, while `config.log_compilation_metrics` is on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from bolide.support.caches import on_reset


@dataclass(frozen=True, slots=True)
class CompilationMetrics:
    """One compilation of a segment: `version` counts from 0; times in seconds. `failure` is the reason why there is no
    compiled version, else None; then `operations` and `guards` are 0 where it failed before they were known.
    """

    name: str
    version: int
    operations: int
    guards: int
    capture_seconds: float
    seconds: float
    failure: str | None = None


compilation_metrics: deque[CompilationMetrics] = deque(maxlen=1000)
"""The newest ones, oldest first."""


def get_compilation_metrics() -> list[CompilationMetrics]:
    """A copy of what is kept."""
    return list(compilation_metrics)


@on_reset
def clear() -> None:
    """Forget all figures."""
    compilation_metrics.clear()

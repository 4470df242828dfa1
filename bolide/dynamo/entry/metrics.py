"""Figures of the compilations of this process, while `config.log_compilation_metrics` is on."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from operator import attrgetter

from bolide.support.caches import on_reset
from bolide.support.errors import UserFrame


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
    place: UserFrame | None = None
    fail_type: str | None = None
    fail_place: UserFrame | None = None
    graph_input_count: int = 0
    end_time: float = field(default_factory=time.time)

    # The same by PyTorch's names.

    co_name = property(attrgetter("name"), doc="The name of the function.")
    cache_size = property(attrgetter("version"), doc="How many versions there were before.")
    guard_count = property(attrgetter("guards"), doc="How many guards are checked.")
    graph_op_count = property(attrgetter("operations"), doc="How many operations were recorded.")
    entire_frame_compile_time_s = property(attrgetter("seconds"), doc="Seconds for all.")
    fail_reason = property(attrgetter("failure"), doc="Why there is no compiled version.")

    @property
    def frame_key(self) -> str:
        """What all versions of one function share."""
        return f"{self.co_filename}:{self.co_firstlineno} {self.name}"

    @property
    def compile_id(self) -> str:
        """The function and the version."""
        return f"{self.frame_key}/{self.version}"

    @property
    def start_time(self) -> float:
        """When it began, in seconds since the epoch."""
        return self.end_time - self.seconds

    @property
    def co_filename(self) -> str | None:
        """Its file."""
        return None if self.place is None else self.place.file

    @property
    def co_firstlineno(self) -> int | None:
        """Its line."""
        return None if self.place is None else self.place.line

    @property
    def graph_node_count(self) -> int:
        """As `graph_op_count`: a graph here is operations and their inputs."""
        return self.operations

    @property
    def has_guarded_code(self) -> bool:
        """Whether there is a compiled version."""
        return self.failure is None

    @property
    def fail_user_frame_filename(self) -> str | None:
        """The file of the line that failed."""
        return None if self.fail_place is None else self.fail_place.file

    @property
    def fail_user_frame_lineno(self) -> int | None:
        """The line that failed."""
        return None if self.fail_place is None else self.fail_place.line

    @property
    def backend_compile_time_s(self) -> float:
        """Seconds behind capture."""
        return self.seconds - self.capture_seconds


compilation_metrics: deque[CompilationMetrics] = deque(maxlen=1000)
"""The newest ones, oldest first."""


def get_compilation_metrics() -> list[CompilationMetrics]:
    """A copy of what is kept."""
    return list(compilation_metrics)


on_reset(compilation_metrics.clear)

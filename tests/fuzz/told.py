"""What bolide says while it serves calls, and what is compared of strides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from bolide.support import events


@dataclass
class Told:
    """What bolide said while it served calls."""

    installed: list[Any] = field(default_factory=list)
    failed: list[Any] = field(default_factory=list)
    fixed: list[Any] = field(default_factory=list)
    breaks: list[Any] = field(default_factory=list)
    fallbacks: list[Any] = field(default_factory=list)

    def hear(self, event: Any) -> None:
        """Sort an event."""
        kinds = {
            events.Installed: self.installed,
            events.GuardFailed: self.failed,
            events.Specialised: self.fixed,
            events.Break: self.breaks,
            events.Fallback: self.fallbacks,
        }
        if type(event) in kinds:
            kinds[type(event)].append(event)


def strides(tensor: torch.Tensor) -> list[int]:
    """The strides that mean something."""
    return [s for s, size in zip(tensor.stride(), tensor.shape) if size > 1] if tensor.numel() else []

"""Memory for the intermediate buffers of a call: one arena, lent for the length of the call."""

from __future__ import annotations

import torch

ALIGNMENT = 64


class Pool:
    """Keeps one spare arena between calls, the largest one seen: calls that run at the same time (threads, nested
    graphs) each get their own."""

    def __init__(self) -> None:
        self._spare: list[torch.Tensor] = []

    def take(self, nbytes: int) -> torch.Tensor:
        """An arena of at least `nbytes` bytes (uint8, one dimension)."""
        try:
            arena = self._spare.pop()
        except IndexError:
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        if arena.numel() < nbytes:
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        return arena

    def give(self, arena: torch.Tensor) -> None:
        """Takes an arena back. Nobody may use its memory any more."""
        if not self._spare or self._spare[0].numel() < arena.numel():
            self._spare[:] = [arena]

    def release(self) -> None:
        """Gives the spare memory back to torch."""
        self._spare.clear()


POOL = Pool()

"""Random decisions of a program that can be captured with it."""

from __future__ import annotations

from typing import Any


class Choices:
    """Draws that are the program's own arithmetic, so that they are captured: the same ones in each call."""

    def __init__(self, seed: int) -> None:
        self.state = seed % 2147483647 or 1

    def below(self, limit: int) -> int:
        self.state = self.state * 48271 % 2147483647
        return self.state // 7 % limit

    def choice(self, options: Any) -> Any:
        return options[self.below(len(options))]

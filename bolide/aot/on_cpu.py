"""What a library for the CPU does where one for a GPU has to do something (`on_gpu`), in the subset of Python that
`support.native.translate` makes machine code of."""

from __future__ import annotations


def ready(control: int) -> bool:
    """There is nothing to load."""
    return True


def enter(control: int, stream: int, place: int) -> bool:
    """There are no streams."""
    return True


def leave(place: int) -> int:
    """There are no streams."""
    return 0

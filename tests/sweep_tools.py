"""Random tests as programs of their own: `python FILE COUNT [SEED] …`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable


def by_hand(wrong: Callable[[int], str | None]) -> None:
    """Prints what is wrong with each of COUNT seeds, from SEED (or 0) on, and how many they are. What bolide warns of
    is not shown; an exception is a fault."""
    warnings.simplefilter("ignore")
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    faults = 0
    for seed in range(first, first + count):
        try:
            fault = wrong(seed)
        except Exception as error:
            fault = f"seed {seed}: {type(error).__name__}: {error}"
        if fault:
            faults += 1
            print(fault, flush=True)
    print(f"{faults} of {count} differ")

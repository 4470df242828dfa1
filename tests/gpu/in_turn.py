"""Checks of a device that are run by hand, each in turn, by a script that says what they are of."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import torch

import bolide

Check = Callable[[], object]
"""Raises where something is wrong; gives what there is to say."""
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Marks a function of the script as a check."""
    CHECKS.append(function)
    return function


def run() -> int:
    """Prints a line for each check, and how many failed; 1 if one did."""
    failed = 0
    for function in CHECKS:
        bolide.reset()
        torch.manual_seed(0)
        try:
            said = function() or ""
            for index in range(torch.cuda.device_count()):
                torch.cuda.synchronize(index)
            print(f"ok      {function.__name__.replace('_', ' ')} {said}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {function.__name__.replace('_', ' ')}\n{traceback.format_exc()}", flush=True)
    print(f"{failed} of {len(CHECKS)} checks failed")
    return int(failed > 0)

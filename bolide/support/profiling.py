"""A profile of each compilation, for `bolide.dynamo.config.cprofile`."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
from collections.abc import Iterator

_numbers = itertools.count()


@contextlib.contextmanager
def profiled(target: bool | str, name: str) -> Iterator[None]:
    """Profile the block if `target` is set: True prints the 30 functions that took most to standard error, a string is
    the directory that receives ``<name>_<number>.prof`` (for snakeviz and the like). One profile at a time: inner
    blocks are part of the outer one.
    """
    if not target or sys.getprofile() is not None:
        yield
        return
    import cProfile
    import pstats

    profile = cProfile.Profile()
    profile.enable()
    try:
        yield
    finally:
        profile.disable()
        if isinstance(target, str):
            os.makedirs(target, exist_ok=True)
            plain = re.sub(r"\W+", "_", name)
            profile.dump_stats(os.path.join(target, f"{plain}_{os.getpid()}_{next(_numbers)}.prof"))
        else:
            pstats.Stats(profile, stream=sys.stderr).sort_stats("cumulative").print_stats(30)

"""Names of the loggers. ``BOLIDE_LOGS="dynamo,inductor"`` (or ``all``) prints what they say at debug level to standard
error.
"""

from __future__ import annotations

import logging
import os

NAMES = ("dynamo", "tracing", "functorch", "inductor")


def logger(name: str) -> logging.Logger:
    """The logger ``bolide.<name>``."""
    return logging.getLogger(f"bolide.{name}")


def configure(names: str = os.environ.get("BOLIDE_LOGS", "")) -> None:
    """Print the debug output of the comma-separated `names`."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
    for name in NAMES if "all" in wanted else wanted:
        logger(name).addHandler(handler)
        logger(name).setLevel(logging.DEBUG)

"""Loggers: ``bolide.<stage>`` for what a stage says, ``bolide.artifacts.<name>`` for one kind of thing from all stages.
`set_logs` (or the environment variable ``BOLIDE_LOGS``) switches them on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from bolide.support.errors import unknown_name

STAGES = ("dynamo", "tracing", "functorch", "inductor")

ARTIFACTS = {
    "graph_breaks": "what runs in eager between segments or instead of a function, and why",
    "recompiles": "which guard failed, the old and new value, and how to avoid it",
    "guards": "the assumptions of each compiled version",
    "graph_code": "the graphs that backends get",
    "cudagraphs": "why graphs are not recorded as CUDA graphs",
    "entry_code": "the generated Python of each compiled version",
    "kernels": "the generated kernels as loops, and what was not fused",
    "dynamic": "sizes and numbers that were fixed, and why",
    "perf": "seconds by stage",
    "cache": "what was found among what is kept, and why the rest was not",
    "compiled_autograd": "the graphs of backward passes that are captured from the engine",
    "compiled_autograd_verbose": "the same, and why a backward pass is captured again",
}

_FORMAT = "[%(asctime)s %(name)s] %(message)s"


def logger(name: str) -> logging.Logger:
    """The logger ``bolide.<name>``."""
    return logging.getLogger(f"bolide.{name}")


def artifact(name: str) -> logging.Logger:
    """The logger of an artifact."""
    return logger(f"artifacts.{name}")


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]
    """Standard error; a class of its own, so that it is known again."""


def apply(levels: Mapping[str, Any], path: str | None) -> None:
    """Set the level of every logger: a logging level or True (everything) for names in `levels`, quiet for others.
    Records go to standard error and, if given, to the file `path`.

    Raises ValueError for an unknown name, with the nearest ones.
    """
    known = (*STAGES, *ARTIFACTS)
    for name in levels:
        if name not in known:
            raise ValueError(unknown_name("log", name, known))
    root = logging.getLogger("bolide")
    for old in [h for h in root.handlers if isinstance(h, (_Handler, logging.FileHandler))]:
        root.removeHandler(old)
        old.close()
    for name in known:
        level = levels.get(name, False)
        chosen = logging.DEBUG if level is True else logging.NOTSET if level is False else level
        (artifact(name) if name in ARTIFACTS else logger(name)).setLevel(chosen)
    if not levels:
        return
    new: list[logging.Handler] = [_Handler(), *([logging.FileHandler(path)] if path else [])]
    for handler in new:
        handler.setFormatter(logging.Formatter(_FORMAT))
        root.addHandler(handler)


def parse(text: str) -> dict[str, Any]:
    """The levels that ``BOLIDE_LOGS`` stands for: names separated by commas, ``+name`` for debug output, ``-name`` for
    errors only, ``all``.

    >>> parse("+dynamo,recompiles")
    {'dynamo': 10, 'recompiles': True}
    """
    levels: dict[str, object] = {}
    for word in filter(None, map(str.strip, text.split(","))):
        name = word.lstrip("+-")
        level: object = logging.DEBUG if word[0] == "+" else logging.ERROR if word[0] == "-" else logging.INFO
        for each in (*STAGES, *ARTIFACTS) if name == "all" else (name,):
            levels[each] = True if each in ARTIFACTS else level
    return levels

"""`set_logs`: what the compiler tells about its work, through Python's logging; and as a file of JSON lines."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from torch import fx

from bolide.debug.explain import compiled_info
from bolide.dynamo.config import config
from bolide.inductor import CompiledGraph
from bolide.support import events, log
from bolide.support.errors import UserFrame, describe


def set_logs(all: bool | int | None = None, **levels: bool | int) -> None:
    """Switch logs on; every call replaces what earlier ones set.

    Names of stages (``dynamo``, ``tracing``, ``functorch``, ``inductor``) take a level of Python's logging; names of
    artifacts (``graph_breaks``, ``recompiles``, ``guards``, ``graph_code``, ``entry_code``, ``kernels``, ``dynamic``,
    ``perf``, ``cache``, ``cudagraphs``, ``compiled_autograd``, ``compiled_autograd_verbose``) take True. `all` stands
    for all names. Records go to standard error, and to the file `bolide.dynamo.config.log_file_name`.

    Raises ValueError for an unknown name, with the nearest ones.
    """
    chosen = dict.fromkeys((*log.STAGES, *log.ARTIFACTS), all) if all else {}
    chosen.update(levels)
    chosen = {name: level for name, level in chosen.items() if level is not None and level is not False}
    log.apply(chosen, config.log_file_name)
    if _speak in events.subscribers:
        events.subscribers.remove(_speak)
    wanted = {name for name in chosen if name in log.ARTIFACTS}
    if wanted:
        events.subscribers.append(_speak)
    events.passive[:] = [_speak] if wanted <= _PASSIVE else []


_PASSIVE = {"cache", "perf"}
"""What is told of a call whose entry another process has made, as of any other."""


def configure(environment: dict[str, str]) -> None:
    """What the environment asks for: ``BOLIDE_LOGS`` (see `log.parse`) and ``BOLIDE_TRACE`` (see `write_trace`)."""
    if environment.get("BOLIDE_LOGS"):
        set_logs(**log.parse(environment["BOLIDE_LOGS"]))
    if environment.get("BOLIDE_TRACE"):
        write_trace(environment["BOLIDE_TRACE"])


# ---- texts -----------------------------------------------------------------------------------------------------------


def _speak(event: events.Event) -> None:
    for name, text in _TEXTS.get(type(event), ()):
        logger = log.artifact(name)
        if logger.isEnabledFor(logging.DEBUG):
            said = text(event)
            if said:
                logger.debug("%s", said)


def _break(e: events.Break) -> str:
    again = "" if e.seconds is None else f" (capturing again took {e.seconds * 1e3:.1f} ms)"
    return describe(f"{e.name} breaks{again}", e.kind, e.reason, e.operation, e.where, e.remedy)


def _fallback(e: events.Fallback) -> str:
    return describe(f"{e.name} runs in eager", e.kind, e.reason, None, e.where, e.remedy)


def _recompile(e: events.GuardFailed) -> str:
    lines = [f"{e.name} is compiled again: version {e.index} assumed {e.guard}, found {e.actual}"]
    if e.where is not None:
        lines += [f"  read at: {e.where}", *([f"    {e.where.text}"] if e.where.text else [])]
    return "\n".join([*lines, *([f"  remedy: {e.remedy}"] if e.remedy else [])])


def _guards(e: events.Captured) -> str:
    return "\n".join([f"{e.name} assumes:", *(f"  {guard}" for guard in e.guards)])


def _graph(e: events.Graph) -> str:
    return f"{e.name}, {e.kind} graph:\n{e.graph.code.strip()}" if isinstance(e.graph, fx.GraphModule) else ""


def _backward(e: events.BackwardCaptured) -> str:
    code = e.graph.print_readable(print_output=False).strip() if isinstance(e.graph, fx.GraphModule) else ""
    return f"{e.name}, captured from the engine:\n{code}"


def _kernels(e: events.Compiled) -> str:
    if not isinstance(e.artifact, CompiledGraph):
        return ""
    compiled = compiled_info(e, None, {})
    parts = [f"{e.name}, {e.kind} graph: {len(compiled.kernels)} kernels"]
    parts += [f"{k.loops}\n  from: {', '.join(k.origins)}" for k in compiled.kernels]
    return "\n".join([*parts, *(f"not fused: {reason}" for reason in compiled.refusals)])


def _lookup(e: events.CacheLookup) -> str:
    what = f"{e.kind} of {e.name}" if e.name else e.kind
    return f"{what}: found" if e.hit else f"{what}: not found ({e.reason})"


_TEXTS: dict[type, tuple[tuple[str, Callable[[Any], str]], ...]] = {
    events.Break: (("graph_breaks", _break),),
    events.Fallback: (("graph_breaks", _fallback),),
    events.Skipped: (
        ("graph_breaks", lambda e: f"{e.name}: {e.function} is not captured ({e.reason}), called at {e.where}"),
    ),
    events.GuardFailed: (("recompiles", _recompile),),
    events.Captured: (("guards", _guards), ("perf", lambda e: f"{e.name}: captured in {e.seconds * 1e3:.1f} ms")),
    events.Graph: (("graph_code", _graph),),
    events.BackwardCaptured: (
        ("compiled_autograd", _backward),
        ("compiled_autograd_verbose", lambda e: "\n".join([_backward(e), *e.reasons])),
        ("perf", lambda e: f"{e.name}: captured in {e.seconds * 1e3:.1f} ms"),
    ),
    events.CacheLookup: (("cache", _lookup),),
    events.NotKept: (("cache", lambda e: f"functions of {e.name}: not kept: {e.reason} ({e.where or 'no line'})"),),
    events.NotRecorded: (
        ("cudagraphs", lambda e: f"{e.name}: its {e.kind} graph is not recorded: {e.reason} ({e.where or 'no line'})"),
    ),
    events.Installed: (
        ("entry_code", lambda e: f"{e.name}, version {e.index}:\n{e.source}"),
        ("perf", lambda e: f"{e.name}: version {e.index} in place after {e.seconds * 1e3:.1f} ms"),
    ),
    events.Compiled: (
        ("kernels", _kernels),
        ("perf", lambda e: f"{e.name}: {e.kind} graph compiled in {e.seconds * 1e3:.1f} ms"),
    ),
    events.DataRead: (
        ("dynamic", lambda e: f"{e.name}: {e.source} is read: compared with {e.value} at every call ({e.where})"),
    ),
    events.Specialised: (("dynamic", lambda e: f"{e.name}: {e.source} is fixed at {e.value}: {e.reason} ({e.where})"),),
    events.Stage: (("perf", lambda e: f"{e.name}: {e.stage} took {e.seconds * 1e3:.1f} ms"),),
}


# ---- JSON lines ------------------------------------------------------------------------------------------------------


def write_trace(path: str) -> Callable[[], None]:
    """Append every event to the file `path` as a line of JSON (``event``, ``time`` in seconds since the epoch,
    ``process``, ``thread``, and the event's own fields); if `path` is a directory, to a file of this process in it.

    Returns a function that stops it. Raises OSError when the file cannot be opened.
    """
    if os.path.isdir(path):
        path = os.path.join(path, f"bolide_{os.getpid()}.jsonl")
    file = open(path, "a", encoding="utf-8")  # noqa: SIM115  (it stays open)

    def write(event: events.Event) -> None:
        line = {"event": type(event).__name__, "time": time.time(), "process": os.getpid()}
        line |= {"thread": threading.get_ident()} | plain(event)
        file.write(json.dumps(line) + "\n")
        file.flush()

    def stop() -> None:
        events.subscribers.remove(write)
        file.close()

    events.subscribers.append(write)
    return stop


def plain(event: events.Event) -> dict[str, Any]:
    """The fields of an event that JSON can hold; graphs as their code."""
    values = ((field.name, _plain(getattr(event, field.name))) for field in dataclasses.fields(event))
    return {name: value for name, value in values if value is not None}


def _plain(value: object) -> Any:
    if isinstance(value, (str, int, float)):
        return value
    if isinstance(value, UserFrame):
        return {"file": value.file, "line": value.line, "function": value.function}
    if isinstance(value, fx.GraphModule):
        return value.code.strip()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items() if not isinstance(item, tuple)}
    return None

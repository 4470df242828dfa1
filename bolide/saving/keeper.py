"""Keeps the entries of compiled functions in the cache, and finds them in another process (docs/saved.md).

An *index* is found by the function's name and code and by the environment; it names *records*, newest first. A record
is an entry; its backward is a record of its own, and where the plan of a compiled backward is kept another one.
"""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple

import torch
from torch import fx

from bolide import inductor
from bolide.backends import compile_graph, interpreted
from bolide.dynamo.config import config
from bolide.dynamo.entry.replay import Entry, Runner
from bolide.dynamo.entry.versions import Versions
from bolide.dynamo.guards import asked, texts
from bolide.dynamo.guards.sizes import marks_of
from bolide.dynamo.program.captured import Captured, Guard, Replay
from bolide.dynamo.state import state
from bolide.functorch.aot import Request, backward_of
from bolide.functorch.runtime.program import Compiled, Derivative
from bolide.inductor.compiled_graph import CompiledGraph, load_graph
from bolide.saving import graphs, records
from bolide.saving.contents import CannotSave, Value, content_of
from bolide.saving.environment import calls_marked, environment, unchanged
from bolide.saving.names import Changed
from bolide.saving.points import codes_of, text_of
from bolide.saving.sizes import unpack_sizes
from bolide.saving.values import Reader
from bolide.support import artifacts, events, log
from bolide.support.artifacts import Key
from bolide.support.errors import CompileError, Unsupported, UserFrame

_log = log.logger("cache")
KIND = "functions"
MOST_RECORDS = 16
"""Of one function: as many configurations of a model may share its code."""

Whole = Callable[[fx.GraphModule], Callable[..., object]]


class Keeper:
    """Of one compiled function. `settings`: the arguments of `bolide.compile` that it depends on; `whole`: see
    `functorch.compile_trace`."""

    def __init__(self, root: types.FunctionType, target: object, settings: Mapping[str, object], whole: Whole) -> None:
        self.root, self.target, self.settings, self.whole = root, target, settings, whole
        self.options: dict[str, object] = dict(settings["options"] or {})  # type: ignore[call-overload]
        self.given = False  # whether records were loaded from a file, so that they are looked for with the cache off

    # ---- keeping -----------------------------------------------------------------------------------------------------

    def keep(self, versions: Versions, captured: Captured, guards: Sequence[Guard], replay: Replay) -> None:
        """Keep an entry that was made just now, if it can be."""
        try:
            self._keep(versions, captured, guards, replay)
        except records.Unsavable as error:
            versions.refusals.append((str(error), error.where))
            if events.subscribers:
                events.emit(events.NotKept(versions.name, str(error), error.where))
        except Exception as error:
            _suppressed(versions, error)

    def _keep(self, versions: Versions, captured: Captured, guards: Sequence[Guard], replay: Replay) -> None:
        reason = self._unusual()
        if reason is not None:
            raise records.Unsavable(reason)
        if any(marks_of(leaf) for leaf in captured.trace.leaves):
            raise records.Unsavable("a tensor is marked (mark_dynamic, …)")
        key = self.key(versions)
        met = versions.sizes.captures[-1] if versions.sizes.captures else {}
        head, derivative = records.pack(self.root, captured, guards, replay, met, codes_of(versions.shape))
        digest = artifacts.digest_of(head.decode())
        if derivative:
            artifacts.keep(_part(digest, "derivative", versions.name), derivative)
            assert isinstance(captured.program, Compiled) and captured.program.backward is not None
            captured.program.backward.told = functools.partial(_keep_backward, digest, versions.name)
        record = Key(KIND, {"record": digest}, versions.name)
        artifacts.keep(record, head)
        index = [row for row in self.index(key) if row[0] != record.digest]
        fixed = not captured.sizes
        own = [place for place, row in enumerate(index, 1) if row[0] in versions.kept and row[1] is fixed]
        place = own[-1] if own else 0 if fixed else sum(row[1] for row in index)
        artifacts.keep(key, index_of([*index[:place], (record.digest, fixed), *index[place:]]))
        versions.kept.append(record.digest)

    def refused(self, versions: Versions, error: Unsupported) -> None:
        """Keep that nothing can be captured at a point, so that its instruction is to run for real."""
        try:
            if self._unusual() is None:
                about = json.dumps([error.reason, error.where and astuple(error.where), error.remedy, error.kind])
                artifacts.keep(self._refusal(versions), about.encode())
        except records.Unsavable:
            pass

    def _refusal(self, versions: Versions) -> Key:
        return _part(self.key(versions).digest, "refusal", versions.name)

    def key(self, versions: Versions) -> Key:
        """What the records of the function are found by. Raises Unsavable."""
        function: Value = self.target
        if type(function.__module__) is not str:
            raise records.Unsavable("it belongs to no module", versions.place)
        try:
            names = {
                "module": function.__module__,
                "function": f"{function.__module__}.{function.__qualname__}",
                "code": content_of(self.root),
                "settings": json.dumps(self.settings, sort_keys=True),
                **environment(),
            }
            if versions.shape is not None:
                names["point"] = text_of(versions.shape)
        except (CannotSave, TypeError) as error:  # options that JSON has not
            raise records.Unsavable(str(error), versions.place) from error
        return Key(KIND, names, versions.name)

    def index(self, key: Key) -> list[tuple[str, bool]]:
        """The digests of records, and whether all of their sizes are fixed: those come first. Those of the last process
        come before others, in the order in which it needed them."""
        payload = artifacts.find(key)
        return [] if payload is None else [(str(digest), bool(fixed)) for digest, fixed in json.loads(payload)]

    def _unusual(self) -> str | None:
        """Why nothing is kept or found now."""
        if not (artifacts.is_on() or self.given):
            return "the cache is off (force_disable_caches)"
        if state.backend is not None or state.exporting:
            return "another backend has been asked for"
        if config.verify_correctness or config.repro_after is not None or config.replay_record_enabled:
            return "compilations are checked or recorded"
        return None

    # ---- finding -----------------------------------------------------------------------------------------------------

    def find(self, versions: Versions, args: tuple[object, ...], kwargs: dict[str, object]) -> Entry | None:
        """An entry that another process has made, and that fits this call. Raises Unsupported where that has found that
        nothing can be captured."""
        try:
            if events.is_watched() or self._unusual() is not None:
                return None
            return self._find(versions, args, kwargs)
        except Unsupported:
            raise
        except records.Unsavable:
            return None
        except Exception as error:
            _suppressed(versions, error)
            return None

    def _find(self, versions: Versions, args: tuple[object, ...], kwargs: dict[str, object]) -> Entry | None:
        index = self.index(self.key(versions))
        if versions.shape is not None and not index:
            self._refuse(versions)
        values = versions.signature.bound(args, kwargs) if index else ()
        for digest, _ in index:
            found = None if digest in versions.kept else artifacts.find_place((KIND, digest))
            if found is None:
                continue
            try:
                call = dict(zip(versions.signature.names, values))
                saved = self._unpacked(found.payload, codes_of(versions.shape), call)
                entry = self._fitting(versions, found.key.names["record"], saved, args, kwargs)
            except Changed as error:
                _tell(versions, str(error))
                continue
            versions.kept.append(digest)
            versions.sizes.captures.append(saved.met)
            _log.info("%s: an entry of another process is used", versions.name)
            return entry
        return None

    def _refuse(self, versions: Versions) -> None:
        payload = artifacts.find(self._refusal(versions))
        if payload is not None:
            reason, where, remedy, kind = json.loads(payload)
            raise Unsupported(reason, where and UserFrame(*where), remedy, kind)

    def _unpacked(self, payload: bytes, codes: Sequence[types.CodeType], call: Mapping[str, object]) -> records.Saved:
        """Raises Changed for a record of another program."""
        try:
            data = json.loads(payload)
            if not unchanged(data["files"]):
                raise Changed("a file with the code of a library has changed")
            if calls_marked(data["codes"]):
                raise Changed("a function that it calls is marked (allow_in_graph, …)")
            return records.unpack(data, self.root, codes, call)
        except (LookupError, AttributeError, ValueError, TypeError) as error:
            raise Changed(f"a record makes no sense here: {type(error).__name__}: {error}") from error

    def _fitting(
        self,
        versions: Versions,
        digest: str,
        saved: records.Saved,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> Entry:
        """The entry, if every guard holds for this call. Raises Changed."""
        values = versions.signature.bound(args, kwargs)
        first = next(place for place, guard in enumerate(saved.guards) if guard.kind == "global_state") + 1
        _check(versions, saved.guards[:first], values, args, kwargs)  # of the arguments: most others differ there
        entry = versions.entry_of(saved.replay, saved.guards, self._runner(versions.name, digest, saved))
        found = entry.check.asked(*values)
        if found is None:
            raise Changed(_failing(versions, entry.guards, args, kwargs))
        kept = {*map(id, entry.guards)}
        rest = [guard for guard in saved.guards if id(guard) not in kept] + saved.trusted
        _check(versions, rest, values, args, kwargs)
        if any(isinstance(value, torch.Tensor) and marks_of(value) for value in found):
            raise Changed("a tensor is marked (mark_dynamic, …)")
        return entry

    def _runner(self, name: str, digest: str, saved: records.Saved) -> Runner:
        """What runs the program. Raises Changed where its plan is gone."""
        about = saved.graph
        if "passing" in about:
            run = records.passing_of(about["passing"], saved)
            return saved.program.runner(run, None, saved.constants, self.whole)
        constants = {held: saved.constants[known] for held, known in about["constants"].items()}
        graph = load_graph(about["kind"], about["key"], constants, about["lines"])
        if graph is None:
            raise Changed("the plan of its graph, or its machine code, is gone")
        training = saved.program.training
        if training is None:
            return saved.program.runner(graph, None, saved.constants, self.whole)
        derivative = artifacts.find(_part(digest, "derivative"))
        if derivative is None:
            raise Changed("the graphs of its backward are gone")
        of = functools.cache(functools.partial(_derivative, derivative, saved))
        compiling = functools.partial(compile_graph, inductor.compile_graph, dict(self.options), name)
        request = Request(compiling, compiling, title=name, on_fault=lambda error: interpreted(of().graph, name, error))
        known = functools.partial(_known_backward, digest, saved)
        backward = backward_of(of, training, saved.constants, request, known)
        backward.told = functools.partial(_keep_backward, digest, name)
        return saved.program.runner(graph, backward, saved.constants, self.whole)


def index_of(known: Sequence[tuple[str, bool]]) -> bytes:
    """The payload of an index."""
    return json.dumps(known[:MOST_RECORDS]).encode()


# ---- backwards -------------------------------------------------------------------------------------------------------


def _part(record: str, what: str, label: str = "") -> Key:
    """What a part of an entry is found by; `record`: the digest of the record's bytes."""
    return Key(KIND, {"of": record, "part": what}, label)


def _keep_backward(record: str, name: str, missing: tuple[int, ...], run: Runner) -> None:
    """Keep where the plan of a compiled backward is."""
    if isinstance(run, CompiledGraph) and run.key and not run.binding.constants:
        artifacts.keep(_part(record, f"backward {missing}", name), json.dumps(records.plan_of(run)).encode())


def _known_backward(record: str, saved: records.Saved, missing: tuple[int, ...]) -> Runner | None:
    payload = artifacts.find(_part(record, f"backward {missing}"))
    if payload is None:
        return None
    about = json.loads(payload)
    return load_graph("backward", about["key"], {}, about["lines"])


def _derivative(payload: bytes, saved: records.Saved) -> Derivative:
    """The graphs of a backward, which few processes need: where its plan is kept, they are not read."""
    data = json.loads(payload)
    reader = Reader(saved.reader.objects, data["frames"])
    if data["sizes"] is not None:
        reader.shapes = unpack_sizes(data["sizes"], reader.value)
    return graphs.unpack_derivative(data["derivative"], reader, saved.constants)


# ---- checks ----------------------------------------------------------------------------------------------------------


def _check(
    versions: Versions,
    guards: Sequence[Guard],
    values: tuple[object, ...],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> None:
    """Raises Changed where a guard does not hold."""
    if asked.check(versions.signature.names, guards, ())(*values) is None:
        raise Changed(_failing(versions, guards, args, kwargs))


def _failing(versions: Versions, guards: Sequence[Guard], args: tuple[object, ...], kwargs: dict[str, object]) -> str:
    failure = asked.first_failure(guards, versions.signature, args, kwargs) if events.subscribers else None
    if failure is None:
        return "a guard does not hold"
    return f"expected {texts.text(failure.guard)}, found {failure.actual}"


def _tell(versions: Versions, reason: str) -> None:
    if events.subscribers:
        events.emit(events.CacheLookup(versions.name, KIND, False, reason))


def _suppressed(versions: Versions, error: Exception) -> None:
    """A mistake of ours while looking for an entry, or keeping one: it is made anew, or not kept."""
    if not config.suppress_errors:
        raise CompileError("saved functions", versions.name, error) from error
    _log.warning("%s: saved functions: %r", versions.name, error)

"""Scripts that show a failure of a compiler: written when a graph fails (option `repro_after`), run alone, minified.

A script holds a graph as text, a description of its inputs, the compiler by name and the options that were changed. It
ends with a call of `main`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from bolide.debug.info import info as facts
from bolide.debug.reference import RandomState
from bolide.debug.trials import (
    Calls,
    Graphs,
    Number,
    Run,
    Slot,
    TensorSlot,
    Trial,
    Values,
    alike,
    at_run_time,
    different,
    duplicate,
    exactly,
    failure,
    made,
    outcome,
    resolve,
    slots_of,
    slots_of_graph,
    traced,
)
from bolide.dynamo.config import config
from bolide.functorch import GraphCompiler, GraphInfo
from bolide.functorch.fx_minifier import fresh, minifier
from bolide.functorch.graphs import constants_of, results
from bolide.support import log
from bolide.support.config import Config
from bolide.support.errors import CompileError
from bolide.tracing.graph import Handle
from bolide.tracing.numbers.data import binds
from bolide.tracing.operations.generators import STATES, generator_of
from bolide.tracing.operations.writes import drawn

Command = Literal["run", "minify"]
Compiler = Callable[..., Any]

SEEDS = range(4)
"""Of inputs: the first one with which a graph fails is taken."""

_CONFIGS = ("bolide.dynamo.config", "bolide.functorch.config", "bolide.inductor.config")
_OF_TOOLS = re.compile(
    "repro_(after|level|forward)|debug_dir_root|suppress_errors|detect_leaks|replay_record|cprofile|log_|base_dir"
)

tensor, number = TensorSlot, Number
"""How scripts call them."""


class Unwritable(Exception):
    """A graph that is no text: it calls what has no name."""


# ---- writing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Repro:
    """A graph that fails, and how: all that a script says."""

    title: str
    graph: fx.GraphModule
    slots: Sequence[Slot]
    trial: Trial
    seed: int = 0
    data: str | None = None

    def script(self, command: Command) -> str:
        """The script, which does `command` when it is run. Raises Unwritable."""
        if isinstance(self.trial, Graphs) and any(map(binds, self.graph.graph.nodes)):
            raise Unwritable("a size, or a number, is data")
        imports, forward = _code(self.graph)
        constants = [f"        self.{name} = {_constant(value)}" for name, value in constants_of(self.graph).items()]
        inputs = [f"    {_slot(slot)}," for slot in self.slots]
        about = [
            f"# {name}: {value}" for name, value in facts().items() if name in ("bolide", "torch", "python", "system")
        ]
        lines = [
            f'"""{_sentence(self.title)}"""',
            "",
            *about,
            "",
            *imports,
            "import torch",
            "from bolide.debug.repro import Calls, Graphs, main, number, tensor",
            "",
            "",
            "class Repro(torch.nn.Module):",
            *(["    def __init__(self):", "        super().__init__()", *constants, ""] if constants else []),
            *(f"    {line}".rstrip() for line in forward.strip().splitlines()),
            "",
            "",
            "INPUTS = [",
            *inputs,
            "]",
            f"TRIAL = {_trial(self.trial)}",
            f"OPTIONS = {changed_options()!r}",
            "",
            'if __name__ == "__main__":',
            f"    main(Repro(), INPUTS, TRIAL, OPTIONS, {command!r}, seed={self.seed}, data={self.data!r})",
        ]
        return "\n".join(lines) + "\n"


def _is_of_generators(node: fx.Node) -> bool:
    return node.target in (generator_of, *STATES) or (node.target is drawn and '"generator"' in str(node.args[2]))


def _sentence(title: str) -> str:
    first = title.replace("\\", "/").replace('"', "'").strip().partition("\n")[0]
    return first if len(first) <= 110 else f"{first[:107]}..."


def _code(gm: fx.GraphModule) -> tuple[list[str], str]:
    """The import statements that a graph's code needs, and its function ``forward``."""
    for node in gm.graph.nodes:
        if node.op == "call_module" or (node.op == "get_attr" and "." in str(node.target)):
            raise Unwritable(f"it calls the module {node.target}")
        if any(isinstance(value, Handle) for value in pytree.tree_leaves((node.args, node.kwargs))):
            raise Unwritable(f"{node.name} calls a graph or a function of the program")
        if _is_of_generators(node):
            raise Unwritable(f"{node.name} draws from a generator of the program, or sets its state")
    code = gm.graph.python_code("self")
    used = {*re.findall(r"\w+", code.src)} - {"torch"}
    return [_import(name, value) for name, value in code.globals.items() if name in used], code.src


def _import(name: str, value: object) -> str:
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}"
    if isinstance(value, float):
        return f'{name} = float("{value!r}")'
    if value is type(None):
        return f"{name} = type(None)"
    module, own = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if module is None or getattr(sys.modules.get(module), own, None) is not value:
        raise Unwritable(f"it calls {value!r}")
    return f"from {module} import {own}" if own == name else f"from {module} import {own} as {name}"


def _constant(value: Tensor) -> str:
    if value.numel() <= 64:
        return f"torch.tensor({value.tolist()!r}, dtype={value.dtype}, device={str(value.device)!r})"
    (slot,) = slots_of(_one_input(), [value.detach()], {})
    return f"{_slot(slot)}.make({{}}, torch.Generator().manual_seed(0))"


def _one_input() -> fx.Graph:
    graph = fx.Graph()
    graph.placeholder("value")
    return graph


def _slot(slot: Slot) -> str:
    if isinstance(slot, Number):
        return f"number({slot.value!r}, {slot.name!r})" if slot.name else f"number({slot.value!r})"
    more = {"requires_grad": slot.requires_grad, "low": slot.low, "high": slot.high}
    parts = [repr(slot.shape), repr(slot.stride), str(slot.dtype), repr(slot.device)]
    return f"tensor({', '.join([*parts, *(f'{name}={value!r}' for name, value in more.items() if value)])})"


def _trial(trial: Trial) -> str:
    if isinstance(trial, Graphs):
        slots = "".join(f"{name!r}: {_slot(slot)}, " for name, slot in trial.slots.items() if _is_symbolic(slot))
        parts = {"kind": trial.kind, "static": trial.static, "hidden": trial.hidden, "accuracy": trial.accuracy}
        texts = [repr(trial.compiler), *(f"{name}={value!r}" for name, value in parts.items() if value)]
        return f"Graphs({', '.join([*texts, *([f'slots={{{slots[:-2]}}}'] if slots else [])])})"
    assert isinstance(trial, Calls)
    return f"Calls({trial.compiler!r}, {dict(trial.options)!r}, {trial.gradients!r}, {trial.accuracy!r})"


def _is_symbolic(slot: Slot) -> bool:
    if isinstance(slot, Number):
        return bool(slot.name)
    return any(isinstance(size, str) for size in (*slot.shape, *slot.stride))


def changed_options() -> dict[str, dict[str, object]]:
    """The options that have other values than by default, by the name of their object."""
    changed: dict[str, dict[str, object]] = {}
    for path in _CONFIGS:
        options: Config = _config(path)
        values: dict[str, object] = {
            name: value
            for name, value in options.shallow_copy_dict().items()
            if isinstance(value, (int, float, str, type(None)))
            and value != options._options[name].default
            and not _OF_TOOLS.match(name)
        }
        if values:
            changed[path] = values
    return changed


def _config(path: str) -> Any:
    module = import_module(path)
    return module if isinstance(module, Config) else module.config


def named(compiler: object) -> str:
    """The name by which `resolve` finds a compiler: of a backend, or ``module:name``. Raises Unwritable."""
    from_module = f"{getattr(compiler, '__module__', '')}:{getattr(compiler, '__qualname__', '')}"
    for name in (from_module, getattr(compiler, "name", None), getattr(compiler, "__name__", None)):
        try:
            if isinstance(name, str) and not name.startswith("__main__") and resolve(name) is compiler:
                return name
        except Exception:  # no such name
            continue
    raise Unwritable(f"{compiler!r} is found under no name; give it one in a module, or `register_backend` it")


def write(repro: Repro, command: Command, folder: Path | None = None) -> Path:
    """The path of the script of a failure, in a new directory below `debug_dir_root`, or in `folder`."""
    text = repro.script(command)
    path = (folder or new_folder(repro.title)) / ("repro.py" if command == "run" else "minifier_launcher.py")
    path.write_text(text, encoding="utf-8")
    return path


def new_folder(title: str) -> Path:
    """A new directory below `debug_dir_root`, for a failure of a function of which the title speaks first."""
    os.makedirs(config.debug_dir_root, exist_ok=True)
    prefix = re.sub(r"[^A-Za-z0-9]+", "_", title.split(":")[0])
    return Path(tempfile.mkdtemp(prefix=f"{prefix}_", dir=config.debug_dir_root))


def with_inputs(repro: Repro, values: Values, folder: Path) -> Repro:
    """`repro` with the first seed that makes inputs for which it fails; where none does, with `values` in a file."""
    for seed in SEEDS:
        if failure(repro.trial, repro.graph, made(repro.slots, seed)) is not None:
            return replace(repro, seed=seed)
    torch.save(fresh(values), folder / "inputs.pt")
    return replace(repro, data="inputs.pt")


# ---- running ---------------------------------------------------------------------------------------------------------


def main(
    module: torch.nn.Module,
    slots: Sequence[Slot],
    trial: Trial,
    options: Mapping[str, Mapping[str, object]],
    command: Command = "run",
    *,
    seed: int = 0,
    data: str | None = None,
) -> None:
    """What a script does: ``run`` raises the failure, ``minify`` writes a smaller script; the first argument of the
    command line chooses, ``--isolate`` tries every graph in a process of its own (for compilers that crash).
    """
    arguments = sys.argv[1:]
    chosen = next((word for word in arguments if word in ("run", "minify")), command)
    script = Path(sys.argv[0])
    gm = traced(module)
    values = made(slots, seed) if data is None else torch.load(script.with_name(data))
    with with_options(options):
        if chosen == "run":
            error = failure(trial, gm, values)
            if error is not None:
                raise error
            print("The graph does not fail.")
            return
        known = {node.name: slot for node, slot in zip(gm.graph.find_nodes(op="placeholder"), slots)}
        start = Repro(f"minified from {script.name}", gm, slots, trial, seed, data)
        small = minified(start, values, known, script.parent, "--isolate" in arguments)
        path = write(small, "run", script.parent)
    print(small.graph.code.strip())
    print(f"{path} shows the failure")


@contextmanager
def with_options(options: Mapping[str, Mapping[str, object]]) -> Iterator[None]:
    """With options as `changed_options` gives them."""
    with ExitStack() as stack:
        for path, values in options.items():
            stack.enter_context(_config(path).patch(dict(values)))
        stack.enter_context(config.patch(repro_after=None))
        yield


def minified(repro: Repro, values: Values, known: Mapping[str, Slot], folder: Path, isolated: bool = False) -> Repro:
    """A small graph that fails as `repro` does. Raises RuntimeError if it does not fail."""
    first = None if isolated else failure(repro.trial, repro.graph, values)
    title = repro.title if first is None else f"{type(first).__name__}: {first}"

    def described(gm: fx.GraphModule, inputs: Values) -> Repro:
        return replace(repro, title=title, graph=gm, slots=slots_of(gm.graph, inputs, known), data=None)

    def fails(gm: fx.GraphModule, inputs: list[object]) -> bool:
        if isolated:
            return _fails_alone(described(gm, inputs), inputs)
        error = failure(repro.trial, gm, inputs)
        return error is not None and alike(first, error)

    gm, inputs = minifier(repro.graph, values, fails)
    small = described(gm, inputs)
    return small if isolated else with_inputs(small, inputs, folder)


def _fails_alone(repro: Repro, values: Values) -> bool:
    """Whether the script of a graph fails in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        torch.save(fresh(values), Path(folder, "inputs.pt"))
        path = write(replace(repro, data="inputs.pt"), "run", Path(folder))
        return subprocess.run([sys.executable, str(path)], capture_output=True).returncode != 0


# ---- watching compilers ----------------------------------------------------------------------------------------------


def watched(after: Literal["aot", "dynamo"], compiler: Compiler, name: str) -> Compiler:
    """A compiler that does what `compiler` does, and writes scripts of graphs on which it fails, see the options
    `repro_after` and `repro_level`. `name` is the captured function's."""
    if after == "aot":
        watching: Compiler = lambda graph, info: _watched_graph(compiler, name, graph, info)  # noqa: E731
    else:
        watching = lambda gm, inputs, **options: _watched_calls(compiler, name, gm, inputs, options)  # noqa: E731
    watching.__qualname__ = getattr(compiler, "__qualname__", getattr(compiler, "name", ""))
    return watching


def _report(
    title: str,
    graph: fx.GraphModule,
    known: Mapping[str, Slot],
    trial: Callable[[], Trial],
    values: Values | None,
) -> None:
    """Writes the script that the level asks for; that it cannot be written is no failure of the program. `values`: the
    inputs with which the graph fails (None: it fails with any)."""
    try:
        repro = Repro(title, graph, list(known.values()), trial())
        repro.script("run")
        folder = new_folder(title)
        if values is not None:
            repro = with_inputs(replace(repro, slots=slots_of(graph.graph, values, known)), values, folder)
        path = write(repro, "run" if config.repro_level == 1 else "minify", folder)
    except Exception as error:
        log.logger("functorch").warning("%s: no script is written: %s", title, error)
    else:
        log.logger("functorch").warning("%s: run %s", title, path)


def _watched_graph(compiler: GraphCompiler, name: str, graph: fx.GraphModule, info: GraphInfo) -> Run:
    if info.kind == "backward" and config.repro_forward_only:
        return compiler(graph, info)
    level = config.repro_level
    untouched = duplicate(graph)
    names = [node.name for node in untouched.graph.find_nodes(op="placeholder")]
    known = dict(zip(names, slots_of_graph(untouched.graph)))

    def trial() -> Graphs:
        outputs = [getattr(value, "name", "") for value in results(untouched.graph)]
        static = tuple(names[place] for place in sorted(info.static_inputs))
        hidden = tuple(sorted({name for place, name in enumerate(outputs) if place not in info.visible_outputs}))
        return Graphs(named(compiler), info.kind, static, hidden, level == 4, known)

    def report(reason: object, values: Values | None = None) -> None:
        _report(f"{name}: {info.kind} graph: {reason}", untouched, known, trial, values)

    if level == 3:
        report("before it is compiled")
    try:
        run = compiler(graph, info)
    except Exception as error:
        if level < 3:
            report(f"{type(error).__name__}: {error}")
        raise

    def guarded(inputs: list[object]) -> object:
        given = [value.detach() if isinstance(value, Tensor) else value for value in inputs]
        try:
            return run(inputs)
        except Exception as error:
            if level < 3 and _runs(untouched, given, False):
                report(f"{type(error).__name__}: {error}", given)
            raise

    def checked(inputs: list[object]) -> object:
        kept = fresh([value.detach() if isinstance(value, Tensor) else value for value in inputs])
        writes, before = list(inputs), RandomState.now()
        outputs: Sequence[object] = run(inputs)
        after = RandomState.now()

        def eager() -> list[object]:
            before.restore()
            given = fresh(kept)
            with torch.no_grad():
                return [*untouched(*given), *given]

        differs = different(eager(), [*outputs, *writes], eager, lambda: exactly(untouched, kept, False))
        after.restore()
        if differs is not None:
            report(differs, kept)
            raise CompileError("accuracy", name, AssertionError(differs))
        return outputs

    return checked if level == 4 else guarded


def _runs(graph: fx.GraphModule, inputs: Values, gradients: bool) -> bool:
    """Whether eager runs a graph: what raises there is the program's own error."""
    try:
        outcome(lambda given: graph(*given), inputs, gradients)
    except Exception:
        return False
    return True


def _watched_calls(
    compiler: Compiler, name: str, gm: fx.GraphModule, inputs: Values, options: dict[str, object]
) -> Compiler:
    level, gradients = config.repro_level, not config.repro_forward_only
    untouched = duplicate(gm)
    values = fresh([int(value) if isinstance(value, torch.SymInt) else value for value in inputs])
    names = [node.name for node in untouched.graph.find_nodes(op="placeholder")]
    known = dict(zip(names, slots_of(untouched.graph, values, {})))

    def report(reason: object) -> None:
        trial = lambda: Calls(named(compiler), options, gradients, level == 4)  # noqa: E731
        _report(f"{name}: {reason}", untouched, known, trial, None if level == 3 else values)

    if level == 3:
        report("before it is compiled")
    try:
        compiled: Compiler = compiler(gm, inputs, **options)
    except Exception as error:
        if level < 3:
            report(f"{type(error).__name__}: {error}")
        raise
    if not _runs(untouched, values, gradients):  # the program's own error, which is raised when it is called
        return compiled
    try:
        with at_run_time():
            actual = outcome(lambda given: compiled(*given), values, gradients)
    except Exception as error:
        if level < 3:
            report(f"{type(error).__name__}: {error}")
        raise
    if level == 4:

        def eager() -> list[object]:
            return outcome(lambda given: untouched(*given), values, gradients)

        differs = different(eager(), actual, eager, lambda: exactly(untouched, values, gradients))
        if differs is not None:
            report(differs)
            raise AssertionError(differs)
    return compiled

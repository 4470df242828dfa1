"""Writes the outputs into `docs/life-of-a-function.md`, or tells whether they are still what bolide gives.

``python docs/examples/life_of_a_function.py [--check | --print]``. The page has a comment
``<!-- output: NAME -->`` in front of each block of output; what stands in the block is one of `outputs`. The program
is the page's first block.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import bolide
from bolide.dynamo.bytecode.instructions import decode
from bolide.dynamo.entry.capture import capture
from bolide.functorch.joint import finish_joint
from bolide.functorch.signature import describe
from bolide.inductor.ir.printer import kernel_text, program_text
from bolide.inductor.lowering import lower
from bolide.support import events

PAGE = Path(__file__).resolve().parent.parent / "life-of-a-function.md"
BLOCK = re.compile(r"(<!-- output: (\w+) -->\n```\w+\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL)


def program(page: str, folder: Path) -> ModuleType:
    """The page's program as a module, from a file: bytecode, lines and messages are those of a user's program."""
    found = re.search(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found is not None, "the page shows no program"
    path = folder / "net.py"
    path.write_text(found[1])
    spec = importlib.util.spec_from_file_location("net", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outputs(net: ModuleType) -> dict[str, str]:
    """What each stage makes of the program, as text, by the names that the page uses."""
    seen: list[Any] = []
    compiled = bolide.compile(net.Net())
    with events.subscribed(seen.append):
        compiled(torch.randn(4, 8)).sum().backward()
    graphs = {(event.name, event.kind): event.graph for event in seen if isinstance(event, events.Graph)}
    made = {(event.name, event.kind): event.artifact for event in seen if isinstance(event, events.Compiled)}
    first, second = made["Net", "forward"], made["Net/1", "forward"]
    captured = next(event for event in seen if isinstance(event, events.Captured))
    broken = next(event for event in seen if isinstance(event, events.Break))
    entry = next(event.source for event in seen if isinstance(event, events.Installed) and event.name == "Net/1")
    return {
        "bytecode": _bytecode(net.Net.forward),
        "guards": "\n".join(_guards(captured.guards)),
        "segment": f"{broken.name}: {broken.operation} at line {broken.where.line}: {broken.reason}",
        "joint": _joint(net.Net()),
        "forward": _code(graphs["Net", "forward"]),
        "backward": _code(graphs["Net", "backward"]),
        "definitions": program_text(lower(graphs["Net/1", "forward"], frozenset({0}))),
        "loops": "\n".join(kernel_text(kernel.ir) for kernel in second.kernels),
        "llvm": _loop(second.kernels[0].llvm_ir),
        "plan": first.source,
        "entry": entry,
    }


def _bytecode(function: Callable[..., Any]) -> str:
    code = decode(function.__code__)
    rows = zip(code.lines, code.ops, code.args)
    return "\n".join(f"{line:3}  {op:22} {'' if arg is None else _short(arg)}".rstrip() for line, op, arg in rows)


def _short(arg: object) -> str:
    return re.sub(r"<built-in function (\w+)>", r"\1", repr(arg))


def _guards(texts: tuple[str, ...]) -> list[str]:
    """Those on the program's own values; the others are counted."""
    own = [text for text in texts if "<" not in text and "hooks" not in text]
    return [*own, f"… and {len(texts) - len(own)} on torch's functions and the module's hooks"]


def _code(graph: torch.fx.GraphModule) -> str:
    """The lines of a graph, without what frees variables."""
    lines = [re.sub(r";  .* = None", "", line) for line in graph.code.strip().splitlines()]
    return "\n".join(line.replace("torch.ops.", "") for line in lines if line.strip())


def _joint(net: Any) -> str:
    captured = capture(net.forward, (torch.randn(4, 8),), {})
    finish_joint(captured.trace, describe(captured.trace, captured.outputs))
    return _code(torch.fx.GraphModule(torch.nn.Module(), captured.trace.graph))


def _loop(llvm: str) -> str:
    """The kernel's inner loop."""
    lines = llvm.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("loop"))
    end = next(place for place, line in enumerate(lines) if place > start and line.startswith("  br "))
    return "\n".join(lines[start : end + 1])


def filled(page: str) -> str:
    """The page with the outputs of today."""
    with tempfile.TemporaryDirectory() as folder:
        made = outputs(program(page, Path(folder)))
    missing = made.keys() - {name for _, name, _, _ in BLOCK.findall(page)}
    assert not missing, f"the page does not show {sorted(missing)}"
    return BLOCK.sub(lambda block: f"{block[1]}{made[block[2]].rstrip()}\n{block[4]}", page)


def main() -> int:
    page = PAGE.read_text()
    new = filled(page)
    if "--print" in sys.argv:
        print(new)
        return 0
    if "--check" not in sys.argv:
        PAGE.write_text(new)
        return 0
    if new != page:
        shown, today = page.splitlines(), new.splitlines()
        place = next((i for i, (a, b) in enumerate(zip(shown, today)) if a != b), min(len(shown), len(today)))
        print(f"{PAGE.name}:{place + 1} shows\n  {shown[place]}\nbut bolide gives\n  {today[place]}")
    return int(new != page)


if __name__ == "__main__":
    sys.exit(main())

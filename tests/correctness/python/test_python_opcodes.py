"""Every instruction of the CPython versions we run on has a form and handlers, or a reason why none is needed."""

from __future__ import annotations

import dis
import glob
import json
import os
import pathlib
import subprocess
import sys
import types
from typing import Any

import pytest
import torch

import bolide
from bolide.dynamo.bytecode.flow import END, following
from bolide.dynamo.bytecode.forms import INTRINSICS, NEVER, SKIPPED, VERSION, VERSIONS, Version, forms
from bolide.dynamo.bytecode.instructions import decode
from bolide.dynamo.bytecode.uniform import UNIFORM
from bolide.dynamo.entry import registrations
from bolide.dynamo.machine.interpreter import OPCODES
from bolide.support.errors import Unsupported

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from opcode_programs import BREAKING, PROGRAMS

assert registrations  # its import has registered the handlers

MADE_BY_FORMS = {"CALL_KW", "JUMP", "MATCH_KIND", "UNARY_OP"}
MERGED = {"SET_FUNCTION_ATTRIBUTE": "MAKE_FUNCTION"}


def instructions(version: Version) -> set[str]:
    """The names in `dis.opmap` of an interpreter of this version, as far as one is installed here."""
    if version == VERSION:
        return set(dis.opmap)
    roots = [os.path.expanduser("~/.pyenv/versions"), "/usr"]
    name = f"python{version[0]}.{version[1]}"
    for path in [p for root in roots for p in sorted(glob.glob(f"{root}/**/bin/{name}", recursive=False))] + [
        f"{roots[1]}/bin/{name}"
    ]:
        if os.path.exists(path):
            text = subprocess.run(
                [path, "-c", "import dis, json; print(json.dumps(list(dis.opmap)))"], capture_output=True
            )
            return set(json.loads(text.stdout))
    pytest.skip(f"no CPython {version[0]}.{version[1]} here")


def handling(name: str, version: Version) -> str | None:
    """How an instruction is dealt with, None when it is not."""
    if name in NEVER and (version >= (3, 12) or name in ("IMPORT_STAR", "PRINT_EXPR")):
        return "never seen: " + NEVER[name]
    if name.startswith("INSTRUMENTED_"):
        return "never seen: co_code shows the instruction that it stands for"
    if name in SKIPPED:
        return "skipped"
    if name in MERGED:
        return "merged with " + MERGED[name]
    if name in forms(version):
        return "form"
    return "handler" if name in OPCODES else None


@pytest.mark.parametrize("version", VERSIONS)
def test_every_instruction_is_dealt_with(version: Version) -> None:
    missing = sorted(name for name in instructions(version) if handling(name, version) is None)
    assert not missing


def test_no_handler_is_without_an_instruction() -> None:
    """Handlers of operations that no version and no form produces are dead."""
    produced = set(MADE_BY_FORMS) | set(INTRINSICS.values())
    for version in VERSIONS:
        produced |= instructions(version)
    assert sorted(set(OPCODES) - produced) == []


def _codes(code: types.CodeType) -> list[types.CodeType]:
    return [code, *[c for const in code.co_consts if isinstance(const, types.CodeType) for c in _codes(const)]]


@pytest.mark.parametrize("module", ["contextlib", "collections", "dataclasses", "typing", "asyncio.tasks", "inspect"])
def test_functions_of_the_standard_library_decode(module: str) -> None:
    """Real code decodes to operations with handlers, with jumps and tables inside the code."""
    __import__(module)
    path = sys.modules[module].__file__
    assert path
    with open(path) as file:
        top = compile(file.read(), path, "exec")
    for code in _codes(top)[1:]:
        decoded = decode(code)
        assert set(decoded.ops) <= set(OPCODES)
        for name, arg in zip(decoded.ops, decoded.args):
            if "JUMP" in name or name in ("FOR_ITER", "SEND"):
                assert 0 <= arg < len(decoded.ops)
        for row in decoded.exceptions:
            assert row.start <= row.end <= len(decoded.ops) and 0 <= row.target < len(decoded.ops)
        _depths(code)


def test_the_table_has_all_operations() -> None:
    assert set(UNIFORM) == set(OPCODES)


def _depths(code: types.CodeType) -> dict[int, int]:
    """How many values are on the stack in front of each instruction; asserts that all ways to it agree."""
    decoded = decode(code)
    depths = {0: 0, **{row.target: row.depth + 1 + row.lasti for row in decoded.exceptions}}
    waiting = list(depths)
    while waiting:
        at = waiting.pop()
        operation, arg = UNIFORM[decoded.ops[at]], decoded.args[at]
        after = depths[at] - operation.taken(arg)
        assert after >= 0
        after += operation.given(arg)
        for following_at in following(decoded, at):
            depth = after - 2 if decoded.ops[at] == "FOR_ITER" and following_at == arg else after
            if following_at != END and following_at not in depths:
                depths[following_at] = depth
                waiting.append(following_at)
            assert following_at == END or depths[following_at] == depth
    return depths


RUNNING = {name: text for version, name, text in PROGRAMS if version <= VERSION}


def _program(name: str) -> Any:
    namespace: dict[str, Any] = {"__name__": "opcode_programs_of_" + name, "torch": torch}
    exec(compile(RUNNING[name], f"<{name}>", "exec", dont_inherit=True), namespace)
    return namespace["program"]


@pytest.mark.parametrize("name", RUNNING)
def test_programs_of_all_instructions_are_captured_whole(name: str) -> None:
    x = torch.randn(3)
    expected = _program(name)(x)
    whole = bolide.compile(_program(name), backend="eager", fullgraph=True)
    if name in BREAKING:
        with pytest.raises(Unsupported, match="asynchronous generator"):
            whole(x)
        whole = bolide.compile(_program(name), backend="eager")
    assert repr(whole(x)) == repr(expected)


def test_every_instruction_has_a_program() -> None:
    used = set()
    for name, text in RUNNING.items():
        for code in _codes(compile(text, name, "exec"))[1:]:
            used |= {instruction.opname for instruction in dis.get_instructions(code)}
    needed = {name for name in dis.opmap if not str(handling(name, VERSION)).startswith("never")} - {"CACHE"}
    assert sorted(needed - used) == []


if __name__ == "__main__":
    for wanted in VERSIONS:
        for opname in sorted(instructions(wanted)):
            print(f"{wanted[0]}.{wanted[1]}  {opname:32} {handling(opname, wanted)}")

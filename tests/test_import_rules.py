"""What may import what, and what importing and compiling must not load."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "bolide"

BASE = {"support", "symbolic", "tracing"}
STAGES = {"dynamo", "functorch", "inductor"}
MAY_IMPORT = {
    "support": set(),
    "symbolic": {"support"},
    "tracing": {"support", "symbolic"},
    "dynamo": BASE,
    "functorch": BASE,
    "inductor": BASE,
    "backends": BASE | STAGES,
    "saving": BASE | STAGES | {"backends"},
    "compiling": BASE | STAGES | {"backends", "saving"},
    "exporting": BASE | STAGES | {"compiling"},
    "debug": BASE | STAGES | {"backends", "compiling"},
    "aot": BASE | STAGES | {"compiling", "exporting", "saving"},
    "__init__": BASE | STAGES | {"aot", "backends", "compiling", "debug", "exporting"},
    "demo": BASE | {"__init__", "debug", "inductor"},
    "cli": {"__init__", "demo", "debug"},
    "__main__": {"cli"},
}
"""docs/architecture.md, "Layout and direction of imports"; a package may always import itself."""

ROOMS = (
    *("state", "policy", "config", "backends", "polyfills", "switches", "bytecode", "program", "guards", "native"),
    *("world", "machine", "library", "opcodes", "breaks", "torch_calls", "entry"),
    "compiled_autograd",
)
"""Of bolide.dynamo: each imports from those before it."""

MOST_FILES = 16
"""In a folder, `__init__.py` included."""

HEAVY = ("llvmlite", "scipy", "torch._decomp", "torch._numpy")
"""Imported inside functions, when first needed: importing bolide stays fast."""

RARE = (
    "cProfile",
    "pstats",
    "bolide.dynamo.compiled_autograd",
    "bolide.tracing.recording.composites",
    "bolide.tracing.recording.masks",
    "bolide.functorch.passes.masks",
    "bolide.functorch.passes.places",
    "bolide.inductor.search",
    "bolide.inductor.saved",
    "bolide.inductor.plan.codec",
    "bolide.inductor.plan.records",
    "bolide.support.cache.disk",
    "bolide.support.native.loader",
    "bolide.functorch.cuts.mincut",
)
RARE += ("bolide.debug.repro", "bolide.functorch.cuts.budget", "bolide.functorch.runtime.inlined")
RARE += ("bolide.debug.record", "bolide.tracing.called.ordinary", "bolide.tracing.called.scans")
RARE += ("bolide.aot", "bolide.saving", "bolide.tracing.called.loops")
RARE += ("bolide.exporting.graphs", "bolide.exporting.shapes", "bolide.dynamo.torch_calls.attention")
RARE += ("bolide.dynamo.guards.advice", "bolide.inductor.codegen.functions")
RARE += ("bolide.inductor.cudagraphs", "bolide.inductor.outline")
RARE += ("bolide.inductor.codegen.cuda", "bolide.inductor.runtime.cuda")
RARE += (
    "bolide.inductor.plan.batches",
    "bolide.inductor.schedule.calls.assertions",
    "bolide.inductor.schedule.calls.transfers",
)
SECOND = ("bolide.inductor.runtime.native",)
"""What a graph needs only when it has run some times."""
LATE = tuple(f"{name}." for name in (*HEAVY, *RARE, *SECOND))

REPLACED = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.compile")
"""What bolide stands in for. The demo alone may call torch.compile, to compare."""


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def part(module: str) -> str:
    """The package below bolide that a module belongs to."""
    return module.split(".")[1] if "." in module else "__init__"


def imported(node: ast.AST) -> Iterator[str]:
    """The modules that an import statement names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"relative import in line {node.lineno}"
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            yield whole if whole in MODULES or whole in REPLACED else str(node.module)


def statements(tree: ast.AST, in_function: bool = False, typing: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """All nodes, with whether they are inside a function; with `typing` also what is only for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if not typing and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        inside = in_function or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield node, inside
        yield from statements(node, inside, typing)


def imports_of(module: str, typing: bool = False) -> list[tuple[str, bool]]:
    tree = ast.parse(MODULES[module].read_text())
    return [(name, inside) for node, inside in statements(tree, typing=typing) for name in imported(node)]


@pytest.mark.parametrize("module", MODULES)
def test_direction_of_imports(module: str) -> None:
    own = part(module)
    allowed = {own} | MAY_IMPORT[own]
    wrong = {name for name, _ in imports_of(module) if name.split(".")[0] == "bolide" and part(name) not in allowed}
    assert not wrong, f"{module} imports {sorted(wrong)}; {own} may import {sorted(allowed)}"


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("bolide.dynamo.")])
def test_direction_of_imports_between_rooms(module: str) -> None:
    own = ROOMS.index(module.split(".")[2])
    rooms = {name: name.split(".")[2] for name, _ in imports_of(module) if name.startswith("bolide.dynamo.")}
    wrong = {name for name, room in rooms.items() if ROOMS.index(room) > own}
    assert not wrong, f"{module} imports {sorted(wrong)}, from rooms that come after its own"


def test_folders_are_small() -> None:
    folders = Counter(path.parent for path in MODULES.values())
    large = {str(folder.relative_to(ROOT)): count for folder, count in folders.items() if count > MOST_FILES}
    assert not large, large


@pytest.mark.parametrize("module", MODULES)
def test_imports_inside_functions_are_of_heavy_packages(module: str) -> None:
    wrong = {name for name, inside in imports_of(module) if inside and not f"{name}.".startswith(LATE)}
    assert not wrong, f"{module} imports {sorted(wrong)} inside a function"


@pytest.mark.parametrize("module", MODULES)
def test_nothing_uses_what_bolide_replaces(module: str) -> None:
    names = {name for name, _ in imports_of(module)}
    names |= {ast.unparse(n) for n in ast.walk(ast.parse(MODULES[module].read_text())) if isinstance(n, ast.Attribute)}
    wrong = {n for n in names for r in REPLACED if n == r or n.startswith(r + ".")}
    if module == "bolide.demo.train":
        wrong -= {"torch.compile"}
    assert not wrong, f"{module} uses {sorted(wrong)}"


def test_modules_of_tests_are_read_once() -> None:
    """pytest names `test_x.py` `test_x`: as `tests.….test_x` it would be read again, and register all twice."""
    twice = re.compile(r"^\s*(?:from|import) tests\.\S*\btest_\w+", re.MULTILINE)
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    assert not {name: found for name, text in texts.items() if (found := twice.findall(text))}


def test_there_are_no_import_cycles() -> None:
    """Nor among what is imported for type checkers only."""
    graph = {m: {name for name, _ in imports_of(m, typing=True) if name in MODULES and name != m} for m in MODULES}
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def run(script: str, **env: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_bolide_adds_little() -> None:
    """Counted in modules, because seconds depend on the machine: one of ours takes half a millisecond."""
    script = "import sys, torch; before = set(sys.modules); import bolide; print(*sorted(set(sys.modules) - before))"
    added = run(script).split()
    outside = [name for name in added if name.split(".")[0] != "bolide"]
    assert not {name.split(".")[0] for name in outside} & {"llvmlite", "scipy", "jinja2", "rich", "click", "sympy"}
    assert len(outside) <= 10 and len(added) <= 300, added


def test_importing_bolide_looks_for_no_similar_names() -> None:
    """Python asks every module for names that it need not have; to offer others takes milliseconds each time."""
    script = "import difflib; difflib.get_close_matches = None; import bolide; from bolide.dynamo import config"
    run(f"{script}; print(hasattr(config, '__path__'))")


def test_compiling_and_training_load_nothing_of_torchs_compiler_and_need_no_c_compiler() -> None:
    script = """
import sys, torch, warnings
warnings.simplefilter("error")
import bolide
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters())
fast = bolide.compile(model, fullgraph=True)
for _ in range(2):
    loss = torch.nn.functional.cross_entropy(fast(torch.randn(3, 8)), torch.tensor([0, 1, 2]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    fast(torch.randn(3, 8))
print(*[m for m in ("torch._dynamo", "torch._inductor") if m in sys.modules])
"""
    assert run(script, PATH="", BOLIDE_SUPPRESS_ERRORS="0") == ""


def test_tables_refuse_a_second_entry() -> None:
    """Which of two handlers counts would depend on the order of imports."""
    from bolide.dynamo.machine.calls import intercept
    from bolide.dynamo.machine.interpreter import opcode
    from bolide.inductor.lowering.registry import lowering
    from bolide.tracing.rules.registry import rule

    for entered in (opcode("LOAD_FAST"), intercept(len), rule("add.Tensor"), lowering(torch.ops.aten.add.Tensor)):
        with pytest.raises(ValueError, match="two"):
            entered(lambda *args, **kwargs: None)

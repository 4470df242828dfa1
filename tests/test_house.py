"""What keeps the code one that a person can hold in the head: sizes of files and functions, no dead code, pages that
are true to the files that they name.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
import vulture

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "bolide").rglob("*.py"))
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])

LONGEST_FILE, LONGEST_FUNCTION, MOST_FILES, LONGEST_LINE, LONGEST_PAGE = 800, 80, 16, 120, 1000
"""Lines, lines, modules of a folder, characters, words of a page besides its code."""

MOST_ANY = 1965
"""Lines of the product with `Any` in them. Fewer are welcome: lower it."""

TABLES = {"break-kinds.md", "options.md", "python-coverage.md", "names.md"}
"""Pages that are tables, printed from the code or compared with it: their rows are as long as they are."""

SAID_ELSEWHERE = {
    # what PyTorch asks of symbolic numbers, and of stand-ins for tensors and modes
    *("is_nested_int", "nested_int*", "constant_*", "int_", "float_", "expect_*", "guard_*", "statically_known_true"),
    *("int_truediv", "sym_*", "is_non_overlapping_and_dense", "is_channels_last_*", "supports_higher_order_operators"),
    *("is_set_to", "tensor_contents", "_graph_repr"),
    # parameters of ATen operations and of PyTorch's functions
    *("HxW", "implicit", "input_size*", "input_dtype", "non_blocking", "num_weights", "self_is_result", "sparse_grad"),
    *("hint_override", "specialize_on", "can_constant_fold_through", "is_embedded_type", "skip_guard_eval_unsafe"),
    *("joint_inputs", "static_lifetime_*", "enable_log", "disable_functionalization", "compiler"),
    *("disable_constraint_solver", "prefer_deferred_runtime_asserts_over_guards", "specialize_float"),
    *("allow_cache_entry_mutation", "derived_guard_types", "in_order", "descending", "b0"),
    # what torch's engine calls of a capture of a backward pass, and gives it
    *("begin_capture", "log_compile_reasons", "set_node_origin", "bind_function", "apply_functional", "*_hook"),
    *("validate_outputs", "proxy_call_backward", "call_copy_slices_*", "end_capture", "check_nans", "pyobj"),
    *("maybe_backward_state_idx", "opaque_object_indices"),
    # attributes that others read
    *("find_class", "_is_buffer", "_is_param", "__type_params__", "_bolide_disabled*", "atexit", "_len"),
}
"""Names that nothing in the product or its tests reads, for a reason."""


def prose(page: str) -> str:
    """A page without its blocks of code, which show what is really printed."""
    return re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)


KNOWN_ELSEWHERE = {"Select", "findCaller", "METH_FASTCALL", "ordinary_", "x_size0"}
"""Words of pages that are of C, of Python's library, a part of a name, or a name in a graph."""


def words_of_the_code() -> set[str]:
    """All words in the sources, and the names of files and folders."""
    files = [
        path for part in ("bolide", "tests", "benchmarks", "tools", "docs") for path in (ROOT / part).rglob("*.py")
    ]
    text = "\n".join(path.read_text() for path in files)
    return {*re.findall(r"\w+", text), *(name for path in files for name in (path.stem, *path.parent.parts))}


CODE = words_of_the_code()


def words(page: str) -> int:
    """Words outside blocks of code and of tables' lines."""
    return len(prose(page).replace("|", " ").split())


def test_files_are_short() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in MODULES}
    assert not {name: length for name, length in lengths.items() if length > LONGEST_FILE}


def test_functions_are_short() -> None:
    long = {
        f"{path.relative_to(ROOT)}: {node.name}": node.end_lineno - node.lineno + 1
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None
    }
    assert not {name: length for name, length in long.items() if length > LONGEST_FUNCTION}


def test_folders_of_tests_are_small() -> None:
    folders = Counter(path.parent for path in (ROOT / "tests").rglob("*.py"))
    assert not {str(folder): count for folder, count in folders.items() if count > MOST_FILES}


def test_types_are_said() -> None:
    count = sum(bool(re.search(r"\bAny\b", line)) for path in MODULES for line in path.read_text().splitlines())
    assert count <= MOST_ANY


def test_nothing_is_dead() -> None:
    """By what vulture finds; options are for users, and polyfills are found by their names (see below)."""
    finder = vulture.Vulture(ignore_names=sorted(SAID_ELSEWHERE), ignore_decorators=["@*"])
    finder.scavenge([str(ROOT / part) for part in ("bolide", "tests", "benchmarks", "docs/examples")])
    found = [item for item in finder.get_unused_code(min_confidence=60) if ROOT / "bolide" in item.filename.parents]
    dead = [
        f"{item.filename.relative_to(ROOT)}:{item.first_lineno} {item.typ} {item.name}"
        for item in found
        if item.filename.name != "config.py" and item.filename.parent.name != "polyfills"
    ]
    assert not dead, "\n".join(dead)


def test_all_polyfills_are_used() -> None:
    text = "\n".join(path.read_text() for path in MODULES)
    named = Counter(re.findall(r"\w+", text))
    folder = ROOT / "bolide" / "dynamo" / "polyfills"
    functions = [n for path in folder.glob("*.py") for n in ast.parse(path.read_text()).body if hasattr(n, "name")]
    methods = {"generator_iter", "generator_next"}  # by the names of methods
    assert not [node.name for node in functions if named[node.name] < 2 and node.name not in methods]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_are_short_and_name_what_there_is(page: Path) -> None:
    text = page.read_text()
    if page.name not in TABLES:
        assert not [line for line in prose(text).splitlines() if len(line) > LONGEST_LINE and not line.startswith("|")]
        assert words(text) <= LONGEST_PAGE
    files = {path.name for path in ROOT.rglob("*.py") if ".venv" not in path.parts}
    named = set(re.findall(r"`(?:[\w/]*/)?(\w+\.py)`", text))
    assert not named - files, "there are no such files"
    for target in re.findall(r"\]\(([^)#]+\.md)(?:#[\w-]*)?\)", text):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_terms_of_pages_are_names_of_the_code(page: Path) -> None:
    """What stands in backticks, and what blocks of code take from bolide; other blocks show what has been printed."""
    blocks = "\n".join(re.findall(r"^```.*?^```", page.read_text(), re.MULTILINE | re.DOTALL))
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    terms = re.findall(r"`([^`\n]+)`", prose) if page.name != "names.md" else []
    known = CODE | KNOWN_ELSEWHERE | set(re.findall(r"\w+", blocks))
    assert not {name for term in terms for name in re.findall(r"[A-Za-z_]\w*", term)} - known
    assert not {name for path in re.findall(r"\bbolide(?:\.\w+)+", blocks) for name in path.split(".")} - CODE

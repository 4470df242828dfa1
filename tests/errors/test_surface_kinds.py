"""The registry of break kinds: every refusal names one, and the docs say what the code says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import bolide
from bolide.support.errors import Unsupported, UserFrame
from bolide.support.kinds import KINDS, markdown

ROOT = Path(__file__).resolve().parent.parent.parent


def refusals() -> Iterator[tuple[str, ast.expr | None]]:
    """(place, kind) of every `Unsupported(…)` in the product; None where no kind is given."""
    for path in sorted((ROOT / "bolide").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Unsupported", "DataDependent"):
                position = 3 if node.func.id == "Unsupported" else 2
                given = [k.value for k in node.keywords if k.arg == "kind"] + node.args[position : position + 1]
                if "codegen" not in path.parts:  # which has an exception of its own by this name
                    named = node.func.id == "DataDependent" and not given  # its own kind
                    yield f"{path}:{node.lineno}", ast.Constant("data_value") if named else next(iter(given), None)


def test_every_refusal_names_a_registered_kind() -> None:
    found = list(refusals())
    assert len(found) > 10
    unnamed = [place for place, kind in found if kind is None]
    assert not unnamed, unnamed
    wrong = [(p, kind.value) for p, kind in found if isinstance(kind, ast.Constant) and kind.value not in KINDS]
    assert not wrong, wrong


def test_codes_and_texts_are_complete() -> None:
    codes = [kind.code for kind in KINDS.values()]
    assert len(set(codes)) == len(codes) and codes == sorted(codes)
    for kind in KINDS.values():
        assert kind.title and kind.explanation.endswith(".") and kind.remedy and not kind.remedy.endswith(".")


def test_the_docs_are_the_table() -> None:
    assert (ROOT / "docs" / "break-kinds.md").read_text() == markdown()


def test_a_message_has_code_line_source_and_remedy() -> None:
    where = UserFrame(__file__, 3, "f")
    text = str(Unsupported("it is so", where, kind="data_branch", operation="bool(tensor)"))
    assert "it is so [BR0101]" in text and "operation: bool(tensor)" in text
    assert f'File "{__file__}", line 3, in f' in text
    assert "    from __future__ import annotations\n" in text
    assert "torch.where" in text
    assert "my remedy" in str(bolide.Unsupported("r", remedy="my remedy", kind="data_branch"))

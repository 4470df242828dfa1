"""Linking object files to a shared library, by whatever linker there is."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bolide.support.errors import BolideError

_LINKERS = ("ld", "ld.lld", "lld", "ld.gold", "mold")
_COMPILERS = ("cc", "gcc", "clang")
_WHEEL = "ziglang"
"""A package that brings a linker as a wheel."""


def linker() -> list[str]:
    """The command that links; options follow in the way that `ld` takes them.

    Raises BolideError where there is none."""
    for name in _LINKERS:
        if (found := shutil.which(name)) is not None:
            return [found, "-flavor", "gnu"] if name == "lld" else [found]
    for name in _COMPILERS:
        if (found := shutil.which(name)) is not None:
            return [found]
    if importlib.util.find_spec(_WHEEL) is not None:
        return [sys.executable, "-m", _WHEEL, "ld.lld"]
    raise BolideError(
        "a library is linked by ld, lld or a C compiler, and there is none here\n"
        f"  remedy: pip install {_WHEEL}, which brings a linker; or install binutils"
    )


def link(
    objects: Sequence[bytes], nothing: bytes, exports: Sequence[str], libraries: Sequence[str], path: Path
) -> None:
    """Links object files. Only `exports` can be seen from outside; functions that are not defined are looked for in
    `libraries` when the library is loaded. `nothing`: an object file that is empty. Files beside `path` are made and
    left.

    Raises BolideError where there is no linker, or where it fails, with what it says."""
    command = linker()
    files = [path.with_name(f"{path.stem}{number}.o") for number in range(len(objects))]
    for file, content in zip(files, objects):
        file.write_bytes(content)
    empty, visible = path.with_name("nothing.o"), path.with_name("exports.map")
    empty.write_bytes(nothing)
    visible.write_text(f"{{ global: {' '.join(f'{name};' for name in exports)} local: *; }};\n")
    needed = [path.with_name(name) for name in libraries]  # only the names: they are loaded when the library is
    for library in needed:
        _run(command, ["-soname", library.name], [empty], library)
    options = ["--version-script", str(visible), "-z", "noexecstack", "--no-as-needed"]
    _run(command, options, [*files, *needed], path)


def _run(command: Sequence[str], options: Sequence[str], files: Sequence[Path], result: Path) -> None:
    if Path(command[0]).name in _COMPILERS:
        options = ["-nostdlib", *(part for option in options for part in ("-Xlinker", option))]
    line = [*command, "-shared", *options, "-o", str(result), *map(str, files)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BolideError(f"{' '.join(command)} cannot link the library:\n{done.stderr.strip()}")

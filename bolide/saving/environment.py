"""What an entry of a compiled function depends on besides its guards: the names of its key, and files."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import time
import types
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

import torch

from bolide import dynamo, functorch, inductor
from bolide.dynamo.library.marks import MARKED
from bolide.dynamo.program.kinds import is_library_file, is_own_file
from bolide.inductor.machine import host_machine
from bolide.inductor.saved import lowerings_digest
from bolide.saving.contents import CannotSave
from bolide.saving.names import Namer
from bolide.support import artifacts
from bolide.support.config import Config
from bolide.tracing import without_wrapper


def _started() -> float:
    """When this process began, at the latest, in seconds of the clock of files."""
    try:
        since_boot = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    except (OSError, ValueError, IndexError, AttributeError):
        return time.time() - time.process_time()


_STARTED = _started()


def environment() -> dict[str, str]:
    """What every entry depends on. Raises CannotSave where that cannot be said in words."""
    names = {
        "bolide": artifacts.sources_digest(),
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "python": sys.version,
        "machine": repr(host_machine()),
        "lowerings": lowerings_digest(),
        "mkldnn": str(torch.backends.mkldnn.enabled),
        "operators": artifacts.digest_of("\n".join(sorted(_own_operators()))),
    }
    marks = sorted(map(_name_of, filter(_is_unseen, MARKED)))
    if marks:
        names["marks"] = artifacts.digest_of("\n".join(marks))
    for name, config in (("dynamo", dynamo.config), ("functorch", functorch.config), ("inductor", inductor.config)):
        names |= {f"{name}.{option}": value for option, value in _changed(config)}
    return names


def _is_unseen(function: object) -> bool:
    """Whether it is not known of an entry that calls no function by a mark whether it calls this one."""
    return not isinstance(function, types.FunctionType) or is_library_file(function.__code__.co_filename)


def _name_of(function: object) -> str:
    """By what way another process finds a function that is marked, and what it is. Raises CannotSave."""
    namer = Namer(cast(types.FunctionType, _is_unseen))  # any function: no name leads through it
    namer.of(function)
    return repr(namer.rows)


def _changed(config: Config) -> Iterable[tuple[str, str]]:
    """The options that are not as they come and change what is compiled, with their values."""
    for option, declared in config._options.items():
        value = getattr(config, option)
        if declared.compiled and value != declared.default:
            yield option, repr(sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value)


def _own_operators() -> list[str]:
    """The operators of PyTorch's for which the program has put in kernels of its own. It puts in rules of
    shapes itself, and of batches when `vmap` is first used."""
    known: Iterable[str] = torch.library._impls
    return [name for name in known if name.startswith("aten/") and not name.endswith(("/Meta", "/FuncTorchBatched"))]


def places_of(codes: Iterable[types.CodeType]) -> list[int]:
    """Numbers for where code was written."""
    return sorted({zlib.crc32(f"{code.co_filename} {code.co_firstlineno} {code.co_name}".encode()) for code in codes})


def calls_marked(places: Sequence[int]) -> bool:
    """Whether some function that is marked now is among those that were interpreted at these places."""
    marked = [without_wrapper(fn).__code__ for fn in MARKED if isinstance(fn, types.FunctionType)]
    return not set(places).isdisjoint(places_of(marked))


def files_of(codes: Iterable[types.CodeType]) -> dict[str, str]:
    """The files of libraries among whose functions these are, and digests of what is in them: what is theirs is not
    guarded. Raises CannotSave where a file may not be what this process runs."""
    names = {code.co_filename for code in codes}
    return {name: file_digest(name) for name in sorted(names) if is_library_file(name) and not is_own_file(name)}


def unchanged(files: Mapping[str, str]) -> bool:
    """Whether this process runs what is in these files, and it is what it was."""
    try:
        return all(file_digest(name) == digest for name, digest in files.items())
    except CannotSave:
        return False


@functools.cache
def file_digest(name: str) -> str:
    """A digest of a file that this process runs. Raises CannotSave where it was written since the process began."""
    if name.startswith("<"):
        return ""  # Python's own, or made by what has been looked at
    try:
        if os.stat(name).st_mtime >= _STARTED:
            raise CannotSave(f"{name} was written after it was read")
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    except OSError as error:
        raise CannotSave(f"{name}, which has the code of a library, cannot be read") from error

"""Packages: a zip file, in PyTorch's layout, with a library in it. Loading one."""

from __future__ import annotations

import contextlib
import ctypes
import json
import shutil
import tempfile
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

from bolide.aot.library import FACTS
from bolide.support.errors import BolideError

_FOLDER = "data/aotinductor/model"
_SOURCE = "// The library was made without one.\n"
"""What stands for a source: older loaders find the metadata by its name."""


def write_package(library: Path, device: str, path: Path) -> None:
    """A package with a library for a type of device."""
    root, name = path.stem, f"{uuid.uuid4().hex}.wrapper"  # newer loaders find the metadata by this
    folder = f"{root}/{_FOLDER}"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{root}/archive_format", "pt2")
        archive.writestr(f"{root}/archive_version", "0")
        archive.writestr(f"{root}/byteorder", "little")
        archive.writestr(f"{root}/version", "3\n")  # of PyTorch's files, whatever is in them
        archive.write(library, f"{folder}/{name}.so")
        archive.writestr(f"{folder}/{name}.cpp", _SOURCE)
        archive.writestr(f"{folder}/{name}_metadata.json", json.dumps({"AOTI_DEVICE_KEY": device}))


class Loaded:
    """A library that is called as the program that it was made of. `runner` is PyTorch's."""

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise RuntimeError(f"the library cannot be loaded here: {error}") from error
        facts = json.loads(self._text(ctypes.c_char.in_dll(self._library, FACTS)))
        self._leaves: list[str] = facts["leaves"]
        self._fixed = {int(place): text for place, text in facts["fixed"].items()}
        with self._telling():
            self.runner = _runner(path, facts["device"])
        arguments, result = self.runner.get_call_spec()
        self._in_spec, self._out_spec = pytree.treespec_loads(arguments), pytree.treespec_loads(result)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Runs it.

        Raises ValueError for arguments of another structure, or with other constants, than those it was made for;
        RuntimeError, which names input and dimension, for tensors of other types and sizes."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._in_spec:
            raise ValueError(
                f"the arguments are not those of the example\n  expected: {self._in_spec}\n  given: {spec}"
            )
        for place, text in self._fixed.items():
            if repr(leaves[place]) != text:
                raise ValueError(f"leaf {place} of the arguments is {leaves[place]!r}; the library is for {text}")
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        with self._telling():
            outputs = self.runner.run(tensors)
        values = [value.item() if kind == "number" else value for value, kind in zip(outputs, self._leaves)]
        return pytree.tree_unflatten(values, self._out_spec)

    def load_constants(self, tensors: Mapping[str, torch.Tensor], *, full: bool = True) -> None:
        """Copies tensors to the constants of these names, which are those of the model's state; `full`: no parameter
        may be missing. Raises RuntimeError for one of another type or size."""
        with self._telling():
            self.runner.update_constant_buffer(dict(tensors), False, full)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Errors have the library's own message, which not every version of PyTorch's runner passes on."""
        try:
            yield
        except RuntimeError as error:
            message = ctypes.c_char_p()
            self._library.AOTInductorGetLastError(ctypes.byref(message))
            raise RuntimeError((message.value or b"").decode(errors="replace") or str(error)) from None

    @staticmethod
    def _text(place: ctypes.c_char) -> str:
        return ctypes.string_at(ctypes.addressof(place)).decode()


def _runner(path: Path, device: str) -> torch._C._aoti.AOTIModelContainerRunner:
    """PyTorch's runner of a library."""
    if device == "cpu":
        return torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), 1)
    return torch._C._aoti.AOTIModelContainerRunnerCuda(str(path), 1, device)


def load_library(path: Path) -> Loaded:
    """Loads a package, or a library alone. Raises FileNotFoundError; BolideError for another file; RuntimeError for a
    library that this machine cannot run: its CPU lacks a feature, or there is no such GPU."""
    if not path.exists():
        raise FileNotFoundError(path)
    if path.suffix == ".so":
        return Loaded(path.absolute())
    if not zipfile.is_zipfile(path):
        raise BolideError(f"{path} is no package that aot_compile has written")
    folder = Path(tempfile.mkdtemp(prefix="bolide_load_"))
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if f"/{_FOLDER}/" in name and name.endswith(".so")]
            if not names:
                raise BolideError(f"{path} is no package that aot_compile has written: there is no library in it")
            library = folder / "model.so"
            with archive.open(names[0]) as source, library.open("wb") as target:
                shutil.copyfileobj(source, target)
        return Loaded(library)
    finally:
        shutil.rmtree(folder)  # what is mapped stays

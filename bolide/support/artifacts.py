"""Machine code that this process has generated or was given, and choices that it has measured: another process that is
given them need not generate or measure again.

What is saved is found by its LLVM text, the processor it is for and LLVM's version, so it serves programs that compile
the same kernels together, and no others. It is machine code: load only what you trust.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from bolide.support.caches import on_reset
from bolide.support.errors import BolideError
from bolide.support.locks import compiling

_LIMIT = 64 << 20  # bytes of machine code that are kept; the oldest go first
_FORMAT = "bolide 2"
_IMPORTS, _CHOICES = "imports.json", "choices.json"


class Object(NamedTuple):
    """An object file, and the names of the functions that it calls elsewhere."""

    imports: tuple[str, ...]
    image: bytes


@dataclass(frozen=True)
class CacheInfo:
    """What has been saved or loaded: keys by the kind of artifact (``kernels``, ``choices``)."""

    artifacts: dict[str, list[str]]


_objects: dict[str, Object] = {}
_choices: dict[str, int] = {}


def key_of(text: str, *target: str) -> str:
    """By what the machine code of `text` is found."""
    return hashlib.sha256("\0".join((*target, text)).encode()).hexdigest()


def find(key: str) -> Object | None:
    """What is known by `key`."""
    return _objects.get(key)


def keep(key: str, code: Object) -> None:
    """Remember what was generated."""
    _add({key: code}.items())


def find_choice(key: str) -> int | None:
    """What was chosen by measuring, by what it was chosen from."""
    return _choices.get(key)


def keep_choice(key: str, choice: int) -> None:
    """Remember what was measured."""
    with compiling:
        _choices[key] = choice


def _add(objects: Iterable[tuple[str, Object]]) -> None:
    with compiling:
        _objects.update(objects)
        size = sum(len(known.image) for known in _objects.values())
        while size > _LIMIT:
            size -= len(_objects.pop(next(iter(_objects))).image)


def save_cache_artifacts() -> tuple[bytes, CacheInfo] | None:
    """All machine code that was generated and all choices that were measured since the process began, or since
    `reset`, as bytes for another process of the same kind of machine (see `load_cache_artifacts`), and what is in them;
    None if there is nothing.
    """
    with compiling:
        known, choices = dict(_objects), dict(_choices)
    if not known and not choices:
        return None
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = _FORMAT.encode()
        archive.writestr(_IMPORTS, json.dumps({key: code.imports for key, code in known.items()}))
        archive.writestr(_CHOICES, json.dumps(choices))
        for key, code in known.items():
            archive.writestr(key, code.image)
    return file.getvalue(), _info(known, choices)


def load_cache_artifacts(serialized_artifacts: bytes) -> CacheInfo:
    """Take what `save_cache_artifacts` gave: kernels that are in it are loaded, not generated, when they are compiled,
    and what was measured is not measured again.
    Those for other processors or another LLVM are never found. It is machine code: load only what you trust.

    Raises BolideError for other bytes.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(serialized_artifacts)) as archive:
            if archive.comment != _FORMAT.encode():
                raise ValueError(f"its format is {archive.comment.decode(errors='replace')!r}")
            imports = json.loads(archive.read(_IMPORTS))
            choices = {key: int(choice) for key, choice in json.loads(archive.read(_CHOICES)).items()}
            objects = {key: Object(tuple(names), archive.read(key)) for key, names in imports.items()}
    except (zipfile.BadZipFile, ValueError, KeyError, AttributeError, TypeError) as error:
        raise BolideError(f"these bytes are not what save_cache_artifacts of this version gives: {error}") from error
    _add(objects.items())
    with compiling:
        _choices.update(choices)
    return _info(objects, choices)


def _info(objects: Iterable[str], choices: Iterable[str]) -> CacheInfo:
    return CacheInfo({"kernels": list(objects), "choices": list(choices)})


@on_reset
def reset() -> None:
    """Forget all machine code and choices."""
    with compiling:
        _objects.clear()
        _choices.clear()

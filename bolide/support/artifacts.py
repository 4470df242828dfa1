"""What this process has generated, decided or measured, or was given, or found in the cache on disk: another process
that finds it need not do that again (docs/caches.md).

Entries are kept in memory, where `save_cache_artifacts` finds them, and on disk. They hold machine code: load only what
you trust.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType

from bolide.support import events
from bolide.support.cache import KINDS, Key, difference, pack, unpack
from bolide.support.caches import on_reset
from bolide.support.errors import BolideError
from bolide.support.locks import compiling

_LIMIT = 64 << 20  # bytes that are kept in memory; the oldest go first
_FORMAT = b"bolide 3"
_LOOKED_AT = 500  # entries that are compared to tell why there is none

Place = tuple[str, str]  # kind and digest


@dataclass(frozen=True)
class CacheInfo:
    """What has been saved or loaded: digests by the kind of entry (``kernels``, ``plans``, ``choices``, …)."""

    artifacts: dict[str, list[str]]


_known: dict[Place, bytes] = {}


def digest_of(text: str) -> str:
    """A digest to stand in a key."""
    return hashlib.sha256(text.encode()).hexdigest()


def find(key: Key) -> bytes | None:
    """What is kept under a key, in memory or on disk."""
    place = key.kind, key.digest
    data = _known.get(place)
    kept = data is not None
    disk = _disk()
    if data is None:
        data = disk.read(*place)
    entry = None if data is None else unpack(*place, data)
    if data is not None and entry is None:
        disk.remove(*place)
    if events.subscribers:
        reason = "" if entry is not None else why(key) if data is None else "it was damaged"
        events.emit(events.CacheLookup(key.label, key.kind, entry is not None, reason))
    if data is None or entry is None:
        return None
    if not kept:
        _add([(place, data)])
    return entry.payload


def keep(key: Key, payload: bytes) -> None:
    """Keep what was made, in memory and on disk."""
    data = pack(key, payload)
    _add([((key.kind, key.digest), data)])
    _disk().write(key.kind, key.digest, data)


def why(key: Key) -> str:
    """Why nothing is kept under a key: in what the most similar one differs."""
    found: list[tuple[bool, int, float, list[str]]] = []
    disk = _disk()
    places = [(last, kind, digest) for kind, digest, _, last in disk.files() if kind == key.kind]
    for last, kind, digest in sorted(places, reverse=True)[:_LOOKED_AT]:
        data = disk.read(kind, digest)
        entry = None if data is None else unpack(kind, digest, data)
        if entry is not None:
            told = difference(key, entry.key)
            found.append((entry.key.label != key.label, len(told), -last, told))
    return ", ".join(min(found)[3]) if found else "the first of its kind"


def _disk() -> ModuleType:
    from bolide.support.cache import disk

    return disk


def _add(entries: Iterable[tuple[Place, bytes]]) -> None:
    with compiling:
        _known.update(entries)
        size = sum(map(len, _known.values()))
        while size > _LIMIT:
            size -= len(_known.pop(next(iter(_known))))


def save_cache_artifacts() -> tuple[bytes, CacheInfo] | None:
    """All that was generated, decided or measured, or found in the cache on disk, since the process began, or since
    `reset`, as bytes for another process (see `load_cache_artifacts`), and what is in them; None if there is nothing.
    """
    with compiling:
        known = dict(_known)
    return (packed(known.items()), _info(known)) if known else None


def packed(entries: Iterable[tuple[Place, bytes]]) -> bytes:
    """The bytes of many entries together."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = _FORMAT
        for (kind, digest), data in entries:
            archive.writestr(f"{kind}/{digest}", data)
    return file.getvalue()


def load_cache_artifacts(serialized_artifacts: bytes) -> CacheInfo:
    """Take what `save_cache_artifacts` gave, also into the cache on disk: what is in it is not made again. What is for
    other processors, options or versions is never found. It is machine code: load only what you trust.

    Raises BolideError for other bytes.
    """
    known: dict[Place, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(serialized_artifacts)) as archive:
            if archive.comment != _FORMAT:
                raise ValueError(f"its format is {archive.comment.decode(errors='replace')!r}")
            for name in archive.namelist():
                kind, _, digest = name.partition("/")
                data = archive.read(name)
                if kind not in KINDS or unpack(kind, digest, data) is None:
                    raise ValueError(f"the entry {name} is damaged")
                known[kind, digest] = data
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, zlib.error) as error:
        raise BolideError(f"these bytes are not what save_cache_artifacts of this version gives: {error}") from error
    _add(known.items())
    for (kind, digest), data in known.items():
        _disk().write(kind, digest, data)
    return _info(known)


def _info(places: Iterable[Place]) -> CacheInfo:
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for kind, digest in places:
        found[kind].append(digest)
    return CacheInfo(found)


@on_reset
def reset() -> None:
    """Forget what is in memory."""
    with compiling:
        _known.clear()

"""What this process has generated, decided or measured, or was given, or found in the cache on disk: another process
that finds it need not do that again (docs/caches.md).

An *entry* is bytes that are found by a `Key`, which is made of named texts, so that a miss can be explained. Entries
are kept in memory, where `save_cache_artifacts` finds them, and on disk. They hold machine code: load only what you
trust.

Their bytes are a mark, a checksum over the entry's place and all that follows, and a heading (JSON: the key's names)
before the payload. So bytes that were damaged, cut off, or put elsewhere are no entry.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import re
import struct
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

from bolide.support import events
from bolide.support.caches import on_reset
from bolide.support.errors import BolideError
from bolide.support.locks import compiling

KINDS = ("objects", "images", "modules", "kernels", "plans", "choices", "libraries", "functions", "sources", "hosts")
"""Machine code of modules, and of those for GPUs; where that of bolide's own is; where a kernel's is; plans of graphs;
schedules that were fastest; times of libraries; entries of compiled functions; digests of our sources; CPUs."""

_MARK = b"bolide\0\1"
_HEAD = len(_MARK) + 32
_LENGTH = struct.Struct("<I")

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIMIT = 64 << 20  # bytes that are kept in memory; the oldest go first
_FORMAT = b"bolide 3"
_LOOKED_AT = 16  # entries, in memory and on disk each, that are compared to tell why there is none

Place = tuple[str, str]  # kind and digest


@dataclass(frozen=True)
class Key:
    """`names`: all that the payload depends on, in words or digests. `label`: what it belongs to, for people: no part
    of the key."""

    kind: str
    names: Mapping[str, str]
    label: str = ""

    @functools.cached_property
    def digest(self) -> str:
        """What the key is called: the same in every process."""
        return hashlib.sha256(json.dumps([self.kind, sorted(self.names.items())]).encode()).hexdigest()


class Entry(NamedTuple):
    """What `unpack` reads."""

    key: Key
    payload: bytes


def pack(key: Key, payload: bytes) -> bytes:
    """The bytes of an entry."""
    heading = json.dumps([key.label, sorted(key.names.items())]).encode()
    content = _LENGTH.pack(len(heading)) + heading + payload
    return _MARK + _checksum(key.kind, key.digest, content) + content


def unpack(kind: str, digest: str, data: bytes) -> Entry | None:
    """The entry at this place; None where these are not the bytes that were written there."""
    content = data[_HEAD:]
    if kind not in KINDS or data[: len(_MARK)] != _MARK or data[len(_MARK) : _HEAD] != _checksum(kind, digest, content):
        return None
    (length,) = _LENGTH.unpack_from(content)
    label, names = json.loads(content[_LENGTH.size : _LENGTH.size + length])
    return Entry(Key(kind, dict(names), label), content[_LENGTH.size + length :])


def _checksum(kind: str, digest: str, content: bytes) -> bytes:
    return hashlib.sha256(f"{kind}/{digest}\0".encode() + content).digest()


def difference(wanted: Key, found: Key) -> list[str]:
    """In what two keys differ: the names, and both values where people can read them."""
    told = []
    for name in sorted({*wanted.names, *found.names}):
        new, old = wanted.names.get(name, "none"), found.names.get(name, "none")
        if new != old:
            told.append(name if max(len(new), len(old)) > 40 else f"{name} {old} → {new}")
    return told


class _Switch:
    """Whether there is a cache on disk (the option `force_disable_caches`)."""

    on = True


def switch(disabled: bool) -> None:
    """What `force_disable_caches` does."""
    _Switch.on = not disabled


def is_on() -> bool:
    """Whether results of this process, or others, may be taken."""
    return _Switch.on


@dataclass(frozen=True)
class CacheInfo:
    """What has been saved or loaded: digests by the kind of entry (``kernels``, ``plans``, ``choices``, …)."""

    artifacts: dict[str, list[str]]


_known: dict[Place, bytes] = {}


_SETTLED = 2.0
"""So many seconds after a file was last changed, another change has another time."""


@functools.cache
def sources_digest() -> str:
    """A digest of our own code: what another version has made is not used. It is kept, by the sizes and times of all
    files, the time at which a file's node was changed among them, which no program sets."""
    files = sorted(_sources(_PACKAGE))
    seen = [signature(os.stat(name)) for name in files]
    named = [(name.removeprefix(_PACKAGE), signature) for name, signature in zip(files, seen)]
    key = Key("sources", {"files": digest_of(repr(named))}, "bolide")
    place = (key.kind, key.digest)
    data = _disk().read(*place) if is_on() else None
    kept = None if data is None else unpack(*place, data)
    if kept is not None:
        return kept.payload.decode()
    total = hashlib.sha256()
    for name in files:
        total.update(f"{name.removeprefix(_PACKAGE)}\n".encode())
        with open(name, "rb") as file:
            total.update(file.read())
    if is_on() and max(row[-1] for row in seen) < (time.time() - _SETTLED) * 1e9:
        _disk().write(*place, pack(key, total.hexdigest().encode()))
    return total.hexdigest()


def _sources(folder: str) -> Iterator[str]:
    for found in os.scandir(folder):
        if found.name.endswith(".py"):
            yield found.path
        elif found.is_dir() and found.name != "__pycache__":
            yield from _sources(found.path)


def signature(status: os.stat_result) -> tuple[int, ...]:
    """What differs once a file was written, or another one has taken its place."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def digest_of(text: str) -> str:
    """A digest to stand in a key."""
    return hashlib.sha256(text.encode()).hexdigest()


def find(key: Key) -> bytes | None:
    """What is kept under a key, in memory or on disk."""
    entry, damaged = _entry((key.kind, key.digest))
    if events.subscribers:
        reason = "" if entry is not None else "it was damaged" if damaged else why(key)
        events.emit(events.CacheLookup(key.label, key.kind, entry is not None, reason))
    return None if entry is None else entry.payload


def find_place(place: Place) -> Entry | None:
    """What is kept at a place that another entry names."""
    entry, damaged = _entry(place)
    if events.subscribers:
        reason = "" if entry is not None else "it was damaged" if damaged else "it is gone"
        events.emit(events.CacheLookup("" if entry is None else entry.key.label, place[0], entry is not None, reason))
    return entry


def raw(place: Place) -> bytes | None:
    """The bytes of the entry at a place."""
    data = _known.get(place)
    return _disk().read(*place) if data is None and is_on() else data


def in_memory(kind: str) -> list[Place]:
    """The places of this kind that this process has made or found."""
    with compiling:
        return [place for place in _known if place[0] == kind]


def _entry(place: Place) -> tuple[Entry | None, bool]:
    """What is kept at a place, and whether what was there is damaged."""
    data = _known.get(place)
    kept = data is not None
    if data is None and is_on():
        data = _disk().read(*place)
    if data is None:
        return None, False
    entry = unpack(*place, data)
    if entry is None:
        _disk().remove(*place)
    elif not kept:
        _add([(place, data)])
    return entry, entry is None


def keep(key: Key, payload: bytes) -> None:
    """Keep what was made, in memory and on disk."""
    data = pack(key, payload)
    _add([((key.kind, key.digest), data)])
    if is_on():
        _disk().write(key.kind, key.digest, data)
        _disk().add(_list(key), key.digest.encode())


def why(key: Key) -> str:
    """Why nothing is kept under a key: in what the most similar of those differs that were kept last."""
    if not is_on():
        return "no cache is used"
    here = reversed(in_memory(key.kind)[-_LOOKED_AT:])
    there = [(key.kind, digest) for digest in _newest(key)]
    found: list[tuple[bool, int, int, list[str]]] = []
    for age, place in enumerate(dict.fromkeys((*here, *there))):
        other = _key_at(place)
        if other is not None and other.digest != key.digest:
            told = difference(key, other)
            found.append((other.label != key.label, len(told), age, told))
    return ", ".join(min(found)[3]) if found else "the first of its kind"


@functools.lru_cache(maxsize=1024)
def _key_at(place: Place) -> Key | None:
    data = raw(place)
    entry = None if data is None else unpack(*place, data)
    return None if entry is None else entry.key


def _newest(key: Key) -> list[str]:
    """The digests of the entries of a key's kind and label that were kept last, the last one first."""
    found = re.findall(rb"\b[0-9a-f]{64}\b", _disk().listed(_list(key)))
    return [digest.decode() for digest in dict.fromkeys(reversed(found))][:_LOOKED_AT]


def _list(key: Key) -> str:
    """The name of the list of what is kept of a key's kind and label."""
    return digest_of(json.dumps([key.kind, key.label]))


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
    known = unpacked(serialized_artifacts)
    for entry in known.values():
        keep(*entry)
    return _info(known)


def unpacked(serialized_artifacts: bytes) -> dict[Place, Entry]:
    """The entries in what `packed` gives. Raises BolideError for other bytes."""
    known: dict[Place, Entry] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(serialized_artifacts)) as archive:
            if archive.comment != _FORMAT:
                raise ValueError(f"its format is {archive.comment.decode(errors='replace')!r}")
            for name in archive.namelist():
                kind, _, digest = name.partition("/")
                data = archive.read(name)
                entry = unpack(kind, digest, data)
                if entry is None:
                    raise ValueError(f"the entry {name} is damaged")
                known[kind, digest] = entry
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, zlib.error) as error:
        raise BolideError(f"these bytes are not what save_cache_artifacts of this version gives: {error}") from error
    return known


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
    _key_at.cache_clear()

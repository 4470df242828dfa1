"""What a cache holds: bytes found by a `Key`, which is made of named texts, so that a miss can be explained.

An entry's bytes are a mark, a checksum over its place and all that follows, and a heading (JSON: the key's names)
before the payload. So bytes that were damaged, cut off, or put elsewhere are no entry.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

KINDS = ("objects", "kernels", "plans", "choices", "libraries")
"""Machine code of modules; where a kernel's is; plans of graphs; schedules that were fastest; times of libraries."""

_MARK = b"bolide\0\1"
_HEAD = len(_MARK) + 32
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Key:
    """`names`: all that the payload depends on, in words or digests. `label`: what it belongs to, for people: no part
    of the key."""

    kind: str
    names: Mapping[str, str]
    label: str = ""

    @cached_property
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
    if data[: len(_MARK)] != _MARK or data[len(_MARK) : _HEAD] != _checksum(kind, digest, content):
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

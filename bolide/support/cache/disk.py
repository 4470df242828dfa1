"""Files of a cache that many processes share: one for each entry, in a folder of this user's alone.

Nothing here raises: what cannot be read is not there, and what cannot be written is not kept. Entries are written to a
file of their own first, which then takes its name: a reader sees all of one or nothing of it. The folder is divided in
`SHARDS`, each of which holds at most its share of the bytes: who writes into one that is full takes out what was not
used for longest.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bolide.support.log import logger

SHARDS = 64
_SWEEP = 8  # one new entry of so many looks whether its shard is full
_LEAST = 1 << 12  # bytes that an entry counts as, so that there is a limit to how many there are
_HOUR = 3600.0
_SIZE = 1 << 30
_LONG = 1 << 12  # bytes of a list from which on only its end is kept
_VERSION = "v1"
_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY", "O_NONBLOCK"))


def folder() -> Path:
    """Where the cache is, or would be: ``BOLIDE_CACHE_DIR``, or the platform's folder for caches."""
    given = os.environ.get("BOLIDE_CACHE_DIR")
    if given:
        return Path(given)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "bolide" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "bolide"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bolide"


def limit() -> int:
    """The bytes that the cache may take: ``BOLIDE_CACHE_SIZE``, or 1 GiB."""
    with contextlib.suppress(ValueError):
        return int(os.environ.get("BOLIDE_CACHE_SIZE", _SIZE))
    return _SIZE


def root() -> Path | None:
    """The folder of this format's entries, made if it is not there; None where it cannot be."""
    try:
        return _root(folder())
    except (OSError, RuntimeError) as error:  # there may be no home
        logger("inductor").info("no cache on disk: %s", error)
        return None


@functools.lru_cache(maxsize=8)
def _root(base: Path) -> Path | None:
    path = base / _VERSION
    for each in (base, path):
        with contextlib.suppress(FileExistsError):
            os.makedirs(each, 0o700)
        status = os.stat(each)
        others = status.st_mode & 0o022 and os.name == "posix"
        if not stat.S_ISDIR(status.st_mode) or not _is_mine(status) or others:
            logger("inductor").warning("no cache on disk: %s is not a folder that only this user may write to", each)
            return None
    return path


def _is_mine(status: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


def _place(base: Path, kind: str, digest: str) -> Path:
    return _shard(base, digest) / f"{kind}-{digest}"


def _shard(base: Path, digest: str) -> Path:
    return base / f"{int(digest[:2], 16) % SHARDS:02x}"


def read(kind: str, digest: str) -> bytes | None:
    """The bytes that were written for an entry: whether they are whole is for the reader to see."""
    base = root()
    if base is None:
        return None
    return _read(_place(base, kind, digest))


def _read(path: Path) -> bytes | None:
    try:
        file = os.open(path, os.O_RDONLY | _FLAGS)
    except OSError:
        return None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or not _is_mine(status):
            return None
        if time.time() - status.st_mtime > _HOUR:  # by that the least used is known
            with contextlib.suppress(OSError):
                os.utime(path)
        parts = []
        while part := os.read(file, 1 << 20):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(file)


def write(kind: str, digest: str, data: bytes) -> bool:
    """Keep the bytes of an entry; answers whether they are kept."""
    base = root()
    if base is None or len(data) > limit() // SHARDS:
        return False
    path = _place(base, kind, digest)
    sweeps = int(digest[2:4], 16) % _SWEEP == 0 and not path.exists()
    try:
        try:
            _write(path, data)
        except FileNotFoundError:
            os.makedirs(path.parent, 0o700, exist_ok=True)
            _write(path, data)
        if sweeps:
            sweep(path.parent, limit() // SHARDS)
        return True
    except OSError as error:
        logger("inductor").info("an entry is not kept: %s", error)
        return False


def _write(path: Path, data: bytes) -> None:
    own = path.parent / f".{os.getpid()}-{os.urandom(8).hex()}"
    file = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
    try:
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(file, left) :]
        finally:
            os.close(file)
        os.replace(own, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(own)
        raise


def listed(name: str) -> bytes:
    """The lines of a list, the last one added at the end. `name`: a digest."""
    base = root()
    return b"" if base is None else _read(_list(base, name)) or b""


def add(name: str, line: bytes) -> None:
    """Add a line to a list, which is no entry. Of a list that has become long, its end is left."""
    base = root()
    if base is None:
        return
    path = _list(base, name)
    with contextlib.suppress(OSError):
        os.makedirs(path.parent, 0o700, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _FLAGS, 0o600)
        try:
            os.write(file, line + b"\n")
            is_long = os.fstat(file).st_size > _LONG
        finally:
            os.close(file)
        if is_long:
            _write(path, listed(name)[-_LONG // 2 :])


def _list(base: Path, name: str) -> Path:
    return _shard(base, name) / f"list.{name}"


def remove(kind: str, digest: str) -> None:
    """Take an entry out."""
    base = root()
    if base is not None:
        with contextlib.suppress(OSError):
            os.unlink(_place(base, kind, digest))


def sweep(shard: Path, most: int) -> None:
    """Take out what was not used for longest until a shard holds four fifths of `most` bytes, if it holds more; and
    what writers have left that were killed. Raises OSError where the folder cannot be read."""
    files, total = [], 0
    for found in os.scandir(shard):
        with contextlib.suppress(FileNotFoundError):  # another process sweeps, too
            status = found.stat(follow_symlinks=False)
            if found.name.startswith(".") and time.time() - status.st_mtime > _HOUR:
                os.unlink(found.path)
                continue
            size = max(status.st_size, _LEAST)
            files.append((status.st_mtime, size, found.path))
            total += size
    if total <= most:
        return
    for _, size, path in sorted(files):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        total -= size
        if total <= most * 4 // 5:
            return


def files() -> Iterator[tuple[str, str, int, float]]:
    """Kind, digest, bytes and time of last use of what the cache holds."""
    for found in _found():
        kind, _, digest = found.name.partition("-")
        if digest:
            with contextlib.suppress(FileNotFoundError):
                status = found.stat(follow_symlinks=False)
                yield kind, digest, status.st_size, status.st_mtime


def clear() -> int:
    """Take all out; answers how many entries there were."""
    count = len([*files()])
    for found in _found():
        with contextlib.suppress(OSError):
            os.unlink(found.path)
    return count


def _found() -> Iterator[os.DirEntry[str]]:
    """The files of all shards, but those that are being written."""
    base = root()
    for shard in sorted(base.iterdir()) if base is not None else ():
        with contextlib.suppress(OSError):
            yield from [found for found in os.scandir(shard) if not found.name.startswith(".")]

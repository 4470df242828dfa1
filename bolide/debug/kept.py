"""What `bolide cache` does: shows, empties and moves the cache on disk (docs/caches.md)."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from bolide.support import artifacts
from bolide.support.cache import disk


def shown() -> str:
    """Where the cache is, and what is in it."""
    counts, sizes, oldest = Counter[str](), Counter[str](), time.time()
    for kind, _, size, used in disk.files():
        counts[kind] += 1
        sizes[kind] += size
        oldest = min(oldest, used)
    lines = [f"{disk.folder()}: {total(sizes.total())} of {total(disk.limit())}"]
    lines += [f"  {kind}: {counts[kind]}, {total(sizes[kind])}" for kind in sorted(counts)]
    lines += [f"  least used: {(time.time() - oldest) / 86400:.1f} days ago"] if counts else ["  empty"]
    return "\n".join(lines)


def total(size: int) -> str:
    """Bytes for people."""
    return f"{size / 2**20:.1f} MiB" if size >= 1 << 20 else f"{size / 2**10:.1f} KiB"


def clear() -> int:
    """Takes all entries out; answers how many there were."""
    return disk.clear()


def pack(path: Path) -> int:
    """Writes all whole entries into one file, as `save_cache_artifacts` does those of a process; answers how many."""
    read = {(kind, digest): disk.read(kind, digest) for kind, digest, *_ in disk.files()}
    found = {place: data for place, data in read.items() if data is not None and artifacts.unpack(*place, data)}
    path.write_bytes(artifacts.packed(found.items()))
    return len(found)


def unpack(path: Path) -> int:
    """Takes all entries of such a file; answers how many. Raises BolideError for another one."""
    return sum(map(len, artifacts.load_cache_artifacts(path.read_bytes()).artifacts.values()))

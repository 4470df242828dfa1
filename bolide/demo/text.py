"""Text for the demo: found on the machine, read, and cut into batches of character numbers."""

from __future__ import annotations

import codecs
import os
import random
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

LIMIT = 8_000_000
"""Characters read at most."""
ALPHABET = 256
"""Different characters at most; the rarest share OTHER."""
OTHER = "\ufffd"


class TextError(ValueError):
    """The text cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Text:
    """Characters as numbers: `tokens` is 1-D int64 of indices into `alphabet`; `source` says where they came from."""

    source: str
    tokens: Tensor
    alphabet: str

    def batch(self, size: int, context: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random pieces of the text and the characters that follow: two int64 tensors (size, context)."""
        starts = torch.randint(0, len(self.tokens) - context, (size, 1), generator=generator)
        window = starts + torch.arange(context)
        return self.tokens[window], self.tokens[window + 1]


def load(path: Path | None, context: int) -> Text:
    """The text of a file or of all text files below a folder; by default the Python standard library's sources.

    Raises TextError: no such file, not readable, no text in it, or shorter than one context.
    """
    if path is None:
        root = Path(sysconfig.get_paths()["stdlib"])
        source, parts = "the Python standard library's sources", read_folder(root, {".py"})
    elif path.is_dir():
        source, parts = str(path), read_folder(path, None)
    else:
        source, parts = str(path), iter([read_file(path)])
    text = "".join(limited(parts))
    if not text:
        raise TextError(f"no text in {source}. Give --text a file or folder of UTF-8 text")
    if len(text) < context + 2:
        raise TextError(
            f"{source} has {len(text)} characters, but one context is {context}. "
            "Use a longer text or a smaller --context"
        )
    counts = Counter(text)
    common = sorted(sorted(counts), key=counts.__getitem__, reverse=True)[: ALPHABET - 1]
    alphabet = "".join(sorted(common)) + OTHER
    number = {c: i for i, c in enumerate(alphabet)}
    other = number[OTHER]
    return Text(source, torch.tensor([number.get(c, other) for c in text]), alphabet)


def limited(parts: Iterator[str]) -> Iterator[str]:
    """The parts until LIMIT characters are reached."""
    left = LIMIT
    for part in parts:
        yield part[:left]
        left -= len(part)
        if left <= 0:
            return


def read_file(path: Path) -> str:
    try:
        data = head(path)
    except OSError as error:
        raise TextError(f"cannot read {path}: {error.strerror}. Give --text a readable file or folder") from None
    text = decode(data)
    if text is None:
        raise TextError(f"{path} is not UTF-8 text. Give --text a text file")
    return text


def head(path: Path) -> bytes:
    """The beginning of a file, enough for LIMIT characters."""
    with path.open("rb") as file:
        return file.read(4 * LIMIT)


def decode(data: bytes) -> str | None:
    """The text of some bytes, which may end within a character; None where they are no text."""
    if b"\0" in data:
        return None
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return None


def read_folder(root: Path, suffixes: set[str] | None) -> Iterator[str]:
    """The text files below a folder in a fixed, mixed order; without those that are not text or cannot be read."""
    paths = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(d for d in folders if not d.startswith(".") and d not in ("site-packages", "__pycache__"))
        paths += [Path(folder, name) for name in sorted(names) if suffixes is None or Path(name).suffix in suffixes]
    random.Random(0).shuffle(paths)
    for path in paths:
        try:
            text = decode(head(path)) if path.is_file() else None
        except OSError:
            continue
        if text:
            yield text

"""Checks of the demo's options before any work. Every fault is a Problem: one line that says what to do instead."""

from __future__ import annotations

import os
from pathlib import Path

import click
import torch

from bolide.demo.model import Size

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Problem(click.ClickException):
    """An option that cannot be used."""

    exit_code = 2


def checked_device(name: str) -> torch.device:
    """The device called `name`, if training can run on it here."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise Problem(f"unknown device {name!r}. Use --device cpu, or cuda where a GPU is present") from None
    if device.type not in ("cpu", "cuda"):
        raise Problem(f"the demo does not run on {device.type!r}. Use --device cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise Problem(f"device {name!r} is not available: this torch sees no GPU. Use --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise Problem(f"there is no {name!r}: {torch.cuda.device_count()} GPU(s) found. Use a smaller index")
    return device


def checked_size(
    base: Size, layers: int | None, width: int | None, heads: int | None, context: int | None, batch: int | None
) -> Size:
    """A preset with single sizes replaced."""
    size = Size(
        base.layers if layers is None else layers,
        base.width if width is None else width,
        base.heads if heads is None else heads,
        base.context if context is None else context,
        base.batch if batch is None else batch,
    )
    for name in ("layers", "width", "heads", "context", "batch"):
        if getattr(size, name) < 1:
            raise Problem(f"--{name} is {getattr(size, name)}. It must be at least 1")
    if size.width % size.heads:
        raise Problem(f"--width {size.width} is not a multiple of --heads {size.heads}. Change one of them")
    return size


def checked_report(path: Path) -> Path:
    """A path that a report can be written to."""
    folder = path.resolve().parent
    if path.is_dir():
        raise Problem(f"--report {path} is a folder. Give a file name, such as {path / 'report.html'}")
    if not folder.is_dir():
        raise Problem(f"--report {path}: there is no folder {folder}. Create it or choose another path")
    target = path if path.exists() else folder
    if not os.access(target, os.W_OK):
        raise Problem(f"--report {path}: {target} is not writable. Choose another path")
    return path

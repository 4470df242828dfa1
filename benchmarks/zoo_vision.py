"""Models of timm and torchvision for the sweep: one of every family, the smallest by its name, on small images.

Names are ``timm.NAME`` and ``torchvision.NAME``; weights are random, dropout is off.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo_build import BATCH, LARGEST, without_dropout

#: what the names of small models have in them, the smallest first
SMALL = ("test_", "atto", "femto", "pico", "nano", "xxs", "tiny", "_ti", "_t_", "xs", "mini", "small", "18", "s0", "b0")
SIZES = (64, 96, 128, 192, 224, 256)  # of images, tried in this order
LIBRARIES = ("timm", "torchvision")


def names(library: str) -> list[str]:
    """One model of every module of the library that has models."""
    if library == "timm":
        import timm

        families = {module: timm.list_models(module=module) for module in timm.list_modules()}
    else:
        from torchvision import models

        families = {}
        for module in (models, models.segmentation, models.video):
            for name in models.list_models(module=module):
                file = inspect.getmodule(models.get_model_builder(name))
                families.setdefault(str(file), []).append(name)
    return sorted(f"{library}.{min(found, key=_rank)}" for found in families.values() if found)


def _rank(name: str) -> tuple[int, int, str]:
    small = next((place for place, part in enumerate(SMALL) if part in f"{name}_"), len(SMALL))
    return small, len(name), name


def build(name: str, seed: int = 0) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model without dropout and a batch of images on which it runs in training mode, too, drawn with `seed`.

    Raises what the model raises for the largest images if it runs with no size, ValueError if it is large."""
    library, _, model = name.partition(".")
    failure: Exception | None = None
    for size in SIZES:
        torch.manual_seed(0)
        try:
            module = _made(library, model, size)
            torch.manual_seed(seed + 1)
            given = {next(iter(inspect.signature(module.forward).parameters)): _images(model, size)}
            with torch.no_grad():
                module.train()(**given)
        except (RuntimeError, AssertionError, TypeError) as error:
            failure = error
        else:
            torch.manual_seed(0)
            return _made(library, model, size), given
    assert failure is not None
    raise failure


def _images(model: str, size: int) -> Tensor:
    video = any(part in model for part in ("r3d", "mc3", "r2plus1d", "s3d", "mvit", "swin3d"))
    return torch.randn(BATCH, 3, *((16,) if video else ()), size, size)


def _made(library: str, model: str, size: int) -> nn.Module:
    if library == "timm":
        import timm

        options: dict[str, Any] = {"num_classes": 10}
        try:
            module = timm.create_model(model, img_size=size, **options)
        except TypeError:
            module = timm.create_model(model, **options)
    else:
        from torchvision import models

        module = models.get_model(model, weights=None, num_classes=10, **_backbone(model))
    if sum(parameter.numel() for parameter in module.parameters()) > LARGEST:
        raise ValueError("too large for a sweep")
    return without_dropout(module)


def _backbone(model: str) -> dict[str, None]:
    return {"weights_backbone": None} if any(p in model for p in ("deeplab", "fcn", "lraspp")) else {}

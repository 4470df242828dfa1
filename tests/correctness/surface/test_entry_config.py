"""Configuration objects."""

from __future__ import annotations

import pytest

from bolide.support.config import Config, option


class DemoConfig(Config):
    limit: int = option(8, "A number.")
    name: str | None = option(None, "A name.", env=("BOLIDE_NAME", "OTHER_NAME"), types=(str,))
    fast: bool = option(False, "A switch.", env=("BOLIDE_FAST",), compiled=False)
    kind: str = option("a", "One of two.", choices=("a", "b"))


def test_values_are_checked() -> None:
    config = DemoConfig({})
    assert (config.limit, config.name, config.fast) == (8, None, False)
    with pytest.raises(AttributeError, match="did you mean 'limit'"):
        config.limt = 3
    with pytest.raises(AttributeError, match="did you mean 'limit'"):
        config.limt  # noqa: B018
    with pytest.raises(TypeError, match="limit must be int"):
        config.limit = "3"
    with pytest.raises(ValueError, match="'a', 'b'"):
        config.kind = "c"


def test_environment() -> None:
    config = DemoConfig({"OTHER_NAME": "x", "BOLIDE_FAST": "1"})
    assert config.name == "x" and config.fast is True
    assert DemoConfig({"BOLIDE_FAST": "0"}).fast is False


def test_patch_nests_restores_and_decorates() -> None:
    config = DemoConfig({})
    patch = config.patch(limit=1)
    with patch, config.patch("limit", 2), config.patch({"fast": True}), patch:
        assert (config.limit, config.fast) == (1, True)
    assert (config.limit, config.fast) == (8, False)

    @config.patch(limit=5)
    def read() -> int:
        return config.limit

    assert read() == 5 and config.limit == 8
    with pytest.raises(ZeroDivisionError), config.patch(limit=3):
        raise ZeroDivisionError
    assert config.limit == 8
    with pytest.raises(AttributeError, match="limit"):
        config.patch(limt=3)


def test_save_load_and_hash() -> None:
    config = DemoConfig({})
    saved, digest = config.save_config(), config.get_hash()
    config.fast = True
    assert config.get_hash() == digest
    config.limit = 3
    assert config.get_hash() != digest
    config.load_config(saved)
    assert config.shallow_copy_dict() == {"limit": 8, "name": None, "fast": False, "kind": "a"}

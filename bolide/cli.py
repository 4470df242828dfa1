"""The command `bolide`."""

from __future__ import annotations

import click

from bolide.debug.info import info
from bolide.demo.command import demo


@click.group()
@click.version_option(package_name="bolide")
def main() -> None:
    """bolide compiles PyTorch programs."""


@main.command(name="info")
def show_info() -> None:
    """Versions and host features, for bug reports."""
    for name, value in info().items():
        click.echo(f"{name}: {value}")


main.add_command(demo)

if __name__ == "__main__":
    main()

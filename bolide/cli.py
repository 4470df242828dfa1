"""The command `bolide`."""

from __future__ import annotations

import contextlib
import runpy
import sys
from pathlib import Path

import click

from bolide import BolideError, aot_compile
from bolide.debug import kept, record
from bolide.debug.explain import Collector
from bolide.debug.info import info
from bolide.debug.report import report_of, write_report
from bolide.debug.shadow import shadow
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


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--html", type=click.Path(dir_okay=False), help="Write a report to this file instead of printing.")
@click.option(
    "--shadow", "shadowed", is_flag=True, help="Compare every compiled graph with ATen, and tell what differs."
)
def explain(script: str, arguments: tuple[str, ...], html: str | None, shadowed: bool) -> None:
    """Run SCRIPT, and tell what bolide compiled in it, what broke and why."""
    collector = Collector(script)
    before = sys.argv
    sys.argv = [script, *arguments]
    try:
        with collector.listening(), shadow() if shadowed else contextlib.nullcontext():
            runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv = before
        found = collector.explanation()
        if html:
            write_report(report_of(found), Path(html))
        else:
            click.echo(str(found))
        if shadowed:
            for difference in shadow.reports:
                click.echo(f"\ndiffers: {difference}")
            click.echo(f"\nshadow: {len(shadow.reports)} differences")


@main.command()
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.option("--isolate", is_flag=True, help="Try every graph in a process of its own.")
def minify(script: str, isolate: bool) -> None:
    """Reduce the graph of SCRIPT, which the option repro_after has written, to a small one that fails as well."""
    before = sys.argv
    sys.argv = [script, "minify", *(["--isolate"] if isolate else [])]
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv = before


@main.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path))
def replay(file: Path) -> None:
    """Make the call of a record FILE again, which the option replay_record_enabled has written."""
    found = record.read(file)
    for line in record.other_versions(found):
        click.echo(f"note: {line}")
    click.echo(f"recorded: {found['failure']}")
    result = record.replay(found)
    click.echo(f"The call does not fail. Its result: {result}")


@main.command()
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The package that is written (SCRIPT.pt2).")
def aot(script: Path, output: Path | None) -> None:
    """Compile what SCRIPT gives the name `model`, for its `args` (and `kwargs`, `dynamic_shapes`), to a package."""
    names = runpy.run_path(str(script))
    missing = [name for name in ("model", "args") if name not in names]
    if missing:
        raise click.ClickException(f"{script} gives nothing the name {missing[0]}")
    path = output or script.with_suffix(".pt2")
    aot_compile(
        names["model"],
        names["args"],
        names.get("kwargs"),
        dynamic_shapes=names.get("dynamic_shapes"),
        path=path,
    )
    click.echo(f"{path}: {path.stat().st_size:,} bytes")


@main.group()
def cache() -> None:
    """The cache on disk."""


@cache.command()
def show() -> None:
    """Tell where it is and what is in it."""
    click.echo(kept.shown())


@cache.command()
def clear() -> None:
    """Empty it."""
    click.echo(f"{kept.clear()} entries taken out")


@cache.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def pack(file: Path) -> None:
    """Write it into FILE, for another machine of the same kind."""
    click.echo(f"{kept.pack(file)} entries written")


@cache.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def unpack(file: Path) -> None:
    """Take what `pack` has written into FILE. It holds machine code: take only what you trust."""
    try:
        click.echo(f"{kept.unpack(file)} entries taken")
    except BolideError as error:
        raise click.ClickException(str(error)) from error


main.add_command(demo)

if __name__ == "__main__":
    main()

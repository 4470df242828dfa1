"""``python -m bolide``: the command line, where no script of it is installed."""

from bolide.cli import main

main(prog_name="bolide")

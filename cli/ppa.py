"""The command `ppa`: predict classifier parameters from activations."""

from __future__ import annotations

import click

from actstore import __version__
from cli.group import Commands, example
from cli.pretrain import pretrain
from cli.split import split
from cli.train import train


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=example("ppa pretrain glyphs:1000x40x10 --preset quick --out glyph-backbone"),
)
@click.version_option(__version__, prog_name="ppa")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Teach a trained network a new category from 1-5 examples, with no training.

    This release trains the backbone; phi and the baselines follow (see CHANGELOG.md).
    """


main.add_command(pretrain)
main.add_command(split)
main.add_command(train)

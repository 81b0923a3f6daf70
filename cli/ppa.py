"""The command `ppa`: predict classifier parameters from activations."""

from __future__ import annotations

import click

from actstore import __version__
from cli.group import Commands


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ppa")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Teach a trained network a new category from 1-5 examples, with no training.

    No commands yet: this release is the store underneath (see `actstore --help`).
    """

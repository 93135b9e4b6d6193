"""The command line. Each command is a thin module of its own, and imports what is heavy only when it runs."""

import errno
import os
import sys
from typing import Annotated

import typer

from moebench import __version__
from moebench.cli.arms import arms
from moebench.cli.backends import backends
from moebench.cli.cases import cases
from moebench.cli.compare import compare
from moebench.cli.doctor import doctor
from moebench.cli.pair import pair
from moebench.cli.plan import plan
from moebench.cli.reduce import reduce
from moebench.cli.schema import schema
from moebench.cli.show import show
from moebench.cli.sweep import sweep
from moebench.errors import MoebenchError, UsageError

app = typer.Typer(
    help="Which expert-parallel MoE implementation is faster on your hardware, by how much and why.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for command in (cases, plan, sweep, reduce, pair, show, compare, arms, backends, doctor, schema):
    app.command()(command)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"moebench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None: ...


def _open_standard_streams() -> None:
    """A closed descriptor 0, 1 or 2 would be given to the next file that is opened, such as a run's lock."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout, sys.stderr = sys.stdout or os.fdopen(1, "w"), sys.stderr or os.fdopen(2, "w")


def main() -> None:
    """Run the command line. A user's mistake ends in one paragraph on standard error, never in a traceback."""
    _open_standard_streams()
    from moebench.inert import clean
    from moebench.show.console import discard_output

    try:
        app()
    except MoebenchError as error:
        print(f"moebench: {clean(error)}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno != errno.EPIPE:
            print(f"moebench: {error.strerror}: {clean(error.filename or 'standard output')}", file=sys.stderr)
        discard_output()
        sys.exit(0 if error.errno == errno.EPIPE else UsageError.exit_code)

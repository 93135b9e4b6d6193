"""An app of the commands that only choose and plan, run as a user would."""

import typer
from typer.testing import CliRunner, Result

from moebench.cli.cases import cases
from moebench.cli.plan import plan

app = typer.Typer()
app.command("cases")(cases)
app.command("plan")(plan)


def run(line: str, columns: int = 80) -> Result:
    """The result of a command line; a UsageError is its `exception`."""
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(app, line.split())


def fails(line: str) -> str:
    """The message of the UsageError that a command line ends with. Nothing may be on standard output."""
    result = run(line)
    assert result.exception is not None, result.output
    assert getattr(result.exception, "exit_code", None) == 2, repr(result.exception)
    assert result.stdout == ""
    return str(result.exception)

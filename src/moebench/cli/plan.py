"""`moebench plan`: what the cases of a matrix will take, and which of them can run here."""

from typing import TYPE_CHECKING, Annotated

import typer

from moebench.cli.cases import print_notes
from moebench.cli.options import takes_selection

if TYPE_CHECKING:
    from moebench.cases.expand import Selection


@takes_selection
def plan(
    selection: "Selection",
    as_json: Annotated[
        bool, typer.Option("--json", help="An array of objects, one a case; nothing else on standard output.")
    ] = False,
) -> None:
    """Say what each case will take, and which can run on this machine. Nothing is launched.

    Per rank and iteration: modeled memory against what this machine has, useful FLOPs, modeled HBM bytes,
    bytes to send to other ranks; in packing also what the memory policy keeps, recomputes or replays.

    Examples:

    moebench plan

    moebench plan --matrix gb300 --mode training

    moebench plan --matrix gb300 --json
    """
    from moebench.cases.forecast import forecast
    from moebench.cases.machine import this_machine

    machine = this_machine()
    forecasts = [forecast(case, machine) for case in selection.cases]
    if as_json:
        import json

        print_notes(selection)
        rows = [row.model_dump(by_alias=True) for row in forecasts]
        typer.echo(json.dumps(rows, indent=2, allow_nan=False))
        return
    from moebench.cli.plan_table import draw
    from moebench.show.console import make_console

    draw(make_console(), selection, forecasts, machine)

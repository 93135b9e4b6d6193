"""`moebench cases`: the cases of a matrix."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from moebench.cli.options import takes_selection

if TYPE_CHECKING:
    from moebench.cases.case import Case
    from moebench.cases.expand import Selection


@takes_selection
def cases(
    selection: "Selection",
    as_json: Annotated[bool, typer.Option("--json", help="An array of objects, one a case, with every axis.")] = False,
) -> None:
    """List the ids of a matrix's cases, one a line, in the order of a report.

    Flags narrow the matrix. A value that no case has replaces the axis in every block; a note on standard
    error says so.

    Examples:

    moebench cases --matrix gb300

    moebench cases --ep 16 --precision mxfp8

    moebench cases -m gb300 -k '*packing*' --json
    """
    print_notes(selection)
    if as_json:
        import json

        typer.echo(json.dumps([_axes(case) for case in selection.cases], indent=2))
        return
    typer.echo("\n".join(case.id for case in selection.cases))


def print_notes(selection: "Selection") -> None:
    """Which axes were replaced, and how many cases are impossible, on standard error."""
    from moebench.inert import clean

    for note in selection.notes:
        typer.echo(f"note: {clean(note)}", err=True)
    reasons = [case.unsupported for case in selection.cases if case.unsupported]
    for reason in dict.fromkeys(reasons):
        count = f"{reasons.count(reason)} of {len(selection.cases)}"
        typer.echo(f"note: {count} impossible: {clean(reason)}", err=True)


def _axes(case: "Case") -> dict[str, Any]:
    shape = case.shape
    return {
        "id": case.id,
        "backend": case.backend,
        "mode": case.mode,
        "ep": case.ep,
        "precision": case.precision,
        "pipeline": case.pipeline,
        "category": case.category,
        "F": shape.F,
        "imbalance": case.imbalance,
        "profile": case.profile,
        "layers": case.layers,
        "T": shape.T,
        "D": shape.D,
        "E": shape.E,
        "K": shape.K,
        "S": shape.S,
        "unsupported": case.unsupported,
    }

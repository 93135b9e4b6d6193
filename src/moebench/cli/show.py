"""`moebench show`: a report in the terminal."""

from pathlib import Path
from typing import Annotated

import typer


def show(
    report: Annotated[
        Path | None,
        typer.Argument(
            metavar="[REPORT]",
            help="Report JSON, or a run folder. Default: the latest report under ./runs.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the report, as JSON.")] = False,
) -> None:
    """Show a report: cases by workload, pairs, means, what is missing and why.

    Tables fit the terminal: the wider it is, the more columns. Set COLUMNS to
    force a width.

    Examples: `moebench show`, `moebench show runs/monday`, `COLUMNS=200 moebench show report.json | less`
    """
    from moebench.reduce.find import latest_report, report_path
    from moebench.reduce.load import load_report
    from moebench.reduce.write import to_json
    from moebench.show.console import make_console
    from moebench.show.layout import paragraph
    from moebench.show.summary import print_report

    path = latest_report(Path.cwd()) if report is None else report_path(report)
    loaded = load_report(path)
    if as_json:
        typer.echo(to_json(loaded), nl=False)
    else:
        console = make_console()
        paragraph(console, f"Report: {path}", style="dim")
        print_report(loaded, console)

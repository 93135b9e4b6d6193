"""`moebench reduce`: rank traces to a report."""

from pathlib import Path
from typing import Annotated

import typer


def reduce(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders; several become one report.", show_default=False),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where the report goes. Default: RUN/report.json; of several runs ./merged-report.json.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make the report of one or more runs from their rank traces.

    Every planned case is in it: accepted, or with the reason why not.
    Of a case that several runs have, an accepted execution beats others;
    else the run given later counts. The same traces give the same bytes.

    Examples: `moebench reduce runs/latest`, `moebench reduce runs/monday runs/tuesday -o both.json`
    """
    from moebench.reduce.report import reduce_runs, write_report
    from moebench.show.console import make_console
    from moebench.show.layout import paragraph
    from moebench.show.problems import counts
    from moebench.show.summary import print_pairs

    path = output or (runs[0] / "report.json" if len(runs) == 1 else Path("merged-report.json"))
    report = reduce_runs(runs)
    write_report(report, path)
    console = make_console()
    print_pairs(report, console)
    paragraph(console, counts(report))
    paragraph(console, f"Report: {path}")

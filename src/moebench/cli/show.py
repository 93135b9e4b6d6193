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
    what: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="METRIC|CASE",
            help="Where a figure comes from, made again from its inputs, and what it does not show.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show a report: cases by workload, pairs, means, what is missing and why.

    Tables fit the terminal: the wider it is, the more columns. Set COLUMNS to
    force a width.

    Examples: `moebench show`, `moebench show runs/monday`, `COLUMNS=200 moebench show report.json | less`

    `moebench show --explain iterationMS`, `moebench show runs/monday --explain 'mok-*-ep8-bf16-*-i4-*'`
    """
    from moebench.arms.report import ArmsReport, parse_arms
    from moebench.errors import UsageError
    from moebench.reduce.find import latest_report, report_path
    from moebench.reduce.load import is_arms, parse_report, read_json
    from moebench.reduce.write import to_json
    from moebench.show.arms import print_arms
    from moebench.show.console import make_console
    from moebench.show.explain import explain
    from moebench.show.layout import paragraph
    from moebench.show.summary import print_report

    if what is not None:
        if as_json:
            raise UsageError("--explain and --json: an explanation is text. Give one of them.")
        explain(what, report, make_console())
        return
    path = latest_report(Path.cwd()) if report is None else report_path(report)
    raw = read_json(path)
    loaded = parse_arms(path, raw) if is_arms(raw) else parse_report(path, raw)
    if as_json:
        typer.echo(to_json(loaded), nl=False)
        return
    console = make_console()
    paragraph(console, f"Report: {path}", style="dim")
    if isinstance(loaded, ArmsReport):
        print_arms(loaded, console)
    else:
        print_report(loaded, console)

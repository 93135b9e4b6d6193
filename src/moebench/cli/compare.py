"""`moebench compare`: a new report against an old one, as a gate for a change."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moebench.errors import UsageError

if TYPE_CHECKING:
    from moebench.reduce.compare import ReportComparison


def compare(
    old: Annotated[Path, typer.Argument(metavar="A", help="Old report, or its run folder.", show_default=False)],
    new: Annotated[Path, typer.Argument(metavar="B", help="New report, or its run folder.", show_default=False)],
    max_regression: Annotated[
        str,
        typer.Option("--max-regression", metavar="PERCENT", help="How much longer B may take, such as 3% or 3."),
    ] = "3%",
    by_ratio: Annotated[
        bool,
        typer.Option("--by-ratio", help="Without enough samples, let the ratio of the two means decide by itself."),
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown, fit for a comment on a pull request.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object; nothing else on standard output.")] = False,
) -> None:
    """Compare report B with the older A: what became slower, what was lost.

    Case by case, by id. A case is a regression if the whole confidence
    interval of its ratio B / A lies beyond the limit, and none if all of it
    lies within. Stale cases, and those whose work, routing, implementation,
    estimator or hardware differ, are not compared. The environments are.

    Exit status: 1 for a regression, or a case that was accepted and has now
    failed or is wrong; 3 when a case is undecided; 0 when all is well; 2 for
    reports that cannot be compared.

    Examples:

    moebench compare main.json runs/latest

    moebench compare main.json branch.json --max-regression 5%

    moebench compare main.json branch.json --markdown >> "$GITHUB_STEP_SUMMARY"
    """
    from moebench.reduce.compare import compare_reports
    from moebench.reduce.find import report_path
    from moebench.reduce.load import load_report

    if as_json and markdown:
        raise UsageError("--json and --markdown: each is a form of the whole output. Give one of them.")
    limit = parse_percent(max_regression)
    paths = report_path(old), report_path(new)
    reports = load_report(paths[0]), load_report(paths[1])
    found = compare_reports(*reports, limit, by_ratio=by_ratio)
    if as_json:
        import json

        typer.echo(json.dumps(as_dict(found), indent=1))
    elif markdown:
        from moebench.show.compare_markdown import as_markdown

        typer.echo(as_markdown(found, list(zip(paths, reports, strict=True))), nl=False)
    else:
        from moebench.show.compare import print_comparison
        from moebench.show.console import make_console

        print_comparison(found, list(zip(paths, reports, strict=True)), make_console())
    raise typer.Exit(found.exit_status)


def parse_percent(text: str) -> float:
    """`3%` and `3` are 0.03. Below 1 the sign is needed, since 0.03 may mean 3 % too. Raises UsageError."""
    match = re.fullmatch(r"([0-9]{1,4}(?:\.[0-9]{1,9})?)\s*(%?)", text.strip())
    if match is None:
        raise UsageError(f"--max-regression {text}: not a percentage. Write it like 3% or 2.5%.")
    percent = float(match[1])
    if 0 < percent < 1 and not match[2]:
        raise UsageError(
            f"--max-regression {text}: {text}% or {100 * percent:g}%? Write the sign: {text}% or {100 * percent:g}%."
        )
    return percent / 100


def as_dict(found: "ReportComparison") -> dict[str, Any]:
    """The whole comparison as JSON; `exitStatus` is that of the command."""
    return {
        "maxRegression": found.max_regression,
        "exitStatus": found.exit_status,
        "cases": [
            {
                "id": one.id,
                "finding": one.finding,
                "why": one.why or None,
                "oldMS": one.old.iterationMS,
                "newMS": one.new.iterationMS,
                "ratio": one.ratio,
                "low": one.interval.low if one.interval else None,
                "high": one.interval.high if one.interval else None,
                "level": one.interval.level if one.interval else None,
                "adjustedPValue": one.p_value,
                "oldWindows": len(one.old.windowMS or ()),
                "newWindows": len(one.new.windowMS or ()),
                "unstable": list(one.unstable),
            }
            for one in found.compared
        ],
        "notCompared": [{"id": one.id, "finding": one.finding, "why": one.why} for one in found.not_compared],
        "onlyOld": found.only_old,
        "onlyNew": found.only_new,
        "regained": found.regained,
        "claims": found.claims,
        "assumedEqual": [{"what": what, "unrecordedIn": side} for what, side in found.assumed.items()],
        "environment": [
            {"key": one.key, "old": one.old, "new": one.new, "cases": one.cases, "matters": one.matters}
            for one in found.environments.differences
        ],
        "changes": [
            {"id": one.id, "metric": one.metric, "old": one.old, "new": one.new, "tolerance": one.tolerance}
            for one in found.changes
        ],
    }

"""`moebench pair`: who is faster, by how much."""

import json
from pathlib import Path
from typing import Annotated

import typer


def pair(
    report: Annotated[Path, typer.Argument(metavar="REPORT", help="Report JSON, or a run folder.", show_default=False)],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print only the pairs, as JSON: `pairs` and `allPipelinePairs`.")
    ] = False,
) -> None:
    """Match the dist_moe and mok cases of equal work: who is faster, by how much.

    Pairs are recomputed from the cases. If the file's own pairs differ, a
    warning says so.

    Examples: `moebench pair runs/latest`, `moebench pair report.json --json`
    """
    from moebench.reduce.find import report_path
    from moebench.reduce.load import load_report
    from moebench.reduce.pairs import differing_pairs, pairing
    from moebench.show.console import make_console
    from moebench.show.layout import paragraph
    from moebench.show.summary import print_pairs

    path = report_path(report)
    loaded = load_report(path)
    for difference in differing_pairs(loaded):
        paragraph(make_console(stderr=True), f"warning: {path}: {difference}", style="yellow")
    if as_json:
        found = pairing(loaded)
        dumped = {
            "pairs": [entry.model_dump() for entry in found.pairs],
            "allPipelinePairs": [entry.model_dump() for entry in found.all_pipeline_pairs],
        }
        typer.echo(json.dumps(dumped, indent=1))
    else:
        print_pairs(loaded, make_console())

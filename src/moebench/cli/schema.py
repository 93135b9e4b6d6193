"""`moebench schema`: the report's JSON Schema."""

import json

import typer


def schema() -> None:
    """Print the JSON Schema of a report.

    Example: `moebench schema > report.schema.json`
    """
    from moebench.reduce.schema import Report

    typer.echo(json.dumps(Report.model_json_schema(), indent=2))

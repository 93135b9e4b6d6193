"""`moebench backends`: who can be measured, what each supports, and what is missing here."""

from typing import Annotated, Any

import typer


def backends(
    as_json: Annotated[
        bool, typer.Option("--json", help="An array of objects; nothing else on standard output.")
    ] = False,
) -> None:
    """List every backend with its implementations, what each supports, and what is missing here.

    Examples: `moebench backends`, `moebench backends --json`
    """
    from moebench.backends.registry import describe_backends

    found = describe_backends()
    if as_json:
        import json

        typer.echo(json.dumps(found, indent=2))
        return
    from rich.table import Table

    from moebench.show.console import make_console

    table = Table("backend", "implementation", "supports", "missing here", box=None, pad_edge=False)
    for backend in found:
        for implementation in backend["implementations"]:
            table.add_row(
                backend["name"],
                implementation["implementation"],
                "\n".join(_support(support) for support in implementation["supports"]) or "-",
                implementation["missing"] or "nothing",
            )
    make_console().print(table)


def _support(support: dict[str, Any]) -> str:
    return f"{support['precision']}: {', '.join(support['pipelines'])} ({', '.join(support['modes'])})"

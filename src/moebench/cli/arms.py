"""`moebench arms`: end-to-end against block-local training under one wall-clock budget."""

from pathlib import Path
from typing import Annotated

import typer

_HOW, _TEXT = "How arms are trained", "Text"


def arms(
    context: typer.Context,
    arms: Annotated[str, typer.Option("--arms", metavar="LIST", help="e2e, local, or both.")] = "e2e,local",
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget", metavar="SECONDS", help="Of training, for each arm. Default: the preset's.", show_default=False
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset",
            metavar="NAME",
            help="l40s (the published configuration) or tiny. Default: l40s on a GPU, else tiny.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="A TOML file with tables as in cases/arms.toml.", show_default=False
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The report.")] = Path("arms.json"),
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="R", min=1, max=1000, help="Runs of each arm, alternating.")
    ] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run of this -o FILE, from its checkpoints.")
    ] = False,
    ranks: Annotated[
        int,
        typer.Option("--ranks", metavar="N", min=1, help="Split the blocks into N stages.", rich_help_panel=_HOW),
    ] = 1,
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="auto, cpu or cuda.", rich_help_panel=_HOW)
    ] = "auto",
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            metavar="NAME",
            help="eager, compiled or graphed. Default: graphed on one GPU, else eager.",
            rich_help_panel=_HOW,
            show_default=False,
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            metavar="NAME",
            help="Of the local arm: own_head, shared_head, contrastive or regression. Default: the preset's.",
            rich_help_panel=_HOW,
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", help="Of weights and batches.", rich_help_panel=_HOW, show_default=False),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            metavar="FILE",
            help="Text to train on; repeat for more files. Default: Python's standard library.",
            rich_help_panel=_TEXT,
            show_default=False,
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer",
            metavar="FILE",
            help="A tokenizer.json. Default: one trained on the text.",
            rich_help_panel=_TEXT,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Train one small GPT end to end and block by block, for the same time, and compare.

    Both arms have the same weights to begin with, the same batches, optimizer and precision, and a process of
    their own. Ctrl-C ends the arm that trains; its figures are reported as those of a part, and --resume goes on.

    Exit status: 0 when both arms were trained, 3 when one diverged or failed, 2 for a mistake in what was given,
    130 when interrupted.

    Examples:

    moebench arms

    moebench arms --preset l40s --budget 200 --repeats 3

    moebench arms --data corpus.txt --tokenizer tokenizer.json -o corpus.json

    moebench show arms.json
    """
    from moebench.cli.arms_running import Flags, ask, execute

    if resume:
        _refuse_beside_resume(context)
    flags = Flags(arms, budget, preset, config, repeats, ranks, device, mode, objective, seed, data, tokenizer)
    raise typer.Exit(execute(out, None if resume else ask(flags)))


def _refuse_beside_resume(context: typer.Context) -> None:
    from moebench.errors import UsageError

    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if parameter.name not in ("out", "resume") and source is not None and source.name != "DEFAULT":
            raise UsageError(
                f"{parameter.opts[0]}: cannot be given with --resume, which goes on as the run was begun. "
                "Leave it out, or start a new run."
            )

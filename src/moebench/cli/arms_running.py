"""The middle of `moebench arms`: flags are checked, the text is prepared, arms are trained, the report is shown."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from pydantic import ValidationError

from moebench.arms.config import (
    ARMS,
    NEED_HEAD,
    Arm,
    Mode,
    ObjectiveName,
    Preset,
    blocks_of_rank,
    load_config,
    load_preset,
)
from moebench.arms.data import default_cache, prepare
from moebench.arms.run import ArmsRun, Asked, begin, create_folder, load_asked
from moebench.cases.machine import this_machine
from moebench.cli.arms_progress import ArmsProgress
from moebench.errors import MoebenchError, UsageError
from moebench.inert import quoted
from moebench.launch.interrupts import handle_interrupts
from moebench.launch.lock import locked
from moebench.reading import first_problem
from moebench.reduce.write import check_place, write_report
from moebench.show.arms import print_arms
from moebench.show.console import make_console
from moebench.show.layout import paragraph

EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Flags:
    """The command line as it was given."""

    arms: str
    budget: float | None
    preset: str | None
    config: Path | None
    repeats: int
    ranks: int
    device: str
    mode: str | None
    objective: str | None
    seed: int | None
    data: list[Path] | None
    tokenizer: Path | None


def ask(flags: Flags) -> Asked:
    """What the flags ask for. Raises UsageError for what cannot be."""
    wanted = [word.strip() for word in flags.arms.split(",")]
    chosen = [cast(Arm, _known("--arms", word, ARMS)) for word in dict.fromkeys(wanted)]
    device = _known("--device", flags.device, ("auto", "cpu", "cuda"))
    gpus = 0 if device == "cpu" else len(this_machine().gpu_bytes)
    if device == "cuda" and not gpus:
        raise UsageError("--device cuda: this machine shows no GPU. Leave it out, or give --device cpu.")
    if gpus and flags.ranks > gpus:
        raise UsageError(f"--ranks {flags.ranks}: this machine shows {gpus} GPUs, and each rank needs its own.")
    preset = _preset(flags, "l40s" if gpus else "tiny")
    blocks_of_rank(preset, 0, flags.ranks)
    if flags.ranks > 1 and "local" in chosen and preset.local.objective in NEED_HEAD:
        raise UsageError(
            f"the objective {preset.local.objective} reads the head, which only the last of {flags.ranks} ranks has. "
            "Give --objective own_head, or one rank."
        )
    return Asked(
        preset=preset,
        arms=chosen,
        repeats=flags.repeats,
        ranks=flags.ranks,
        device="cuda" if gpus else "cpu",
        mode=_mode(flags, bool(gpus)),
        data=None if flags.data is None else [path.absolute() for path in flags.data],
        tokenizer=None if flags.tokenizer is None else flags.tokenizer.absolute(),
    )


def execute(out: Path, asked: Asked | None) -> int:
    """Train, write the report, show it; the exit status. None: go on with the run of this report."""
    check_place(out)
    folder = out.absolute().with_name(out.name.removesuffix(".json") + ".run")
    given = asked or load_asked(folder)
    progress = ArmsProgress(make_console(stderr=True), given)
    text = prepare(given.preset, given.data, given.tokenizer, progress.note, default_cache())
    create_folder(folder)
    failure: MoebenchError | None = None
    with locked(folder):
        if asked is not None:
            begin(folder, asked)
        run = ArmsRun(folder, given, text, progress)
        with handle_interrupts(run.stop), progress:
            try:
                run.execute()
            except MoebenchError as error:
                failure = error
            except KeyboardInterrupt:
                run.stopping = run.stopping or "interrupted at once"
        report = run.report(None if failure is None else str(failure))
        write_report(report, out)
    if failure is not None:
        raise failure
    console = make_console()
    print_arms(report, console)
    paragraph(console, f"Report: {out}")
    if run.stopping is not None:
        return EXIT_INTERRUPTED
    return 0 if report.partial is None else MoebenchError.exit_code


def _preset(flags: Flags, default: str) -> Preset:
    if flags.config is not None and flags.preset is not None:
        raise UsageError("--config and --preset: give one of the two.")
    preset = load_preset(flags.preset or default) if flags.config is None else load_config(flags.config)
    _known("--objective", flags.objective or preset.local.objective, get_args(ObjectiveName))
    changed: dict[str, Any] = preset.model_dump()
    for table, key, value in (
        ("train", "budget_seconds", flags.budget),
        ("train", "seed", flags.seed),
        ("local", "objective", flags.objective),
    ):
        if value is not None:
            changed[table][key] = value
    try:
        return Preset.model_validate(changed)
    except ValidationError as error:
        raise UsageError(f"{first_problem(error)}. --budget takes seconds above 0, --seed 0 or more.") from error


def _mode(flags: Flags, on_gpu: bool) -> Mode:
    graphs = on_gpu and flags.ranks == 1
    mode = _known("--mode", flags.mode or ("graphed" if graphs else "eager"), get_args(Mode))
    if mode == "graphed" and not graphs:
        raise UsageError("--mode graphed: CUDA graphs need a GPU, and one rank. Give eager or compiled.")
    return cast(Mode, mode)


def _known(flag: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise UsageError(f"{flag} {quoted(value)}: unknown. Known values: {', '.join(known)}.")
    return value

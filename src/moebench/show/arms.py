"""What `show` prints of an arms report: the two arms side by side, ratios, loss curves, and what is to be known."""

from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from moebench.arms.report import ArmsReport, compare
from moebench.arms.results import CURVE_POINTS, ArmResult
from moebench.show.curves import plot
from moebench.show.layout import Cell, Column, Section, paragraph, print_sections, title
from moebench.show.text import ABSENT, figure, ratio

_COLUMNS = [Column("e2e", 0), Column("local", 0), Column("local vs e2e", 0)]
_STYLES = {"e2e": "cyan", "local": "magenta"}


def print_arms(report: ArmsReport, console: Console) -> None:
    """Everything that a report of this kind says to a reader."""
    _print_head(report, console)
    print_sections(console, _COLUMNS, [Section("for the same time", _rows(report)), Section("modeled", _bytes(report))])
    _print_seams(report, console)
    _print_curves(report, console)
    _print_notes(report, console)


def _print_head(report: ArmsReport, console: Console) -> None:
    hardware = report.gpu or (report.environment or {}).get("hardware") or report.device
    paragraph(console, f"{hardware}, {report.budget_seconds:g} s an arm", style="bold")
    size = " ".join(f"{key}={value}" for key, value in report.config.items())
    paragraph(console, f"{size} batch={report.batch}, {report.bytes.params:,} parameters")
    how = [report.mode, f"{report.ranks} ranks" if (report.ranks or 1) > 1 else None, report.precision]
    if any(how):
        paragraph(console, ", ".join(part for part in how if part))
    if report.partial:
        paragraph(console, f"Partial: {report.partial}", style="bold yellow")
    console.print()


def _rows(report: ArmsReport) -> list[list[Cell]]:
    e2e, local = report.arms.e2e, report.arms.local
    ratios = compare(e2e, local)
    speed, memory, gap = (None, None, None) if ratios is None else (
        ratios.tokens_per_s, ratios.peak_memory, ratios.loss_gap
    )  # fmt: skip

    def row(name: str, of: Callable[[ArmResult], float | None], show: Callable[[float | None], str]) -> list[Cell]:
        return [Text(name), *(ABSENT if arm is None else show(of(arm)) for arm in (e2e, local))]

    return [
        [*row("tokens/s", lambda arm: arm.tokens_per_s, _thousands), ratio(speed)],
        [*row("held-out loss", lambda arm: arm.final_loss, figure), ABSENT if gap is None else f"{gap:+.3f} nats"],
        [*row("perplexity", lambda arm: arm.final_ppl, figure), ""],
        [*row("peak memory MB", _peak_mb, _thousands), ABSENT if memory is None else f"{memory:.3f}x"],
        [*row("steps", lambda arm: arm.steps, _thousands), ""],
        [*row("tokens", lambda arm: arm.tokens, _thousands), ""],
        [*row("seconds", lambda arm: arm.elapsed_s, figure), ""],
    ]


def _bytes(report: ArmsReport) -> list[list[Cell]]:
    b = report.bytes
    both = b.e2e_per_step + b.e2e_allreduce_per_step
    return [
        ["MB/step over seams", _mb(b.e2e_per_step), _mb(b.local_per_step), _part(b.e2e_per_step, b.local_per_step)],
        ["MB/step with all-reduce", _mb(both), _mb(b.local_per_step), _part(both, b.local_per_step)],
    ]


def _print_seams(report: ArmsReport, console: Console) -> None:
    for arm in (report.arms.e2e, report.arms.local):
        if arm is None:
            continue
        for seam in arm.seams or []:
            measured, modeled = seam.measured_bytes_per_step, seam.modeled_bytes_per_step
            same = "as modeled" if measured == modeled else f"modeled {modeled:,}"
            ranks = " and ".join(map(str, seam.ranks))
            paragraph(console, f"{arm.arm}, between ranks {ranks}: {measured:,} bytes a step measured, {same}")


def _print_curves(report: ArmsReport, console: Console) -> None:
    curves: dict[str, list[tuple[float, float]]] = {
        arm.arm: _curve(arm) for arm in (report.arms.e2e, report.arms.local) if arm is not None
    }
    lines = plot(curves, _STYLES, min(console.width, 100))
    if lines:
        title(console, "Training loss, nats a token, over seconds (e: e2e, l: local, *: both)")
        for line in lines:
            console.print(line)
        console.print()


def _print_notes(report: ArmsReport, console: Console) -> None:
    if report.repeats is not None:
        for name, found, unit in (
            ("tokens/s local over e2e", report.repeats.tokens_per_s_local_over_e2e, "x"),
            ("loss gap local - e2e", report.repeats.loss_gap, " nats"),
        ):
            if found is not None:
                runs = len(report.repeats.order)
                paragraph(
                    console,
                    f"{name}, {runs} repeats: {found.value:.4g}{unit}, {found.low:.4g} to {found.high:.4g} "
                    f"at {found.level:.1%}; above are the runs of median tokens/s",
                )
    if report.local_objective is not None:
        paragraph(console, f"Local objective: {report.local_objective.get('description')}", style="dim")
    if report.data is not None:
        data = report.data
        paragraph(
            console,
            f"Text: {data.source}, {data.train_tokens:,} tokens to train on, {data.heldout_tokens:,} held out; "
            f"{data.occurring_share:.1%} of the vocabulary occurs.",
            style="dim",
        )
    if report.eval is not None:
        paragraph(
            console,
            f"Held-out loss: {report.eval.get('final_loss')}. Training loss: {report.eval.get('loss_curve')}.",
            style="dim",
        )


def _curve(arm: ArmResult) -> list[tuple[float, float]]:
    """(seconds, loss): a point every max(1, steps // 40) steps."""
    stride = max(1, arm.steps // CURVE_POINTS)
    return [(i * stride / max(1, arm.steps) * arm.elapsed_s, loss) for i, loss in enumerate(arm.loss_curve)]


def _peak_mb(arm: ArmResult) -> float | None:
    return None if arm.peak_vram_bytes is None else arm.peak_vram_bytes / 1e6


def _thousands(value: float | None) -> str:
    return ABSENT if value is None else f"{value:,.0f}"


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f}"


def _part(e2e: int, local: int) -> str:
    return f"1/{e2e / local:.1f}" if local else ABSENT

"""What `show --explain` prints: where a figure comes from, made again from its inputs, and what it cannot say."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from moebench.errors import UsageError
from moebench.inert import quoted
from moebench.reduce.comparisons import compare_groups
from moebench.reduce.estimators import ESTIMATORS, Estimator
from moebench.reduce.evidence import Evidence, evidence_of
from moebench.reduce.find import latest_report, report_path
from moebench.reduce.load import load_report
from moebench.reduce.pairs import BASELINE, pairing, shape_text, torch_ratios
from moebench.reduce.recompute import Worked, agrees, from_row, from_traces, number, numbers
from moebench.reduce.schema import CaseRow, RejectedCase, Report
from moebench.reduce.stability import instabilities
from moebench.show.console import ascii_only
from moebench.show.derived import tokens_per_s
from moebench.show.layout import paragraph, printable, title
from moebench.show.problems import shortened
from moebench.show.reservations import reservations
from moebench.show.text import ABSENT, counted, some

HEADING = "bold underline"

LABEL_WIDTH, NARROW = 18, 50
"""Where the console is narrower, a value stands below its label."""

SYMBOLS = (
    "w window, r rank, i iteration; T tokens of a rank, D hidden width, F width of an expert, E experts, K experts of "
    "a token, S shared experts, L layers; passes 1 in inference, 3 in training"
)

Facts = Iterator[tuple[str, str]]


def explain(what: str, given: Path | None, console: Console) -> None:
    """Explain a metric by its key, or a case by its id or a glob that only it matches.

    `given` is a report or a run folder; without it, the latest report, and for a metric none if there is none. Raises
    UsageError for what is neither.
    """
    try:
        path = latest_report(Path.cwd()) if given is None else report_path(given)
    except UsageError:
        if given is not None or what not in ESTIMATORS:
            raise
        _print_metric(what, ESTIMATORS[what], console)
        return
    report = load_report(path)
    if what in ESTIMATORS:
        _print_metric(what, ESTIMATORS[what], console)
        console.print()
        paragraph(console, f"In {path}", style=HEADING)
        _print_facts(console, _values(what, report))
        return
    found = _case(what, report)
    if isinstance(found, RejectedCase):
        _print_rejected(found, path, console)
    else:
        _print_case(found, path, report, console)


def _case(what: str, report: Report) -> CaseRow | RejectedCase:
    everything: list[CaseRow | RejectedCase] = [*report.cases, *report.rejected]
    entries = {entry.id: entry for entry in everything}
    if what in entries:
        return entries[what]
    matching = [case_id for case_id in entries if fnmatchcase(case_id, what)]
    if len(matching) == 1:
        return entries[matching[0]]
    if matching:
        listed = some(quoted(case_id) for case_id in matching)
        raise UsageError(f"--explain {what}: {len(matching)} cases match: {listed}. Name one of them.")
    near = get_close_matches(what, [*ESTIMATORS, *entries], n=3, cutoff=0.5)
    hint = f" Near it: {', '.join(map(quoted, near))}." if near else ""
    raise UsageError(
        f"--explain {what}: neither a metric nor a case of this report.{hint} Metrics are {', '.join(ESTIMATORS)}."
    )


def _print_metric(key: str, metric: Estimator, console: Console) -> None:
    paragraph(console, f"{key}: {metric.title}", style=HEADING)
    _print_facts(console, _of_metric(metric))


def _of_metric(metric: Estimator) -> Facts:
    yield "unit", metric.unit
    yield "formula", metric.formula
    yield "estimator", metric.estimator
    if metric.inputs:
        yield "inputs", ", ".join(metric.inputs)
    yield "in a rank's trace", metric.trace or "not there: it follows from the inputs"
    yield "symbols", SYMBOLS
    yield "does not show", metric.not_for


def _values(key: str, report: Report) -> Facts:
    if key not in CaseRow.model_fields:
        yield "cases", "it takes more than one row, or their shape: --explain CASE shows it"
        return
    values = {row.id: _stored(row).get(key) for row in report.cases}
    known = {case_id: value for case_id, value in values.items() if value is not None}
    yield "cases", f"{len(known)} of {len(values)} have it"
    plain = {case_id: value for case_id, value in known.items() if isinstance(value, (int, float))}
    if plain:
        for name, extreme in (("least", min), ("most", max)):
            case_id = extreme(plain, key=plain.__getitem__)
            yield name, f"{number(plain[case_id])} {case_id}"
    again = {row.id: from_row(report.meta, row).get(key) for row in report.cases if row.id in known}
    worked = {case_id: one for case_id, one in again.items() if one is not None}
    if not worked:
        yield "made again", "not from the report alone: --explain CASE does it from rank traces, where they are"
        return
    differing = [case_id for case_id, one in worked.items() if not agrees(one.value, known[case_id])]
    yield "made again", f"from the inputs in the report: equal in {len(worked) - len(differing)} of {len(worked)} cases"
    if differing:
        yield "DIFFERS", some(differing)


def _stored(row: CaseRow) -> dict[str, Any]:
    """The figures that the report says of a row, by key."""
    return {key: getattr(row, key) for key in ESTIMATORS if key in CaseRow.model_fields}


def _print_case(row: CaseRow, path: Path, report: Report, console: Console) -> None:
    evidence = evidence_of(path, row.id, row.attempt)
    paragraph(console, row.id, style=HEADING)
    _print_facts(console, _of_case(row, path, report, evidence))
    console.print()
    title(console, "Figures")
    worked = from_row(report.meta, row)
    if evidence.traces:
        worked |= from_traces(row, evidence.traces)
    for key, value in _stored(row).items():
        if value is not None:
            _print_facts(console, _of_figure(key, value, worked.get(key)))
    for key, value, again in _ratios(row, report):
        _print_facts(console, _of_figure(key, value, again))
    console.print()
    title(console, "What these figures do not show")
    for line in reservations(report, row):
        paragraph(console, f"- {line}")


def _of_case(row: CaseRow, path: Path, report: Report, evidence: Evidence) -> Facts:
    attempt = "" if row.attempt is None else f", attempt {row.attempt} of {row.attempts or row.attempt} counts"
    yield "status", f"accepted{attempt}"
    measure = row.measure or report.meta
    yield (
        "measured",
        f"{_or(measure.windows)} windows of {_or(measure.iterationsPerWindow)} iterations after "
        f"{_or(measure.warmups)} warm-ups, on {counted(row.ep, 'rank')}",
    )
    yield "estimator", row.estimator or "not in the report"
    yield "samples", f"windowMS {numbers(row.windowMS)}" if row.windowMS else "none: the report has no windowMS"
    if row.windowMS:
        yield "spread", ABSENT if row.spread is None else f"{row.spread:.2%} of the median"
        found = instabilities([float(ms) for ms in row.windowMS])
        yield "steady", "; ".join(f"{one.kind}: {one.message}" for one in found) or "no drift, groups or outliers found"
    yield "report", str(path)
    yield from _of_files(evidence)


def _of_files(evidence: Evidence) -> Facts:
    if evidence.files:
        folder = evidence.files[0].parent
        yield "rank traces", f"{len(evidence.traces)} read, {counted(len(evidence.files), 'file')} in {folder}"
    if evidence.problem is not None:
        yield "rank traces", f"none to look at: {evidence.problem}"


def _of_figure(key: str, value: Any, worked: Worked | None) -> Facts:
    """Value and title, formula, and the value made again from inputs, if they are here."""
    metric = ESTIMATORS[key]
    yield key, f"{_shown(value)} {metric.unit}: {metric.title}"
    yield "", metric.formula
    if worked is None:
        yield "", "not made again: its inputs are not here"
    elif agrees(worked.value, value):
        yield "", f"from {worked.inputs}: equal"
    else:
        yield "DIFFERS", f"from {worked.inputs}: {_shown(worked.value)}"


def _ratios(row: CaseRow, report: Report) -> Iterator[tuple[str, float, Worked]]:
    """What tables derive from this row and others, and what the report says of it in pairs."""
    own, tokens = f"{number(row.iterationMS)} ms", tokens_per_s(report.meta, row)
    yield "tokensPerSPerGPU", tokens, Worked(f"{shape_text(report.meta, row)} and {own}", tokens)
    ratio = torch_ratios(report).get(row.id)
    if ratio is not None:
        yield "vsTorch", ratio, Worked(f"{number(ratio * row.iterationMS)} ms of {BASELINE} and {own}", ratio)
    for match in pairing(report).matches:
        if row.id in (match.mok.id, match.dist.id):
            other = match.dist if row is match.mok else match.mok
            yield (
                "distFasterBy",
                match.speedup,
                Worked(f"{own} and {number(other.iterationMS)} ms of {other.id}", match.speedup),
            )
    again = compare_groups(report.cases)
    compared = {(one.case, one.baseline): one for one in again.comparisons}
    for one in report.comparisons:
        if one.case == row.id:
            found = compared.get((one.case, one.baseline))
            inputs = (
                f"{counted(one.blocks, 'block')} of windows against {one.baseline}, interval {number(one.low)} to "
                f"{number(one.high)} of level {one.level:.1%}, {one.verdict}"
            )
            yield "fasterBy", one.fasterBy, Worked(inputs, found.fasterBy if found else None)
    group = row.paired.group if row.paired else None
    effects = {floor.group: floor.effect for floor in again.floors}
    for floor in report.floors:
        if floor.group == group and floor.effect is not None:
            inputs = f"{counted(floor.blocks, 'block')} of windowMS and paired.aaMS of {floor.case}"
            yield "effect", floor.effect, Worked(inputs, effects.get(floor.group))


def _print_rejected(entry: RejectedCase, path: Path, console: Console) -> None:
    paragraph(console, entry.id, style=HEADING)
    _print_facts(console, _of_rejected(entry, evidence_of(path, entry.id, None), path))


def _of_rejected(entry: RejectedCase, evidence: Evidence, path: Path) -> Facts:
    yield "status", f"{entry.status}, {entry.reason}" if entry.reason else str(entry.status)
    yield "why", shortened(entry.message or "no reason was recorded")
    yield "attempts", str(entry.attempts)
    if entry.stale:
        yield "stale", entry.stale
    for line in (entry.log or "").splitlines():
        yield "log", line
    yield "report", str(path)
    yield from _of_files(evidence)
    yield "figures", "none: what was not accepted has none in a report"


def _print_facts(console: Console, facts: Facts) -> None:
    """Labels, and values that wrap beside them."""
    plain = ascii_only(console)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=LABEL_WIDTH)
    table.add_column(overflow="fold")
    for label, value in facts:
        style = "bold red" if label == "DIFFERS" else "bold"
        if console.width < NARROW:
            if label:
                paragraph(console, label, style=style)
            paragraph(console, value, indent=1)
        else:
            table.add_row(Text(printable(label, plain), style), Text(printable(value, plain)))
    if table.rows:
        console.print(table)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{kind} {number(size)}" for kind, size in value.items()) or "none"
    if isinstance(value, Sequence):
        return numbers(value)
    return number(value)


def _or(value: object) -> str:
    return "?" if value is None else str(value)

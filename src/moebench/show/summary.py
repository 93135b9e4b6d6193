"""What `show` prints of a report, and what `pair`, `reduce` and `sweep` end with."""

from rich.console import Console

from moebench.reduce.schema import Report
from moebench.show.cases import print_cases
from moebench.show.comparisons import print_comparisons
from moebench.show.layout import paragraph, title
from moebench.show.marks import legend, what_is_compared
from moebench.show.pairs import print_means, print_pair_table
from moebench.show.problems import counts, print_problems


def print_report(report: Report, console: Console) -> None:
    """Everything: what was measured on, cases, pairs, means, what is missing and why, legend."""
    _print_head(report, console)
    if report.cases:
        title(console, "Cases, per rank")
        print_cases(report, console)
    print_pairs(report, console)


def print_pairs(report: Report, console: Console) -> None:
    """The pair table with its means, what is missing and why, and the legend."""
    print_pair_table(report, console)
    print_means(report, console)
    print_comparisons(report, console)
    print_problems(report, console)
    for line in legend(report.cases):
        paragraph(console, line, style="dim")
    compared = what_is_compared(report.cases)
    if compared:
        paragraph(console, compared, style="bold yellow")


def _print_head(report: Report, console: Console) -> None:
    meta = report.meta
    cuda = f"CUDA {meta.cuda}" if meta.cuda else None
    where = ", ".join(part for part in (meta.hardware, cuda, meta.reportDate) if part)
    if where:
        paragraph(console, where, style="bold")
    shared = "" if meta.sharedExperts is None else f" S={meta.sharedExperts}"
    paragraph(console, f"T={meta.T} D={meta.D} E={meta.E} K={meta.K} F={meta.F}{shared}")
    if meta.windows is not None and meta.iterationsPerWindow is not None:
        warmups = "" if meta.warmups is None else f", {meta.warmups} warm-ups"
        paragraph(console, f"{meta.windows} windows of {meta.iterationsPerWindow} iterations{warmups}")
    paragraph(console, counts(report))
    console.print()

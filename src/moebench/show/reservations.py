"""What the figures of one case must not be used to claim, in sentences: the long form of its marks, and more."""

from collections.abc import Iterator

from moebench.reduce.pairs import DIST, MOK, pairing
from moebench.reduce.ratio import MIN_WINDOWS
from moebench.reduce.schema import CaseRow, Report


def reservations(report: Report, row: CaseRow) -> list[str]:
    """What holds for this row, the gravest first."""
    return [*_of_measurement(row), *_of_samples(row), *_of_pairing(report, row)]


def _of_measurement(row: CaseRow) -> Iterator[str]:
    environment = row.environment or {}
    if row.injected:
        yield f"Anything: faults were injected on purpose ({', '.join(row.injected)})."
    if row.stale:
        yield f"How it is now: it was measured before a change ({row.stale})."
    if (environment.get("gpu_shared_by") or 1) > 1:
        yield "Times: several ranks shared one GPU, over gloo through host memory."
    if row.implementation == "portable" and row.backend in (DIST, MOK):
        yield (
            f"How fast the library {row.backend} is, or which library is faster: this is its strategy re-created in "
            "PyTorch (portable)."
        )
    if row.implementation is None:
        yield "Whether it is of the real library: the report does not say."
    if environment.get("device") == "cpu":
        yield "What is faster on a GPU: ranks of a CPU share its cores, and talk over gloo."
    if row.emulated:
        yield "The speed of MXFP8 units: products were computed on dequantised operands (emulated)."
    if row.hostKnownSplits:
        yield "The cost of exchanging split sizes: the host knew them before the iteration."
    if row.cudaGraph:
        yield "The host's work in an iteration: replays of a CUDA graph need none."
    if row.l2Flush:
        yield "Times with a warm L2 cache: it was overwritten before each iteration."
    if row.trafficSource == "transport" and row.ep > 1:
        yield "What crossed a wire: bytes were counted as handed to the collectives (transport)."
    if row.trafficSource == "logical" and row.ep > 1:
        yield "Measured traffic: bytes are by formula (logical)."
    if row.memorySource == "rss":
        yield "The backend's memory alone: it is the growth of the process's resident memory (rss)."


def _of_samples(row: CaseRow) -> Iterator[str]:
    windows = len(row.windowMS or ())
    if not row.windowMS:
        yield "Any difference to another time: the report has no windows (windowMS), so its noise is not known."
    elif windows == 1:
        yield "Any difference to another time: one window says nothing of its noise."
    elif windows < MIN_WINDOWS:
        yield f"A difference to another run: {windows} windows are too few for an interval, {MIN_WINDOWS} are needed."
    if row.unstable:
        yield f"A time that repeats: its windows are unstable ({'; '.join(row.unstable)})."


def _of_pairing(report: Report, row: CaseRow) -> Iterator[str]:
    if row.paired is None:
        yield (
            "A difference to another case of this report: they were timed one after the other, so drift is part of "
            "their ratio (`sweep --paired` alternates them)."
        )
    elif row.paired.alternated == "executions":
        yield "Times of a case that stays in memory: it was set up anew for each window."
    if row.backend not in (DIST, MOK):
        return
    found = pairing(report)
    for match in found.matches:
        if len(match.all_dist) > 1 and row.id in (match.mok.id, *(dist.id for dist in match.all_dist)):
            yield (
                f"That one pipeline beats {MOK}: the pair takes the best of {len(match.all_dist)} {DIST} pipelines, "
                "chosen by the same times."
            )
    for entry in found.unpaired:
        if entry.row.id == row.id:
            yield f"Who is faster: it has no pair, since {entry.reason}."

"""One-letter marks of rows whose figures need a reservation, and the legend that explains those in use."""

from moebench.reduce.pairs import DIST, MOK
from moebench.reduce.schema import CaseRow

LEGEND = {
    "I": "faults were injected on purpose: these figures test moebench, and mean nothing else",
    "O": "out of date: its matrix, code, libraries or device have changed since it was measured",
    "U": "unstable: its windows drift, fall into groups or lie apart, so that their mean stands for little",
    "S": "several ranks share one GPU, over gloo through host memory: these times mean nothing",
    "P": "portable: the backend's execution strategy re-created in PyTorch, not its library",
    "E": "emulated: MXFP8 arithmetic on dequantised operands, since the hardware has no MX units",
    "M": "modeled: from a formula, not measured",
    "H": "split sizes were known to the host before the iteration",
}


def marks(*rows: CaseRow) -> str:
    """The marks that any of the rows has, in the legend's order."""
    has = {
        "I": any(row.injected for row in rows),
        "O": any(row.stale for row in rows),
        "U": any(row.unstable for row in rows),
        "S": any((row.environment or {}).get("gpu_shared_by", 1) > 1 for row in rows),
        "P": any(row.implementation == "portable" for row in rows),
        "E": any(row.emulated for row in rows),
        "M": any(row.trafficSource == "logical" for row in rows),
        "H": any(row.hostKnownSplits for row in rows),
    }
    return "".join(mark for mark, yes in has.items() if yes)


def legend(rows: list[CaseRow]) -> list[str]:
    """A line for each mark that occurs."""
    return [f"{letter} {LEGEND[letter]}" for letter in marks(*rows)]


def what_is_compared(rows: list[CaseRow]) -> str | None:
    """What portable implementations can and cannot show; None where there is nothing to say."""
    portable = sorted({row.backend for row in rows if row.implementation == "portable"} & {DIST, MOK})
    on_cpu = any((row.environment or {}).get("device") == "cpu" for row in rows)
    where = " run on CPU over gloo" if on_cpu else ""
    if portable:
        libraries = f"{'libraries' if len(portable) > 1 else 'library'} {' and '.join(portable)}"
        return (
            f"These times compare execution strategies in PyTorch{where}. They do not measure the {libraries}, and do "
            "not say which of them is faster on a GPU."
        )
    if on_cpu:
        return "These times are of CPUs over gloo. They do not say what is faster on a GPU."
    return None

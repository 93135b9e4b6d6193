"""Figures and names that tables and frames derive from a row."""

from moebench.reduce.schema import CaseRow, Meta


def tokens_per_s(meta: Meta, row: CaseRow) -> float:
    """Tokens of one rank over the time of an iteration, per second: T / iterationMS * 1000."""
    T = row.shape.T if row.shape is not None and row.shape.T is not None else meta.T
    return T / row.iterationMS * 1e3


def group_name(row: CaseRow) -> str:
    """Mode, ep and precision: the head of a workload's name."""
    return f"{row.mode}-ep{row.ep}-{row.precision}"


def variant_name(row: CaseRow) -> str:
    """Category, variant, F and overridden axes: the tail of a workload's name."""
    variant = row.profile if row.profile is not None else f"i{row.imbalance:g}"
    own = row.shape.model_dump(exclude_unset=True) if row.shape is not None else {}
    axes = "".join(f"-{axis}{size}" for axis, size in own.items())
    return f"{row.category}-{variant}-F{row.F}{axes}"


def workload_name(row: CaseRow) -> str:
    """The id without backend and pipeline: what cases that may be compared share."""
    return f"{group_name(row)}-{variant_name(row)}"

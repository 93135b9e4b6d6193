"""What a packing case will keep, recompute or replay, planned without running it."""

from typing import Any

from moebench.backends.dist_moe import capacity as dist_moe
from moebench.backends.mok import capacity as mok
from moebench.cases.case import Case, Category

_PLANNERS = {"dist_moe": dist_moe.planned_capacity, "mok": mok.planned_capacity}


def capacity(case: Case) -> dict[str, Any] | None:
    """The planned `capacity` object of a packing case with the report's keys; None for any other case."""
    planner = _PLANNERS.get(case.backend)
    if planner is None or case.category is not Category.PACKING or case.unsupported:
        return None
    return planner(case).model_dump(by_alias=True)


def why_capacity_refuses(case: Case) -> str | None:
    """The reason why the backend's hard limits on rows rule a case out before any launch, or None."""
    return dist_moe.why_rows_do_not_fit(case) if case.backend == "dist_moe" else None

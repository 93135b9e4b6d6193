"""What a case will take, computed before anything runs: the objects of `moebench plan --json`."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from moebench.cases.capacity import capacity
from moebench.cases.case import Case
from moebench.cases.machine import Machine
from moebench.cases.runnable import needed_bytes_per_rank, why_not_here
from moebench.cases.work import logical_tx_bytes, modeled_hbm_bytes, useful_flops


class Forecast(BaseModel):
    """One case on one machine. Null where an impossible case has no rows to compute from."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)
    id: str
    ranks: int
    memory_bytes_per_rank: int | None = Field(
        alias="memoryBytesPerRank", description="modeled, with the rank's process"
    )
    useful_flops: int = Field(alias="usefulFLOPs", description="of one rank and iteration")
    modeled_hbm_bytes: float | None = Field(alias="modeledHBMBytes", description="of one rank and iteration")
    logical_tx_bytes: float = Field(alias="logicalTXBytes", description="of one rank and iteration")
    capacity: dict[str, Any] | None = Field(description="packing: the report's capacity object")
    runnable: bool
    reason: str | None = Field(description="why it cannot run here")


def forecast(case: Case, machine: Machine) -> Forecast:
    """Work, memory and capacity of a case, and whether it can run on a machine."""
    reason = why_not_here(case, machine)
    return Forecast(
        id=case.id,
        ranks=case.ep,
        memory_bytes_per_rank=needed_bytes_per_rank(case, machine),
        useful_flops=useful_flops(case),
        modeled_hbm_bytes=None if case.unsupported else modeled_hbm_bytes(case),
        logical_tx_bytes=logical_tx_bytes(case),
        capacity=capacity(case),
        runnable=reason is None,
        reason=reason,
    )

"""What a launch is asked to do: the file logs/<launch>/launch.json, written by the supervisor, read by every rank."""

from itertools import groupby
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from moebench.cases.fault import Fault


class Job(BaseModel):
    model_config = ConfigDict(frozen=True)
    case_id: str
    attempt: int
    group: str | None = Field(default=None, description="windows of neighbouring jobs of one group alternate")
    together: bool = Field(default=True, description="the group can be set up at once")


class LaunchSpec(BaseModel):
    model_config = ConfigDict(frozen=True)
    run: Path = Field(description="run folder, absolute")
    name: str
    jobs: list[Job] = Field(description="in the order in which they are run")
    device: str = Field(description="cpu, cuda, or auto: cuda where there is any")
    collective_timeout_s: float
    faults: list[Fault] = Field(default=[], description="injected on purpose")

    def groups(self) -> list[list[Job]]:
        """Jobs whose windows alternate, and each other job alone; in order."""
        numbered = enumerate(self.jobs)
        return [[job for _, job in jobs] for _, jobs in groupby(numbered, lambda one: one[1].group or one[0])]

    @property
    def folder(self) -> Path:
        return self.run / "logs" / self.name

    @property
    def stop_file(self) -> Path:
        """Its presence asks the ranks to end before the next case."""
        return self.folder / "stop"

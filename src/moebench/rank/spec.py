"""What a launch is asked to do: the file logs/<launch>/launch.json, written by the supervisor, read by every rank."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from moebench.cases.fault import Fault


class Job(BaseModel):
    model_config = ConfigDict(frozen=True)
    case_id: str
    attempt: int


class LaunchSpec(BaseModel):
    model_config = ConfigDict(frozen=True)
    run: Path = Field(description="run folder, absolute")
    name: str
    jobs: list[Job] = Field(description="in the order in which they are run")
    device: str = Field(description="cpu, cuda, or auto: cuda where there is any")
    collective_timeout_s: float
    faults: list[Fault] = Field(default=[], description="injected on purpose")

    @property
    def folder(self) -> Path:
        return self.run / "logs" / self.name

    @property
    def stop_file(self) -> Path:
        """Its presence asks the ranks to end before the next case."""
        return self.folder / "stop"

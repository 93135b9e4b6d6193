"""What this machine is and what keeps moebench from measuring on it. Nothing here raises: what a machine does not
say is None."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from moebench.launch.doctor_collective import CollectiveTest, try_collectives
from moebench.launch.doctor_gpus import Gpus, examine_gpus
from moebench.launch.doctor_host import Host, examine_host


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class Torch(_Frozen):
    """torch as it is installed, and what it finds."""

    version: str | None
    error: str | None = Field(default=None, description="why it cannot be imported")
    cuda: str | None = Field(default=None, description="version of CUDA it is built for; none: a CPU build")
    nccl: str | None = None
    gpus: int = Field(default=0, description="GPUs that it can use")
    triton: str | None = None


class BackendState(_Frozen):
    name: str
    implementation: str
    missing: str | None = Field(description="what this machine lacks for it; none: it can run")


class Finding(_Frozen):
    """Something to know or to cure. One that stops keeps moebench from measuring what this machine has."""

    stops: bool
    what: str
    remedy: str


class Diagnosis(_Frozen):
    host: Host
    torch: Torch
    gpus: Gpus
    backends: list[BackendState]
    collectives: CollectiveTest
    findings: list[Finding]

    @property
    def fine(self) -> bool:
        return not any(finding.stops for finding in self.findings)


def diagnose() -> Diagnosis:
    """Examine this machine. Takes some seconds: it starts ranks to try their collectives."""
    from moebench.launch.doctor_findings import findings

    host, torch, gpus = examine_host(), examine_torch(), examine_gpus()
    backends = examine_backends() if torch.error is None else []
    collectives = try_collectives(torch.gpus)
    return Diagnosis(
        host=host,
        torch=torch,
        gpus=gpus,
        backends=backends,
        collectives=collectives,
        findings=findings(host, torch, gpus, backends, collectives),
    )


def examine_torch() -> Torch:
    installed = _version("torch")
    try:
        import torch

        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else None
    except Exception as error:  # a broken installation fails in its own ways
        return Torch(version=installed, error=f"{type(error).__name__}: {error}")
    return Torch(version=torch.__version__, cuda=torch.version.cuda, nccl=nccl, gpus=gpus, triton=_version("triton"))


def examine_backends() -> list[BackendState]:
    from moebench.backends.registry import describe_backends

    try:
        described: list[dict[str, Any]] = describe_backends()
    except Exception as error:
        return [BackendState(name="all", implementation="unknown", missing=f"{type(error).__name__}: {error}")]
    return [
        BackendState(name=backend["name"], implementation=found["implementation"], missing=found["missing"])
        for backend in described
        for found in backend["implementations"]
    ]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

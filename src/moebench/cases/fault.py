"""A fault that is injected on purpose: what `moebench sweep --inject` asks for, and where it strikes."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from moebench.cases.case import Case
from moebench.errors import UsageError


class Kind(StrEnum):
    RAISE = "raise"
    """An exception."""
    OOM = "oom"
    """The exception of a GPU's allocator."""
    MEMORY = "memory"
    """Takes memory of the case's device until there is none left. On a host, set a limit first (`ulimit -v`)."""
    EXIT = "exit"
    """Ends the process without a word to its peers."""
    KILL = "kill"
    """SIGKILL."""
    SEGFAULT = "segfault"
    """Reads address 0."""
    STOP = "stop"
    """SIGSTOP: the process stays, and answers nothing."""
    HANG = "hang"
    """Sleeps in Python for ever."""
    COLLECTIVE = "collective"
    """Enters a collective that its peers do not."""
    UNSUPPORTED = "unsupported"
    """Says that it cannot do the case."""
    NAN = "nan"
    """One row of y is not a number."""
    ROW = "row"
    """One row of y has the wrong sign."""
    SLEEP = "sleep"
    """Is slow, in each layer."""
    GARBAGE = "garbage"
    """Prints bytes that are not UTF-8, and escape sequences."""


class Phase(StrEnum):
    """Of a case on a rank; the others have no work of the backend that could fail."""

    SUPPORT = "support"
    SET_UP = "set-up"
    CHECK = "check"
    TIMING = "timing"
    RECHECK = "recheck"


_SEEN_ONLY_IN: dict[Kind, tuple[Phase, ...]] = {
    Kind.UNSUPPORTED: (Phase.SUPPORT,),
    Kind.NAN: (Phase.CHECK, Phase.RECHECK),
    Kind.ROW: (Phase.CHECK, Phase.RECHECK),
}
"""Nobody looks at the y of a timed iteration."""

_OPTIONS: dict[Kind, dict[str, float]] = {
    Kind.SLEEP: {"seconds": 1.0},
    Kind.EXIT: {"status": 7},
    Kind.GARBAGE: {"megabytes": 0.0},
}
"""Keys that only one kind has, with their defaults."""


class Fault(BaseModel):
    """What goes wrong, and where: on one rank or on all, in one phase, in the cases whose id matches."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Kind
    rank: int | None = Field(default=1, ge=0, description="none: every rank")
    phase: Phase = Phase.TIMING
    case: str = Field(default="*", description="glob over case ids")
    attempt: int | None = Field(default=None, ge=1, description="none: every attempt")
    seconds: float | None = Field(default=None, gt=0, le=86_400, description="sleep: in each layer")
    status: int | None = Field(default=None, ge=0, le=255, description="exit: of the process")
    megabytes: float | None = Field(default=None, ge=0, le=100_000, description="garbage: at least so much of it")

    @field_validator("rank", mode="before")
    @classmethod
    def _all_is_every_rank(cls, value: Any) -> Any:
        return None if value == "all" else value

    @property
    def ranks_needed(self) -> int:
        return max((self.rank or 0) + 1, 2 if self.kind is Kind.COLLECTIVE else 1)

    def concerns(self, case: Case) -> bool:
        """Whether it strikes a rank of the case, in some attempt."""
        return case.ep >= self.ranks_needed and fnmatchcase(case.id, self.case)

    def strikes(self, case: Case, attempt: int) -> bool:
        return self.concerns(case) and self.attempt in (None, attempt)

    def __str__(self) -> str:
        """As on a command line: `parse_fault` reads it back."""
        given = self.model_dump(mode="json", exclude={"kind"}) | {"rank": "all" if self.rank is None else self.rank}
        if self.case == "*":
            del given["case"]
        keys = [f"{key}={str(value).removesuffix('.0')}" for key, value in given.items() if value is not None]
        return f"{self.kind}:{','.join(keys)}"


def parse_fault(text: str) -> Fault:
    """A fault as written on a command line: `KIND`, or `KIND:key=value,...`.

    Raises UsageError naming the flag, what is wrong in it, and what would be right.
    """
    flag = f"--inject {text}"
    word, _, rest = text.partition(":")
    if word not in list(Kind):
        raise UsageError(f"{flag}: unknown kind {word!r}. Known kinds: {', '.join(Kind)}.")
    kind = Kind(word)
    phases, options = _SEEN_ONLY_IN.get(kind, tuple(Phase)), _OPTIONS.get(kind, {})
    keys = ["rank", "phase", "case", "attempt", *options]
    given: dict[str, str] = {}
    for part in rest.split(",") if rest else []:
        key, _, value = part.partition("=")
        if key not in keys:
            raise UsageError(f"{flag}: unknown key {key!r}. Known keys of {kind}: {', '.join(keys)}.")
        if key in given or not value:
            raise UsageError(f"{flag}: give {key} once, as {key}=VALUE.")
        if key == "phase" and value not in phases:
            raise UsageError(f"{flag}: phase {value!r}. Phases in which {kind} can strike: {', '.join(phases)}.")
        given[key] = value
    default_phase = Phase.TIMING if Phase.TIMING in phases else phases[0]
    try:
        return Fault.model_validate({"kind": kind, "phase": default_phase} | options | given)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise UsageError(f"{flag}: {problem['loc'][0]} {problem['input']!r}: {problem['msg']}.") from error


def refuse_idle_faults(faults: Sequence[Fault], cases: Iterable[Case]) -> None:
    """Raises UsageError for a fault that strikes none of the cases."""
    planned = list(cases)
    for fault in faults:
        if not any(fault.concerns(case) for case in planned):
            raise UsageError(
                f"--inject {fault}: no case that runs here has {fault.ranks_needed} ranks or more and an id like "
                f"{fault.case!r}, so it would never strike. Change its rank or its case."
            )

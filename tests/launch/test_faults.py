"""One rank, or all, fail in every way that we know of; each fault costs its own case, and bounded time.

One sweep has a small case for each fault, with a healthy one of torch behind it. Then it is resumed without its
faults, but for a new one that strikes the second attempt at a case.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.e2e.sweeping import Command, Ended, journal, report
from tests.launch.small import case_id, write_matrix

from moebench.backends.faulty import GARBAGE
from moebench.cases.fault import parse_fault
from moebench.launch.logs import MOST_BYTES

pytestmark = pytest.mark.e2e

CASE_S = 6
LATE = f"no ending within {CASE_S} s: "
CPU_MEMORY = "can't allocate memory"
ENDS = {
    # found where ranks still agree: the launch goes on
    "unsupported": ("unsupported", None, ["rank 1, support: injected: unsupported:"]),
    "raise:phase=support": ("failed", "crashed", ["rank 1, support: InjectedFault in support: raise:"]),
    "raise:phase=set-up": ("failed", "crashed", ["rank 1, set-up: InjectedFault in set-up: raise:"]),
    "oom:phase=support,rank=all": ("failed", "out-of-memory", ["rank 0, support: OutOfMemoryError in support: "]),
    "oom:phase=set-up": ("failed", "out-of-memory", ["rank 1, set-up: OutOfMemoryError in set-up: injected"]),
    "memory:phase=set-up": ("failed", "out-of-memory", ["rank 1, set-up: RuntimeError in set-up: ", CPU_MEMORY]),
    "nan": ("rejected", "incorrect", ["rank 1: ", " of y of layer 0 is not finite, limit ", "(before timing)"]),
    "nan:phase=recheck": ("rejected", "incorrect", ["rank 1: ", " of y of layer 0 is not finite", "(after timing)"]),
    "row:rank=0": ("rejected", "incorrect", ["rank 0: ", " of y of layer 0 is 0.", "(before timing)"]),
    "row:phase=recheck,rank=all": ("rejected", "incorrect", ["rank 0: ", " of y of layer 0 is 0.", "(after timing)"]),
    # found while peers wait in a collective: each ends its launch
    "raise": ("failed", "crashed", ["rank 1: InjectedFault in timing: raise:"]),
    "oom": ("failed", "out-of-memory", ["rank 1: OutOfMemoryError in timing: injected: oom:"]),
    "memory": ("failed", "out-of-memory", ["rank 1: RuntimeError in timing: ", CPU_MEMORY]),
    "exit": ("failed", "crashed", ["rank 1 ended with exit status 7"]),
    "exit:status=0": ("failed", "crashed", ["rank 1 "]),
    "exit:status=0,rank=all": ("failed", "crashed", ["torchrun ended with status 0, and no rank said why"]),
    "kill:rank=0,phase=set-up": ("failed", "crashed", ["rank 0 was killed by SIGKILL"]),
    "segfault": ("failed", "crashed", ["rank 1 was killed by SIGSEGV"]),
    "stop": ("failed", "timeout", [LATE, "rank 1 did not answer"]),
    "hang": ("failed", "timeout", [LATE, "rank 1 was at faulty.py:", " in _strike"]),
    "collective": ("failed", "timeout", [LATE, "rank 1 waited in barrier"]),
}
FLOOD = "garbage:megabytes=20"
HARMLESS = [FLOOD, "sleep:seconds=0.2", "sleep:seconds=0.2,phase=set-up,rank=all", "garbage"]
FAULTS = [*HARMLESS, *ENDS]
FATAL = list(ENDS).index("raise")
"""Faults from here on end a launch."""
AGAIN = "raise:phase=set-up,attempt=2"


def width(fault: str) -> int:
    return 104 + 8 * FAULTS.index(fault)


def case_of(fault: str) -> str:
    return case_id(width(fault), "limited" if fault.startswith("memory") else "faulty")


def healthy(fault: str) -> str:
    """The case that comes after the fault's."""
    return case_id(width(fault), "torch")


def flag(fault: str, case: str) -> tuple[str, str]:
    return "--inject", f"{fault}{',' if ':' in fault else ':'}case={case}"


@dataclass(frozen=True)
class Swept:
    """What a sweep left behind when it had ended."""

    run: Path
    command: Command
    ended: Ended
    report: dict
    journal: list[dict]
    launches: list[str]

    def row(self, case: str) -> dict:
        return next(row for row in self.report["cases"] + self.report["rejected"] if row["id"] == case)

    def logs(self, fault: str, name: str = "stderr.log") -> list[bytes]:
        """What each rank wrote in the launch that ran the fault's case."""
        launch = next(line["launch"] for line in self.journal if line.get("case") == case_of(fault))
        paths = (self.run / "logs" / launch / "ranks").glob(f"*/attempt_0/*/{name}")
        return [path.read_bytes() for path in sorted(paths)]


def sweep(folder: Path, *arguments: object) -> Swept:
    command = Command("sweep", *arguments, "--case-timeout", CASE_S, folder=folder)
    ended, run = command.wait(), folder / "run"
    launches = sorted(path.name for path in (run / "logs").iterdir())
    return Swept(run, command, ended, report(run), journal(run), launches)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    limited = [fault for fault in FAULTS if fault.startswith("memory")]
    faulty = [fault for fault in FAULTS if fault not in limited]
    backends = {"faulty": faulty, "tests.launch.limited:Limited": limited, "torch": FAULTS}
    matrix = write_matrix(folder / "faults.toml", {name: list(map(width, mine)) for name, mine in backends.items()})
    flags = [word for fault in FAULTS for word in flag(fault, case_of(fault))]
    return sweep(folder, "-m", matrix, "--device", "cpu", "--out", "run", "--attempts", 1, *flags)


@pytest.fixture(scope="module")
def resumed(swept):
    return sweep(swept.run.parent, "--resume", "run", *flag(AGAIN, case_of("raise")))


@pytest.mark.parametrize("fault", ENDS)
def test_a_fault_ends_its_case_with_its_reason_and_names_the_rank(swept, fault):
    row = swept.row(case_of(fault))
    status, reason, parts = ENDS[fault]
    assert (row["status"], row["reason"], row["attempts"]) == (status, reason, 1)
    assert row["message"].startswith(parts[0])
    for part in parts[1:]:
        assert part in row["message"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raise:phase=set-up", "InjectedFault: raise:rank=1,phase=set-up"),
        ("raise", "InjectedFault: raise:rank=1,phase=timing"),
        ("memory", CPU_MEMORY),
        ("exit", "injected: exit:rank=1,phase=timing"),
        ("kill:rank=0,phase=set-up", "injected: kill:rank=0,phase=set-up"),
        ("stop", "injected: stop:rank=1,phase=timing"),
        ("hang", "in _strike"),
    ],
)
def test_the_last_lines_of_the_guilty_ranks_log_are_in_the_report(swept, fault, said):
    assert said in swept.row(case_of(fault))["log"]


def test_every_other_case_is_accepted(swept):
    others = {healthy(fault) for fault in FAULTS} | {case_of(fault) for fault in HARMLESS}
    assert {row["id"] for row in swept.report["cases"]} == others
    assert {row["id"] for row in swept.report["rejected"]} == {case_of(fault) for fault in ENDS}


def test_a_number_that_a_fault_made_says_so(swept):
    for fault in HARMLESS:
        (said,) = swept.row(case_of(fault))["injected"]
        assert parse_fault(said) == parse_fault(flag(fault, case_of(fault))[1])
        assert "injected" not in swept.row(healthy(fault))
    assert "I faults were injected on purpose" in swept.ended.stdout


def test_the_exit_status_says_that_some_cases_failed(swept):
    assert swept.ended.code == 3
    assert swept.ended.stderr == ""


def test_each_case_is_one_line_with_its_ending_and_nothing_acts_on_the_terminal(swept):
    planned = 2 * len(FAULTS)
    assert sum(f"/{planned} " in line for line in swept.ended.lines) == planned
    assert not {"\x1b", "\x00", "\x07"} & set(swept.ended.stdout)


def test_no_process_is_left(swept):
    assert swept.command.processes() == []


def test_only_faults_that_peers_cannot_be_told_of_cost_a_launch(swept):
    """One more runs the rest."""
    assert len(swept.launches) == len(list(ENDS)[FATAL:]) + 1


@pytest.mark.parametrize(
    ("fault", "frame"),
    [("hang", b"faulty.py"), ("collective", b"in barrier"), ("segfault", b"Segmentation fault")],
)
def test_the_logs_hold_the_stack_of_the_rank_that_hung_or_was_killed(swept, fault, frame):
    log = swept.logs(fault)[1]
    assert b"most recent call first" in log
    assert frame in log


@pytest.mark.parametrize("fault", ["hang", "collective"])
def test_after_a_hang_the_logs_hold_the_stacks_of_its_peers_too(swept, fault):
    assert [b"most recent call first" in log for log in swept.logs(fault)] == [True, True]


@pytest.mark.parametrize("name", ["stdout.log", "stderr.log"])
def test_what_a_rank_prints_is_in_its_log_byte_for_byte_and_a_flood_loses_its_middle(swept, name):
    log = swept.logs(FLOOD, name)[1]
    before, dropped, after = log.partition(b"[moebench dropped ")
    assert GARBAGE in before
    assert dropped
    assert GARBAGE in after
    assert b"\0\0" not in log
    assert len(log) < MOST_BYTES


def test_the_journal_has_a_beginning_and_an_ending_of_each_case(swept):
    entries = [line for line in swept.journal if "case" in line]
    counts = Counter((line["case"], line["attempt"], "status" in line) for line in entries)
    ids = {id for fault in FAULTS for id in (case_of(fault), healthy(fault))}
    assert counts == {(id, 1, ended): 1 for id in ids for ended in (False, True)}


def test_resumed_without_its_faults_the_sweep_completes_the_report(resumed):
    assert {row["id"] for row in resumed.report["cases"]} == {
        id for fault in FAULTS for id in (case_of(fault), healthy(fault))
    }
    assert resumed.report["rejected"] == []
    assert resumed.ended.code == 0, resumed.ended.stdout + resumed.ended.stderr


def test_no_injected_number_outlives_the_resumed_sweep(resumed):
    assert [row["id"] for row in resumed.report["cases"] if "injected" in row] == []


def test_resumed_healthy_cases_stay_and_one_that_fails_again_is_tried_a_third_time(swept, resumed):
    attempts = {row["id"]: row["attempt"] for row in resumed.report["cases"]}
    assert attempts == {healthy(fault): 1 for fault in FAULTS} | {
        case_of(fault): 3 if fault == "raise" else 2 for fault in FAULTS
    }
    assert len(resumed.launches) == len(swept.launches) + 2

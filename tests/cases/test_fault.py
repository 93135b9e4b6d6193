"""Faults as they are written on a command line, and where they strike."""

import subprocess
import sys

import pytest
from tests.reduce.build import make_case

from moebench.cases.fault import Fault, Kind, Phase, parse_fault, refuse_idle_faults
from moebench.errors import UsageError


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("raise", Fault(kind=Kind.RAISE, rank=1, phase=Phase.TIMING)),
        ("nan", Fault(kind=Kind.NAN, phase=Phase.CHECK)),
        ("row:phase=recheck", Fault(kind=Kind.ROW, phase=Phase.RECHECK)),
        ("unsupported:rank=0", Fault(kind=Kind.UNSUPPORTED, rank=0, phase=Phase.SUPPORT)),
        ("oom:rank=all,phase=set-up", Fault(kind=Kind.OOM, rank=None, phase=Phase.SET_UP)),
        ("kill:case=*-ep2-[ab]*,attempt=2", Fault(kind=Kind.KILL, case="*-ep2-[ab]*", attempt=2)),
        ("sleep", Fault(kind=Kind.SLEEP, seconds=1)),
        ("sleep:seconds=0.4", Fault(kind=Kind.SLEEP, seconds=0.4)),
        ("exit", Fault(kind=Kind.EXIT, status=7)),
        ("exit:status=0", Fault(kind=Kind.EXIT, status=0)),
        ("garbage:megabytes=20", Fault(kind=Kind.GARBAGE, megabytes=20)),
    ],
)
def test_a_fault_is_read_with_its_kinds_defaults_and_written_so_that_it_reads_the_same(text, fault):
    assert parse_fault(text) == fault
    assert parse_fault(str(fault)) == fault


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_can_be_named_alone(kind):
    assert parse_fault(kind).kind is kind


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["unknown kind ''", "raise, oom"]),
        ("explode:rank=1", ["unknown kind 'explode'", "raise, oom", "garbage"]),
        ("raise:where=here", ["unknown key 'where'", "keys of raise: rank, phase, case, attempt."]),
        ("raise:seconds=3", ["unknown key 'seconds'", "keys of raise: rank, phase, case, attempt."]),
        ("sleep:second=3", ["unknown key 'second'", "keys of sleep: rank, phase, case, attempt, seconds."]),
        ("raise:rank", ["rank=VALUE"]),
        ("raise:rank=1,rank=2", ["rank once"]),
        ("raise:rank=two", ["rank 'two'", "integer"]),
        ("raise:rank=-1", ["rank '-1'", "greater than or equal to 0"]),
        ("raise:phase=warm-up", ["phase 'warm-up'", "raise can strike: support, set-up, check, timing, recheck"]),
        ("nan:phase=timing", ["phase 'timing'", "nan can strike: check, recheck"]),
        ("unsupported:phase=check", ["phase 'check'", "can strike: support"]),
        ("kill:attempt=0", ["attempt '0'", "greater than or equal to 1"]),
        ("sleep:seconds=nan", ["seconds 'nan'"]),
        ("exit:status=256", ["status '256'", "255"]),
    ],
)
def test_a_mistake_is_named_with_what_would_be_right(text, parts):
    with pytest.raises(UsageError) as refusal:
        parse_fault(text)
    for part in ["--inject", *parts]:
        assert part in str(refusal.value)


TWO, ONE = make_case("torch", 2), make_case("torch", 1)


@pytest.mark.parametrize(
    ("text", "case", "attempt", "strikes"),
    [
        ("raise", TWO, 1, True),
        ("raise", ONE, 1, False),
        ("raise:rank=0", ONE, 1, True),
        ("raise:rank=all", ONE, 1, True),
        ("raise:rank=2", TWO, 1, False),
        ("raise:case=torch-*-ep2-*", TWO, 1, True),
        ("raise:case=mok-*", TWO, 1, False),
        ("raise:attempt=2", TWO, 1, False),
        ("raise:attempt=2", TWO, 2, True),
        ("collective:rank=0", ONE, 1, False),
        ("collective:rank=0", TWO, 1, True),
    ],
)
def test_a_fault_strikes_where_it_was_sent(text, case, attempt, strikes):
    assert parse_fault(text).strikes(case, attempt) is strikes


def test_a_fault_that_would_never_strike_is_a_mistake():
    refuse_idle_faults([parse_fault("raise:attempt=9"), parse_fault("nan:rank=0")], [ONE, TWO])
    for text, parts in {
        "raise:rank=2": ["3 ranks or more", "'*'"],
        "raise:case=mok-*": ["2 ranks or more", "'mok-*'"],
    }.items():
        with pytest.raises(UsageError) as refusal:
            refuse_idle_faults([parse_fault("raise"), parse_fault(text)], [ONE, TWO])
        for part in [f"--inject {parse_fault(text)}", *parts, "never strike"]:
            assert part in str(refusal.value)


def test_reading_one_does_not_import_torch():
    program = "import sys, moebench.cases.fault; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

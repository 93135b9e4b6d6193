"""The instrument measured by itself: figures of hand-made traces, what is made of them, and one run of it."""

import io
import json
from dataclasses import asdict
from functools import partial

import pytest
import typer
from tests.reduce.build import make_case, make_trace, make_window
from typer.testing import CliRunner

from moebench.backends.pace import Pace
from moebench.cases.case import Measure, Mode
from moebench.cases.machine import Machine, this_machine
from moebench.cli.doctor import doctor, print_self_test
from moebench.cli.progress import SweepProgress
from moebench.launch import self_test as module
from moebench.launch import self_test_figures as gauges
from moebench.launch.self_test import SelfTest, self_test
from moebench.launch.self_test_figures import Figure, figure
from moebench.reduce.accept import Outcome
from moebench.show.console import make_console
from moebench.status import Reason, Status

F16 = Pace()
"""2 ms forward and 4 ms backward at the F of `make_case`."""
MEASURE = Measure(windows=2, iterations=10, warmups=3, max_warmups=3)
BEFORE = 1 + 3
"""Iterations of the check and the warm-ups."""


def traces_of(took_ms, measured_ms, *, pace=F16, device="cpu", mode=Mode.INFERENCE, **window):
    """Of two ranks. `took_ms(rank, i)`, in each iteration since set-up, and `measured_ms(rank, took)`."""
    case = make_case("spin", measure=MEASURE, mode=mode)
    traces = []
    for rank in range(2):
        took = [took_ms(rank, i) for i in range(BEFORE + 20 + 1)]
        measured = [measured_ms(rank, ms) for ms in took]
        phases = [part for ms in took for part in ([ms / 2, ms / 2] if case.training else [ms])]
        traces.append(
            make_trace(
                case,
                rank,
                warmups=3,
                windows=None,
                environment={"device": device, "library": {"pace": asdict(pace), "took_ms": phases}},
            ).model_copy(
                update={
                    "windows": [
                        make_window(measured[first : first + 10], training=case.training, **window)
                        for first in (BEFORE, BEFORE + 10)
                    ]
                }
            )
        )
    return traces


def late_at_first(ms):
    """What the check and the warm-ups took, and the iteration after timing, is no part of any window."""
    return lambda rank, i: ms(rank, i) if BEFORE <= i < BEFORE + 20 else 1000.0


STEADY = late_at_first(lambda rank, i: 2.0)
SKEWED = late_at_first(lambda rank, i: 2.0 + 0.5 * rank)
DRIFTING = late_at_first(lambda rank, i: 2.0 + 0.01 * i)
OUTLYING = late_at_first(lambda rank, i: 3.0 if i % 5 == 0 else 2.0)


def one_percent_long(rank, ms):
    return 1.01 * ms


@pytest.mark.parametrize(
    ("gauge", "pace", "took_ms", "mode", "asked"),
    [
        (gauges.ITERATION, Pace(), STEADY, Mode.INFERENCE, 2.0),
        (gauges.FORWARD, Pace(), late_at_first(lambda rank, i: 6.0), Mode.TRAINING, 2.0),
        (gauges.BACKWARD, Pace(), late_at_first(lambda rank, i: 6.0), Mode.TRAINING, 4.0),
        (gauges.SKEW, Pace(skew_ms=0.5), SKEWED, Mode.INFERENCE, 0.5),
        (gauges.DRIFT, Pace(drift_ms=0.01), DRIFTING, Mode.INFERENCE, 10.0),
        (gauges.OUTLIERS, Pace(outlier_every=5, outlier_ms=1.0), OUTLYING, Mode.INFERENCE, 1.0),
    ],
    ids=lambda value: value.name if isinstance(value, gauges.Gauge) else "",
)
def test_bias_is_what_was_measured_against_what_the_backend_took_window_by_window(gauge, pace, took_ms, mode, asked):
    found = figure(gauge, traces_of(took_ms, one_percent_long, pace=pace, mode=mode))
    assert found.bias == pytest.approx(0.01)
    assert found.measured == pytest.approx(1.01 * found.took)
    assert found.asked == pytest.approx(asked)
    assert found.windows == 2


def test_a_machine_that_holds_ranks_up_is_no_bias():
    found = figure(gauges.ITERATION, traces_of(late_at_first(lambda rank, i: 2.0 + i % 7), lambda rank, ms: ms))
    assert found.bias == pytest.approx(0)
    assert found.lateness > 0.5


def test_only_the_slowest_rank_counts():
    found = figure(gauges.ITERATION, traces_of(SKEWED, lambda rank, ms: ms * (1 + 0.02 * rank)))
    assert found.bias == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("gauge", "measured"), [(gauges.SENT, 0.02), (gauges.RECEIVED, 0.04)], ids=["sent", "received"]
)
def test_rates_are_those_of_the_bytes_that_the_pace_sends(gauge, measured):
    """40,000 bytes in 2 ms are 0.02 GB/s. The hand-made windows receive twice what they send."""
    sending = traces_of(STEADY, lambda rank, ms: ms, pace=Pace(sent_bytes=40_000), tx_bytes=400_000)
    found = figure(gauge, sending)
    assert (found.asked, found.took, found.measured) == pytest.approx((0.02, 0.02, measured))


@pytest.mark.parametrize(
    ("device", "gauge", "limit"),
    [("cpu", gauges.ITERATION, 0.01), ("cuda", gauges.ITERATION, 0.005), ("cuda", gauges.SKEW, 0.01)],
)
def test_limits_are_those_of_the_device(device, gauge, limit):
    assert figure(gauge, traces_of(SKEWED, one_percent_long, device=device)).limit == pytest.approx(limit)


def make_figure(name="iteration", **changes):
    fields = {"unit": "ms", "asked": 1.0, "took": 1.0, "measured": 1.0, "bias": 0.0, "limit": 0.01}
    return Figure(name=name, **fields | {"spread": 0.1, "windows": 20} | changes)


@pytest.mark.parametrize(
    ("changes", "stops", "what"),
    [
        ({"bias": 0.0123}, [True], "iteration: measured 1.23% above what it was; the limit is 1.0%"),
        ({"bias": -0.02}, [True], "measured 2.00% below"),
        ({"bias": 0.0099}, [], ""),
        ({"took": 1.3}, [False], "were to take 1 ms took 1.30 ms"),
        ({"took": 1.3, "name": "skew"}, [], ""),
    ],
)
def test_findings_name_the_figure_and_its_limit(changes, stops, what):
    found = module.findings_of([make_figure(**changes)], {})
    assert [finding.stops for finding in found] == stops
    assert what in "".join(finding.what for finding in found)


def test_a_case_that_could_not_be_measured_stops_and_comes_first():
    failed = Outcome(Status.FAILED, Reason.CRASHED, "rank 1: no memory")
    first, second = module.findings_of([make_figure(took=2.0)], {"spin_steady-x": failed})
    assert (first.stops, second.stops) == (True, False)
    assert "spin_steady-x could not be measured: crashed: rank 1: no memory" in first.what


def canned(**changes):
    figures = [make_figure(name, **changes) for name in ("iteration", "skew of ranks")]
    return SelfTest(ranks=2, device="cpu", seconds=9, figures=figures, findings=module.findings_of(figures, {}))


@pytest.mark.parametrize(("bias", "status"), [(0.0, 0), (0.02, 1)])
def test_exit_status_and_json_say_whether_the_instrument_is_right(monkeypatch, bias, status):
    monkeypatch.setattr(module, "self_test", lambda machine, watch: canned(bias=bias))
    app = typer.Typer()
    app.command()(doctor)
    ended = CliRunner().invoke(app, ["--self-test", "--json"])
    assert ended.exit_code == status
    assert json.loads(ended.stdout)["figures"][1]["bias"] == bias


def test_text_fits_80_columns_and_says_what_stops():
    file = io.StringIO()
    print_self_test(canned(bias=0.02), make_console(file=file, width=80))
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if line.startswith("skew of ranks"))
    assert row.split() == ["skew", "of", "ranks", "ms", "1.000", "1.000", "1.000", "+2.00%", "1.0%", "10.0%", "20"]
    assert any(line.startswith("  STOPS") for line in lines)
    assert "not to be trusted" in lines[-1]


@pytest.mark.parametrize(("gpus", "device", "ranks"), [(0, "auto", 2), (1, "auto", 1), (1, "cpu", 2), (8, "auto", 2)])
def test_it_takes_two_ranks_or_one_on_a_single_gpu(monkeypatch, gpus, device, ranks):
    def sweep(run, cases, device, limits, watcher):
        return {case.id: Outcome(Status.NOT_RUN) for case in cases}

    monkeypatch.setattr(module, "_sweep", sweep)
    machine = Machine(cores=2, available_bytes=2**33, gpu_bytes=(2**36,) * gpus)
    tested = self_test(machine, partial(SweepProgress, make_console(file=io.StringIO())), device)
    assert tested.ranks == ranks
    assert (tested.figures, tested.device) == ([], None)
    assert len(tested.findings) == (6 if ranks == 2 else 4)
    assert not tested.fine


@pytest.mark.e2e
def test_what_is_known_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    seen = io.StringIO()
    tested = self_test(this_machine(), partial(SweepProgress, make_console(file=seen)), "cpu", windows=4)
    assert not any("could not be measured" in finding.what for finding in tested.findings)
    assert (tested.ranks, tested.device) == (2, "cpu")
    found = {one.name: one for one in tested.figures}
    assert {name: round(one.asked, 3) for name, one in found.items()} == {
        "iteration": 1,
        "forward": 4,
        "backward": 8,
        "skew of ranks": 2,
        "outliers": 1,
        "drift": 10,
        "sent": 0.262,
        "received": 0.262,
    }
    for name in ("iteration", "forward", "backward"):
        assert found[name].took >= found[name].asked
        assert found[name].measured > found[name].asked
    for name in ("iteration", "forward", "backward", "sent", "received"):
        assert abs(found[name].bias) < 0.25, found[name]
    assert seen.getvalue().count("accepted spin_") == 6
    assert list(tmp_path.iterdir()) == []

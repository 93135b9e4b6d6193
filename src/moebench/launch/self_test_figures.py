"""What moebench measured of a spin backend, beside what the backend was asked to take, and what it took.

A figure is a function of one window of all ranks: the report's own function where the report has such a figure. It is
computed of the windows as they were measured, of windows of the times that the backend noted by its own clock, and of
windows of the times that it was asked for. What was measured against what was noted is the error of the instrument;
what was noted against what was asked for is the doing of a machine that let ranks wait.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from pydantic import BaseModel, ConfigDict, Field

from moebench.backends.pace import Pace
from moebench.rank.trace import RankTrace, Window
from moebench.reduce.metrics import case_times, mean_gbps, window_spread
from moebench.steady import trend

LIMITS = {"cpu": 0.01, "cuda": 0.005}
"""Largest bias of a time, as a share of it, by device."""

CHECKS = 1
"""Iterations of a case before its first warm-up."""

OneWindow = list[RankTrace]
"""The traces of all ranks, in rank order, each with one window only."""


class Figure(BaseModel):
    """Medians over the windows of a case. Shares are fractions: 0.01 is 1 %."""

    model_config = ConfigDict(frozen=True)
    name: str
    unit: str
    asked: float = Field(description="what the backend was to take")
    took: float = Field(description="what it took, by its own clock")
    measured: float
    bias: float = Field(description="measured / took - 1")
    limit: float = Field(description="of the bias, to either side")
    spread: float | None = Field(description="(max - min) / median over the measured windows")
    windows: int

    @property
    def passed(self) -> bool:
        return abs(self.bias) <= self.limit

    @property
    def lateness(self) -> float:
        """took / asked - 1"""
        return self.took / self.asked - 1


@dataclass(frozen=True)
class Gauge:
    """How a figure is read off a window. Its limit is so many times that of a plain time."""

    name: str
    unit: str
    read: Callable[[OneWindow], float | None]
    times_limit: float = 1.0


def _drift_us(window: OneWindow) -> float:
    series = [trace.windows[0].iteration_ms for trace in window]
    return fmean(trend(ms).rise / (len(ms) - 1) * 1e3 for ms in series)


def _outlier_ms(window: OneWindow) -> float:
    """How much longer than a rank's median iteration the slowest tenth of its iterations takes."""
    series = [sorted(trace.windows[0].iteration_ms) for trace in window]
    return fmean(fmean(ms[-max(1, len(ms) // 10) :]) - median(ms) for ms in series)


def _sent_gbps(window: OneWindow) -> float | None:
    return mean_gbps(window, lambda w: w.sent_bytes(window[0].traffic_source))


def _received_gbps(window: OneWindow) -> float | None:
    return mean_gbps(window, lambda w: w.received_bytes(window[0].traffic_source))


ITERATION = Gauge("iteration", "ms", lambda window: case_times(window).iteration_ms)
FORWARD = Gauge("forward", "ms", lambda window: case_times(window).forward_ms, times_limit=2)
BACKWARD = Gauge("backward", "ms", lambda window: case_times(window).backward_ms, times_limit=2)
SKEW = Gauge("skew of ranks", "ms", lambda window: case_times(window).skew_ms[0], times_limit=2)
OUTLIERS = Gauge("outliers", "ms more", _outlier_ms, times_limit=2)
DRIFT = Gauge("drift", "us/iteration", _drift_us, times_limit=5)
SENT = Gauge("sent", "GB/s", _sent_gbps, times_limit=2)
RECEIVED = Gauge("received", "GB/s", _received_gbps, times_limit=2)


def figure(gauge: Gauge, traces: Sequence[RankTrace]) -> Figure:
    """Of an accepted case of a spin that tells what it took; its traces are in rank order."""
    told = [_Told.of(trace) for trace in traces]
    measured = _by_window(gauge, traces)
    took = _by_window(gauge, [one.trace_of(one.took) for one in told])
    asked = _by_window(gauge, [one.trace_of(one.asked) for one in told])
    return Figure(
        name=gauge.name,
        unit=gauge.unit,
        asked=median(asked),
        took=median(took),
        measured=median(measured),
        bias=median(got / true - 1 for got, true in zip(measured, took, strict=True)),
        limit=gauge.times_limit * LIMITS[str(traces[0].environment["device"])],
        spread=window_spread(measured),
        windows=len(measured),
    )


def _by_window(gauge: Gauge, traces: Sequence[RankTrace]) -> list[float]:
    values = []
    for windows in zip(*(trace.windows for trace in traces), strict=True):
        one = [trace.model_copy(update={"windows": [w]}) for trace, w in zip(traces, windows, strict=True)]
        value = gauge.read(one)
        if value is None:
            raise ValueError(f"{traces[0].case_id} has no figure {gauge.name!r}")
        values.append(value)
    return values


@dataclass(frozen=True)
class _Told:
    """What one rank's spin left in its trace: see `moebench.backends.spin.Told`. Cases have one layer."""

    trace: RankTrace
    pace: Pace
    took_ms: list[float]

    @classmethod
    def of(cls, trace: RankTrace) -> "_Told":
        told = trace.environment["library"]
        return cls(trace, Pace(**told["pace"]), told["took_ms"])

    def took(self, iteration: int) -> list[float]:
        """Forward and, in training, backward."""
        phases = 2 if self.trace.case.training else 1
        return self.took_ms[phases * iteration : phases * (iteration + 1)]

    def asked(self, iteration: int) -> list[float]:
        case = self.trace.case
        forward_ms = self.pace.forward_ms(case, self.trace.rank, iteration)
        return [forward_ms, self.pace.backward_ms(case)] if case.training else [forward_ms]

    def trace_of(self, phases_ms: Callable[[int], list[float]]) -> RankTrace:
        """The trace as if its windows had been measured without error."""
        iterations = self.trace.case.measure.iterations
        first = CHECKS + (self.trace.warmups or 0)
        windows = [
            self._window([phases_ms(first + w * iterations + i) for i in range(iterations)])
            for w in range(len(self.trace.windows))
        ]
        return self.trace.model_copy(update={"windows": windows, "traffic_source": "transport"})

    def _window(self, phases_ms: list[list[float]]) -> Window:
        iteration_ms = [sum(phases) for phases in phases_ms]
        crossed = self.pace.sent_bytes * (self.trace.case.ep - 1) * len(phases_ms)
        return Window(
            forward_ms=[phases[0] for phases in phases_ms],
            backward_ms=[phases[1] for phases in phases_ms] if self.trace.case.training else None,
            iteration_ms=iteration_ms,
            seconds=sum(iteration_ms) / 1e3,
            tx_bytes=crossed,
            rx_bytes=crossed,
        )

"""How often moebench's statistics are wrong, and how often they find what is there, by simulation with known truth.

Run as `python tests/perf/statistics_power.py` (half a minute on one core); the same figures are a test. It exits with 1
where one is not as it must be.

Noise of a window's time, around 1:
- normal: 3 %;
- log-normal: sigma 0.1;
- long tail: 3 %, all of it from a log-normal of sigma 1 added to a constant;
- drifting: normal, on a slope of up to 40 % over the run, up or down, and a random walk of 0.3 % a window;
- bimodal: 1 % normal, and 3 windows of 10 take 10 % longer.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from moebench.reduce.ratio import Interval, paired_ratio, unpaired_ratio
from moebench.reduce.stability import Instability, instabilities
from moebench.reduce.verdict import Floor, Verdict, aa_floor, holm, verdict

RUNS = 4000
EFFECT = 1.02
Times = NDArray[np.float64]
"""[runs, windows], windows in the order they ran."""


def _normal(rng: Generator, windows: int) -> Times:
    return 1 + 0.03 * rng.standard_normal((RUNS, windows))


def _log_normal(rng: Generator, windows: int) -> Times:
    return rng.lognormal(0, 0.1, (RUNS, windows))


def _long_tail(rng: Generator, windows: int) -> Times:
    mean, deviation = math.exp(0.5), math.sqrt((math.e - 1) * math.e)
    return 1 + 0.03 * (rng.lognormal(0, 1, (RUNS, windows)) - mean) / deviation


def _drifting(rng: Generator, windows: int) -> Times:
    slope = rng.uniform(-0.4, 0.4, (RUNS, 1)) * np.linspace(0, 1, windows)
    walk = np.cumsum(0.003 * rng.standard_normal((RUNS, windows)), axis=1)
    return _normal(rng, windows) * (1 + slope) * np.exp(walk)


def _bimodal(rng: Generator, windows: int) -> Times:
    slow = rng.random((RUNS, windows)) < 0.3
    return (1 + 0.01 * rng.standard_normal((RUNS, windows))) * np.where(slow, 1.1, 1.0)


NOISES: dict[str, Callable[[Generator, int], Times]] = {
    "normal": _normal,
    "log-normal": _log_normal,
    "long tail": _long_tail,
    "drifting": _drifting,
    "bimodal": _bimodal,
}

FINDABLE = ("normal", "drifting")
"""Noise of 3 %, under which a difference of 2 % must be found in 24 blocks."""


@dataclass(frozen=True)
class Figure:
    what: str
    size: str
    noise: str
    percent: float
    at_least: float = 0.0
    at_most: float = 100.0

    @property
    def reached(self) -> bool:
        return self.at_least <= self.percent <= self.at_most

    @property
    def bounds(self) -> str:
        return "" if (self.at_least, self.at_most) == (0, 100) else f"{self.at_least:.3g}-{self.at_most:.3g}"


def figures() -> list[Figure]:
    """All of them, the same at each call."""
    return [*_of_pairs(), *_of_unpaired(), *_of_the_floor(), *_of_many_claims(), *_of_stability()]


def _of_pairs() -> Iterator[Figure]:
    for blocks in (5, 6, 7, 8, 12, 16, 24):
        size = f"{blocks} blocks"
        for noise in NOISES:
            same, different = _pairs(noise, blocks, 1.0, "same"), _pairs(noise, blocks, EFFECT, "different")
            enough = blocks >= 8
            yield Figure("A/A called different", size, noise, _called(same), 3 if enough else 0, 7)
            yield Figure("level that intervals state", size, noise, 100 * different[0].level)
            bounds = (93, 97) if enough else (100 * different[0].level - 2, 100)
            yield Figure("intervals that cover the truth", size, noise, _covering(different, EFFECT), *bounds)
            must = 80 if blocks == 24 and noise in FINDABLE else 0
            yield Figure("2 % slower, found", size, noise, _called(different, Verdict.SLOWER), must)


def _of_unpaired() -> Iterator[Figure]:
    """As many windows as in 24 blocks, those of A before those of B."""
    size = "48 + 48 windows"
    for noise in NOISES:
        same, different = _unpaired(noise, 1.0, "same"), _unpaired(noise, EFFECT, "different")
        found_in_pairs = _called(_pairs(noise, 24, EFFECT, "different"), Verdict.SLOWER)
        at_most = found_in_pairs if noise == "drifting" else 100
        yield Figure("unpaired: A/A called different", size, noise, _called(same))
        yield Figure("unpaired: intervals that cover the truth", size, noise, _covering(different, EFFECT))
        found = _called(different, Verdict.SLOWER)
        yield Figure("unpaired: 2 % slower, found", size, noise, found, at_most=at_most)


def _of_the_floor() -> Iterator[Figure]:
    size = "24 blocks"
    for noise in NOISES:
        floors = [aa_floor(aa) for aa in _pairs(noise, 24, 1.0, "floor")]
        found = [v is Verdict.SLOWER for v in _verdicts(_pairs(noise, 24, EFFECT, "different"), floors)]
        must = 80 if noise in FINDABLE else 0
        yield Figure("2 % slower, found, A/A floor kept", size, noise, _share(found), must)
        for bias, at_most in ((1.01, 100), (1.03, 10)):
            floors = [aa_floor(aa) for aa in _pairs(noise, 24, bias, "floor")]
            same = _pairs(noise, 24, bias, "biased")
            kept = _share(map(_is_call, _verdicts(same, floors)))
            what = f"bias of {bias - 1:.0%}: A/A called different"
            yield Figure(what, size, noise, _called(same))
            yield Figure(f"{what}, floor kept", size, noise, kept, at_most=at_most if noise in FINDABLE else 100)


def _of_many_claims() -> Iterator[Figure]:
    size, claims = "12 blocks", 20
    pairs = [_pairs("normal", 12, 1.0, f"claim {claim}") for claim in range(claims)]
    tables = [[interval.p_value for interval in table] for table in zip(*pairs, strict=True)]
    plain, corrected = (_share(min(p) <= 0.05 for p in ps) for ps in (tables, map(holm, tables)))
    yield Figure("20 A/A pairs, any called different", size, "normal", plain)
    yield Figure("20 A/A pairs, any called different, Holm", size, "normal", corrected, at_most=7)


def _of_stability() -> Iterator[Figure]:
    for windows in (5, 10, 20, 30):
        size = f"{windows} windows"
        for noise in ("normal", "log-normal", "long tail"):
            found = _unstable(NOISES[noise](_rng(noise, "steady", windows), windows))
            for kind in Instability:
                at_most = 100 if (kind, noise) == (Instability.OUTLIERS, "long tail") else 5
                share = _share(kind in kinds for kinds in found)
                yield Figure(f"steady, called {kind}", size, noise, share, at_most=at_most)
        rng = _rng("unsteady", windows)
        quiet = 1 + 0.01 * rng.standard_normal((RUNS, windows))
        number = np.arange(windows)
        for what, times, kind in (
            ("rises by 10 %", _normal(rng, windows) * np.linspace(1, 1.1, windows), Instability.DRIFTING),
            ("1 % noise, half 10 % slower", quiet * np.where(number % 2, 1.1, 1), Instability.BIMODAL),
            ("1 % noise, one 20 % slower", quiet * np.where(number == windows // 2, 1.2, 1), Instability.OUTLIERS),
        ):
            share = _share(kind in kinds for kinds in _unstable(times))
            yield Figure(f"{what}, called {kind}", size, "normal", share, 90 if windows >= 20 else 0)


@cache
def _pairs(noise: str, blocks: int, ratio: float, purpose: str) -> list[Interval]:
    windows = NOISES[noise](_rng(noise, purpose, blocks), 4 * blocks).reshape(RUNS, blocks, 4)
    a_ms, b_ms = windows[:, :, [0, 3]].mean(axis=2), ratio * windows[:, :, [1, 2]].mean(axis=2)
    return [paired_ratio(a, b) for a, b in zip(a_ms, b_ms, strict=True)]


def _unpaired(noise: str, ratio: float, purpose: str) -> list[Interval]:
    windows = NOISES[noise](_rng(noise, purpose, "unpaired"), 96)
    return [unpaired_ratio(run[:48], ratio * run[48:]) for run in windows]


def _unstable(times: Times) -> list[set[Instability]]:
    return [{finding.kind for finding in instabilities(run)} for run in times]


def _called(intervals: Sequence[Interval], as_: Verdict | None = None) -> float:
    verdicts = _verdicts(intervals, [None] * len(intervals))
    return _share(_is_call(v) if as_ is None else v is as_ for v in verdicts)


def _verdicts(intervals: Sequence[Interval], floors: Sequence[Floor | None]) -> list[Verdict]:
    return [verdict(interval, floor, same_within=0.0) for interval, floor in zip(intervals, floors, strict=True)]


def _is_call(found: Verdict) -> bool:
    return found in (Verdict.FASTER, Verdict.SLOWER)


def _covering(intervals: Sequence[Interval], truth: float) -> float:
    return _share(interval.low <= truth <= interval.high for interval in intervals)


def _share(hits: Iterable[bool]) -> float:
    """In per cent."""
    return 100 * float(np.mean(list(hits)))


def _rng(*purpose: str | int) -> Generator:
    return np.random.default_rng(list("/".join(map(str, purpose)).encode()))


def main() -> int:
    found = figures()
    print(_line(f"per cent of {RUNS:,} simulated runs", "", "must be", NOISES))
    for what, size in dict.fromkeys((f.what, f.size) for f in found):
        row = {f.noise: f for f in found if (f.what, f.size) == (what, size)}
        strictest = min(row.values(), key=lambda f: f.at_most - f.at_least)
        print(_line(what, size, strictest.bounds, [_cell(row.get(noise)) for noise in NOISES]))
    print("!: not as it must be. Finding 2 %, and the floor, are held to it under normal and drifting noise.")
    return 0 if all(f.reached for f in found) else 1


def _line(what: str, size: str, bounds: str, cells: Iterable[str]) -> str:
    return f"{what:<45}{size:<16}{bounds:<9}" + "".join(f"{cell:>11}" for cell in cells)


def _cell(figure: Figure | None) -> str:
    return "" if figure is None else f"{figure.percent:.1f}{' ' if figure.reached else '!'}"


if __name__ == "__main__":
    sys.exit(main())

import math

import pytest

from moebench.steady import settled, trend

COOLING = [1 + math.exp(-i / 5) for i in range(60)]


@pytest.mark.parametrize(
    ("series", "p_value", "rise"),
    [
        ([5, 3, 4, 2, 1, 6, 7, 9, 8, 10], 0.02860945767195767, 9 * 0.75),  # scipy 1.17: kendalltau exact, theilslopes
        ([1, 2, 3, 4, 5], 2 / 120, 4.0),
        ([4, 3, 2, 1], 2 / 24, -3.0),
        ([1, 1, 2, 3], 8 / 24, 2.5),  # a tie counts for neither side
        ([7, 7, 7], 1.0, 0.0),
        ([*range(31)], 0.0, 30.0),  # the normal approximation
    ],
)
def test_trend_is_mann_kendalls_exact_p_value_and_theil_sens_rise(series, p_value: float, rise: float):
    found = trend(series)
    assert (found.p_value, found.rise) == (pytest.approx(p_value, abs=1e-12), pytest.approx(rise))


@pytest.mark.parametrize(
    "times", [[0.0] * 10, [1.0, 100.0] * 5, [3.0] * 10, [400.0] + [1.0] * 9, COOLING[-10:]],
    ids=["zeros", "alternating", "constant", "first-slow", "cooled"],
)  # fmt: skip
def test_series_without_direction_has_settled_however_noisy(times: list[float]):
    assert settled(times, at_most=1000)


def test_warm_up_goes_on_while_times_fall_and_ends_when_they_no_longer_do():
    ended = next(n for n in range(len(COOLING)) if settled(COOLING[:n], at_most=1000))
    assert 20 <= ended <= 40
    assert COOLING[ended] < 1.02


def test_warm_up_that_never_settles_ends_at_its_bound():
    rising = [float(i) for i in range(50)]
    assert not settled(rising[:49], at_most=50)
    assert settled(rising, at_most=50)


def test_fewer_than_ten_times_have_not_settled():
    assert not settled([1.0] * 9, at_most=50)

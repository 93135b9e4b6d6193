from tests.perf.statistics_power import figures


def test_simulated_error_rates_coverage_and_power_are_as_they_must_be():
    assert [figure for figure in figures() if not figure.reached] == []

"""How hard the fuzz tests try: the same few examples each time, or FUZZ=50 for fifty times as many other ones."""

import os

from hypothesis import HealthCheck, settings

TIMES = int(os.environ.get("FUZZ", "1"))


def examples(number: int) -> settings:
    return settings(
        max_examples=number * TIMES,
        derandomize=TIMES == 1,
        deadline=None,
        database=None,
        report_multiple_bugs=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )

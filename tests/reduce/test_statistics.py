import math
from itertools import combinations, product

import numpy as np
import pytest

from moebench.errors import UsageError
from moebench.reduce.exact import mann_whitney_cdf, signed_rank_cdf
from moebench.reduce.ratio import Interval, paired_ratio, unpaired_ratio
from moebench.reduce.stability import Instability, instabilities
from moebench.reduce.verdict import Verdict, aa_floor, holm, least_blocks, verdict


def of_logs(a: list[float], b: list[float]) -> tuple[list[float], list[float]]:
    """Times whose logs are these: published examples are on a plain scale."""
    return [math.exp(value) for value in a], [math.exp(value) for value in b]


def interval(low: float, high: float, *, n: int = 12, paired: bool = True) -> Interval:
    p_value = 0.2 if low <= 1 <= high else 0.01
    return Interval(math.sqrt(low * high), low, high, 0.9575, p_value, paired, n)


WILCOXON_5_PERCENT = {6: 0, 7: 2, 8: 3, 9: 5, 10: 8, 11: 10, 12: 13, 13: 17, 14: 21, 15: 25, 16: 29, 20: 52, 25: 89}
MANN_WHITNEY_5_PERCENT = {
    (4, 4): 0, (5, 5): 2, (6, 6): 5, (7, 7): 8, (8, 8): 13, (10, 10): 23, (15, 15): 64, (20, 20): 127,
    (5, 8): 6, (10, 4): 5,
}  # fmt: skip


@pytest.mark.parametrize(("n", "critical"), WILCOXON_5_PERCENT.items())
def test_signed_rank_distribution_has_the_published_two_sided_critical_values(n: int, critical: int):
    cdf = signed_rank_cdf(n)
    assert 2 * cdf[critical] <= 0.05 < 2 * cdf[critical + 1]


@pytest.mark.parametrize(("sizes", "critical"), MANN_WHITNEY_5_PERCENT.items())
def test_mann_whitney_distribution_has_the_published_two_sided_critical_values(sizes: tuple[int, int], critical: int):
    cdf = mann_whitney_cdf(*sizes)
    assert 2 * cdf[critical] <= 0.05 < 2 * cdf[critical + 1]


def test_distributions_are_those_of_all_signs_and_of_all_arrangements():
    ranks_of_positives = [sum(r for r, sign in enumerate(signs, 1) if sign) for signs in product((0, 1), repeat=6)]
    assert signed_rank_cdf(6) == pytest.approx([np.mean([s <= t for s in ranks_of_positives]) for t in range(22)])
    smaller = [sum(y < x for x in set(range(7)) - set(ys) for y in ys) for ys in combinations(range(7), 4)]
    assert mann_whitney_cdf(3, 4) == pytest.approx([np.mean([s <= u for s in smaller]) for u in range(13)])


def test_large_samples_have_the_normal_approximation():
    assert mann_whitney_cdf(101, 100)[4000] == pytest.approx(0.0054594, rel=1e-4)  # exact is 0.0053549 (scipy 1.17)


def test_paired_interval_is_that_of_hollander_and_wolfe_example_3_1():
    before = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30]
    after = [0.878, 0.647, 0.598, 2.050, 1.060, 1.290, 1.060, 3.140, 1.290]
    found = paired_ratio(*of_logs(after, before))
    assert np.log([found.ratio, found.low, found.high]) == pytest.approx([0.46, 0.010, 0.786])
    assert (found.p_value, found.level, found.n, found.paired) == (0.0390625, 0.9609375, 9, True)


def test_unpaired_interval_is_that_of_hollander_and_wolfe_example_4_1():
    term = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46]
    earlier = [1.15, 0.88, 0.90, 0.74, 1.21]
    found = unpaired_ratio(*of_logs(earlier, term))
    assert np.log([found.ratio, found.low, found.high]) == pytest.approx([0.305, -0.15, 0.76])
    assert found.p_value == pytest.approx(764 / 3003)
    assert (found.level, found.n, found.paired) == (pytest.approx(1 - 120 / 3003), 5, False)


@pytest.mark.parametrize(
    ("blocks", "level"), [(1, 0.0), (5, 0.9375), (6, 0.96875), (7, 0.953125), (8, 0.9609375), (12, 0.95751953125)]
)
def test_interval_states_the_smallest_exact_level_of_95_percent_or_the_largest_there_is(blocks: int, level: float):
    assert paired_ratio([1.0] * blocks, [2.0] * blocks).level == level


def test_zero_differences_count_against_a_difference():
    found = paired_ratio([1.0] * 8, [1.0] * 3 + [1.1] * 5)
    assert found.p_value == 2 * 14 / 256  # 6 of the 36 Walsh averages are 0; T <= 6 in 14 of 256 cases
    assert found.low == 1.0
    assert not found.excludes_1


@pytest.mark.parametrize("ratio_of", [paired_ratio, unpaired_ratio])
def test_equal_times_are_the_same(ratio_of):
    found = ratio_of([3.0] * 8, [3.0] * 8)
    assert (found.ratio, found.low, found.high, found.p_value) == (1.0, 1.0, 1.0, 1.0)
    assert verdict(found) is Verdict.SAME


@pytest.mark.parametrize("ratio_of", [paired_ratio, unpaired_ratio])
def test_exchanging_the_cases_inverts_the_ratio(ratio_of):
    a, b = [1.0, 1.2, 1.1, 1.3, 1.25, 1.17], [1.3, 1.4, 1.2, 1.6, 1.35, 1.55]
    one, other = ratio_of(a, b), ratio_of(b, a)
    assert (other.ratio, other.low, other.high) == pytest.approx((1 / one.ratio, 1 / one.high, 1 / one.low))
    assert (verdict(one), verdict(other)) == (Verdict.SLOWER, Verdict.FASTER)


def test_one_wild_block_moves_the_ratio_little():
    assert paired_ratio([1.0] * 8, [1.02] * 7 + [400.0]).ratio == pytest.approx(1.02)


@pytest.mark.parametrize("bad", [[], [1.0, 0.0], [1.0, -1.0], [math.nan, 1.0], [1.0, math.inf]])
def test_times_that_no_clock_could_measure_are_refused(bad: list[float]):
    for refuse in (
        lambda: paired_ratio(bad, [1.0] * len(bad)),
        lambda: unpaired_ratio([1.0], bad),
        lambda: instabilities(bad),
    ):
        with pytest.raises(UsageError, match="finite and above 0"):
            refuse()


def test_blocks_of_unequal_number_are_refused():
    with pytest.raises(ValueError, match="3 blocks of A, 2 of B"):
        paired_ratio([1.0] * 3, [1.0] * 2)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.95, 0.98, Verdict.FASTER),
        (1.02, 1.05, Verdict.SLOWER),
        (0.98, 1.02, Verdict.UNDECIDED),
        (0.995, 1.009, Verdict.SAME),
        (1.002, 1.009, Verdict.SAME),
        (1.002, 1.02, Verdict.SLOWER),
        (1.0, 1.02, Verdict.UNDECIDED),
    ],
)
def test_verdict_follows_from_the_interval(low: float, high: float, expected: Verdict):
    assert verdict(interval(low, high), same_within=0.01) is expected


@pytest.mark.parametrize(("paired", "fewest"), [(True, 6), (False, 4)])
def test_too_few_samples_make_no_claim_however_clear(paired: bool, fewest: int):
    assert verdict(interval(1.9, 2.1, n=fewest - 1, paired=paired)) is Verdict.TOO_FEW_SAMPLES
    assert verdict(interval(1.9, 2.1, n=fewest, paired=paired)) is Verdict.SLOWER


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [(1, 1, Verdict.TOO_FEW_SAMPLES), (40, 3, Verdict.TOO_FEW_SAMPLES), (40, 41, Verdict.SAME)],
)
def test_numbers_of_windows_alone_are_no_difference(a: int, b: int, expected: Verdict):
    windows = np.linspace(1, 1.02, 41)
    assert verdict(unpaired_ratio(windows[:a], windows[:b])) is expected


def test_floor_is_half_the_width_of_the_interval_of_a_case_against_itself():
    floor = aa_floor(interval(0.99, 1.03))
    assert floor is not None
    assert floor.effect == pytest.approx(math.sqrt(1.03 / 0.99) - 1)
    assert not floor.biased
    assert floor.in_words() == "A/A 1.01x [0.99, 1.03]: the smallest effect that can be shown here today is about 2.00%"


def test_biased_measurements_raise_the_floor_to_the_far_end_and_say_so():
    fast, slow = aa_floor(interval(0.95, 0.98)), aa_floor(interval(1.01, 1.03))
    assert fast is not None
    assert slow is not None
    assert (fast.effect, slow.effect) == pytest.approx((1 / 0.95 - 1, 0.03))
    assert "excludes 1, so these measurements are biased: no ratio within 3.00% of 1" in slow.in_words()


def test_biased_measurements_show_no_difference_below_the_floor_and_no_sameness():
    biased = aa_floor(interval(1.01, 1.03))
    assert verdict(interval(1.02, 1.035), biased) is Verdict.UNDECIDED
    assert verdict(interval(1.02, 1.05), biased) is Verdict.SLOWER
    assert verdict(interval(0.999, 1.001), biased) is Verdict.UNDECIDED
    assert verdict(interval(1.02, 1.03), aa_floor(interval(0.9, 1.1))) is Verdict.SLOWER


def test_too_few_blocks_of_a_case_against_itself_set_no_floor():
    assert aa_floor(interval(0.99, 1.01, n=5)) is None


def test_holm_multiplies_the_smallest_by_all_and_keeps_order():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.7, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_claim_that_does_not_survive_holm_is_undecided():
    claim = interval(1.02, 1.05)
    assert verdict(claim, p_value=0.05) is Verdict.SLOWER
    assert verdict(claim, p_value=0.06) is Verdict.UNDECIDED
    assert verdict(interval(0.98, 1.02), p_value=0.01) is Verdict.UNDECIDED


@pytest.mark.parametrize(("claims", "blocks"), [(1, 6), (2, 7), (20, 10), (38, 11)])
def test_least_blocks_are_the_first_with_which_the_clearest_of_the_claims_survives(claims: int, blocks: int):
    assert least_blocks(claims) == blocks
    smallest_p = [paired_ratio([1.0] * n, [2.0] * n).p_value for n in (blocks - 1, blocks)]
    assert [holm([p] + [1.0] * (claims - 1))[0] <= 0.05 for p in smallest_p] == [False, True]


@pytest.mark.parametrize(
    ("window_ms", "kind", "message"),
    [
        ([1, 1, 1, 400], Instability.OUTLIERS, "1 window of 400 ms against 3 windows of 1 ms"),
        ([1, 400, 1], Instability.OUTLIERS, "1 window of 400 ms against 2 windows of 1 ms"),
        ([0.5] + [1, 1.01] * 5, Instability.OUTLIERS, "1 window of 0.5 ms against 10 windows of 1 to 1.01 ms"),
        ([1] * 28 + [400] * 2, Instability.OUTLIERS, "2 windows of 400 ms against 28 windows of 1 ms"),
        ([1, 2, 1, 2, 1], Instability.BIMODAL, "3 windows of 1 ms and 2 windows of 2 ms"),
        ([2, 1.1, 2.2, 1, 2.1, 1], Instability.BIMODAL, "3 windows of 1 to 1.1 ms and 3 windows of 2 to 2.2 ms"),
        ([1, 1.1, 1.2, 1.3, 1.4], Instability.DRIFTING, "+33.3% from first to last window (p = 0.017)"),
        ([1.5, 1.4, 1.3, 1.2, 1.1, 1], Instability.DRIFTING, "-40.0% from first to last window (p = 0.0028)"),
    ],
)  # fmt: skip
def test_unstable_series_says_what_is_wrong(window_ms: list[float], kind: Instability, message: str):
    assert [(found.kind, found.message) for found in instabilities(window_ms)] == [(kind, message)]


@pytest.mark.parametrize(
    "window_ms",
    [
        [5.0],
        [1.0, 400.0],
        [1.0, 1.1, 1.3],
        [1.0] * 8,
        [1.0, 1.0, 1.0, 1.009],
        [1.0, 1.0, 1.009, 1.009],
        [1.0, 1.002, 1.004, 1.006, 1.008],
        [1.03, 0.98, 1.01, 1.0, 0.97, 1.02, 0.99],
    ],
)
def test_steady_short_or_all_but_equal_series_is_not_flagged(window_ms: list[float]):
    assert instabilities(window_ms) == []

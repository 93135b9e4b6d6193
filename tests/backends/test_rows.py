import torch
from hypothesis import given
from hypothesis import strategies as st

from moebench.backends.rows import count, enumerate_groups, exclusive_scan, pack_by_expert, round_up, sort_slots

counts = st.lists(st.integers(0, 5), min_size=1, max_size=6)
ids = st.lists(st.integers(0, 5), max_size=40)


@given(ids)
def test_count_is_how_often_each_occurs(values):
    got = count(torch.tensor(values, dtype=torch.int64), 6)
    assert got.tolist() == [values.count(i) for i in range(6)]


@given(counts)
def test_exclusive_scan_is_where_each_group_starts(sizes):
    assert exclusive_scan(torch.tensor(sizes)).tolist() == [sum(sizes[:i]) for i in range(len(sizes))]


@given(counts)
def test_groups_are_enumerated_one_after_the_other(sizes):
    got = enumerate_groups(torch.tensor(sizes), sum(sizes))
    rows = [(group, j) for group, size in enumerate(sizes) for j in range(size)]
    assert list(zip(got.group_N.tolist(), got.j_N.tolist(), strict=True)) == rows


@given(ids)
def test_slots_are_sent_by_expert_then_by_slot(values):
    wanted = sorted(range(len(values)), key=lambda slot: (values[slot], slot))
    assert sort_slots(torch.tensor(values, dtype=torch.int64)).tolist() == wanted


@given(st.integers(1, 3).flatmap(lambda e: st.lists(st.lists(st.integers(0, 4), min_size=e, max_size=e), min_size=1)))
def test_received_rows_are_packed_by_expert_and_then_by_source(rows_Pe):
    """Rows arrive source after source, and by expert from each."""
    arriving = [(x, p) for p, counts in enumerate(rows_Pe) for x, n in enumerate(counts) for _ in range(n)]
    for pad_rows in (1, 4):
        places = pack_by_expert(torch.tensor(rows_Pe), pad_rows, len(arriving))
        if places is None:
            assert (len(rows_Pe), pad_rows) == (1, 1)
            continue
        at = dict(zip(places.tolist(), arriving, strict=True))
        assert len(at) == len(arriving)
        assert [at[i] for i in sorted(at)] == sorted(arriving)
        for i, (expert, _) in at.items():
            before = sum(-(-sum(counts) // pad_rows) * pad_rows for counts in list(zip(*rows_Pe, strict=True))[:expert])
            assert before <= i < before + sum(counts[expert] for counts in rows_Pe)


@given(counts, st.integers(1, 40))
def test_round_up_is_the_least_multiple_that_holds_them(sizes, multiple):
    for size, padded in zip(sizes, round_up(torch.tensor(sizes), multiple).tolist(), strict=True):
        assert padded % multiple == 0
        assert size <= padded < size + multiple

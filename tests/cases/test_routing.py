from math import ceil

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from moebench.cases.routing import (
    hot_rows,
    realised_imbalance,
    remote_rows,
    route,
    routing_sha256,
    rows_per_expert,
)


@st.composite
def workloads(draw):
    """T, K, E, ep, imbalance: possible and impossible ones."""
    ep = draw(st.integers(1, 6))
    local = draw(st.integers(1, 6))
    T = draw(st.integers(1, 12))
    K = draw(st.integers(1, min(ep * local, 8)))
    imbalance = draw(st.one_of(st.sampled_from([0.0, 1.0, float(ep)]), st.floats(0, ep + 0.5)))
    return T, K, ep * local, ep, imbalance


def is_feasible(T, K, E, ep, imbalance):
    if not 0 <= imbalance <= ep or (ep == 1 and imbalance != 1):
        return False
    hot, local = hot_rows(T, K, imbalance), E // ep
    others = ceil((ep * T * K - hot) / (ep - 1)) if ep > 1 else 0
    return max(ceil(hot / local), ceil(others / local)) <= ep * T


def counted(ids_PTK, E):
    return np.bincount(ids_PTK.ravel(), minlength=E)


@given(workloads())
def test_rows_per_expert_exist_exactly_when_the_workload_is_feasible(workload):
    if is_feasible(*workload):
        T, K, _, ep, _ = workload
        assert rows_per_expert(*workload).sum() == ep * T * K
    else:
        with pytest.raises(ValueError, match="imbalance"):
            rows_per_expert(*workload)


@given(workloads(), st.integers(0, 2**32 - 1), st.integers(0, 99))
@settings(max_examples=150)
def test_routing_is_exact_distinct_and_even_by_rank_expert_and_source(workload, seed, layer):
    assume(is_feasible(*workload))
    T, K, E, ep, imbalance = workload
    ids_PTK = route(*workload, seed, layer)

    assert ids_PTK.shape == (ep, T, K)
    assert ids_PTK.min() >= 0
    assert ids_PTK.max() < E
    assert all(len(set(token)) == K for token in ids_PTK.reshape(-1, K).tolist())

    rows_Pe = counted(ids_PTK, E).reshape(ep, -1)
    assert (rows_Pe.ravel() == rows_per_expert(*workload)).all()
    assert rows_Pe[0].sum() == int(imbalance * T * K + 0.5)
    assert ep == 1 or np.ptp(rows_Pe[1:].sum(axis=1)) <= 1
    assert np.ptp(rows_Pe, axis=1).max() <= 1

    by_source_PE = np.stack([counted(ids_TK, E) for ids_TK in ids_PTK])
    assert np.ptp(by_source_PE, axis=0).max() <= 1
    by_rank_PP = by_source_PE.reshape(ep, ep, -1).sum(axis=2)
    assert np.ptp(by_rank_PP, axis=0).max() <= 1
    assert (remote_rows(ids_PTK, E) == by_rank_PP.sum(axis=1) - by_rank_PP.diagonal()).all()
    assert realised_imbalance(ids_PTK, E) == pytest.approx(rows_Pe[0].sum() / (T * K))


@given(workloads(), st.integers(0, 2**32 - 1))
def test_routing_is_the_same_every_time(workload, seed):
    assume(is_feasible(*workload))
    assert (route(*workload, seed, 3) == route(*workload, seed, 3)).all()


def test_this_routing_never_changes():
    """Reports of different versions pair by these hashes."""
    quick = [route(64, 2, 16, 4, imbalance, seed=0, layer=layer) for layer, imbalance in enumerate([1.9, 0.6])]
    assert routing_sha256(quick) == "f8325c0b0e2b8f47b0f670c98c367a559e85dd0b9e0aa7b871e57653c597b949"
    published = [route(2048, 6, 384, 16, 4.0, seed=0, layer=0)]
    assert routing_sha256(published) == "5ea44e8c18de5983bed8a13b499daefc75bb6800153c744a000e9148849fc19f"


def test_seed_and_layer_and_source_change_who_goes_where():
    first = route(64, 2, 16, 4, 1.0, seed=0, layer=0)
    assert (first != route(64, 2, 16, 4, 1.0, seed=1, layer=0)).any()
    assert (first != route(64, 2, 16, 4, 1.0, seed=0, layer=1)).any()
    assert (first[0] != first[1]).any()


def test_hash_depends_on_the_order_of_layers():
    layers = [route(8, 2, 8, 2, 1.0, seed=0, layer=layer) for layer in (0, 1)]
    assert routing_sha256(layers) != routing_sha256(layers[::-1])


def test_balanced_means_exactly_one_row_an_expert():
    assert (counted(route(8, 1, 8, 1, 1.0, 0, 0), 8) == 1).all()
    assert (counted(route(4, 1, 8, 2, 1.0, 0, 0), 8) == 1).all()


@pytest.mark.parametrize(
    ("T", "K", "E", "ep", "imbalance", "rows_of_ranks"),
    [
        (1, 2, 4, 2, 1.0, [2, 2]),
        (1, 1, 2, 2, 2.0, [2, 0]),
        (1, 1, 2, 2, 0.0, [0, 2]),
        (10, 1, 4, 2, 1.0, [10, 10]),
        (10, 3, 4, 2, 0.7, [21, 39]),
        (4, 2, 32, 4, 1.0, [8, 8, 8, 8]),
        (2048, 6, 384, 32, 7.5, [92160, *[9711] * 31]),
    ],
)
def test_odd_shapes_keep_their_sums(T, K, E, ep, imbalance, rows_of_ranks):
    rows = counted(route(T, K, E, ep, imbalance, 0, 0), E).reshape(ep, -1).sum(axis=1)
    assert rows[0] == rows_of_ranks[0]
    assert rows.sum() == ep * T * K
    assert np.abs(rows - rows_of_ranks).max() <= 1


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        ((8, 2, 288, 64, 1.0), "E=288 experts do not divide over ep=64"),
        ((8, 2, 8, 4, 8.0), r"imbalance 8 is outside 0\.\.4"),
        ((8, 9, 8, 2, 1.0), "K=9 distinct experts per token cannot be chosen from E=8"),
        ((8, 2, 8, 1, 0.9), "imbalance 0.9 is impossible at ep=1"),
        ((2, 2, 2, 2, 1.25), "needs 5 rows for one expert, but .* ep[*]T=4"),
        ((8, 2, 2, 2, 1.5), "needs 24 rows for one expert, but .* ep[*]T=16"),
        ((8, 2, 8, 2, float("nan")), "outside"),
    ],
)
def test_infeasible_workloads_say_why(workload, reason):
    with pytest.raises(ValueError, match=reason):
        rows_per_expert(*workload)

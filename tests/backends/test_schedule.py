"""Layouts of mok and dist_moe against slow, literal implementations of their descriptions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.backends.dist_moe import chunks
from moebench.backends.dist_moe.chunks import chunk_piece, counts_by_source, token_chunks
from moebench.backends.mok import schedule
from moebench.backends.mok.schedule import macrobatch_pieces, place_routes


@st.composite
def routings(draw):
    """(ids of every rank's slots [P][S], experts in total)"""
    P, e, S = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 3)), draw(st.integers(1, 12))
    expert = st.integers(0, P * e - 1)
    return draw(st.lists(st.lists(expert, min_size=S, max_size=S), min_size=P, max_size=P)), P * e


def mok_layout(ids_PS, E, pad_rows):
    """Rows of every rank as (source, slot), None in padding: experts in order; inside one, the j-th slot of each
    source in turn; padded to `pad_rows`."""
    P = len(ids_PS)
    layout = []
    for rank in range(P):
        rows = []
        for expert in range(rank * E // P, (rank + 1) * E // P):
            of_source = [[slot for slot, x in enumerate(ids) if x == expert] for ids in ids_PS]
            for j in range(max(map(len, of_source))):
                rows += [(source, slots[j]) for source, slots in enumerate(of_source) if j < len(slots)]
            rows += [None] * (-len(rows) % pad_rows)
        layout.append(rows)
    return layout


@settings(deadline=None)
@given(routings(), st.sampled_from([1, 2, 4]))
def test_mok_rows_lie_where_the_description_puts_them(routing, pad_rows):
    ids_PS, E = routing
    layout = mok_layout(ids_PS, E, pad_rows)
    for rank, rows in enumerate(layout):
        real = [row for row in rows if row is not None]
        routes = place_routes(torch.tensor(ids_PS), rank, E, pad_rows, len(real))
        received = sorted(zip(routes.row_N.tolist(), routes.source_N.tolist(), strict=True))
        assert received == [(i, row[0]) for i, row in enumerate(rows) if row is not None]
        sent = zip(routes.slots_S.tolist(), routes.destination_S.tolist(), routes.row_S.tolist(), strict=True)
        for slot, destination, row in sent:
            assert layout[destination][row] == (rank, slot)
        assert sorted(routes.slots_S.tolist()) == list(range(len(ids_PS[0])))
        assert routes.ends_e[-1] == len(rows)


@settings(deadline=None)
@given(routings(), st.sampled_from([2, 4]), st.sampled_from([4, 8]))
def test_mok_macrobatches_deliver_every_row_to_its_place(routing, pad_rows, retained):
    """What rank q takes from rank p, in order of arrival, is what p sends to q, in order of sending."""
    ids_PS, E = routing
    P, layout = len(ids_PS), mok_layout(ids_PS, E, pad_rows)
    macrobatches = max(1, -(-max(map(len, layout)) // retained))
    pieces = []
    for rank, rows in enumerate(layout):
        routes = place_routes(torch.tensor(ids_PS), rank, E, pad_rows, sum(row is not None for row in rows))
        splits = schedule.split_sizes(routes, P, retained, macrobatches)
        pieces.append(macrobatch_pieces(routes, splits, retained))
    for m in range(macrobatches):
        for q in range(P):
            piece, arriving = pieces[q][m], []
            for p in range(P):
                sender = pieces[p][m]
                start = sum(sender.splits.send_rows[:q])
                slots = sender.slots_S.tolist()[start : start + sender.splits.send_rows[q]]
                assert len(slots) == piece.splits.receive_rows[p]
                arriving += [(p, slot) for slot in slots]
            buffer = [None] * piece.splits.buffer_rows
            places = range(len(arriving)) if piece.place_N is None else piece.place_N.tolist()
            for place, row in zip(places, arriving, strict=True):
                buffer[place] = row
            assert buffer == layout[q][m * retained : (m + 1) * retained]


@settings(deadline=None)
@given(routings(), st.sampled_from([1, 4]), st.integers(0, 9))
def test_dist_moe_rows_are_packed_by_expert_source_and_slot(routing, pad_rows, first_slot):
    ids_PS, E = routing
    P, every = len(ids_PS), torch.tensor(ids_PS)
    counts_PE = counts_by_source(every, E)
    pieces = []
    for rank in range(P):
        splits = chunks.split_sizes(counts_PE, rank, pad_rows)
        pieces.append(chunk_piece(every, first_slot, rank, E, pad_rows, splits))
    for q, piece in enumerate(pieces):
        rows, ends = [], []
        for expert in range(q * E // P, (q + 1) * E // P):
            rows += [(p, slot) for p in range(P) for slot, x in enumerate(ids_PS[p]) if x == expert]
            rows += [None] * (-len(rows) % pad_rows)
            ends.append(len(rows))
        arriving = []
        for p, sender in enumerate(pieces):
            start = sum(sender.splits.send_rows[:q])
            slots = sender.slots_S.tolist()[start : start + sender.splits.send_rows[q]]
            arriving += [(p, slot - first_slot) for slot in slots]
        buffer = [None] * piece.splits.buffer_rows
        places = range(len(arriving)) if piece.place_N is None else piece.place_N.tolist()
        for place, row in zip(places, arriving, strict=True):
            buffer[place] = row
        assert buffer == rows
        assert piece.ends_e.tolist() == ends


@pytest.mark.parametrize(("T", "chunks", "lengths"), [(10, 4, [2, 3, 2, 3]), (1, 4, [1]), (3, 4, [1] * 3), (8, 1, [8])])
def test_token_chunks_are_even_and_never_empty(T, chunks, lengths):
    found = token_chunks(T, chunks)
    assert [c.stop - c.start for c in found] == lengths
    assert [t for c in found for t in range(c.start, c.stop)] == list(range(T))

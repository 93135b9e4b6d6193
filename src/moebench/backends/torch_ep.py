"""The plain baseline: what a user writes today with torch alone.

permute -> all_to_all_single -> grouped GEMM -> SwiGLU -> grouped GEMM -> all_to_all_single -> weighted sum,
the shared expert while the dispatch is in flight, backward by autograd. Above ep 1 the split sizes are exchanged
and read on the host inside the layer, as users do.
"""

from typing import Any

import torch
from torch import Tensor

from moebench.backends.autograd import apply
from moebench.backends.combine import combine, combine_backward, places, sum_of_rows
from moebench.backends.experts import Bf16Experts, Experts
from moebench.backends.gemm import ends_of
from moebench.backends.mxfp8_experts import ROW_BLOCK, Mxfp8Experts
from moebench.backends.piece import Piece, Splits, lay_out, take_out
from moebench.backends.protocol import Backend, Setup
from moebench.backends.rows import count, pack_by_expert, round_up, sort_slots
from moebench.backends.shared import shared_expert
from moebench.backends.swiglu import swiglu, swiglu_backward
from moebench.cases.case import PIPELINES, Case, Precision
from moebench.quant.mxfp8 import Recipe
from moebench.rank.exchange import Exchange, Pending


class TorchBackend(Backend):
    name = "torch"
    pipelines = PIPELINES["torch"]

    @classmethod
    def why_no_cuda_graph(cls, case: Case) -> str | None:
        if case.ep == 1:
            return None
        return "torch reads its split sizes on the host inside the iteration, which a CUDA graph cannot hold"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        mxfp8 = setup.case.precision is Precision.MXFP8
        self._pad_rows = ROW_BLOCK if mxfp8 and setup.case.training else 1
        self._experts: list[Experts] = [
            Mxfp8Experts(w.w13_eGD, w.w2_eDF, Recipe.FLOOR) if mxfp8 else Bf16Experts(w.w13_eGD, w.w2_eDF)
            for w in setup.weights
        ]

    def layer(self, l: int, x_TD: Tensor, ids_TK: Tensor, scores_TK: Tensor) -> Tensor:
        case, exchange, stages = self.setup.case, self.setup.exchange, self.setup.stages
        weights = self.setup.weights[l]
        K, P, e = ids_TK.shape[1], case.ep, case.experts_per_rank

        slots_S = sort_slots(ids_TK.reshape(-1))
        sent_Pe = count(ids_TK.reshape(-1), case.shape.E).view(P, e)
        piece = self._exchange_counts(slots_S, sent_Pe)
        place_TK = places(piece.slots_S, K)

        stages.mark("dispatch start")
        rows_SD = apply(_Permute, x_TD, piece.slots_S, place_TK)
        flight = _Flight(exchange, "dispatch", piece.splits.send_rows, piece.splits.receive_rows)
        arriving_ND = apply(_AllToAll, rows_SD, flight)
        shared_TD = None
        if case.shape.S:
            stages.mark("shared expert")
            shared_TD = shared_expert(x_TD, weights.shared13_GD, weights.shared2_DF)
        flight.land()
        stages.mark("dispatch done")
        out_ND = apply(_ExpertRows, arriving_ND, weights.w13_eGD, weights.w2_eDF, piece, self._experts[l])
        stages.mark("combine start")
        back = _Flight(exchange, "combine", piece.splits.receive_rows, piece.splits.send_rows)
        returned_SD = apply(_AllToAll, out_ND, back)
        back.land()
        stages.mark("combine done")
        return apply(_Combine, returned_SD, place_TK, scores_TK, shared_TD)

    def _exchange_counts(self, slots_S: Tensor, sent_Pe: Tensor) -> Piece:
        """Rows to expect from each rank for each expert; received rows come source after source."""
        P, e = sent_Pe.shape
        if P > 1:
            received = self.setup.exchange.all_to_all("metadata", sent_Pe, [1] * P, [1] * P)
            received_Pe = received.wait()
            padded_e = round_up(received_Pe.sum(0), self._pad_rows)
            on_host = torch.cat([sent_Pe.sum(1), received_Pe.sum(1), padded_e.sum().view(1)]).tolist()
            splits = Splits(on_host[:P], on_host[P : 2 * P], on_host[-1])
        else:
            received_Pe, rows = sent_Pe, len(slots_S)
            padded_e = round_up(received_Pe.sum(0), self._pad_rows)
            most = rows + e * (self._pad_rows - 1)
            splits = Splits([rows], [rows], -(-most // self._pad_rows) * self._pad_rows)
        place_N = pack_by_expert(received_Pe, self._pad_rows, sum(splits.receive_rows))
        return Piece(splits, slots_S, place_N, ends_of(padded_e))


REVERSE = {"dispatch": "backward combine", "combine": "backward dispatch"}
"""Backward sends rows to their experts against the combine, and brings them home against the dispatch."""


class _Flight:
    """An all-to-all that autograd started; its output may be used after `land`."""

    def __init__(self, exchange: Exchange, kind: str, send_rows: list[int], receive_rows: list[int]) -> None:
        self._exchange, self._kind = exchange, kind
        self._send_rows, self._receive_rows = send_rows, receive_rows
        self._pending: Pending | None = None

    def take_off(self, rows: Tensor) -> Tensor:
        self._pending = self._exchange.all_to_all(self._kind, rows, self._send_rows, self._receive_rows)
        return self._pending.out

    def land(self) -> None:
        assert self._pending is not None
        self._pending.wait()
        self._pending = None

    def reverse(self, gradient: Tensor) -> Tensor:
        return self._exchange.all_to_all(REVERSE[self._kind], gradient, self._receive_rows, self._send_rows).wait()


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, flight: _Flight) -> Tensor:
        ctx.flight = flight
        return flight.take_off(rows)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.flight.reverse(gradient[0]), None


class _Permute(torch.autograd.Function):
    """The row of each slot's token; backward sums the K gradients of a token."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, slots_S: Tensor, place_TK: Tensor) -> Tensor:
        ctx.place_TK = place_TK
        return x_TD[slots_S // place_TK.shape[1]]

    @staticmethod
    def backward(ctx: Any, *drows: Tensor) -> tuple[Tensor | None, ...]:
        return sum_of_rows(drows[0].contiguous(), ctx.place_TK, None), None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_SD: Tensor, place_TK: Tensor, scores_TK: Tensor, shared_TD: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows_SD, place_TK, scores_TK)
        ctx.has_shared = shared_TD is not None
        return combine(rows_SD, place_TK, scores_TK, shared_TD)

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> tuple[Tensor | None, ...]:
        dy_TD = dy[0].contiguous()
        rows_SD, place_TK, scores_TK = ctx.saved_tensors
        drows_SD, dscores_TK = combine_backward(rows_SD, place_TK, scores_TK, dy_TD)
        return drows_SD, None, dscores_TK, dy_TD if ctx.has_shared else None


class _ExpertRows(torch.autograd.Function):
    """Received rows in, output rows out, in the order of arrival."""

    @staticmethod
    def forward(ctx: Any, rows_ND: Tensor, w13_eGD: Tensor, w2_eDF: Tensor, piece: Piece, experts: Experts) -> Tensor:
        x_BD = lay_out(piece, rows_ND)
        h13_BG = experts.up(x_BD, piece.ends_e)
        out_BD = experts.down(swiglu(h13_BG), piece.ends_e)
        ctx.save_for_backward(x_BD, h13_BG)
        ctx.piece, ctx.experts = piece, experts
        return take_out(piece, out_BD)

    @staticmethod
    def backward(ctx: Any, *dout: Tensor) -> tuple[Tensor | None, ...]:
        x_BD, h13_BG = ctx.saved_tensors
        piece, experts = ctx.piece, ctx.experts
        dout_BD = lay_out(piece, dout[0].contiguous())
        dh13_BG, h_BF = swiglu_backward(experts.down_dgrad(dout_BD, piece.ends_e), h13_BG)
        dw2_eDF = experts.down_wgrad(dout_BD, h_BF, piece.ends_e)
        dw13_eGD = experts.up_wgrad(dh13_BG, x_BD, piece.ends_e)
        return take_out(piece, experts.up_dgrad(dh13_BG, piece.ends_e)), dw13_eGD, dw2_eDF, None, None

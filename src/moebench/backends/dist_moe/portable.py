"""dist_moe's execution strategy in PyTorch: packed rows, one activation slot with recompute, scratch with a limit.

Written from the library's documentation and published layouts, not from its code. Where the library's ranks read
and write each other's memory, this re-creation uses all-to-all with split sizes known to the host. Decisions and
byte counts follow the published layouts (`capacity`). `mega` cuts the tokens into chunks: the dispatch of one is
in flight while the one before is computed.
Legend: B rows of a chunk's buffer, S = T*K slots, e experts of the rank, G = 2F.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moebench.backends.combine import combine, combine_backward, places, sum_of_rows
from moebench.backends.dist_moe.capacity import (
    capacity_from_run,
    occupied_rows,
    recomputed_bytes,
    retention,
    saved_bytes,
    why_rows_do_not_fit,
)
from moebench.backends.dist_moe.chunks import chunk_piece, counts_by_source, split_sizes, token_chunks
from moebench.backends.experts import Bf16Experts, Experts
from moebench.backends.manual import Gradients, ManualBackend
from moebench.backends.mxfp8_experts import ROW_BLOCK, Mxfp8Experts
from moebench.backends.piece import Piece, Splits, add_weight_gradient, lay_out, send, send_back
from moebench.backends.protocol import Setup
from moebench.backends.shared import SharedForward, shared_backward, shared_forward
from moebench.backends.swiglu import swiglu, swiglu_backward
from moebench.cases.case import PIPELINES, Case, Category, Pipeline, Precision
from moebench.quant.mxfp8 import Recipe
from moebench.rank.exchange import Pending


@dataclass(frozen=True)
class Routed:
    """Activations of the routed experts that backward needs: rows of each chunk, and every slot's output."""

    x_BD: list[Tensor]
    h13_BG: list[Tensor]
    out_SD: Tensor
    """In the order in which slots were sent, chunk after chunk."""


@dataclass(frozen=True)
class Context:
    """What forward keeps. `routed` is None where the slot had no room: backward recomputes it from x."""

    pieces: list[Piece]
    place_TK: Tensor
    shared: SharedForward | None
    routed: Routed | None


class DistMoeBackend(ManualBackend):
    name = "dist_moe"
    pipelines = {p: names for p, names in PIPELINES["dist_moe"].items() if p is not Precision.NVFP4}  # noqa: RUF012
    host_known_splits = True

    @classmethod
    def why_no_cuda_graph(cls, case: Case) -> str | None:
        return None

    @classmethod
    def unsupported(cls, case: Case) -> str | None:
        if case.precision not in cls.pipelines:
            return f"the portable dist_moe has no {case.precision}"
        return why_rows_do_not_fit(case)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        case = setup.case
        chunks = case.capacity.chunks if case.pipeline is Pipeline.MEGA else 1
        self._chunks = token_chunks(case.shape.T, chunks)
        mxfp8 = case.precision is Precision.MXFP8
        self._pad_rows = ROW_BLOCK if mxfp8 and case.training else 1
        self._splits: list[list[Splits]] = []
        self._rows_LE = []
        for ids_PTK in setup.ids_PTK:
            ids_PTK_host = torch.from_numpy(ids_PTK).long()
            self._rows_LE.append(counts_by_source(ids_PTK_host.flatten(1), case.shape.E).sum(0).numpy())
            self._splits.append(
                [
                    split_sizes(
                        counts_by_source(ids_PTK_host[:, tokens].flatten(1), case.shape.E),
                        setup.rank,
                        self._pad_rows,
                    )
                    for tokens in self._chunks
                ]
            )
        too_many = why_rows_do_not_fit(case, self._rows_LE)
        if too_many is not None:
            raise RuntimeError(too_many)
        self._recompute_L = retention(case, self._rows_LE).recompute_L
        self._kept_L = [False] * case.layers
        self._recomputed_L = [False] * case.layers
        self._experts: list[Experts] = [
            Mxfp8Experts(w.w13_eGD, w.w2_eDF, Recipe.FLOOR, tiles=case.training, quantised_dispatch=not case.training)
            if mxfp8
            else Bf16Experts(w.w13_eGD, w.w2_eDF)
            for w in setup.weights
        ]

    def _pieces(self, l: int, ids_TK: Tensor) -> list[Piece]:
        case, K = self.setup.case, ids_TK.shape[1]
        ids_PTK = self.setup.exchange.all_gather("metadata", ids_TK.short()).wait().long()
        return [
            chunk_piece(
                ids_PTK[:, tokens].flatten(1),
                tokens.start * K,
                self.setup.rank,
                case.shape.E,
                self._pad_rows,
                splits,
            )
            for tokens, splits in zip(self._chunks, self._splits[l], strict=True)
        ]

    def forward(self, l: int, x_TD: Tensor, ids_TK: Tensor, scores_TK: Tensor) -> tuple[Tensor, Context]:
        weights, stages = self.setup.weights[l], self.setup.stages
        pieces = self._pieces(l, ids_TK)
        rows_T = self._experts[l].encode(x_TD)
        arriving = self._dispatch(pieces, 0, rows_T, "dispatch")
        shared = None
        if self.setup.case.shape.S:
            stages.mark("shared expert")
            shared = shared_forward(x_TD, weights.shared13_GD, weights.shared2_DF)
        routed = self._routed(l, pieces, arriving, rows_T, "dispatch", "combine")
        place_TK = places(torch.cat([piece.slots_S for piece in pieces]), ids_TK.shape[1])
        y_TD = combine(routed.out_SD, place_TK, scores_TK, shared.y_TD if shared else None)
        self._kept_L[l], self._recomputed_L[l] = not self._recompute_L[l], False
        return y_TD, Context(pieces, place_TK, shared, routed if self._kept_L[l] else None)

    def _dispatch(self, pieces: list[Piece], c: int, rows_T: Tensor, kind: str) -> Pending:
        self.setup.stages.mark(f"{kind} {c} start")
        topk = self.setup.case.shape.K
        return send(self.setup.exchange, kind, pieces[c], rows_T[pieces[c].slots_S // topk])

    def _routed(
        self, l: int, pieces: list[Piece], arriving: Pending, rows_T: Tensor, out_kind: str, back_kind: str
    ) -> Routed:
        """All chunks through the experts; chunk 0 is on its way already."""
        experts, stages = self._experts[l], self.setup.stages
        xs_BD, h13s_BG, returning = [], [], []
        for c, piece in enumerate(pieces):
            x_BD = lay_out(piece, arriving.wait())
            stages.mark(f"{out_kind} {c} done")
            if c + 1 < len(pieces):
                arriving = self._dispatch(pieces, c + 1, rows_T, out_kind)
            stages.mark(f"experts {c}")
            h13_BG = experts.up(x_BD, piece.ends_e)
            out_BD = experts.down(swiglu(h13_BG), piece.ends_e)
            stages.mark(f"{back_kind} {c} start")
            returning.append(send_back(self.setup.exchange, back_kind, piece, out_BD))
            xs_BD.append(x_BD)
            h13s_BG.append(h13_BG)
        return Routed(xs_BD, h13s_BG, self._collect(returning, back_kind))

    def _collect(self, returning: list[Pending], kind: str) -> Tensor:
        """Rows of all chunks, chunk after chunk, [S, D]."""
        rows = [pending.wait() for pending in returning]
        self.setup.stages.mark(f"{kind} done")
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def backward(self, l: int, context: Context, x_TD: Tensor, scores_TK: Tensor, dy_TD: Tensor) -> Gradients:
        exchange, stages, experts = self.setup.exchange, self.setup.stages, self._experts[l]
        weights, pieces = self.setup.weights[l], context.pieces
        routed = context.routed
        if routed is None:
            stages.mark("recompute")
            self._recomputed_L[l] = True
            arriving = self._dispatch(pieces, 0, x_TD, "replay")
            routed = self._routed(l, pieces, arriving, x_TD, "replay", "replay")
        dout_SD, dscores_TK = combine_backward(routed.out_SD, context.place_TK, scores_TK, dy_TD)
        douts_SD = dout_SD.split([len(piece.slots_S) for piece in pieces])

        def dispatch(c: int) -> Pending:
            stages.mark(f"backward dispatch {c} start")
            return send(exchange, "backward dispatch", pieces[c], douts_SD[c])

        arriving = dispatch(0)
        dshared = None
        if context.shared is not None:
            stages.mark("shared expert backward")
            dshared = shared_backward(dy_TD, x_TD, context.shared.h13_TG, weights.shared13_GD, weights.shared2_DF)
        dw13_eGD = dw2_eDF = None
        returning = []
        for c, (piece, x_BD, h13_BG) in enumerate(zip(pieces, routed.x_BD, routed.h13_BG, strict=True)):
            dout_BD = lay_out(piece, arriving.wait())
            if c + 1 < len(pieces):
                arriving = dispatch(c + 1)
            dh13_BG, h_BF = swiglu_backward(experts.down_dgrad(dout_BD, piece.ends_e), h13_BG)
            dw2_eDF = add_weight_gradient(dw2_eDF, experts.down_wgrad(dout_BD, h_BF, piece.ends_e))
            dw13_eGD = add_weight_gradient(dw13_eGD, experts.up_wgrad(dh13_BG, x_BD, piece.ends_e))
            dx_BD = experts.up_dgrad(dh13_BG, piece.ends_e)
            stages.mark(f"backward combine {c} start")
            returning.append(send_back(exchange, "backward combine", piece, dx_BD))
        dx_SD = self._collect(returning, "backward combine")
        assert dscores_TK is not None
        assert dw13_eGD is not None
        assert dw2_eDF is not None
        return Gradients(
            sum_of_rows(dx_SD, context.place_TK, dshared.dx_TD if dshared else None),
            dscores_TK,
            dw13_eGD,
            dw2_eDF,
            dshared.dw13_GD if dshared else None,
            dshared.dw2_DF if dshared else None,
        )

    def capacity(self) -> dict[str, Any] | None:
        """What the last iteration kept and recomputed, in bytes of the published layouts. Collective."""
        case = self.setup.case
        if case.category is not Category.PACKING:
            return None
        saved = self._saved_bytes() if case.training else 0
        mine = torch.tensor([saved, sum(self._recomputed_L)], device=self.setup.device)
        every_P2 = self.setup.exchange.all_gather("capacity", mine).wait()
        saved_P, recomputed_P = every_P2.t().tolist()
        return capacity_from_run(case, saved_P, sum(recomputed_P)).model_dump(by_alias=True)

    def _saved_bytes(self) -> int:
        case, saved = self.setup.case, 0
        for rows_E, kept in zip(self._rows_LE, self._kept_L, strict=True):
            occupied = occupied_rows(rows_E, case.ep, case.precision)[self.setup.rank]
            saved += saved_bytes(case.shape, case.precision, occupied) if kept else recomputed_bytes(case.shape)
        return saved

"""What mok computes, on one rank in plain torch: padded rows by expert, macrobatches, context, replay.

Activations stay bf16 also with mxfp8 weights. Ring rows that the kernels leave undefined hold NaN.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

PADDING = 256


@dataclass(frozen=True, slots=True)
class MoKSchedule:
    peer_rank: Tensor
    peer_token_idx: Tensor
    num_tokens: Tensor
    tokens_per_expert: Tensor


@dataclass(frozen=True, slots=True)
class MoKForwardContext:
    x_routed: Tensor
    gate_shared: Tensor
    gate_routed: Tensor
    up_shared: Tensor
    up_routed: Tensor
    hidden_shared: Tensor
    hidden_routed: Tensor


def linear(x: Tensor, w: Tensor) -> Tensor:
    return (x.float() @ w.float().t()).bfloat16()


def wgrad(dy: Tensor, x: Tensor) -> Tensor:
    return dy.float().t() @ x.float()


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return (F.silu(gate.float()) * up.float()).bfloat16()


def swiglu_backward(dh: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    gate, up, dh = gate.float(), up.float(), dh.float()
    s = torch.sigmoid(gate)
    return (dh * up * (s + gate * s * (1 - s))).bfloat16(), (dh * gate * s).bfloat16()


def make_schedule(ids_TK: Tensor, num_local_experts: int, capacity: int) -> MoKSchedule:
    """One rank's schedule; `num_tokens` may exceed the capacity, which the caller must trap."""
    ids = ids_TK.reshape(-1)
    counts = torch.bincount(ids[ids < num_local_experts], minlength=num_local_experts)
    padded = (counts + PADDING - 1) // PADDING * PADDING
    slots = torch.full((max(capacity, int(padded.sum())),), -1, dtype=torch.int32)
    start = 0
    for expert in range(num_local_experts):
        mine = torch.nonzero(ids == expert).flatten().int()
        slots[start : start + len(mine)] = mine
        start += int(padded[expert])
    ranks = torch.where(slots >= 0, 0, -1).int()
    return MoKSchedule(ranks[:capacity], slots[:capacity], padded.sum().int().reshape(1), padded.int())


def by_expert(schedule: MoKSchedule, rows: slice) -> list[tuple[int, slice]]:
    """(expert, its rows inside `rows`, counted from its start)."""
    found, start = [], 0
    for expert, count in enumerate(schedule.tokens_per_expert.tolist()):
        first, last = max(start, rows.start), min(start + count, rows.stop)
        if last > first:
            found.append((expert, slice(first - rows.start, last - rows.start)))
        start += count
    return found


def macrobatches(schedule: MoKSchedule, size: int) -> list[slice]:
    rows = int(schedule.num_tokens)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def pull(values: Tensor, schedule: MoKSchedule, rows: slice, per_token: int) -> Tensor:
    """Rows of x (per_token=K) or of router weights (1) that a schedule asks for; padding is zero."""
    slots = schedule.peer_token_idx[rows].long()
    pulled = values[slots.clamp_min(0) // per_token].clone()
    pulled[slots < 0] = 0
    return pulled


def grouped(x: Tensor, w: Tensor, schedule: MoKSchedule, rows: slice) -> Tensor:
    out = x.new_empty(x.shape[0], w.shape[1])
    for expert, part in by_expert(schedule, rows):
        out[part] = linear(x[part], w[expert])
    return out


def gate_up(context: MoKForwardContext, x, schedule, rows, K, gate_w, up_w) -> int:
    """Dispatch, gate, up and SwiGLU of one macrobatch into the rings; its row count."""
    n = rows.stop - rows.start
    context.x_routed[:n] = pull(x, schedule, rows, K)
    context.gate_routed[:n] = grouped(context.x_routed[:n], gate_w, schedule, rows)
    context.up_routed[:n] = grouped(context.x_routed[:n], up_w, schedule, rows)
    context.hidden_routed[:n] = swiglu(context.gate_routed[:n], context.up_routed[:n])
    return n


def forward(schedule, x, weights_TK, shared, gate_w, up_w, down_w, macrobatch_size):
    (T, H), K, I = x.shape, weights_TK.shape[1], gate_w.shape[1]
    gate_s, up_s = linear(x, shared[0]), linear(x, shared[1])
    hidden_s = swiglu(gate_s, up_s)
    ring = [torch.full((macrobatch_size, width), torch.nan, dtype=torch.bfloat16) for width in (H, I, I, I)]
    context = MoKForwardContext(ring[0], gate_s, ring[1], up_s, ring[2], hidden_s, ring[3])
    combine = torch.full((T * K, H), torch.nan, dtype=torch.bfloat16)
    for rows in reversed(macrobatches(schedule, macrobatch_size)):
        n = gate_up(context, x, schedule, rows, K, gate_w, up_w)
        slots = schedule.peer_token_idx[rows].long()
        out = grouped(context.hidden_routed[:n], down_w, schedule, rows)
        combine[slots[slots >= 0]] = out[slots >= 0]
    routed = (combine.view(T, K, H).float() * weights_TK.unsqueeze(-1)).sum(1)
    return (linear(hidden_s, shared[2]).float() + routed).bfloat16(), context


def backward(schedule, context, dy, x, weights_TK, shared, gate_w, up_w, gate_t, up_t, down_t, macrobatch_size):
    """`*_t` are transposed weights, as mxfp8 has them apart. Gradients in mok's order."""
    (T, H), K, (E, I) = x.shape, weights_TK.shape[1], gate_w.shape[:2]
    dx_slots = torch.full((T * K, H), torch.nan, dtype=torch.bfloat16)
    d_router = torch.full((T * K,), torch.nan)
    d_gate, d_up, d_down = torch.zeros(E, I, H), torch.zeros(E, I, H), torch.zeros(E, H, I)
    for m, rows in enumerate(macrobatches(schedule, macrobatch_size)):
        n = rows.stop - rows.start
        if m:
            gate_up(context, x, schedule, rows, K, gate_w, up_w)
        w = pull(weights_TK.reshape(-1), schedule, rows, 1)
        dy_r = (pull(dy, schedule, rows, K).float() * w.unsqueeze(1)).bfloat16()
        dh = grouped(dy_r, down_t, schedule, rows)
        dg, du = swiglu_backward(dh, context.gate_routed[:n], context.up_routed[:n])
        dx = torch.empty(n, H)
        for expert, part in by_expert(schedule, rows):
            dx[part] = dg[part].float() @ gate_t[expert].float().t() + du[part].float() @ up_t[expert].float().t()
            d_gate[expert] += wgrad(dg[part], context.x_routed[:n][part])
            d_up[expert] += wgrad(du[part], context.x_routed[:n][part])
            d_down[expert] += wgrad(dy_r[part], context.hidden_routed[:n][part])
        slots = schedule.peer_token_idx[rows].long()
        real = slots >= 0
        dx_slots[slots[real]] = dx.bfloat16()[real]
        dots = (dh.float() * context.hidden_routed[:n].float()).sum(1) / w
        d_router[slots[real]] = torch.where(w > 0, dots, 0)[real]
    dh_s = linear(dy, shared[2].t())
    dg_s, du_s = swiglu_backward(dh_s, context.gate_shared, context.up_shared)
    dx_s = dg_s.float() @ shared[0].float() + du_s.float() @ shared[1].float()
    d_x = (dx_s + dx_slots.view(T, K, H).float().sum(1)).bfloat16()
    weights = (d_gate, d_up, d_down, wgrad(dg_s, x), wgrad(du_s, x), wgrad(dy, context.hidden_shared))
    return d_x, d_router.view(T, K), *(g.bfloat16() for g in weights)

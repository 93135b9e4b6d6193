"""A contract double of dist-moe 0.1.0: its public names, every rule it has for a caller, and the right numbers.

It knows no kernels: experts are computed one by one in fp32 over the gathered tokens of all ranks, on any device.
Where the real library corrupts memory in silence or traps on the device, the double remembers it or raises.
tests/native holds its signatures against the real ones.
"""

import dataclasses
import math
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.reduce.build import make_case
from torch import Tensor

from moebench.backends.dist_moe import capacity as planner
from moebench.cases.case import Capacity, Case, Mode, Pipeline, Precision
from moebench.cases.shape import Shape


class BlockScaledFormat(Enum):
    MXFP8_E4M3 = "mxfp8_e4m3"
    NVFP4 = "nvfp4"


@dataclass(frozen=True)
class BlockScaledConfig:
    format: BlockScaledFormat = BlockScaledFormat.MXFP8_E4M3
    fast_math: bool = False
    pipeline: str = "staged"
    kernel_config: Any = None

    def __post_init__(self) -> None:
        if type(self.pipeline) is not str or self.pipeline not in ("staged", "mega"):
            raise ValueError("block-scaled pipeline must be 'staged' or 'mega'")
        if self.fast_math and self.format is BlockScaledFormat.NVFP4:
            raise ValueError("fast_math is supported only by the MXFP8 fused path")


CONFIG_FIELDS: list[tuple[str, Any]] = [
    ("hidden_dim", dataclasses.MISSING),
    ("intermediate_dim", dataclasses.MISSING),
    ("top_k", dataclasses.MISSING),
    ("num_experts", dataclasses.MISSING),
    ("max_moe_layers_per_activation_slot", dataclasses.MISSING),
    ("device_scratch_capacity_factor", 1.0),
    ("activation_slot_bytes", None),
    ("activation_slot_capacity_factor", None),
    ("num_activation_slots", 1),
    ("vmm", None),
    ("num_sms", None),
    ("bf16_grouped_gemm_preset", None),
    ("block_scaled", None),
    ("activation", "swiglu"),
    ("swiglu_alpha", 1.702),
    ("swiglu_limit", 7.0),
    ("wgrad_dtype", None),
    ("inference", False),
]


def config_class(token_field: str) -> type:
    """Config as the revisions have it that name its token count so."""

    def check(self: Any) -> None:
        if self.hidden_dim % 64:
            raise ValueError("hidden_dim must be a multiple of 64 BF16 elements")
        if self.top_k > self.num_experts:
            raise ValueError("top_k cannot exceed num_experts")
        if not self.inference and self.num_activation_slots <= 0:
            raise ValueError("training requires at least one activation slot")
        if self.inference and (self.activation_slot_bytes, self.activation_slot_capacity_factor) != (None, None):
            raise ValueError("activation slot capacity controls must be None")
        factor = self.device_scratch_capacity_factor
        if not math.isfinite(factor) or factor <= 0:
            raise ValueError("device_scratch_capacity_factor must be finite and positive")
        if self.block_scaled is not None:
            block = 32 if self.block_scaled.format is BlockScaledFormat.MXFP8_E4M3 else 256
            if self.hidden_dim % block or self.intermediate_dim % block:
                raise ValueError(f"hidden_dim and intermediate_dim must be divisible by {block}")
            if self.block_scaled.format is BlockScaledFormat.NVFP4 and not self.inference:
                raise ValueError("NVFP4 DistMoE is inference-only")

    required = [(token_field, Any), *((n, Any) for n, default in CONFIG_FIELDS if default is dataclasses.MISSING)]
    optional = [(n, Any, field(default=default)) for n, default in CONFIG_FIELDS if default is not dataclasses.MISSING]
    namespace = {"__post_init__": check, "tokens": property(lambda self: getattr(self, token_field))}
    return make_dataclass("Config", [*required, *optional], frozen=True, namespace=namespace)


@dataclass(frozen=True)
class Prepared:
    """A quantised weight: operands as they were when it was made, gradients to `source`."""

    source: Tensor
    format: BlockScaledFormat
    inference: bool
    operand: Tensor

    def storage_tensors(self) -> tuple[Tensor, ...]:
        return (self.operand,)


class Buffer:
    """The activation slot: a stack of levels, and the bytes that every rank has saved in it."""

    def __init__(self, case: Case, slots: int) -> None:
        self.case, self.slot_bytes = case, planner.slot_bytes(case)
        self.levels: list[tuple[int, list[int]]] = []
        self.overflowed = False
        self.saved_activation_bytes_per_rank = torch.zeros(slots * case.ep, dtype=torch.int64)
        self.buffer_offsets = torch.zeros(slots + 1, dtype=torch.int64)
        self.initial_buffer_offsets = self.buffer_offsets.clone()

    def push(self, rows_P: list[int]) -> int:
        case, saved_P = self.case, self.saved_activation_bytes_per_rank.tolist()
        input_bytes = planner.recomputed_bytes(case.shape)
        full_P = [planner.saved_bytes(case.shape, case.precision, rows) for rows in rows_P]
        later = (case.layers - 1 - len(self.levels)) * input_bytes
        recompute = planner.must_recompute(saved_P, full_P, later, self.slot_bytes)
        level = (len(self.levels), [input_bytes] * case.ep if recompute else full_P)
        self.levels.append(level)
        self._moved(level, 1)
        self.overflowed |= bool(self.saved_activation_bytes_per_rank.max() > self.slot_bytes)
        return level[0]

    def pop(self, number: int) -> None:
        if not self.levels or self.levels[-1][0] != number:
            raise RuntimeError("backward is not in the reverse order of forward")
        self._moved(self.levels.pop(), -1)

    def _moved(self, level: tuple[int, list[int]], sign: int) -> None:
        self.saved_activation_bytes_per_rank += sign * torch.tensor(level[1])
        self.buffer_offsets[0] += sign * level[1][0]

    def check_overflow(self) -> None:
        if self.overflowed:
            raise ValueError("Activation buffer overflowed, numerics are corrupted")


class Context:
    def __init__(self) -> None:
        raise TypeError("use create_context()")

    @classmethod
    def _make(cls, case: Case, config: Any, plan: Any, group: Any) -> "Context":
        context = object.__new__(cls)
        context.case, context.config, context.memory_plan, context.group = case, config, plan, group
        context.closed = context.trapped = False
        context.activation_buffer = Buffer(case, plan.num_activation_slots)
        context.stream = torch.cuda.current_stream() if torch.cuda.is_available() else None
        return context

    def reset(self) -> None:
        self._alive()
        self.activation_buffer = Buffer(self.case, self.memory_plan.num_activation_slots)

    def close(self) -> None:
        if self.trapped:
            raise AssertionError("close() after a trap")
        self.closed = True

    def _alive(self) -> None:
        if self.trapped:
            raise RuntimeError("CUDA error: unspecified launch failure")
        if self.closed:
            raise RuntimeError("distributed MoE context is closed")


def make_double(token_field: str = "num_local_input_tokens") -> ModuleType:
    """A module to stand in sys.modules as dist_moe. `calls` lists (name, args, kwargs), `contexts` what it made."""
    module = ModuleType("dist_moe")
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    contexts: list[Context] = []

    def recorded(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append((function.__name__, args, kwargs))
            return function(*args, **kwargs)

        call.__wrapped__ = function  # type: ignore[attr-defined]
        return call

    def create_context(*, group: Any, config: Any, device: Any = None, emulate_peer_buffers: Any = None) -> Context:
        ep = dist.get_world_size(group)
        if config.num_experts % ep:
            raise ValueError(f"num_experts={config.num_experts} must be divisible by world_size={ep}")
        contexts.append(Context._make(_case(config, ep), config, plan_memory(config, ep), group))
        _same_on_all_ranks(config, ep)
        return contexts[-1]

    members = (create_context, plan_memory, routed_experts, prepare_block_scaled_weight)
    vars(module).update({member.__name__: recorded(member) for member in members})
    vars(module).update(
        Config=config_class(token_field),
        BlockScaledConfig=BlockScaledConfig,
        BlockScaledFormat=BlockScaledFormat,
        Context=Context,
        PreparedWeight=Prepared,
        calls=calls,
        contexts=contexts,
    )
    return module


def _same_on_all_ranks(config: Any, ep: int) -> None:
    if ep > 1:
        every: list[Any] = [None] * ep
        dist.all_gather_object(every, dataclasses.astuple(config))
        if any(other != every[0] for other in every):
            raise RuntimeError("ranks disagree on the Config")


def _case(config: Any, ep: int) -> Case:
    """The planner's idea of a context."""
    policy = config.block_scaled
    kinds = {
        None: Precision.BF16,
        BlockScaledFormat.MXFP8_E4M3: Precision.MXFP8,
        BlockScaledFormat.NVFP4: Precision.NVFP4,
    }
    return make_case(
        "dist_moe",
        ep,
        mode=Mode.INFERENCE if config.inference else Mode.TRAINING,
        precision=kinds[policy and policy.format],
        pipeline=Pipeline(policy.pipeline) if policy else Pipeline.STANDARD,
        shape=Shape(
            T=config.tokens, D=config.hidden_dim, E=config.num_experts, K=config.top_k, F=config.intermediate_dim
        ),
        layer_imbalances=(1.0,) * config.max_moe_layers_per_activation_slot,
        capacity=Capacity(
            slot_factor=float(config.activation_slot_capacity_factor or 0.0),
            scratch_factor=float(config.device_scratch_capacity_factor),
        ),
    )


def plan_memory(config: Any, ep_size: int, *, device: Any = None) -> Any:
    case = _case(config, ep_size)
    return SimpleNamespace(
        total_scratch_capacity_rows=planner.scratch_rows(case),
        activation_slot_bytes=planner.slot_bytes(case),
        device_scratch_bytes=planner.scratch_bytes(case),
        host_scratch_bytes=0,
        num_activation_slots=0 if config.inference else config.num_activation_slots,
        total_device_buffer_bytes=planner.slot_bytes(case) + planner.scratch_bytes(case),
        saved_input_bytes_per_layer=planner.recomputed_bytes(case.shape),
    )


def prepare_block_scaled_weight(weight: Tensor, config: Any, *, inference: bool = False, out: Any = None) -> Prepared:
    if weight.ndim != 3 or weight.dtype != torch.bfloat16 or not weight.is_contiguous():
        raise ValueError("weight must be a contiguous bf16 [G, N, K]")
    if config.format is BlockScaledFormat.NVFP4 and not inference:
        raise ValueError("NVFP4 is inference-only")
    return Prepared(weight, config.format, inference, weight.detach().clone())


def routed_experts(
    x_TD: Tensor,
    topk_expert_ids_TK: Tensor,
    topk_scores_TK: Tensor,
    w13_weight: Any,
    w2_weight: Any,
    context: Context,
    *,
    options: Any = None,
) -> Tensor:
    context._alive()
    ids_TK, scores_TK = topk_expert_ids_TK, topk_scores_TK
    w13_eGD, w2_eDF, used = _weights(w13_weight, w2_weight, context)
    tensors = (x_TD, ids_TK, scores_TK, w13_eGD, w2_eDF)
    _check_tensors(tensors, context)
    learns = any(tensor.requires_grad for tensor in tensors)
    if context.config.inference and learns:
        raise RuntimeError("inference contexts do not support autograd")
    if x_TD.is_cuda and torch.cuda.current_stream() != context.stream:
        raise AssertionError("a context was used on another stream")
    if torch.is_grad_enabled() and learns:
        return _Routed.apply(*tensors, used, context)
    with torch.no_grad():
        return _forward(*tensors[:3], used, context).y_TD


def _weights(w13: Any, w2: Any, context: Context) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    policy = context.config.block_scaled
    if isinstance(w13, Prepared) != isinstance(w2, Prepared):
        raise TypeError("w13_weight and w2_weight must either both be prepared or both be tensors")
    if not isinstance(w13, Prepared):
        if policy is not None and policy.format is BlockScaledFormat.NVFP4:
            raise ValueError("NVFP4 requires prepared weights")
        return w13, w2, (w13.detach(), w2.detach())
    if policy is None:
        raise ValueError("prepared weights require block-scaled execution")
    if {w13.format, w2.format} != {policy.format} or {w13.inference, w2.inference} != {context.config.inference}:
        raise ValueError("weights were prepared for another format or mode")
    return w13.source, w2.source, (w13.operand, w2.operand)


def _check_tensors(tensors: tuple[Tensor, ...], context: Context) -> None:
    x_TD, ids_TK, scores_TK, w13_eGD, w2_eDF = tensors
    s, e = context.case.shape, context.case.experts_per_rank
    if x_TD.dtype != torch.bfloat16 or w13_eGD.dtype != torch.bfloat16 or w2_eDF.dtype != torch.bfloat16:
        raise TypeError("x_TD and weights must use torch.bfloat16")
    if ids_TK.dtype not in (torch.int32, torch.int64):
        raise TypeError("topk_expert_ids_TK must use torch.int32 or torch.int64")
    if scores_TK.dtype not in (torch.bfloat16, torch.float32):
        raise TypeError("topk_scores_TK must use torch.bfloat16 or torch.float32")
    shapes = ((s.T, s.D), (s.T, s.K), (s.T, s.K), (e, 2 * s.F, s.D), (e, s.D, s.F))
    for tensor, shape in zip(tensors, shapes, strict=True):
        if tuple(tensor.shape) != shape:
            raise ValueError(f"shape {tuple(tensor.shape)}, expected {shape}")
        if not tensor.is_contiguous() or tensor.device != x_TD.device:
            raise ValueError("all operation tensors must be contiguous, on one device")
    if context.case.precision is Precision.MXFP8 and (s.D % 128 or s.F % 128):
        raise NotImplementedError("MXFP8 needs multiples of 128")
    if ids_TK.min() < 0 or ids_TK.max() >= s.E:
        raise AssertionError("ids outside of [0, E): the library writes nothing for them")
    if any(len(set(token)) < s.K for token in ids_TK.tolist()):
        raise AssertionError("a token names an expert twice: the library's tables have one place for it")


def _gathered(x: Tensor, ep: int) -> Tensor:
    if ep == 1:
        return x.detach().clone()
    every = [torch.empty_like(x) for _ in range(ep)]
    dist.all_gather(every, x.detach().contiguous())
    return torch.cat(every)


def _summed_mine(x_ND: Tensor, ep: int, T: int) -> Tensor:
    """The rows of this rank of a sum over ranks."""
    if ep > 1:
        dist.all_reduce(x_ND)
    rank = dist.get_rank()
    return x_ND[rank * T : (rank + 1) * T]


def _forward(x_TD: Tensor, ids_TK: Tensor, scores_TK: Tensor, used: tuple[Tensor, Tensor], context: Context) -> Any:
    case = context.case
    ep, T, e = case.ep, case.shape.T, case.experts_per_rank
    x_ND, ids_NK, scores_NK = (_gathered(x, ep) for x in (x_TD, ids_TK, scores_TK))
    rows_E = torch.bincount(ids_NK.flatten(), minlength=case.shape.E).cpu().numpy()
    rows_P = planner.occupied_rows(rows_E, ep, case.precision)
    if max(rows_P) > context.memory_plan.total_scratch_capacity_rows:
        context.trapped = True
        raise RuntimeError("CUDA error: unspecified launch failure (DistMoE scratch capacity exceeded)")
    learn = torch.is_grad_enabled()
    leaves = [x.float().requires_grad_(learn) for x in (x_ND, scores_NK, *used)]
    x_ND, scores_NK, w13_eGD, w2_eDF = leaves
    y_ND = torch.zeros_like(x_ND)
    for local in range(e):
        token_H, slot_H = torch.nonzero(ids_NK == dist.get_rank() * e + local, as_tuple=True)
        gate_HF, up_HF = (x_ND[token_H] @ w13_eGD[local].t()).chunk(2, dim=-1)
        out_HD = (F.silu(gate_HF) * up_HF) @ w2_eDF[local].t()
        y_ND = y_ND.index_add(0, token_H, out_HD * scores_NK[token_H, slot_H].unsqueeze(1))
    y_TD = _summed_mine(y_ND.detach().clone(), ep, T).bfloat16()
    return SimpleNamespace(y_TD=y_TD, y_ND=y_ND, leaves=leaves, rows_P=rows_P)


class _Routed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        x_TD, ids_TK, scores_TK, _, _, used, context = arguments
        with torch.enable_grad():
            ctx.done = _forward(x_TD, ids_TK, scores_TK, used, context)
        ctx.level, ctx.context = context.activation_buffer.push(ctx.done.rows_P), context
        return ctx.done.y_TD

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> tuple[Any, ...]:
        context, done = ctx.context, ctx.done
        context._alive()
        context.activation_buffer.pop(ctx.level)
        ep, T = context.case.ep, context.case.shape.T
        dy_ND = _gathered(dy[0].float(), ep)
        dx_ND, dscores_NK, dw13_eGD, dw2_eDF = torch.autograd.grad(done.y_ND, done.leaves, dy_ND)
        dx_TD, dscores_TK = (_summed_mine(g, ep, T) for g in (dx_ND, dscores_NK))
        return dx_TD.bfloat16(), None, dscores_TK, dw13_eGD.bfloat16(), dw2_eDF.bfloat16(), None, None

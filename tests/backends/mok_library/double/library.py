"""A contract double of the package `mok`: every rule of its functional layer, on CPU and one rank.

What mok refuses raises ValueError or TypeError as there. What it would not notice but spoils results or hangs ranks
raises Misuse. An overflowing schedule raises Trap, after which the device is dead, as a CUDA trap leaves it.
"""

import importlib.machinery
import math
import sys
from dataclasses import field, make_dataclass
from types import ModuleType
from typing import Any

import torch
from tests.backends.mok_library.double import layer
from tests.backends.mok_library.double.generation import Generation
from tests.backends.mok_library.double.mxfp8 import mxfp8_quantize, unpack
from torch import Tensor

SM_COUNT, SHARED_MEMORY_BYTES = 148, 232448


class Misuse(Exception):
    """A use that mok does not notice, but that is wrong."""


class Trap(RuntimeError):
    """CUDA error: unspecified launch failure."""


def install(monkeypatch, generation: Generation, capability=(10, 3)) -> "Double":
    """Put the double where `import mok` finds it."""
    double = Double(generation, capability)
    for name, module in double.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return double


class Double:
    def __init__(self, generation: Generation, capability: tuple[int, int]) -> None:
        self.generation, self.capability = generation, capability
        self.calls: list[str] = []
        self.dead = False
        self.workspaces: dict[tuple, Any] = {}
        self.contexts: list[list[Any]] = []
        """[context, its schedule, used] of every forward."""
        self.unread: Tensor | None = None
        """Routes whose schedule was built, but that no forward has followed."""
        fields = [
            ("fwd_num_comm_sms", int, field(default=40)),
            ("bwd_num_comm_sms", int, field(default=28)),
            ("minibatch_size", int, field(default=4096)),
            ("macrobatch_size", int, field(default=131072)),
            ("schedule_capacity_multiplier", float, field(default=0.5)),
            ("all_gather_top_experts_chunk_bytes", int, field(default=2048)),
        ]
        fields = [f for f in fields if f[0] not in generation.without_fields]
        self.MoKConfig = make_dataclass("MoKConfig", fields, frozen=True, slots=True)
        names = ["group_name", "ep_rank", "ep_size", "device", "num_local_tokens", "hidden_size", "topk"]
        names += ["schedule_capacity", "all_gather_top_experts_buffer_multicast_ptr", "barrier_buffer_multicast_ptr"]
        self.MoKWorkspace = make_dataclass("MoKWorkspace", names, slots=True)
        self.multicast_ptr = 4096

    def modules(self) -> dict[str, ModuleType]:
        made = {name: ModuleType(name) for name in ("mok", "mok.functional", "mok.ops")}
        for name, module in made.items():
            module.__file__ = f"/double/{name.replace('.', '/')}.py"
            module.__spec__ = importlib.machinery.ModuleSpec(name, None, origin=module.__file__)
        mok, functional, ops = made.values()
        mok.__version__, mok.functional, mok.ops = "0.1.0", functional, ops
        ops.mxfp8_quantize = mxfp8_quantize
        for name, value in functions(self).items():
            setattr(functional, name, value)
        return made

    def enter(self, call: str) -> None:
        if self.dead:
            raise Trap("CUDA error: unspecified launch failure (the device was lost earlier)")
        self.calls.append(call)

    # -- rules ---------------------------------------------------------------------------------------------------

    def check_workspace_arguments(self, config, group, device, num_local_tokens, hidden_size, topk) -> None:
        self.check_config(config)
        multiplier = config.schedule_capacity_multiplier
        if type(multiplier) not in (int, float) or not math.isfinite(multiplier) or multiplier <= 0:
            raise ValueError("schedule_capacity_multiplier must be a positive finite number")
        if not isinstance(group, torch.distributed.ProcessGroup):
            raise TypeError("group must be a torch.distributed.ProcessGroup")
        if not isinstance(device, torch.device):
            raise TypeError("device must be a torch.device")
        if self.capability not in self.generation.capabilities:
            raise NotImplementedError("MoK currently requires another GPU")
        if type(num_local_tokens) is not int or num_local_tokens < 512 or num_local_tokens % 256:
            raise ValueError("num_local_tokens must be an integer of at least 512 and divisible by 256")
        if type(hidden_size) is not int or hidden_size <= 0 or hidden_size % 256:
            raise ValueError("hidden_size must be a positive integer divisible by 256")
        if type(topk) is not int or not 0 < topk <= 255:
            raise ValueError("topk must be an integer in [1, 255]")
        if 2 * ((topk + 1) * 2048 + topk * 4) + 1024 > SHARED_MEMORY_BYTES:
            raise ValueError("topk requires more dynamic shared memory than the device supports")
        if group.size() not in self.generation.ep_sizes:
            raise ValueError(f"MoK EP size must be one of {self.generation.ep_sizes}")

    def check_config(self, config) -> None:
        if not isinstance(config, self.MoKConfig):
            raise TypeError("config must be a MoKConfig")

    def check_settings(self, config, workspace) -> None:
        for name in ("fwd_num_comm_sms", "bwd_num_comm_sms"):
            sms = getattr(config, name, 40)
            if type(sms) is not int or sms <= 0 or sms % 2 or sms >= SM_COUNT:
                raise ValueError(f"{name} must be positive, even, and leave a compute SM")
        mini, macro = config.minibatch_size, config.macrobatch_size
        if type(mini) is not int or mini <= 0 or mini % 256:
            raise ValueError("minibatch_size must be positive and divisible by 256")
        if type(macro) is not int or macro <= 0 or macro % mini:
            raise ValueError("macrobatch_size must be a positive multiple of minibatch_size")
        chunk = getattr(config, "all_gather_top_experts_chunk_bytes", 1024)
        if type(chunk) is not int or chunk <= 0 or chunk % 16 or chunk + 1024 > SHARED_MEMORY_BYTES:
            raise ValueError("all_gather_top_experts_chunk_bytes must be a positive multiple of 16 that fits")
        if workspace.num_local_tokens * workspace.topk * 4 % chunk:
            raise ValueError("all_gather_top_experts_chunk_bytes must divide one rank's route-buffer bytes")

    def check_tensor(self, name: str, tensor, workspace, dtype, shape) -> None:
        if not isinstance(tensor, Tensor) or tensor.device != workspace.device:
            raise ValueError(f"{name} must be a tensor on the workspace device")
        if tensor.dtype != dtype:
            raise TypeError(f"{name} must have dtype {dtype}, not {tensor.dtype}")
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous")
        if tuple(tensor.shape) != tuple(shape):
            raise ValueError(f"{name} must have shape {tuple(shape)}, not {tuple(tensor.shape)}")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise Misuse(f"{name} asks for gradients, but mok's operators have no autograd formula")

    def check_inputs(self, config, workspace, schedule, x, router_weights, shared, grad_output=None) -> int:
        """Rules that forward and backward share; returns the width I."""
        self.check_config(config)
        self.check_settings(config, workspace)
        if not isinstance(workspace, self.MoKWorkspace):
            raise TypeError("workspace must be a MoKWorkspace")
        if not isinstance(schedule, layer.MoKSchedule):
            raise TypeError("schedule must be a MoKSchedule")
        if not any(workspace is cached for cached in self.workspaces.values()):
            raise Misuse("the workspace was cleared")
        T, H, K = workspace.num_local_tokens, workspace.hidden_size, workspace.topk
        self.check_tensor("x", x, workspace, torch.bfloat16, (T, H))
        self.check_tensor("router_weights", router_weights, workspace, torch.float32, (T, K))
        if grad_output is not None:
            self.check_tensor("grad_output", grad_output, workspace, torch.bfloat16, (T, H))
        if schedule.peer_rank.numel() != workspace.schedule_capacity:
            raise ValueError("schedule capacity does not match the workspace")
        I = shared[0].shape[0]
        if I % 256:
            raise ValueError("intermediate_size must be divisible by 256")
        for name, tensor, shape in zip(("gate", "up", "down"), shared, ((I, H), (I, H), (H, I)), strict=True):
            self.check_tensor(f"shared {name}", tensor, workspace, torch.bfloat16, shape)
        return I

    def routed(self, name: str, given, workspace, shape, pieces: int, transposed: bool) -> tuple[Tensor, Tensor]:
        """(weights, transposed weights) in bf16 of one routed argument, [e, M, N]."""
        E, M, N = shape
        if not isinstance(given, tuple):
            self.check_tensor(f"routed {name}", given, workspace, torch.bfloat16, shape)
            return given, given.transpose(1, 2)
        if len(given) != pieces:
            raise ValueError(f"routed {name} must be a tuple of {pieces} tensors, not {len(given)}")
        if pieces == 4:
            return unpack(name, given[:2], shape), unpack(f"{name} transposed", given[2:], (E, N, M))
        if transposed:
            unpacked = unpack(f"{name} transposed", given, (E, N, M))
            return unpacked.transpose(1, 2), unpacked
        unpacked = unpack(name, given, shape)
        return unpacked, unpacked.transpose(1, 2)

    # -- calls ---------------------------------------------------------------------------------------------------

    def get_workspace(self, config, group, device, num_local_tokens, hidden_size, topk):
        self.check_workspace_arguments(config, group, device, num_local_tokens, hidden_size, topk)
        size = group.size()
        factor = max(2, math.ceil(size * config.schedule_capacity_multiplier))
        key = (group.group_name, device.index, num_local_tokens, hidden_size, topk, factor)
        if key not in self.workspaces:
            self.enter("create workspace")
            capacity = num_local_tokens * topk * factor
            pointers = (self.multicast_ptr, self.multicast_ptr)
            shape = (num_local_tokens, hidden_size, topk)
            self.workspaces[key] = self.MoKWorkspace(
                group.group_name, group.rank(), size, device, *shape, capacity, *pointers
            )
        return self.workspaces[key]

    def clear(self) -> None:
        self.enter("clear workspaces")
        self.workspaces.clear()

    def build_schedule(self, workspace, config, top_experts, num_local_experts):
        self.enter("build_schedule")
        if not isinstance(workspace, self.MoKWorkspace):
            raise TypeError("workspace must be a MoKWorkspace")
        self.check_config(config)
        self.check_settings(config, workspace)
        T, K = workspace.num_local_tokens, workspace.topk
        self.check_tensor("top_experts", top_experts, workspace, torch.int64, (T, K))
        if type(num_local_experts) is not int or num_local_experts <= 0:
            raise ValueError("num_local_experts must be a positive integer")
        if workspace.all_gather_top_experts_buffer_multicast_ptr <= 0:
            raise TypeError("all_gather_top_experts_buffer_multicast_ptr must be a positive integer")
        if self.unread is not None and not torch.equal(self.unread, top_experts):
            raise Misuse("two build_schedule calls without a forward between them race with slow peers")
        if int(top_experts.min()) < 0 or int(top_experts.max()) >= num_local_experts * workspace.ep_size:
            raise Misuse("ids outside of the experts are left out silently, and their combine rows are undefined")
        self.unread = top_experts.clone()
        schedule = layer.make_schedule(top_experts, num_local_experts, workspace.schedule_capacity)
        if int(schedule.num_tokens) > workspace.schedule_capacity:
            self.dead = True
            raise Trap("CUDA error: unspecified launch failure (schedule overflow)")
        return schedule

    def forward(self, config, workspace, schedule, x, router_weights, *weights):
        self.enter("forward")
        shared, (gate, up, down) = weights[:3], weights[3:6]
        I = self.check_inputs(config, workspace, schedule, x, router_weights, shared)
        if weights[6:] not in ((), (None,)):
            raise Misuse("the layer has no clamp")
        E, H = len(schedule.tokens_per_expert), workspace.hidden_size
        gate_w, _ = self.routed("gate", gate, workspace, (E, I, H), 2, False)
        up_w, _ = self.routed("up", up, workspace, (E, I, H), 2, False)
        down_w, _ = self.routed("down", down, workspace, (E, H, I), 2, False)
        self.unread = None
        y, context = layer.forward(schedule, x, router_weights, shared, gate_w, up_w, down_w, config.macrobatch_size)
        self.contexts.append([context, schedule, False])
        return y, context

    def backward(self, config, workspace, schedule, forward_context, grad_output, x, router_weights, *weights):
        self.enter("backward")
        shared, (gate, up, down) = weights[:3], weights[3:6]
        I = self.check_inputs(config, workspace, schedule, x, router_weights, shared, grad_output)
        if weights[6:] not in ((), (None,)):
            raise Misuse("the layer has no clamp")
        if not isinstance(forward_context, layer.MoKForwardContext):
            raise TypeError("forward_context must be a MoKForwardContext")
        self.use_once(forward_context, schedule)
        E, H = len(schedule.tokens_per_expert), workspace.hidden_size
        gate_w, gate_t = self.routed("gate", gate, workspace, (E, I, H), 4, True)
        up_w, up_t = self.routed("up", up, workspace, (E, I, H), 4, True)
        _, down_t = self.routed("down", down, workspace, (E, H, I), 2, True)
        gradients = layer.backward(
            *(schedule, forward_context, grad_output, x, router_weights, shared),
            *(gate_w, up_w, gate_t, up_t, down_t, config.macrobatch_size),
        )
        return gradients if self.generation.gradients == 8 else (*gradients, None)

    def use_once(self, context, schedule) -> None:
        for entry in self.contexts:
            if entry[0] is context:
                if entry[1] is not schedule:
                    raise Misuse("the context is that of another schedule")
                if entry[2]:
                    raise Misuse("a forward context serves one backward only")
                entry[2] = True
                return
        raise Misuse("the context is not of this library's forward")


def functions(double: Double) -> dict[str, Any]:
    """The functional layer of the double's generation, with that generation's signatures."""

    def validate_workspace_args(config, group, *, device, num_local_tokens, hidden_size, topk):
        double.check_workspace_arguments(config, group, device, num_local_tokens, hidden_size, topk)

    def get_workspace(config, group, *, device, num_local_tokens, hidden_size, topk):
        return double.get_workspace(config, group, device, num_local_tokens, hidden_size, topk)

    def clear_workspace_cache():
        double.clear()

    def build_schedule(workspace, config, top_experts, *, num_local_experts):
        return double.build_schedule(workspace, config, top_experts, num_local_experts)

    # fmt: off
    def forward_g0(config, workspace, schedule, x, router_weights, shared_gate_weights, shared_up_weights,
                   shared_down_weights, routed_gate_weights, routed_up_weights, routed_down_weights):
        return double.forward(config, workspace, schedule, x, router_weights, shared_gate_weights, shared_up_weights,
                              shared_down_weights, routed_gate_weights, routed_up_weights, routed_down_weights)

    def forward(config, workspace, schedule, x, router_weights, shared_gate_weights, shared_up_weights,
                shared_down_weights, routed_gate_weights, routed_up_weights, routed_down_weights, swiglu_limit=None):
        return double.forward(config, workspace, schedule, x, router_weights, shared_gate_weights, shared_up_weights,
                              shared_down_weights, routed_gate_weights, routed_up_weights, routed_down_weights,
                              swiglu_limit)

    def backward_g0(config, workspace, schedule, forward_context, grad_output, x, router_weights, shared_gate_weights,
                    shared_up_weights, shared_down_weights, routed_gate_weights, routed_up_weights,
                    routed_down_weights) -> tuple[*[Tensor] * 8]:
        return double.backward(config, workspace, schedule, forward_context, grad_output, x, router_weights,
                               shared_gate_weights, shared_up_weights, shared_down_weights, routed_gate_weights,
                               routed_up_weights, routed_down_weights)

    def backward(config, workspace, schedule, forward_context, grad_output, x, router_weights, shared_gate_weights,
                 shared_up_weights, shared_down_weights, routed_gate_weights, routed_up_weights, routed_down_weights,
                 swiglu_limit=None) -> tuple[*[Tensor] * double.generation.gradients]:
        return double.backward(config, workspace, schedule, forward_context, grad_output, x, router_weights,
                               shared_gate_weights, shared_up_weights, shared_down_weights, routed_gate_weights,
                               routed_up_weights, routed_down_weights, swiglu_limit)

    def backward_nine(config, workspace, schedule, forward_context, grad_output, x, router_weights,
                      shared_gate_weights, shared_up_weights, shared_down_weights, routed_gate_weights,
                      routed_up_weights, routed_down_weights, swiglu_limit=None, main_grads=None,
                      main_grad_storage_tables=None, shared_output_gate_weight=None,
                      shared_output_gate_main_grad=None) -> tuple[*[Tensor] * 8, Tensor | None]:
        return backward(config, workspace, schedule, forward_context, grad_output, x, router_weights,
                        shared_gate_weights, shared_up_weights, shared_down_weights, routed_gate_weights,
                        routed_up_weights, routed_down_weights, swiglu_limit)

    def recompute_forward_context(config, workspace, schedule, x, shared_gate_weights, shared_up_weights,
                                  routed_gate_weights, routed_up_weights, swiglu_limit=None):
        raise Misuse("the adapter keeps the context of its forward")
    # fmt: on

    made = {
        "MoKConfig": double.MoKConfig,
        "validate_workspace_args": validate_workspace_args,
        "get_workspace": get_workspace,
        "clear_workspace_cache": clear_workspace_cache,
        "build_schedule": build_schedule,
        "forward": forward if double.generation.swiglu_limit else forward_g0,
        "backward": backward if double.generation.swiglu_limit else backward_g0,
    }
    if double.generation.gradients == 9:
        made["backward"] = backward_nine
    if double.generation.recompute:
        made["recompute_forward_context"] = recompute_forward_context
    return made

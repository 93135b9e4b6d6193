"""Every rule of mok's functional layer on types, shapes, places and settings, and what the double must remember."""

import math
from dataclasses import field, make_dataclass
from typing import Any

import torch
from tests.backends.mok_library.double import layer
from tests.backends.mok_library.double.faults import Misuse
from tests.backends.mok_library.double.generation import Generation
from tests.backends.mok_library.double.mxfp8 import unpack
from torch import Tensor

SM_COUNT, SHARED_MEMORY_BYTES = 148, 232448


class Rules:
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

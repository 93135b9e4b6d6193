"""A contract double of the package `mok`: every rule of its functional layer, on CPU and one rank.

What mok refuses raises ValueError or TypeError as there. What it would not notice but spoils results or hangs ranks
raises Misuse. An overflowing schedule raises Trap, after which the device is dead, as a CUDA trap leaves it.
"""

import importlib.machinery
import math
import sys
from types import ModuleType

import torch
from tests.backends.mok_library.double import layer
from tests.backends.mok_library.double.faults import Misuse, Trap
from tests.backends.mok_library.double.generation import Generation
from tests.backends.mok_library.double.interface import functions
from tests.backends.mok_library.double.mxfp8 import mxfp8_quantize
from tests.backends.mok_library.double.rules import Rules


def install(monkeypatch, generation: Generation, capability=(10, 3)) -> "Double":
    """Put the double where `import mok` finds it."""
    double = Double(generation, capability)
    for name, module in double.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return double


class Double(Rules):
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

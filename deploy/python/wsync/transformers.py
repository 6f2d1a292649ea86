"""wsync in transformers: a model in your own process follows a trainer.

    follower = wsync.transformers.attach(model, "host0", "r0")
    model.generate(...)                 # each forward pass computes with one version
    follower.version                    # that is served

The weights are copied into the model's own parameters between two forward passes: no pass sees two versions. A version may have the
names of a checkpoint, or those of the model in memory, where transformers 5 keeps the experts of a layer in one tensor. Float dtypes
are converted. A version that lacks a parameter, or has others, is refused before anything moves.

Until the first version has arrived, passes compute with the weights that the model has, and `follower.version` is None.

A cache of keys and values (`past_key_values`) survives a switch: drop it if a generation must not mix versions in its attention.
Optimizer states and compiled graphs with folded constants do not notice a switch.

The parameters may be on GPUs. The weights are then received in the memory of the host, so the sidecar needs no device of kind cuda,
and copied from there. A pause waits for all work of torch on these GPUs, and a commit for the copies.

Run with: transformers 5.19 and torch 2.13 on the CPU, Qwen3 and Qwen3-MoE; torch 2.11 on one H100, a small Qwen3. Not run: other
architectures with fused experts.
"""
from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Mapping
from typing import Any, Optional

import torch as _torch

from ._errors import InvalidInput, Refused
from ._forward_gate import ForwardGate
from ._tensors import Spec, same_bits
from ._values import Pause, Version
from .replica import Replica
from .torch import as_tensor

# One matrix of one expert, as checkpoints have it.
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight$")


class _Link(Replica):
    """The replica of a follower."""

    def __init__(self, follower: "Follower", sidecar: str, name: str, **options: Any):
        self._follower = follower
        super().__init__(sidecar, name, **options)

    def _after_suspend(self) -> None:
        self._follower.version = None


class Follower:
    """A model that follows a trainer. Made by `attach`.

    A thread of its own serves the link. It waits for the end of a running forward pass before the model pauses, and holds up the
    next one until the model is resumed; a forward pass must therefore never take longer than the fleet waits for a pause. Passes of
    several threads run one after the other. A pass has ended when the call of the model has returned, or has left it with any
    exception, also with `KeyboardInterrupt`.

    Attributes:
        version: the `Version` that the model has. None: its own weights; or no version at all, from the begin of a load to its
            commit (also if it fails), and after `replica.suspend()`.
        replica: the `Replica`, for its status, and to suspend it.
    """

    def __init__(self, model: Any, sidecar: str, name: str):
        self.version: Optional[Version] = None
        self._parameters = {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
        self._gpus = {tensor.device for tensor in self._parameters.values() if tensor.device.type == "cuda"}
        self._loaded: dict = {}  # address of a parameter -> (name, array) that was loaded into it
        self._gate = ForwardGate()
        self._gate.watch(model)
        self.replica = _Link(self, sidecar, name, take="borrow", serving=True, pause=self._pause, check_version=self._check,
                             load_begin=self._load_begin, load_layer=self._load_layer, commit=self._commit, resume=self._resume)
        self.replica.start()

    def close(self) -> None:
        """Detaches; the model keeps the weights that it has."""
        self.replica.close()
        self._gate.close()

    # The link's thread.

    def _pause(self, pause: Pause) -> None:
        del pause
        self._gate.pause()
        self._end_work()  # a forward pass has returned before its kernels have run
        self.replica.paused(self._gate.passes)

    def _resume(self) -> None:
        self._gate.resume()

    def _check(self, version: Version, tensors: Mapping[str, Spec]) -> None:
        """Raises `Refused` unless the tensors are those of the model, each once."""
        del version
        covered: dict = {}  # address of a parameter -> {address of a part: its elements}
        for name, spec in tensors.items():
            parameter, target = self._target(name)
            if target is None:
                nearest = difflib.get_close_matches(name, self._parameters, 1)
                raise Refused(f"{name}: the version has it, the model does not" + (f"; nearest: {nearest[0]}" if nearest else ""))
            if tuple(target.shape) != tuple(spec.shape):
                raise Refused(f"{name}: the model has the shape {list(target.shape)}, the version {list(spec.shape)}")
            if spec.dtype not in ("F64", "F32", "F16", "BF16"):
                raise Refused(f"{name}: the model has {target.dtype}, the version {spec.dtype}, and only F64, F32, F16 and BF16 are "
                              "converted into each other")
            covered.setdefault(parameter.data_ptr(), {})[target.data_ptr()] = target.numel()
        for name, parameter in self._parameters.items():
            if sum(covered.get(parameter.data_ptr(), {}).values()) < parameter.numel():
                raise Refused(f"{name}: the model has it, the version does not, or not all of it")

    def _target(self, name: str) -> tuple:
        """Where a tensor of a version goes: the parameter, and itself or the part of it that is one expert's. (None, None): nowhere."""
        if name in self._parameters:
            return self._parameters[name], self._parameters[name]
        expert = _EXPERT.match(name)
        if expert is None:
            return None, None
        stack, number, matrix = expert[1], int(expert[2]), expert[3]
        fused = self._parameters.get(f"{stack}.{'down_proj' if matrix == 'down_proj' else 'gate_up_proj'}")
        if fused is None or number >= fused.shape[0]:
            return None, None
        if matrix == "down_proj":
            return fused, fused[number]
        half = fused.shape[1] // 2
        return fused, fused[number, :half] if matrix == "gate_proj" else fused[number, half:]

    def _load_begin(self, version: Version) -> None:
        del version
        self.version = None
        self._loaded = {}

    @_torch.no_grad()
    def _load_layer(self, version: Version, layer: int, tensors: Mapping[str, Any]) -> None:
        del version, layer
        for name, array in tensors.items():
            target = self._target(name)[1]
            first, other = self._loaded.setdefault(target.data_ptr(), (name, array))
            if first != name and target.numel() > 0 and not (other.dtype == array.dtype and same_bits(other, array)):
                raise Refused(f"{name} has other bytes than {first}, and the model has one parameter for both: publish the weights of a "
                              "model that ties them, or let this one have two parameters")
            target.copy_(as_tensor(array))

    def _commit(self, version: Version) -> None:
        self._loaded = {}  # their memory is given back
        self._end_work()
        self.version = version

    def _end_work(self) -> None:
        for gpu in self._gpus:
            _torch.cuda.synchronize(gpu)


def attach(model: Any, sidecar: str, name: str) -> Follower:
    """Makes a model follow the trainer of a fleet.

    Args:
        model: a model of transformers, or any `torch.nn.Module` whose `state_dict` has the names of the versions.
        sidecar: the name of the sidecar, or the absolute path of its engine socket, as for `wsync.Replica`.
        name: the name of the replica.

    Returns:
        The follower. Keep it as long as the model shall follow.

    Raises:
        InvalidInput: the socket's path or the name breaks a rule; or `model.forward` is a generator or a coroutine, which computes
            after the call of the model has returned.
        NotFound: no sidecar of this name runs on this host.
    """
    if any(kind(model.forward) for kind in (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)):
        raise InvalidInput(f"forward of {type(model).__name__} is a generator or a coroutine, which computes after the call of the model "
                           "has returned, so the weights could change in the middle; expected a function that returns what it has "
                           "computed")
    return Follower(model, sidecar, name)

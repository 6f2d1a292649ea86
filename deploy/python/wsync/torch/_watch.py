"""A mode of torch that follows the bytes of a checkpoint through the operations of a loader."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch as _torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from . import _runs

_aten = _torch.ops.aten
NONE = np.empty(0, _runs.RUN)


class Watch(TorchDispatchMode):
    """Follows the bytes of named tensors through copies, for as long as the mode is on."""

    def __init__(self, tensors: Mapping[str, Any]):
        super().__init__()
        self.names = list(tensors)
        self.runs: dict = {}  # key of a storage -> its runs, sorted
        self.computed: dict = {}  # key of a storage -> names whose values are in it, computed
        self.reasons: dict = {}  # name -> why it is not only copied
        self._kept: list = []  # so that no address is used twice
        for number, tensor in enumerate(tensors.values()):
            self._write(tensor, np.array([(tensor.storage_offset() * tensor.element_size(), tensor.nbytes, number, 0)], _runs.RUN))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before = {_runs.key_of(tensor) for tensor in tree_leaves((args, kwargs)) if self.is_watchable(tensor)}
        result = func(*args, **kwargs)
        packet = func.overloadpacket
        if packet is _aten.copy_:
            self._copy(args[0], args[1], func)
        elif packet is _aten._foreach_copy_:
            for target, source in zip(args[0], args[1]):
                self._copy(target, source, func)
        elif packet in (_aten.clone, _aten._to_copy, _aten.contiguous):
            self._copy(result, args[0], func)
        elif packet in (_aten.cat, _aten.stack):
            dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            at = 0
            for index, tensor in enumerate(args[0]):
                if packet is _aten.stack:
                    self._copy(result.select(dim, index), tensor, func)
                elif tensor.numel():
                    self._copy(result.narrow(dim, at, tensor.shape[dim]), tensor, func)
                    at += tensor.shape[dim]
        else:
            self._compute(func, args, kwargs, result, before)
        return result

    @staticmethod
    def is_watchable(tensor: Any) -> bool:
        return isinstance(tensor, _torch.Tensor) and tensor.layout == _torch.strided

    def names_in(self, tensor: Any) -> set:
        """The names whose bytes or values are in a tensor."""
        key = _runs.key_of(tensor)
        runs = self.runs.get(key, NONE)
        if len(runs):
            offsets, length = _runs.pieces(tensor)
            low, high = int(offsets.min()), int(offsets.max()) + length
            runs = runs[(runs["at"] < high) & (runs["at"] + runs["length"] > low)]
        return {self.names[number] for number in np.unique(runs["name"])} | self.computed.get(key, set())

    def _copy(self, target: Any, source: Any, func: Any) -> None:
        if not target.numel():
            return
        why = None
        if target.dtype != source.dtype:
            why = f"it is converted from {source.dtype} to {target.dtype}"
        elif tuple(target.shape) != tuple(source.shape):
            why = f"it is repeated, from the shape {list(source.shape)} to {list(target.shape)}"
        elif target.device.type not in ("cpu", "cuda"):
            why = f"it is copied to {target.device}"
        elif 0 in source.stride() and source.numel() > 1 or source.is_neg() or source.is_conj():
            why = f"{func} repeats or changes its elements"
        if why is not None or self.computed.get(_runs.key_of(source)):
            self._mix(target, self.names_in(source), why or f"{func} copies what was computed of it")
            return
        (at, length), (from_, from_length) = _runs.pieces(target), _runs.pieces(source)
        common = min(length, from_length)
        runs = _runs.copied(self.runs.get(_runs.key_of(source), NONE), _runs.split(from_, from_length, common),
                            _runs.split(at, length, common), common)
        self._write(target, runs)

    def _write(self, target: Any, runs: np.ndarray) -> None:
        key = _runs.key_of(target)
        self._kept.append(target.untyped_storage())
        held = self.runs.get(key, NONE)
        if len(held):
            for begin, length in zip(*_contiguous(target)):
                held = _runs.without(held, int(begin), int(begin + length))
        self.runs[key] = _runs.merged(np.concatenate([held, runs]), "at")

    def _mix(self, target: Any, names: set, why: str) -> None:
        """The target has something that is computed of these tensors, and no longer what it had."""
        for name in sorted(names):
            self.reasons.setdefault(name, why)
        if names:
            self._write(target, NONE)
            self.computed.setdefault(_runs.key_of(target), set()).update(names)

    def _compute(self, func: Any, args: Any, kwargs: Any, result: Any, before: set) -> None:
        """Any other operation: what it writes is computed of everything that it reads."""
        inputs = [tensor for tensor in tree_leaves((args, kwargs)) if self.is_watchable(tensor)]
        written = []
        for argument, value in zip(func._schema.arguments, args):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written += [tensor for tensor in tree_leaves(value) if self.is_watchable(tensor)]
        written += [value for name, value in kwargs.items() if name == "out" and self.is_watchable(value)]
        written += [tensor for tensor in tree_leaves(result) if self.is_watchable(tensor) and _runs.key_of(tensor) not in before]
        if written and func.overloadpacket not in (_aten.set_, _aten.empty_like, _aten.resize_):
            names = set().union(*(self.names_in(tensor) for tensor in inputs)) if inputs else set()
            for tensor in written:
                self._mix(tensor, names, f"{func} computes with it")


def _contiguous(tensor: Any) -> tuple:
    offsets, length = _runs.pieces(tensor)
    return offsets, np.full(len(offsets), length)

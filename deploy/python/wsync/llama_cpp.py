"""wsync in llama.cpp: a model that your process has loaded follows a trainer.

    link = wsync.llama_cpp.attach(model, "host0", "r0", names="qwen3moe")
    while True:
        link.poll(0 if link.serving else None)      # between two calls of llama_decode
        if link.serving:
            llama_decode(context, batch)
            link.step += 1

`model` is a `llama_model *`. Tensors whose type is that of the versions are written in place, into the memory of ggml; the others,
such as norms, which GGUF keeps in F32, are received beside it and converted. No file is written or read.

The model must have been loaded with `load_mode = LLAMA_LOAD_MODE_NONE` (a file that is mapped cannot be written) and
`use_extra_bufts = false` (repacked weights have another order in memory). The key-value cache is yours: clear it after a switch
(`link.version` has changed) if a generation must not mix versions in its attention. Names are mapped by the tables of the package
`gguf`, which must be installed.

The adapter needs a C++ symbol of llama.cpp, `llama_model::get_tensor`, because its C API gives no tensors, and refuses a library
without it. It cannot serve `xllamacpp.Server`, whose own threads decode, and which gives nobody its model.

Run with: xllamacpp 2026.10.11549 through ctypes, gguf 0.19.0, Qwen3 and Qwen3-MoE in F32 and BF16 on the CPU. Not run: GPUs, other
builds of llama.cpp, other architectures. `wsync verify` reads what was received for a converted tensor, and not the conversion.
"""
from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Optional, Union

import numpy as np

from ._dtypes import dtype_name_of
from ._errors import InvalidInput, Refused
from ._ggml import ARCHITECTURES, DTYPES, ROPE_NEOX, Library, tensors_of
from ._tensors import Array, as_dtype, storage_dtype
from ._values import Version
from .replica import Replica


def _float32(array: Array) -> np.ndarray:
    """float32 of F32, F16 or BF16."""
    if array.dtype_name == "BF16":
        return (np.asarray(array).astype(np.uint32) << 16).view(np.float32)
    return np.asarray(array).astype(np.float32)


def _convert(source: Array, target: Array) -> None:
    """Writes F32, F16 or BF16 as another of them, rounded to nearest, ties to even."""
    if source.dtype_name == target.dtype_name:
        np.asarray(target)[...] = source
        return
    values = _float32(source)
    if target.dtype_name == "BF16":
        bits = values.view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        np.asarray(target)[...] = np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
    else:
        np.asarray(target)[...] = values


class Link(Replica):
    """The link of a model of llama.cpp: a `Replica` that is polled between two decodes. Made by `attach`.

    Attributes:
        version: the `Version` that the model has. None: its own weights; or no version at all, from the begin of a load to its
            commit (also if it fails), and after `suspend`.
        in_place: how many tensors are written directly into the memory of ggml.
        converted: the names of those that are not.
    """

    def __init__(self, sidecar: str, replica: str, held: Mapping[str, list], dtype: str):
        self.version: Optional[Version] = None
        self._copies: dict = {}  # name -> (what arrives, where it goes), for each array that has a part of it
        received = {name: self._destination(name, arrays, dtype) for name, arrays in held.items()}
        self.converted = sorted(self._copies)
        self.in_place = len(held) - len(self.converted)
        super().__init__(sidecar, replica, received, serving=True)

    def _destination(self, name: str, arrays: list, dtype: str) -> Array:
        """Where the library writes a tensor: the one place that decides it."""
        if len(arrays) == 1 and arrays[0].dtype_name == dtype:
            return arrays[0]
        rows = sum(array.shape[-2] for array in arrays) if len(arrays) > 1 else 0
        shape = arrays[0].shape if not rows else (*arrays[0].shape[:-2], rows, arrays[0].shape[-1])
        beside = as_dtype(np.empty(shape, storage_dtype(dtype)), dtype)
        parts = [beside] if not rows else np.split(beside, np.cumsum([array.shape[-2] for array in arrays])[:-1], axis=-2)
        self._copies[name] = list(zip(parts, arrays))
        return beside

    def on_load_begin(self, version: Version) -> None:
        self.version = None

    def on_load_layer(self, version: Version, layer: int, tensors: Mapping[str, Any]) -> None:
        for name in tensors:
            for received, target in self._copies.get(name, ()):
                _convert(received, target)

    def on_commit(self, version: Version) -> None:
        self.version = version

    def _after_suspend(self) -> None:
        self.version = None


def attach(llama: Any, sidecar: str, replica: str, names: Optional[str] = None, *, dtype: Any = "BF16",
           fused_experts: bool = False, library: Union[str, ctypes.CDLL, None] = None) -> Link:
    """Makes a model of llama.cpp follow the trainer of a fleet.

    Args:
        llama: the `llama_model *`, as an integer or a pointer of ctypes. It must outlive the link: close the link first.
        sidecar: the name of the sidecar, or the absolute path of its engine socket, as for `wsync.Replica`.
        replica: the name of the replica.
        names: the architecture whose names the versions have: "qwen3" or "qwen3moe". None: the model's own.
        dtype: of the versions: "BF16", "F16" or "F32". Tensors of another type are converted on the way.
        fused_experts: the versions have the experts of a layer in two tensors, `gate_up_proj` and `down_proj`, as `state_dict` of
            transformers 5 has. False: a tensor for each matrix of each expert, as in checkpoints.
        library: the shared library that has loaded the model, or its path. None: that of xllamacpp.

    Returns:
        The link. Poll it between two decodes, and close it before the model is freed.

    Raises:
        InvalidInput: an argument is wrong.
        Refused: the model cannot be updated: it is mapped from its file, repacked, quantized, on a device, of an architecture that
            this adapter does not know, or its library lacks a symbol. The sentence names the tensor.
        InvalidInput: the socket's path or the name breaks a rule.
        NotFound: no sidecar of this name runs on this host.
        ImportError: the package `gguf` is not installed.
    """
    given = dtype
    try:
        dtype = dtype_name_of(dtype)
    except InvalidInput:
        pass  # it is none of these either
    if dtype not in DTYPES.values():
        raise InvalidInput(f"dtype is '{given}', expected one of {', '.join(sorted(DTYPES.values()))}")
    address = llama if isinstance(llama, int) else ctypes.cast(llama, ctypes.c_void_p).value
    if not address:
        raise InvalidInput("the llama_model is a null pointer: it was not loaded")
    found = Library(library)
    text = ctypes.create_string_buffer(64)
    found.call("llama_model_meta_val_str", ctypes.c_int32, ctypes.c_void_p(address), b"general.architecture", text,
               ctypes.c_size_t(len(text)))
    architecture = text.value.decode(errors="replace")
    if names is not None and names != architecture:
        raise Refused(f"the model's architecture is {architecture}, and `names` is {names}")
    rope = found.call("llama_model_rope_type", ctypes.c_int, ctypes.c_void_p(address))
    if architecture not in ARCHITECTURES or rope != ROPE_NEOX:
        rows = "" if rope == ROPE_NEOX else ", whose GGUF has the rows of q and k in another order than the checkpoint"
        raise Refused(f"the model's architecture is {architecture}{rows}; this adapter knows {' and '.join(ARCHITECTURES)}")
    return Link(sidecar, replica, tensors_of(found, address, architecture, fused_experts), dtype)

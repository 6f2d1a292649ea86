"""Memory of a GPU that a user gives: tensors of torch, and objects with `__cuda_array_interface__` (CuPy, Numba and others).
Nothing here imports torch or loads CUDA."""
from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple, Optional

import numpy as np

from ._errors import InvalidInput
from ._tensors import _NAME_OF, _NAME_OF_WORD, storage_dtype


class DeviceMemory(NamedTuple):
    """Memory of a GPU, dense and row-major."""

    pointer: int  # its address on the GPU; 0 if it has no bytes
    gpu: Optional[int]  # number of the GPU among those that this process sees; None: the object does not say
    dtype: str  # a name of safetensors
    shape: tuple
    bytes: int
    writable: bool = True
    # A CUstream whose submitted work uses the memory: 1 is the legacy default stream, 2 that of the calling thread. None: no work is
    # under way.
    stream: Optional[int] = None


def device_memory(given: Any) -> Optional[DeviceMemory]:
    """Reads where the memory of an object is, if it is on a GPU.

    Args:
        given: a tensor of torch, or an object with `__cuda_array_interface__`. An attribute `dtype_name` gives the name of a dtype
            that the interface has no name for, such as "BF16" for elements of 2 bytes. `__dlpack_device__`, if the object has it,
            says which GPU it is.

    Returns:
        The memory, or None if the object has no memory of a GPU. The object owns the memory: keep it alive.

    Raises:
        InvalidInput: it is on a GPU, but it is not dense and row-major, or its dtype has no name in safetensors.
    """
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "Tensor") and isinstance(given, torch.Tensor):
        return _of_torch(torch, given) if given.device.type == "cuda" else None
    interface = getattr(given, "__cuda_array_interface__", None)
    return None if interface is None else _of_interface(given, interface)


def _of_torch(torch: Any, tensor: Any) -> DeviceMemory:
    dtype = _NAME_OF_WORD.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None:
        raise InvalidInput(f"the dtype {tensor.dtype} has no name in safetensors")
    if tensor.is_conj() or tensor.is_neg():
        is_both = tensor.is_conj() and tensor.is_neg()
        kind = "conjugated and negated" if is_both else "conjugated" if tensor.is_conj() else "negated"
        advice = ".resolve_conj()" * tensor.is_conj() + ".resolve_neg()" * tensor.is_neg()
        raise InvalidInput(f"a tensor on {tensor.device} with the shape {list(tensor.shape)} is a {kind} view, whose values are not what "
                           f"is in its memory; give tensor{advice}")
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        raise InvalidInput(f"a tensor on {tensor.device} with the shape {list(tensor.shape)} is not contiguous in row-major order; "
                           "give tensor.contiguous()")
    return DeviceMemory(tensor.data_ptr(), tensor.device.index, dtype, tuple(tensor.shape),
                        tensor.numel() * tensor.element_size(), True, torch.cuda.current_stream(tensor.device).cuda_stream or 1)


def _of_interface(given: Any, interface: dict) -> DeviceMemory:
    shape = tuple(int(extent) for extent in interface["shape"])
    plain = np.dtype(interface["typestr"])
    dtype = getattr(given, "dtype_name", None) or (_NAME_OF.get(plain) if plain.isnative else None)
    if dtype is None:
        raise InvalidInput(f"the type '{interface['typestr']}' of its __cuda_array_interface__ has no name in safetensors; an "
                           "attribute `dtype_name` of the object can name it")
    if storage_dtype(dtype).itemsize != plain.itemsize:
        raise InvalidInput(f"elements of type '{interface['typestr']}' have {plain.itemsize} bytes, those of {dtype} "
                           f"{storage_dtype(dtype).itemsize}")
    if interface.get("mask") is not None:
        raise InvalidInput("its __cuda_array_interface__ has a mask; only arrays without one can be given")
    if not _is_dense(shape, interface.get("strides"), plain.itemsize):
        raise InvalidInput(f"its __cuda_array_interface__ has the strides {tuple(interface['strides'])} for the shape "
                           f"{list(shape)}, which is not contiguous in row-major order")
    pointer, read_only = interface["data"]
    stream = interface.get("stream")
    if stream == 0:
        raise InvalidInput("its __cuda_array_interface__ names the stream 0, which the interface does not allow")
    return DeviceMemory(int(pointer or 0), _gpu_of(given), dtype, shape, math.prod(shape) * plain.itemsize, not read_only,
                        None if stream is None else int(stream))


def _gpu_of(given: Any) -> Optional[int]:
    """The number of the GPU, as DLPack has it (kDLCUDA is 2)."""
    if not hasattr(given, "__dlpack_device__"):
        return None
    kind, number = given.__dlpack_device__()
    return int(number) if int(kind) == 2 else None


def _is_dense(shape: tuple, strides: Any, item_bytes: int) -> bool:
    if strides is None or 0 in shape:
        return True
    expected = item_bytes
    for extent, stride in zip(reversed(shape), reversed(tuple(strides))):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True

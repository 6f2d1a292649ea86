"""Tensors of NumPy and torch as name of the dtype, shape and address. Nothing here imports torch: a tensor of torch can only come
from a program that has imported it."""
from __future__ import annotations

import contextlib
import gc
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from ._dtypes import (_ALIASES, _NAME_OF, _NAME_OF_WORD, _NUMPY, _RAW, _STORAGE, CASTS, dtype_name_of,  # noqa: F401
                      storage_dtype)
from ._errors import InvalidInput
from ._native import core


class Array(np.ndarray):
    """A NumPy array that knows the dtype of its elements where NumPy has no name for it.

    `array.dtype_name` is the name in safetensors, for example "BF16" for an array of uint16. Slices and views keep it as long as
    their dtype is that unsigned integer.
    """

    _raw_name: Optional[str] = None

    def __array_finalize__(self, source: Any) -> None:
        self._raw_name = getattr(source, "_raw_name", None)

    @property
    def dtype_name(self) -> str:
        """The name of the dtype, as in safetensors."""
        if self._raw_name is not None and self.dtype == _STORAGE[self._raw_name]:
            return self._raw_name
        return _NAME_OF.get(self.dtype, str(self.dtype))


def as_dtype(array: np.ndarray, dtype_name: Any) -> Array:
    """The same memory, known as elements of `dtype_name`: for example uint16 as "BF16".

    Args:
        array: elements of the same size as `dtype_name`.
        dtype_name: a name of safetensors, or a usual alias such as "bfloat16", or a dtype of torch or NumPy.

    Raises:
        InvalidInput: the elements have another size, or the dtype is not known; the sentence has the nearest name.
    """
    dtype_name = dtype_name_of(dtype_name)
    wanted = storage_dtype(dtype_name)
    if array.dtype.itemsize != wanted.itemsize:
        raise InvalidInput(f"elements of {array.dtype} have {array.dtype.itemsize} bytes, those of {dtype_name} {wanted.itemsize}")
    view = array.view(wanted).view(Array)
    view._raw_name = dtype_name if dtype_name in _RAW else None
    return view


class Range(NamedTuple):
    """A range of one dimension of a tensor, in elements."""

    dim: int
    begin: int
    length: int


@dataclass(frozen=True)
class Shard:
    """A part of a tensor that this rank has: the part itself, the shape of the whole tensor, and which part it is.

    A trainer's part is one range along one dimension. An engine's part may have several ranges.
    """

    tensor: Any
    shape: Sequence[int]
    ranges: Sequence[Range] = ()


@dataclass(frozen=True)
class Spec:
    """The description of a tensor without its memory."""

    dtype: str  # a name of safetensors; an alias or a dtype of torch or NumPy may be given, and becomes that name
    shape: Sequence[int]  # of the whole tensor
    ranges: Sequence[Range] = field(default=())

    def __post_init__(self) -> None:
        # Of a version there may be others, which NumPy cannot hold.
        if not isinstance(self.dtype, str) or self.dtype.lower().removeprefix("torch.") in _ALIASES:
            object.__setattr__(self, "dtype", dtype_name_of(self.dtype))


class Described(NamedTuple):
    """A tensor for the library."""

    name: str
    dtype: str
    shape: tuple  # of the whole tensor
    ranges: tuple
    own: Any  # the array or tensor of this part; None: no memory
    address: Optional[int] = None  # of its bytes, if they are known to be in row-major order
    gpu: Optional[int] = None  # the GPU on which they are; None: the memory of the host
    stream: int = 0  # a CUstream whose submitted work comes first; 0: none

    def dense(self) -> tuple:
        """The address of the part's bytes in row-major order, and what keeps them alive. A copy, if the part is not contiguous."""
        if self.address is not None:
            return self.address, self.own
        if isinstance(self.own, np.ndarray):
            array = self.own if self.own.flags.c_contiguous else np.ascontiguousarray(self.own)
            return array.ctypes.data, array
        tensor = self.own.contiguous()
        return tensor.data_ptr(), tensor

    def memory(self) -> Optional[tuple]:
        """What is equal for two names of the same memory (tied weights). None: it has no bytes."""
        if 0 in (self.own.shape if self.gpu is None else part_shape(self.shape, self.ranges)):
            return None
        # The same for a tensor whose order is known already and for one that was looked at closer.
        address, strides = self.address, None
        if address is None and isinstance(self.own, np.ndarray):
            address, strides = self.own.ctypes.data, None if self.own.flags.c_contiguous else self.own.strides
        elif address is None:
            address, strides = self.own.data_ptr(), None if self.own.is_contiguous() else self.own.stride()
        return address, strides, self.dtype, self.shape, self.ranges


def part_shape(shape: Sequence[int], ranges: Sequence[Range]) -> tuple:
    """The shape of the part that the ranges take."""
    part = list(shape)
    for dim in {r.dim for r in ranges}:
        part[dim] = sum(r.length for r in ranges if r.dim == dim)
    return tuple(part)


def is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "Tensor") and isinstance(tensor, torch.Tensor)


def copyable(tensor: Any) -> Any:
    """A tensor of torch where the library can copy it: itself in the memory of the host or of a CUDA GPU, otherwise a copy."""
    return tensor if tensor.device.type in ("cpu", "cuda") else tensor.cpu()


def _is_wrapper(torch: Any, tensor: Any) -> bool:
    """Whether it is a tensor of torch.func, such as vmap and grad pass it to a function: it has no memory of its own."""
    check = getattr(getattr(getattr(torch, "_C", None), "_functorch", None), "is_functorch_wrapped_tensor", None)
    return check is not None and check(tensor)


def _read_torch(name: str, tensor: Any, writable: bool) -> tuple:
    torch = sys.modules["torch"]
    if _is_wrapper(torch, tensor):
        raise InvalidInput(f"tensor {name} was made inside of a transform of torch.func (such as vmap or grad): it is a functorch wrapper "
                           "of another tensor and has no memory of its own. Return it from the function that is transformed, and give "
                           "what the transform returns", tensor=name)
    if hasattr(tensor, "to_local") or hasattr(tensor, "full_tensor"):
        raise InvalidInput(f"tensor {name} is a {type(tensor).__name__}: give its local part as wsync.Shard(tensor.to_local(), "
                           "shape, ranges), or tensor.full_tensor()", tensor=name)
    if tensor.device.type != "cpu":
        raise InvalidInput(f"tensor {name} is on {tensor.device}" + (", so it has no values" if tensor.device.type == "meta" else
                                                                     ": give its copy in the memory of the host, tensor.cpu()"), tensor=name)
    if tensor.layout != torch.strided:
        raise InvalidInput(f"tensor {name} has the layout {tensor.layout}; only dense tensors can be given", tensor=name)
    if tensor.is_conj() or tensor.is_neg():
        if writable:
            raise InvalidInput(f"tensor {name} is a conjugated or negated view, so its values are not what is in memory, and the library "
                               "cannot write into it; give the tensor that it is a view of, or its own copy: "
                               "tensor.resolve_conj().resolve_neg()", tensor=name)
        tensor = tensor.resolve_conj().resolve_neg()
    word = str(tensor.dtype).removeprefix("torch.")
    dtype = _NAME_OF_WORD.get(word)
    if dtype is None:
        raise InvalidInput(f"tensor {name} has the dtype {tensor.dtype}, which has no name in safetensors", tensor=name)
    if not tensor.dtype.is_complex:  # which may be conjugated when it is read
        _TORCH_DTYPES[tensor.dtype] = dtype
    if writable and not tensor.is_contiguous():
        raise InvalidInput(f"tensor {name} is not contiguous, so the library cannot write into it", tensor=name)
    return dtype, tuple(tensor.shape), tensor.detach()


def _as_array(name: str, given: Any, writable: bool) -> np.ndarray:
    """The array of a scalar of NumPy, or of an object with `__array_interface__`."""
    array = np.asarray(given)
    # An object that makes a copy makes another one now, while the first one is still there.
    if writable and array.size != 0 and np.asarray(given).ctypes.data != array.ctypes.data:
        raise InvalidInput(f"tensor {name} is a {type(given).__name__}, of which NumPy gets a copy, so the library cannot write into it; "
                           "give an array of NumPy", tensor=name)
    return array


def _read_numpy(name: str, array: np.ndarray, writable: bool) -> tuple:
    dtype = getattr(array, "dtype_name", None) or _NAME_OF.get(array.dtype) or _NAME_OF_WORD.get(array.dtype.name)
    if dtype is None or not array.dtype.isnative:
        raise InvalidInput(f"tensor {name} has the NumPy dtype {array.dtype}; expected numbers in the byte order of this machine; "
                           "for BF16 and F8 use wsync.as_dtype, or ml_dtypes", tensor=name)
    if writable and not (array.flags.c_contiguous and array.flags.writeable):
        raise InvalidInput(f"tensor {name} must be contiguous and writable, because the library writes into it", tensor=name)
    return dtype, tuple(array.shape), array


_TORCH_DTYPES: dict = {}  # dtype of torch -> name in safetensors, as far as they have been seen


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses the cyclic garbage collector, if it is on.

    A publish makes a few tuples for each tensor, which hold no cycles. 20,000 tensors would start the collector some eighty times, and
    about every second publish a full collection, which takes 90 ms in a process that has imported torch.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def describe_all(tensors: Union[Mapping, Iterable], describe_one: Optional[Callable] = None) -> list:
    """`describe` of each tensor of a publish. `describe_one`: in place of `describe`, and takes tensors of torch on GPUs too.

    A model has thousands of tensors, and each publish reads all of them. Most are whole arrays or tensors in row-major order, for
    which this reads only what is needed. `describe` looks closer at any other, and says what is wrong.
    """
    torch = sys.modules.get("torch")
    tensor_types = () if torch is None or not hasattr(torch, "Tensor") else (torch.Tensor, torch.nn.Parameter)
    strided = None if torch is None else getattr(torch, "strided", None)
    make, described = tuple.__new__, []
    for name, given in pairs(tensors):
        kind = type(given)
        if kind in tensor_types:
            dtype = _TORCH_DTYPES.get(given.dtype)
            if dtype is not None and given.layout is strided and given.is_contiguous() and not given.is_neg():
                try:
                    if given.is_cpu:
                        described.append(make(Described, (name, dtype, given.shape, (), given, given.data_ptr(), None, 0)))
                        continue
                    if given.is_cuda and describe_one is not None:
                        gpu = given.device.index
                        described.append(make(Described, (name, dtype, given.shape, (), given, given.data_ptr(), gpu, 0)))
                        continue
                except RuntimeError:  # it has no memory: what describes one tensor says why
                    pass
        elif (kind is np.ndarray or kind is Array) and given.flags.c_contiguous:
            dtype = _NAME_OF.get(given.dtype) if kind is np.ndarray or given._raw_name is None else given.dtype_name
            if dtype in _NUMPY or dtype in _RAW:
                described.append(make(Described, (name, dtype, given.shape, (), given, core.address(given), None, 0)))
                continue
        described.append((describe_one or describe)(name, given))
    return described


def without_tied(described: list) -> list:
    """Without those that are other names for the same memory as an earlier one."""
    addresses = {one.address for one in described}
    if len(addresses) == len(described) and None not in addresses:
        return described
    first: dict = {}
    for one in described:
        first.setdefault(one.memory() or one.name, one)
    return list(first.values())


def describe(name: str, given: Any, *, writable: bool = False, memory: bool = True) -> Described:
    """Reads what a user gives for a tensor: an array, a tensor of torch, a `Shard` or a `Spec`.

    `memory`: whether a `Spec`, which has none, is refused. `writable`: whether the library is to write into the memory.
    It is then refused unless `own` is over the memory that is given. `own` keeps that memory alive, whatever is done with the object
    that is given: of a tensor of torch it is an alias, because `tensor.data = other` lets go of the memory.
    """
    if isinstance(given, Spec):
        if memory:
            raise InvalidInput(f"tensor {name} is a Spec, which has no memory; expected an array of NumPy or a tensor of torch", tensor=name)
        return Described(name, dtype_name_of(given.dtype, f"tensor {name}: dtype"), tuple(given.shape), tuple(Range(*r) for r in given.ranges), None)
    given, shape, ranges = parts_of(given)
    if is_torch(given):
        dtype, own_shape, own = _read_torch(name, given, writable)
    elif isinstance(given, np.ndarray):
        dtype, own_shape, own = _read_numpy(name, given, writable)
    elif hasattr(given, "__array_interface__"):  # also a scalar of NumPy
        dtype, own_shape, own = _read_numpy(name, _as_array(name, given, writable), writable)
    else:
        raise InvalidInput(f"tensor {name} is a {type(given).__name__}; expected an array of NumPy or a tensor of torch",
                           tensor=name)
    return described_part(name, dtype, own_shape, shape, ranges, own)


def parts_of(given: Any) -> tuple:
    """What a user gives for a tensor, as (its part, the shape of the whole or None, its ranges)."""
    if isinstance(given, Shard):
        return given.tensor, given.shape, tuple(Range(*r) for r in given.ranges)
    return given, None, ()


def described_part(name: str, dtype: str, own_shape: tuple, shape: Optional[Sequence[int]], ranges: tuple, own: Any,
                   address: Optional[int] = None) -> Described:
    """The description of a part, whose shape is compared with what its ranges take of the whole."""
    whole = own_shape if shape is None else tuple(shape)
    expected = part_shape(whole, ranges) if all(0 <= r.dim < len(whole) for r in ranges) else None
    if expected is not None and expected != own_shape:
        raise InvalidInput(f"tensor {name}: the part has the shape {list(own_shape)}, its ranges {[tuple(r) for r in ranges]} of "
                           f"{list(whole)} have {list(expected)}", tensor=name)
    return Described(name, dtype, whole, ranges, own, address)


def pairs(tensors: Union[Mapping, Iterable]) -> Iterable:
    """(name, tensor) of a mapping, of an iterable of such pairs, or of a module with state_dict()."""
    if not isinstance(tensors, Mapping) and hasattr(tensors, "state_dict"):
        tensors = tensors.state_dict()
    if isinstance(tensors, Mapping):
        return tensors.items()
    if not isinstance(tensors, Iterable) or isinstance(tensors, (str, bytes)) or is_torch(tensors) or isinstance(tensors, np.ndarray):
        raise InvalidInput(f"tensors is a {type(tensors).__name__}, expected a mapping of names to tensors, such as model.state_dict()")
    return _checked(tensors)


def _checked(tensors: Iterable) -> Iterator:
    for pair in tensors:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidInput(f"tensors has a {type(pair).__name__}, expected (name, tensor) pairs, such as model.named_parameters()")
        yield pair


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays of one dtype have the same bytes: not-a-number is equal to itself, and 0 is not -0."""
    return np.array_equal(np.asarray(a).view(f"u{a.dtype.itemsize}"), np.asarray(b).view(f"u{b.dtype.itemsize}"))


def array_of(memory: Any, dtype: str, shape: Sequence[int]) -> Array:
    """An array over an object with the buffer protocol."""
    if math.prod(shape) == 0:
        return as_dtype(np.empty(shape, storage_dtype(dtype)), dtype)
    return as_dtype(np.frombuffer(memory, storage_dtype(dtype)).reshape(shape), dtype)

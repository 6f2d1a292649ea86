"""A version that is being written, and the parts of tensors that are written into it."""
from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from . import _tensors
from ._device_memory import device_memory
from ._dtypes import dtype_name_of
from ._errors import Error, InvalidInput, make
from ._exit import OfOneProcess
from ._native import core
from ._publish import Publish
from ._tensors import Array, Range, array_of, describe

if TYPE_CHECKING:
    from .publisher import Publisher


def range_of(name: str, ranges: Sequence) -> Optional[tuple]:
    if len(ranges) > 1:
        raise InvalidInput(f"tensor {name} has {len(ranges)} ranges; a rank of a trainer has one range of a tensor", tensor=name)
    return tuple(Range(*ranges[0])) if ranges else None


def describe_part(name: str, given: Any, gpu: int, with_memory: bool = True) -> _tensors.Described:
    """`_tensors.describe`, and the same for tensors of torch on GPUs and for objects with `__cuda_array_interface__`. `gpu`: of
    objects that do not say it."""
    own, shape, ranges = _tensors.parts_of(given)
    is_torch = _tensors.is_torch(own)
    if is_torch and own.device.type == "cuda" and not hasattr(own, "to_local"):
        own = own.detach().resolve_conj().resolve_neg().contiguous()
    try:
        memory = None if is_torch and own.device.type != "cuda" or hasattr(own, "to_local") else device_memory(own)
    except InvalidInput as failure:
        raise InvalidInput(f"tensor {name}: {failure}", tensor=name) from None
    if memory is None:
        return describe(name, given, memory=with_memory)
    described = _tensors.described_part(name, memory.dtype, memory.shape, shape, ranges, own, memory.pointer)
    # The stream of torch is waited for once for all of its tensors.
    return described._replace(gpu=gpu if memory.gpu is None else memory.gpu, stream=0 if is_torch else memory.stream or 0)


def wait_for_torch(described: Iterable[_tensors.Described]) -> None:
    """Waits for what the current streams of torch still do with these tensors."""
    for gpu in {one.gpu for one in described if one.gpu is not None and _tensors.is_torch(one.own)}:
        sys.modules["torch"].cuda.current_stream(gpu).synchronize()


def caller() -> str:
    """The file and the line outside of this package that calls it."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        frame = frame.f_back
    return "an unknown line" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


_NO_SCALES = np.empty(0, np.float32)


def check_name(name: Any) -> None:
    """A name is a text of UTF-8 without a zero byte, as in safetensors."""
    if not isinstance(name, str):
        raise InvalidInput(f"the name of a tensor is {name!r} ({type(name).__name__}), expected a str")
    if not name or "\0" in name or any("\ud800" <= letter <= "\udfff" for letter in name):
        raise InvalidInput(f"the name of a tensor is {name!r}, expected text without zero bytes and surrogates", tensor=ascii(name))


def _put(raw: "core.Draft", part: _tensors.Described, dtype: Optional[str] = None, scales: np.ndarray = _NO_SCALES,
         compute_scales: bool = False) -> None:
    """Writes a part. The memory is kept alive until the library has returned."""
    address, owner = part.dense()
    try:
        raw.put(part.name, part.dtype, dtype, list(part.shape), range_of(part.name, part.ranges), address, scales.ctypes.data,
                scales.size, compute_scales, part.gpu, part.stream)
    except Error as failure:
        failure.tensor = part.name
        raise
    del owner


def put_all(raw: "core.Draft", parts: list) -> None:
    """Writes parts in the dtype that was described. Those in row-major order are given to the library together; any other is
    copied and written alone, so that there is one such copy at a time."""
    together = [one for one in parts if one.address is not None]
    code, sentence, failed = raw.put_all(together)
    if code != 0:
        failure = make(code, sentence)
        failure.tensor = together[failed].name if failed < len(together) else None
        raise failure
    for one in parts:
        if one.address is None:
            _put(raw, one)


class Draft(OfOneProcess):
    """A version that is being written: `with publisher.version() as version`. It is published at the end of the block, and
    abandoned if the block raises an exception."""

    def __init__(self, publisher: "Publisher", raw: "core.Draft", described: dict):
        self._publisher = publisher
        self._raw = raw
        self._described = described  # name -> (dtype, shape of this rank's part), as far as Python knows
        self._views: dict = {}
        self._publish: Optional[Publish] = None
        self._is_open = True
        self._begun_at = caller()

    @property
    def publish(self) -> Publish:
        """The publish, after the block."""
        if self._publish is None:
            raise InvalidInput("the version has not been published; `publish` is there after the end of its block")
        return self._publish

    def put(self, name: str, tensor: Any, *, dtype: Any = None, scales: Any = None, ranges: Sequence = (),
            shape: Optional[Sequence[int]] = None) -> None:
        """Writes a tensor, or a part of one, into the version. Any order, any thread, several at a time.

        The bytes are converted, copied and summed in one pass; the tensor may be changed after the call. One that is not
        contiguous in row-major order is first copied as a whole, which is the only other copy.

        Args:
            name: the name that the engines have.
            tensor: an array of NumPy, a tensor of torch in the memory of the host or of a GPU, or an object with
                `__cuda_array_interface__`. Memory of a GPU is converted there and then copied; with `scales` it is converted on the host.
            dtype: the dtype that is published: a name of safetensors, a usual alias such as "bfloat16", or a dtype of torch or
                NumPy. None: as described, or that of the tensor. F32, F16 and BF16 are
                converted into each other and to F8_E4M3, rounded to nearest, ties to even.
            scales: for F8_E4M3; a published value times its scale is the weight. A number: the scale of the whole part. An array
                of float32: one scale for each block of 128 x 128 of the last two dimensions, row-major. "compute": each block's
                scale is its largest magnitude / 448, and is published as the F32 tensor `name`_scale_inv.
            ranges: at most one (dim, begin, length): `tensor` is that part of the whole tensor.
            shape: the shape of the whole tensor, if `ranges` is given.

        Raises:
            NotFound: the version has no tensor of that name.
            InvalidInput: shape, dtype, range or scales do not fit.
            Refused: this part was put already, or the version has ended. Nothing counts as put then.
        """
        if isinstance(tensor, _tensors.Shard) and (ranges or shape is not None):
            raise InvalidInput(f"tensor {name} is a Shard, which has its shape and ranges already", tensor=name)
        if ranges and shape is None:
            raise InvalidInput(f"tensor {name}: ranges need the shape of the whole tensor", tensor=name)
        if shape is not None:
            tensor = _tensors.Shard(tensor, shape, ranges)
        part = describe_part(name, tensor, self._publisher._gpu)
        wait_for_torch([part])
        computes = isinstance(scales, str)
        if computes and scales != "compute":
            raise InvalidInput(f"tensor {name}: scales is '{scales}', expected 'compute', a number or an array of float32",
                               tensor=name)
        dtype = None if dtype is None else dtype_name_of(dtype, f"tensor {name}: dtype")
        numbers = np.empty(0, np.float32)
        if scales is not None and not computes:
            numbers = np.ascontiguousarray(scales, dtype=np.float32).reshape(-1)
        _put(self._raw, part, dtype, numbers, computes)
        self._described.setdefault(name, (dtype or part.dtype, _tensors.part_shape(part.shape, part.ranges)))

    def tensor(self, name: str) -> Array:
        """The memory of a tensor in the version, to be written in place, without any copy: this rank's part, in the published
        dtype.

        The tensor must have been described, by an earlier version or by `Publisher.describe`. All of it must be written before the
        end of the block. At the end, the array is taken off the version: it may be kept, but it reads zeros, until you write to it,
        and what you write is published nowhere. It never changes a version that has been published.

        Raises:
            NotFound: nobody has described it.
            Refused: a part of the tensor was put, or the version has ended.
        """
        try:
            memory = self._raw.map(name)
        except Error as failure:
            failure.tensor = name
            raise
        self._views.setdefault(name, []).append(memory)
        dtype, shape = self._described.get(name, ("U8", (len(memory),)))
        return array_of(memory, dtype, shape)

    def _detach(self) -> None:
        for memories in self._views.values():
            for memory in memories:
                memory.detach()
        self._views.clear()

    def end(self) -> Publish:
        """Publishes what was written; the end of the block calls it. After a failure the version is abandoned.

        Returns when the weights of all ranks are in the version.

        Raises:
            Refused: a tensor is not complete; the sentence names it.
        """
        self._is_open = False
        try:
            self._detach()
            self._publish = Publish(self._publisher._raw, self._raw.end())
            self._publisher._publishes.append(self._publish)
        except BaseException:
            self._raw.abandon()  # nothing, once the library has begun to end it
            raise
        return self._publish

    def abandon(self) -> None:
        """Drops the version."""
        self._is_open = False
        self._detach()
        self._raw.abandon()

    def __enter__(self) -> "Draft":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.end()
        else:
            self.abandon()

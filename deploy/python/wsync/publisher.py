"""Publishing weights from a trainer."""
from __future__ import annotations

import difflib
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np

from . import _tensors
from ._device_memory import device_memory
from ._dtypes import dtype_name_of
from ._errors import Busy, Error, InvalidInput, make
from ._exit import close_at_exit
from ._last_tensors import LastTensors
from ._native import core
from ._publish import Publish
from ._tensors import Array, Range, array_of, describe, pairs
from ._values import RollBack, Version, step_of, version_or_none

Tensors = Union[Mapping[str, Any], Iterable[tuple]]


def _texts(settings: Union[Mapping[str, Any], Iterable[str], None], prefix: str = "") -> list:
    """Settings as "key=value"; a mapping may be nested, as the file is."""
    if settings is None:
        return []
    if isinstance(settings, str):
        return [settings]
    if not isinstance(settings, (Mapping, Iterable)):
        raise InvalidInput(f"settings is {settings!r}, expected a mapping such as {{\"bucket_bytes\": \"8MiB\"}}, or \"key=value\" texts")
    if not isinstance(settings, Mapping):
        return [str(setting) for setting in settings]
    texts = []
    for key, value in settings.items():
        if not isinstance(key, str):
            raise InvalidInput(f"settings has the key {key!r}, expected a text such as \"bucket_bytes\"")
        if isinstance(value, Mapping):
            texts += _texts(value, f"{prefix}{key}.")
        else:
            texts.append(f"{prefix}{key}={str(value).lower() if isinstance(value, bool) else value}")
    return texts


def _step(step: Optional[int]) -> int:
    return 0 if step is None else step_of(step)


def _range(name: str, ranges: Sequence) -> Optional[tuple]:
    if len(ranges) > 1:
        raise InvalidInput(f"tensor {name} has {len(ranges)} ranges; a rank of a trainer has one range of a tensor", tensor=name)
    return tuple(Range(*ranges[0])) if ranges else None


def _describe(name: str, given: Any, gpu: int, with_memory: bool = True) -> _tensors.Described:
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


def _wait_for_torch(described: Iterable[_tensors.Described]) -> None:
    """Waits for what the current streams of torch still do with these tensors."""
    for gpu in {one.gpu for one in described if one.gpu is not None and _tensors.is_torch(one.own)}:
        sys.modules["torch"].cuda.current_stream(gpu).synchronize()


# The publishers of this process that coordinate a fleet and are not closed.
_coordinators: "weakref.WeakSet[Publisher]" = weakref.WeakSet()


def _caller() -> str:
    """The file and the line outside of this package that calls it."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        frame = frame.f_back
    return "an unknown line" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


_NO_SCALES = np.empty(0, np.float32)


def _check_name(name: Any) -> None:
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
        raw.put(part.name, part.dtype, dtype, list(part.shape), _range(part.name, part.ranges), address, scales.ctypes.data,
                scales.size, compute_scales, part.gpu, part.stream)
    except Error as failure:
        failure.tensor = part.name
        raise
    del owner


def _put_all(raw: "core.Draft", parts: list) -> None:
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


class Draft:
    """A version that is being written: `with publisher.version() as version`. It is published at the end of the block, and
    abandoned if the block raises an exception."""

    def __init__(self, publisher: "Publisher", raw: "core.Draft", described: dict):
        self._publisher = publisher
        self._raw = raw
        self._described = described  # name -> (dtype, shape of this rank's part), as far as Python knows
        self._views: dict = {}
        self._publish: Optional[Publish] = None

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
        part = _describe(name, tensor, self._publisher._gpu)
        _wait_for_torch([part])
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
        try:
            self._detach()
            self._publish = Publish(self._publisher._raw, self._raw.end())
        except BaseException:
            self._raw.abandon()  # nothing, once the library has begun to end it
            raise
        return self._publish

    def abandon(self) -> None:
        """Drops the version."""
        self._detach()
        self._raw.abandon()

    def __enter__(self) -> "Draft":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.end()
        else:
            self.abandon()


class Publisher:
    """One rank of a trainer. Rank 0 coordinates the fleet; the other ranks of the same host give their parts to rank 0.

    All methods may be called from any thread. The library's own threads do the work, and the GIL is released in every call that
    can wait. A forked child cannot use a publisher of its parent: every call raises `InvalidInput` there, with the reason, and
    nothing of the parent is affected. A child may make its own.

    Args:
        config: a YAML file, as for `wsync trainer -c`. None: the defaults.
        settings: a mapping such as {"bucket_bytes": "8MiB", "deadlines": {"publish": "30s"}}, or "key=value" texts. They override
            the environment (WSYNC_KEY) and the file.
        rank, world_size: of this process among those that publish one model.
        gpu: the number of the GPU on which objects with `__cuda_array_interface__` are, if they do not say it themselves.

    Raises:
        InvalidInput: a setting breaks a rule; for an unknown key the sentence has the most similar known one.
        Busy: another trainer uses the addresses, or this process has a publisher of the same fleet, which is not closed.
    """

    def __init__(self, config: Optional[str] = None, settings: Union[Mapping[str, Any], Iterable[str], None] = None, rank: int = 0,
                 world_size: int = 1, *, gpu: int = 0):
        self._gpu = gpu
        self._raw = core.Trainer(None if config is None else str(config), _texts(settings), rank, world_size)
        self._layout: Optional[list] = None  # as described to the library; None: by nobody, or by the parts of a version
        self._known: dict = {}  # name -> (dtype, shape of this rank's part)
        self._last = LastTensors()
        # Who publishes. A lock could stay taken after a Ctrl-C that comes before its owner has noted that it has it.
        self._busy: dict = {}
        self._made_at = _caller()
        close_at_exit(self)
        try:
            self._raw.start()
        except BaseException as failure:
            self._raw.close()
            others = sorted(other._made_at for other in _coordinators if not other.closed)
            if isinstance(failure, Busy) and "is held by this process" in failure.sentence and others:
                raise Busy(f"this process already has a Publisher of this fleet, which was made at {' or '.join(others)}: close it "
                           f"first, or use it again ({failure.sentence})") from None
            raise
        if rank == 0:
            _coordinators.add(self)

    def describe(self, tensors: Tensors) -> None:
        """Describes the tensors of later versions, so that `Draft.tensor` works in the first one, and so that several ranks can
        begin a version. `publish` does it by itself.

        Args:
            tensors: a mapping, or (name, value) pairs, with arrays, tensors, `Shard`s or `Spec`s as values. Only dtype, shape and
                ranges are used.
        """
        self._describe([_describe(name, given, self._gpu, with_memory=False) for name, given in pairs(tensors)])

    def _describe(self, tensors: list, dtypes: Optional[dict] = None) -> None:
        if dtypes:
            layout = [(t.name, dtypes.get(t.name, t.dtype), t.shape, t.ranges) for t in tensors]
        else:
            layout = [t[:4] for t in tensors]
        if layout == self._layout:
            return
        self._layout = None
        for name, *_ in layout:
            _check_name(name)
        self._raw.clear_tensors()
        for name, dtype, shape, ranges in layout:
            try:
                self._raw.add_tensor(name, dtype, list(shape), _range(name, ranges))
            except Error as failure:
                failure.tensor = name
                raise
        self._layout = layout
        self._known = {name: (dtype, _tensors.part_shape(shape, ranges)) for name, dtype, shape, ranges in layout}

    def publish(self, tensors: Tensors, step: Optional[int] = None, *, dtype: Any = None,
                tied: str = "once") -> Publish:
        """Publishes the current weights. Returns when they may change again; the version travels meanwhile.

        The weights are copied once, straight to where the engines read them, also from the memory of a GPU. A tensor that is not
        contiguous in row-major order is first copied as a whole, where it is. The work of the current stream of torch, or of the
        stream that `__cuda_array_interface__` names, is waited for; a sidecar or an engine is not. Ctrl-C ends the call, and the
        weights may change at once: nothing is published, unless every tensor had been written already.

        Args:
            tensors: a mapping of names to tensors (`model.state_dict()`), an iterable of (name, tensor), or an object with
                `state_dict()`. Tensors are arrays of NumPy, tensors of torch in the memory of the host or of a GPU, objects with
                `__cuda_array_interface__`, or a `Shard` of one of them.
            step: the number of the training step, greater than those before. None: the next free one (one rank only). With several
                ranks, all of them publish each step under the same number.
            dtype: the dtype that is published: one for all tensors of F32, F16 or BF16, or a mapping from names of tensors. A name of
                safetensors ("BF16"), a usual alias ("bf16", "bfloat16", "half"), or a dtype of torch or NumPy.
            tied: what becomes of several names for the same memory. "once": the first of them is published, as in checkpoints and
                as engines expect it, which refuse a name that none of their ranks loads. "every": each name is.

        Returns:
            The publish, which is snapshotted.

        Raises:
            Busy: no memory is free, because processes still read older versions, which the sentence names; or another thread
                publishes. The next publish may succeed.
            InvalidInput: a tensor cannot be published, for example because it is not memory of the GPU that it names;
                `error.tensor` is its name.
            Refused: there is no libwsync_cuda.so, no driver, or no such GPU; another rank or the inference side refuses.
        """
        if tied not in ("every", "once"):
            raise InvalidInput(f"tied is '{tied}', expected 'every' or 'once'")
        number = _step(step)
        self._raw.check()
        me, raw = object(), None
        try:
            if self._busy.setdefault("publish", me) is not me:
                raise Busy("another thread is publishing with this publisher; publish from one thread at a time")
            if not isinstance(tensors, Mapping) and hasattr(tensors, "state_dict"):
                tensors = tensors.state_dict()
            held = self._last.read(tensors, self._layout, (dtype, tied))
            described = []
            if held is None:
                with _tensors.collector_paused():
                    described = self._describe_for(tensors, dtype, tied)
            raw = self._raw.begin(number)
            _wait_for_torch(described)
            with Draft(self, raw, self._known) as draft:
                if held is not None:
                    self._last.put(raw)
                else:
                    _put_all(raw, described)
            return draft.publish
        except BaseException:
            if raw is not None:
                raw.abandon()  # nothing, if it has been ended
            raise
        finally:
            if self._busy.get("publish") is me:
                self._busy.clear()

    def _describe_for(self, tensors: Tensors, dtype: Any, tied: str) -> list:
        """Describes the tensors of a publish, and remembers them for the next one. Returns those that are written."""
        every = _tensors.describe_all(tensors, lambda name, given: _describe(name, given, self._gpu))
        if not every:
            raise InvalidInput("no tensors were given; expected a mapping of names to tensors, such as model.state_dict()")
        described = _tensors.without_tied(every) if tied == "once" else every
        if dtype is None or isinstance(dtype, Mapping):
            dtypes = {name: dtype_name_of(wanted, f"tensor {name}: dtype") for name, wanted in (dtype or {}).items()}
            names = {one.name for one in every}
            for name in dtypes:
                if name not in names:
                    nearest = difflib.get_close_matches(str(name), map(str, names), 1)
                    raise InvalidInput(f"dtype names tensor {name}, which was not given" +
                                       (f"; did you mean {nearest[0]}?" if nearest else ""), tensor=name)
        else:
            wanted = dtype_name_of(dtype)
            dtypes = {one.name: wanted for one in described if one.dtype in _tensors.CASTS}
            for one in described:
                if one.dtype in ("F64", "C64") and wanted != one.dtype:
                    raise InvalidInput(f"tensor {one.name} has the dtype {one.dtype}, which is not converted to {wanted}: convert it "
                                       "first, or give the dtypes of the others by name", tensor=one.name)
        self._describe(described, dtypes)
        self._last.remember(every, self._layout, (dict(dtype) if isinstance(dtype, Mapping) else dtype, tied))
        return described

    def version(self, step: Optional[int] = None) -> Draft:
        """Begins a version that you write: `with publisher.version(step) as version: version.put(name, tensor)`.

        Without a description (`describe`, or an earlier version), the parts of this version describe it, and are kept in memory of
        their own until its end. One version can be open at a time.

        Raises:
            Busy: no memory is free within `deadlines.snapshot`.
        """
        return Draft(self, self._raw.begin(_step(step)), self._known)

    def roll_back(self, to: Union[Version, str, None] = None, timeout: Optional[float] = None) -> RollBack:
        """Rank 0: returns the fleet to a version, and withdraws newer ones.

        Args:
            to: the version. None: the one before the current one.
            timeout: seconds. None: as long as a switch may take.

        Raises:
            Refused: it is not possible, and nothing changed.
            Partial: decided, but some replicas have not switched back yet; `error.roll_back` has the versions.
            DeadlineExceeded: not done in time. The rollback continues, also after Ctrl-C.
        """
        if isinstance(to, str):
            to = Version.parse(to)
        target = to or Version(0, 0)
        milliseconds = -1 if timeout is None else max(0, round(timeout * 1000))
        code, sentence, raw = self._raw.roll_back(target.epoch, target.step, milliseconds)
        result = RollBack(version_or_none(raw[0], raw[1]), version_or_none(raw[2], raw[3]))
        if code == 0:
            return result
        failure = make(code, sentence)
        failure.roll_back = result
        raise failure

    def check(self) -> None:
        """Returns if this publisher can still publish.

        Raises:
            Fenced: a newer trainer controls the fleet, or another process has replaced this rank.
            IoFailure: its `state_dir` cannot be written.
        """
        self._raw.check()

    def close(self) -> None:
        """Stops the trainer. Publishes that have not ended are dropped, so wait for them first. May be called twice; calls of
        other threads end first. Does nothing in a forked child."""
        self._raw.close()

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._raw.is_closed

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

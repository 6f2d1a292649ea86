"""Publishing weights from a trainer."""
from __future__ import annotations

import contextlib
import difflib
import logging
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Optional, Union

from . import _tensors
from ._draft import Draft, caller, check_name, describe_part, put_all, range_of, wait_for_torch
from ._dtypes import dtype_name_of
from ._errors import Busy, Code, Error, InvalidInput, make
from ._exit import OfOneProcess, close_at_exit
from ._last_tensors import LastTensors
from ._native import core
from ._publish import Publish
from ._tensors import pairs
from ._values import PublishState, RollBack, Version, step_of, version_or_none

_log = logging.getLogger("wsync")
_LOOK_S = 0.05  # how often a rollback that waits looks whether it may begin
_REMEMBERED = 8  # publishes. Of those that are on their way, a newer one supersedes the one that waits

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


_STEP_MAX = 2**62 - 1  # of a publish: the next free steps after it are those of later versions


def _step(step: Optional[int]) -> int:
    return 0 if step is None else step_of(step, maximum=_STEP_MAX, why_below=", which leaves room for later versions")


# The publishers of this process that coordinate a fleet and are not closed.
_coordinators: "weakref.WeakSet[Publisher]" = weakref.WeakSet()


class Publisher(OfOneProcess):
    """One rank of a trainer. Rank 0 coordinates the fleet; the other ranks of the same host give their parts to rank 0, and
    those of other hosts (setting `leader`) serve them themselves.

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
        self._rank = rank
        self._publishes: "deque[Publish]" = deque(maxlen=_REMEMBERED)  # the last ones, for close()
        self._raw = core.Trainer(None if config is None else str(config), _texts(settings), rank, world_size)
        self._layout: Optional[list] = None  # as described to the library; None: by nobody, or by the parts of a version
        self._known: dict = {}  # name -> (dtype, shape of this rank's part)
        self._last = LastTensors()
        # Who publishes. A lock could stay taken after a Ctrl-C that comes before its owner has noted that it has it.
        self._busy: dict = {}
        self._open: "Optional[weakref.ref[Draft]]" = None  # the last version that was begun by version()
        self._made_at = caller()
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
        self._describe([describe_part(name, given, self._gpu, with_memory=False) for name, given in pairs(tensors)])

    def _describe(self, tensors: list, dtypes: Optional[dict] = None) -> None:
        if dtypes:
            layout = [(t.name, dtypes.get(t.name, t.dtype), t.shape, t.ranges) for t in tensors]
        else:
            layout = [t[:4] for t in tensors]
        if layout == self._layout:
            return
        self._layout = None
        for name, *_ in layout:
            check_name(name)
        self._raw.clear_tensors()
        for name, dtype, shape, ranges in layout:
            try:
                self._raw.add_tensor(name, dtype, list(shape), range_of(name, ranges))
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
            step: the number of the training step, greater than those before and below 2**62. None: the next free one (one rank
                only). With several ranks, all of them publish each step under the same number.
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
            raw = self._begin(number)
            wait_for_torch(described)
            with Draft(self, raw, self._known) as draft:
                if held is not None:
                    self._last.put(raw)
                else:
                    put_all(raw, described)
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
        every = _tensors.describe_all(tensors, lambda name, given: describe_part(name, given, self._gpu))
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
            InvalidInput: a version is open; the sentence has the line that has begun it.
        """
        draft = Draft(self, self._begin(_step(step)), self._known)
        self._open = weakref.ref(draft)
        return draft

    def _begin(self, step: int) -> "core.Draft":
        try:
            return self._raw.begin(step)
        except InvalidInput as failure:
            draft = self._open() if self._open is not None else None
            if draft is None or not draft._is_open:
                raise
            self._raw.check()  # in a forked child that is the reason
            raise InvalidInput(f"a version is open, which was begun at {draft._begun_at}: end or abandon it "
                               "first") from failure

    def roll_back(self, to: Union[Version, str, None] = None, timeout: Optional[float] = None) -> RollBack:
        """Rank 0: returns the fleet to a version, and withdraws newer ones.

        Args:
            to: the version. None: the one before the current one.
            timeout: seconds. None: as long as it takes. A rollback cannot begin while an update travels to the replicas, and waits
                for its end. Ctrl-C ends that wait, and nothing changes then.

        Raises:
            Busy: an update still travels at the end of `timeout`, and nothing changed.
            Refused: it is not possible, and nothing changed.
            Partial: decided, but some replicas have not switched back yet; `error.roll_back` has the versions. A replica that is
                suspended with all of its ranks is not one of them: it loads the version when it resumes.
            DeadlineExceeded: not done in time. A rollback that has begun continues, also after Ctrl-C.
        """
        if isinstance(to, str):
            to = Version.parse(to)
        target = to or Version(0, 0)
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            rest = -1 if end is None else max(0, round((end - time.monotonic()) * 1000))
            code, sentence, raw = self._raw.roll_back(target.epoch, target.step, rest)
            if code != Code.BUSY or rest == 0:
                break
            time.sleep(_LOOK_S if rest < 0 else min(_LOOK_S, rest / 1000))
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
        """Stops the trainer. Publishes that are not staged yet are dropped, and the logger "wsync" warns of them: wait for the last
        one first, with `publish.wait("committed")`. May be called twice; calls of other threads end first. Does nothing in a
        forked child. The end of a `with` block and the end of the interpreter call it."""
        dropped = self._dropped_by_close()
        self._raw.close()
        if dropped:
            _log.warning("the publisher is closed before what was published%s could reach the engines: it is dropped, "
                         "and no engine will serve it; call publish.wait(\"committed\") before the end of the program",
                         "".join(f"{' under step' if not i else ','} {step}" for i, step in enumerate(filter(None, dropped))))

    def _dropped_by_close(self) -> list:
        """The steps of the publishes that have not ended and are not staged."""
        steps = []
        if self._rank == 0 and not self._raw.is_closed:
            with contextlib.suppress(Error):  # in a forked child, or another thread closes it
                for publish in self._publishes:
                    status = publish.status()
                    if status.state in (PublishState.PENDING, PublishState.SNAPSHOTTED):
                        steps.append(status.step)
        return steps

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._raw.is_closed

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

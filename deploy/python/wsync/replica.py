"""Attaching an inference engine: one rank of a replica."""
from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Optional

import numpy as np

from . import _tensors
from ._errors import Closed, Error, InvalidInput
from ._exit import close_at_exit
from ._native import core
from ._tensors import Shard, array_of, describe, pairs
from ._values import PauseMode, RankState, ReplicaStatus, Version, version_or_none

_log = logging.getLogger("wsync")
_TAKE = {"pieces": 0, "whole": 1, "adopt": 2}  # wsync_take
_CALLBACKS = ("pause", "load_begin", "load_layer", "commit", "resume", "read_tensor")  # in the order of engine.cc
_SENTENCE_CHARACTERS = 500


def sentence_of(failure: BaseException) -> str:
    """One line that says what an exception says."""
    if isinstance(failure, Error):
        text = failure.sentence
    else:
        text = f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__
    return " ".join(text.split())[:_SENTENCE_CHARACTERS]


class _Call:
    """A callback of the library, by name."""

    def __init__(self, raw: tuple):
        (kind, mode, deadline_ms, epoch, step, self.layer, self.tensors, self.tensor, self.offset, self.bytes) = raw
        self.name = _CALLBACKS[kind]
        self.mode = PauseMode(mode)
        self.deadline_s = deadline_ms / 1000
        self.version = Version(epoch, step)


class Replica:
    """One rank of a replica of an inference engine, attached to the sidecar of its host.

    Either call `poll` once per step from the loop that serves, or call `start`, and a thread of Python serves the link. The
    callbacks are methods to override, or functions that are given by name; they run one at a time on the thread that is in `poll`,
    never on a thread of the library. In a loop that polls, the default of `on_pause` is enough: it sets `serving` to False and
    reports that the step `self.step` was the last; `on_resume` sets `serving` to True:

        replica = wsync.Replica("/run/wsync/host.engines", "r0", weights)
        while True:
            replica.poll(0 if replica.serving else None)
            if replica.serving:
                run_one_step(weights)
                replica.step += 1

    A callback that raises an exception fails the step: the replica keeps its state, and the exception's text is the sentence that
    the fleet reads. `error` has it too. A callback that hangs holds up its step until the deadlines of the fleet are over, and the
    fleet names the replica; `close` and the end of the interpreter do not wait for it.

    Other methods may be called from any thread. A forked child cannot use a replica of its parent: `poll` and `start` raise
    `EngineRefused` there, with the reason, and the other methods do nothing. The object closes itself when it is garbage-collected.

    Args:
        socket: the absolute path of the sidecar's engine socket.
        name: the name of the replica, 1 to 128 bytes.
        tensors: a mapping of names (as in the checkpoint) to values, or (name, value) pairs. With "pieces", a value is a writable,
            contiguous array or tensor in the memory of the host, into which the library writes, or a `Shard` of one. With "whole"
            and "adopt", only dtype, shape and ranges are used, and a `Spec` is enough. None: this rank has no weights, and only
            pauses and resumes.
        rank, world_size: of this rank in the replica.
        leader: exactly one rank of a replica is the leader, which is asked to pause and to resume.
        take: "pieces": the library copies into your memory. "whole": `on_load_layer` is given arrays that are yours to keep.
            "adopt": it is given read-only arrays over the received version, without a copy.
        serving: the engine serves weights without a version when it attaches, so it is paused before its first one.
        device: the index of the sidecar's device.
        pause, load_begin, load_layer, commit, resume, read_tensor: functions in the place of the methods `on_pause` and so on. They
            are called with the same arguments.

    Attributes:
        step: the number of steps that have been served, for the default of `on_pause`; yours to set.
        serving: whether the default callbacks let it serve.
        error: the sentence of the last callback that failed, or None.

    Raises:
        InvalidInput: an argument or a description breaks a rule; `error.tensor` is the name of the tensor.
        EngineRefused: the library refuses the description, with the reason.
    """

    def __init__(self, socket: str, name: str, tensors: Any = None, *, rank: int = 0, world_size: int = 1, leader: bool = True,
                 take: str = "pieces", serving: bool = False, device: int = 0,
                 pause: Optional[Callable[[PauseMode, float], None]] = None,
                 load_begin: Optional[Callable[[Version], None]] = None,
                 load_layer: Optional[Callable[[Version, int, Mapping[str, Any]], None]] = None,
                 commit: Optional[Callable[[Version], None]] = None,
                 resume: Optional[Callable[[], None]] = None,
                 read_tensor: Optional[Callable[[str, int, np.ndarray], None]] = None):
        if take not in _TAKE:
            raise InvalidInput(f"take is '{take}', expected one of {', '.join(_TAKE)}")
        self.name = name
        self.step = 0
        self.serving = serving
        self.error: Optional[str] = None
        self._take = take
        self._given = {key: value for key, value in zip(_CALLBACKS, (pause, load_begin, load_layer, commit, resume, read_tensor))
                       if value is not None}
        if take != "pieces" and not self._has("load_layer"):
            raise InvalidInput(f"take is '{take}', so load_layer must be given, or on_load_layer overridden")
        self._tensors: list = []  # (description, what was given: it keeps the memory alive)
        self._adopted: dict = {}  # version -> the memory that its arrays look at
        self._thread: Optional[threading.Thread] = None
        self._raw = core.Engine(str(socket), name, rank, world_size, leader, device, _TAKE[take], serving, self._has("read_tensor"))
        close_at_exit(self)
        try:
            self._raw.report_starting()
            for tensor_name, given in pairs(tensors or {}):
                self._add(describe(tensor_name, given, writable=take == "pieces", memory=take == "pieces"),
                          given.tensor if isinstance(given, Shard) else given)
            self._raw.attach()
        except BaseException:
            self._raw.close()
            raise

    def _has(self, callback: str) -> bool:
        return callback in self._given or getattr(type(self), f"on_{callback}") is not getattr(Replica, f"on_{callback}")

    def _add(self, tensor: _tensors.Described, given: Any) -> None:
        address = tensor.dense()[0] if self._take == "pieces" else 0
        try:
            self._raw.add_tensor(tensor.name, tensor.dtype, list(tensor.shape), [tuple(r) for r in tensor.ranges], address)
        except Error as failure:
            failure.tensor = tensor.name
            raise
        self._tensors.append((tensor._replace(own=None), given if self._take == "pieces" else None))

    # Callbacks.

    def on_pause(self, mode: PauseMode, deadline_s: float) -> None:
        """Leader: stop serving at a step that all ranks agree on, and return at once. Every rank calls `paused` when it has stopped.

        Args:
            mode: what becomes of running requests.
            deadline_s: seconds in which all ranks must have stopped.
        """
        del mode, deadline_s
        self.serving = False
        self.paused(self.step)

    def on_load_begin(self, version: Version) -> None:
        """The weights are about to change."""

    def on_load_layer(self, version: Version, layer: int, tensors: Mapping[str, Any]) -> None:
        """A complete layer, in the order of the layers. Its bytes are compared with the version before the commit.

        Args:
            version: the version that is loaded.
            layer: the number of the layer.
            tensors: the tensors of the layer by name. "pieces": your own arrays or tensors. "whole": arrays that are yours. "adopt":
                read-only arrays, until another version is committed, or the replica is closed; after that they read zeros.
        """

    def on_commit(self, version: Version) -> None:
        """Every byte is in place and verified. The rank stays paused."""

    def on_resume(self) -> None:
        """Leader: start serving. Also cancels a pause that has not taken effect yet."""
        self.serving = True

    def on_read_tensor(self, name: str, offset: int, out: np.ndarray) -> None:
        """"whole" only: write bytes of a tensor as held into `out`, for `wsync verify`. Without it, the fleet says that the tensors
        of this engine cannot be read back.

        Args:
            name: the tensor.
            offset: in bytes.
            out: an array of uint8 that is to be filled.
        """

    # The link.

    def poll(self, timeout: Optional[float] = 0.0) -> None:
        """Waits for events of the link, handles them, and runs the callbacks on this thread.

        Args:
            timeout: seconds; 0 waits not at all, None without limit. Ctrl-C ends the wait.

        Raises:
            Busy: another thread polls, or a callback calls this.
            Closed: the replica has been closed.
            EngineRefused: the link cannot be served.
        """
        interrupt: Optional[BaseException] = None
        if not self._raw.begin_poll(-1.0 if timeout is None else float(timeout)):
            return
        while True:
            try:
                raw = self._raw.next_call()
                if raw is None:
                    break
                interrupt = self._answer(_Call(raw)) or interrupt
            except Error:
                if interrupt is None:
                    raise
                break
            except BaseException as failure:  # Ctrl-C; the library's call ends before this does
                interrupt = failure
            if interrupt is not None:
                self._raw.end_poll_early()
        if interrupt is not None:
            raise interrupt

    def start(self) -> None:
        """Serves the link on a thread of Python, which runs the callbacks. `on_pause` must then be overridden or given, because
        only your program knows when its own loop stands still.

        Raises:
            InvalidInput: a leader has the default of `on_pause`, or the replica was started before.
        """
        if not self._has("pause"):
            raise InvalidInput("start() needs a pause callback that makes your loop stop and then reports paused(step); the default "
                               "is for a loop that calls poll()")
        if self._thread is not None:
            raise InvalidInput(f"replica '{self.name}' was started before")
        self._raw.check()  # not in a forked child
        self._thread = threading.Thread(target=_serve, args=(weakref.ref(self), self._raw), name=f"wsync {self.name}", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """A descriptor that is readable when `poll` has something to do: for select, or asyncio's add_reader."""
        return self._raw.fileno()

    def paused(self, step: int) -> None:
        """This rank has stopped serving after `step`."""
        self._raw.report_paused(step)

    def running(self, step: int) -> None:
        """Followers: this rank serves again, beginning with `step`."""
        self._raw.report_running(step)

    def status(self) -> ReplicaStatus:
        """The state of this rank now."""
        attached, state, epoch, step, refusals = self._raw.status()
        return ReplicaStatus(attached, RankState(state), version_or_none(epoch, step), refusals)

    def close(self) -> None:
        """Detaches from the sidecar. May be called twice, from any thread and from a callback, whose step then fails. Arrays of
        "adopt" read zeros afterwards."""
        self._raw.close()
        for version in list(self._adopted):
            self._drop(version)

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._raw.is_closed

    def __enter__(self) -> "Replica":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        raw = getattr(self, "_raw", None)
        if raw is not None:
            raw.close()

    # Running a callback.

    def _answer(self, call: _Call) -> Optional[BaseException]:
        """Runs a callback and answers it. Returns what must leave poll(), if anything: what is no Exception."""
        out = np.empty(call.bytes, np.uint8) if call.name == "read_tensor" else np.empty(0, np.uint8)
        try:
            self._run(call, out)
        except BaseException as failure:
            self.error = sentence_of(failure)
            if isinstance(failure, Exception):
                _log.error("replica %s: the callback %s failed", self.name, call.name, exc_info=failure)
            self._raw.answer(False, self.error, 0, 0)
            return None if isinstance(failure, Exception) else failure
        self._raw.answer(True, "", out.ctypes.data, out.size)
        return None

    def _run(self, call: _Call, out: np.ndarray) -> None:
        callback = self._given.get(call.name) or getattr(self, f"on_{call.name}")
        if call.name == "pause":
            callback(call.mode, call.deadline_s)
        elif call.name == "load_begin":
            active = self.status().active
            for version in list(self._adopted):  # also what was loaded and never committed
                if version != active:
                    self._drop(version)
            callback(call.version)
        elif call.name == "load_layer":
            callback(call.version, call.layer, {self._tensors[index][0].name: self._layer_tensor(call.version, index, address, size)
                                                for index, address, size in call.tensors})
        elif call.name == "commit":
            callback(call.version)
            for version in list(self._adopted):
                if version != call.version:
                    self._drop(version)
        elif call.name == "resume":
            callback()
        else:
            callback(self._tensors[call.tensor][0].name, call.offset, out)

    def _layer_tensor(self, version: Version, index: int, address: int, size: int) -> Any:
        described, own = self._tensors[index]
        if self._take == "pieces":
            return own
        shape = _tensors.part_shape(described.shape, described.ranges)
        if self._take == "whole":
            array = np.empty(size, np.uint8)
            core.copy_out(address, array.ctypes.data, size)
            return array_of(array, described.dtype, shape)
        memory = core.Memory(address, size, False)
        self._adopted.setdefault(version, []).append(memory)
        return array_of(memory, described.dtype, shape)

    def _drop(self, version: Version) -> None:
        for memory in self._adopted.pop(version, ()):
            memory.detach()


def _serve(reference: "weakref.ref[Replica]", raw: "core.Engine") -> None:
    """The thread of start(). Between callbacks it does not keep the replica alive."""
    try:
        while True:
            raw.begin_poll(-1.0)
            while (found := raw.next_call()) is not None:
                replica = reference()
                if replica is None:
                    raw.answer(False, "the Replica object has been garbage-collected", 0, 0)
                    continue
                leaving = replica._answer(_Call(found))
                del replica
                if leaving is not None:  # SystemExit: of this thread, as in any other
                    raw.close()
                    return
    except Closed:
        return
    except Error as failure:
        _log.error("the link of a replica cannot be served: %s", failure)

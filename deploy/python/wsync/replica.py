"""Attaching an inference engine: one rank of a replica."""
from __future__ import annotations

import contextlib
import itertools
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Optional, Union

import numpy as np

from . import _tensors
from ._destinations import Destinations, describe_without_memory
from ._dtypes import dtype_name_of
from ._errors import Busy, Closed, EngineRefused, Error, InvalidInput, Refused
from ._exit import OfOneProcess, close_at_exit
from ._native import core
from ._sidecars import engine_socket
from ._tensors import Spec, array_of, pairs, parts_of
from ._values import LATER, CachePolicy, Pause, PauseMode, RankState, ReplicaStatus, Version, version_or_none

_log = logging.getLogger("wsync")
_TAKE = {"pieces": 0, "whole": 1, "adopt": 2, "borrow": 3}  # wsync_take
# In the order of polled_engine.h.
_CALLBACKS = ("pause", "load_begin", "load_layer", "commit", "resume", "read_tensor", "check_version")
_DONE, _FAILED, _LATER = 0, 1, 2
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
        (kind, mode, deadline_ms, epoch, step, self.layer, self.tensors, self.tensor, self.offset, self.bytes, layout,
         caches) = raw
        self.name = _CALLBACKS[kind]
        self.version = Version(epoch, step)
        self.pause = Pause(PauseMode(mode), deadline_ms / 1000, self.version, self.bytes or None, CachePolicy(caches))
        self.layout = [_tensors.Described(name, dtype, tuple(shape), (), None) for name, dtype, shape in layout]


class Replica(OfOneProcess):
    """One rank of a replica of an inference engine, attached to the sidecar of its host.

    Either call `poll` once per step from the loop that serves, or call `start`, and a thread of Python serves the link. The
    callbacks are methods to override, or functions that are given by name; they run one at a time on the thread that is in `poll`,
    never on a thread of the library. In a loop that polls, the default of `on_pause` is enough: it sets `serving` to False and
    reports that the step `self.step` was the last; `on_resume` sets `serving` to True:

        replica = wsync.Replica("host0", "r0", weights)
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
        sidecar: the name of the sidecar, such as "host0" for `wsync sidecar --set name=host0`: its socket is looked for in
            `WSYNC_RUN_DIR`, or in the directory that a sidecar takes without a configuration, and is awaited for 5 s. Or the
            absolute path of the sidecar's engine socket; that sidecar may start later.
        name: the name of the replica, 1 to 128 bytes.
        tensors: a mapping of names (as in the checkpoint) to values, or (name, value) pairs. With "pieces", a value is a writable,
            contiguous array or tensor, into which the library writes, or a `Shard` of one: all of a rank in the memory of the host,
            or all on one GPU (tensors of torch on CUDA, or objects with `__cuda_array_interface__`). The library writes into the
            memory that the tensor has now, and keeps it alive until it is suspended or closed. A tensor that gets other memory
            (`tensor.data = other`, `module.to(...)`) does not follow any more: `suspend` first, and give it to `resume`. With other
            values of `take`, only dtype, shape and ranges are used, and a `Spec` is enough. None, with "borrow" and "adopt": every tensor of a version is taken as a whole,
            whatever its name, dtype and shape; override `on_check_version` to refuse what does not fit.
        rank, world_size: of this rank among those of the replica that have weights.
        leader: exactly one rank of a replica is the leader, or its controller; it is asked to pause and to resume.
        has_controller: True on all ranks of a replica that has a controller, and on the controller, which is the leader: a process
            without weights that pauses and resumes the replica. The sidecar refuses a rank that says otherwise than the others.
        take: "pieces": the library copies into your memory. "whole": `on_load_layer` is given arrays that are yours to keep.
            "adopt": it is given read-only arrays over the received version, without a copy, to serve from. "borrow": the same,
            until the commit, for an engine that packs the weights into memory of its own.
        serving: the engine serves weights without a version when it attaches, so it is paused before its first one.
        device: the index of the sidecar's device. For tensors on a GPU it is a device of kind cuda on the same GPU.
        gpu: for tensors on a GPU, its number among those that this process sees. None: as the tensors say; of objects that say
            nothing (without `__dlpack_device__`), GPU 0. The library asks the driver whether the memory is there.
        casts: with "pieces", the dtypes (names of safetensors, aliases, or dtypes of torch or NumPy) that versions have of the
            tensors that you hold in another one. F32, F16 and BF16 are converted into each other while they are copied, on a GPU as
            well, rounded to the nearest value as torch does. `wsync verify` reads a tensor back that was widened (F16 or BF16 to
            F32), and says of others that they cannot be read.
        led_steps: True on all ranks of a replica, and on its controller, if its leader calls `lead_step` before each step and the
            other ranks call `follow_step` with its header. The ranks then pause and run by that: `on_pause` and `on_resume` only
            tell what is asked for, and nobody calls `paused` and `running`.
        changed_layers: with "whole" and "borrow", in the memory of the host: True lets a load bring only the layers in which
            something has changed since the version that the replica holds. `on_load_layer` is called for these, which may be none; all
            other layers stay as they are, so keep every layer as it was loaded. It needs `read_tensor`, and `on_load_layer` must
            not return `LATER`.
        tied: with "pieces", what becomes of several names for the same memory. "once": the first of them is expected in versions, as
            `Publisher.publish` gives it. "every": each name is, for a publisher with `tied="every"`.
        pause, load_begin, load_layer, commit, resume, read_tensor, check_version: functions in the place of the methods `on_pause`
            and so on. They are called with the same arguments.

    Attributes:
        step: the number of steps that have been served, for the default of `on_pause`; yours to set.
        serving: whether the default callbacks let it serve.
        error: the sentence of the last callback that failed, or None.
        gpu: the number of the GPU that has the tensors; None: they are in the memory of the host.

    On a GPU the library copies with a stream of its own, and callbacks are called when its copies are complete. Steps that read the
    weights must have ended before a pause is reported, and torch only submits them. So `paused`, `lead_step` and `follow_step` wait
    for all work of torch on that GPU (`torch.cuda.synchronize`) before they report. With another framework, wait for its work first.

    Raises:
        InvalidInput: an argument or a description breaks a rule; `error.tensor` is the name of the tensor.
        NotFound: no sidecar of this name runs on this host; the sentence has those that do.
        EngineRefused: the library refuses the description, with the reason.
    """

    def __init__(self, sidecar: str, name: str, tensors: Any = None, *, rank: int = 0, world_size: int = 1, leader: bool = True,
                 has_controller: bool = False, take: str = "pieces", serving: bool = False, device: int = 0,
                 gpu: Optional[int] = None, casts: Optional[Mapping[str, Any]] = None, led_steps: bool = False, tied: str = "once",
                 changed_layers: bool = False,
                 pause: Optional[Callable[[Pause], None]] = None,
                 load_begin: Optional[Callable[[Version], None]] = None,
                 load_layer: Optional[Callable[[Version, int, Mapping[str, Any]], Any]] = None,
                 commit: Optional[Callable[[Version], Any]] = None,
                 resume: Optional[Callable[[], None]] = None,
                 read_tensor: Optional[Callable[[str, int, np.ndarray], None]] = None,
                 check_version: Optional[Callable[[Version, Mapping[str, Spec]], None]] = None):
        if tied not in ("every", "once"):
            raise InvalidInput(f"tied is '{tied}', expected 'every' or 'once'")
        if take not in _TAKE:
            raise InvalidInput(f"take is '{take}', expected one of {', '.join(_TAKE)}")
        if casts and take != "pieces":
            raise InvalidInput(f"casts are for tensors that are taken as 'pieces'; take is '{take}'")
        if changed_layers and take not in ("whole", "borrow"):
            raise InvalidInput(f"changed_layers is for 'whole' and 'borrow'; take is '{take}'")
        if gpu is not None and take != "pieces":
            raise InvalidInput(f"gpu is for tensors that are taken as 'pieces'; take is '{take}'")
        self.name = name
        self.step = 0
        self.serving = serving
        self.error: Optional[str] = None
        self._take = take
        self._casts = {key: dtype_name_of(value, f"casts: dtype of {key}") for key, value in (casts or {}).items()}
        self._led_steps = led_steps
        given = (pause, load_begin, load_layer, commit, resume, read_tensor, check_version)
        self._given = {key: value for key, value in zip(_CALLBACKS, given) if value is not None}
        is_controller = has_controller and leader
        any_layout = tensors is None and not is_controller
        if any_layout and take not in ("adopt", "borrow"):
            raise InvalidInput(f"tensors is None, which takes any tensors with 'adopt' and 'borrow' only; take is '{take}'")
        if take != "pieces" and not is_controller and not self._has("load_layer"):
            raise InvalidInput(f"take is '{take}', so load_layer must be given, or on_load_layer overridden")
        self._tensors: list = []  # (description, what was given). With "pieces", the description keeps the memory alive
        self._tied: dict = {}  # name that is left out -> the first name of the same memory
        self._before_resume: list = []  # the same, until it is certain that the library writes there no more
        self._any_layout = any_layout
        self._loading: Optional[Version] = None
        self._late_loads: set = set()  # versions whose layers are still being used, until loaded()
        self._late_commits: set = set()  # versions whose commit is answered by committed()
        self._order = threading.Lock()  # of the two that follow: a callback, or the end of what callbacks were given
        self._is_answering = False
        self._reader: Optional[int] = None  # the thread that runs read_tensor
        self._is_suspending = False
        self._mapped: dict = {}  # version -> the memory that its arrays look at
        self._thread: Optional[threading.Thread] = None
        items = iter(pairs(tensors or {}))
        first = next(items, None)  # before the others are made: it says where their memory is
        self._destinations = Destinations(first, gpu) if take == "pieces" else None
        self.gpu = None if self._destinations is None else self._destinations.gpu
        if first is None and tensors is not None and not is_controller:
            raise InvalidInput("tensors is empty; expected a mapping of names to arrays or tensors, such as model.state_dict()" +
                               ("" if take in ("pieces", "whole") else ", or None for every tensor of a version"))
        described = describe_without_memory if self._destinations is None else self._destinations.describe
        self._raw = core.Engine(engine_socket(sidecar), name, rank, world_size, leader, device, _TAKE[take], serving, any_layout,
                                has_controller, led_steps, self._has("read_tensor"), self._has("check_version"), self.gpu,
                                changed_layers)
        close_at_exit(self)
        try:
            self._raw.report_starting()
            names: dict = {}  # memory -> the first name of it
            for tensor_name, given in itertools.chain([] if first is None else [first], items):
                tensor = described(tensor_name, given)
                memory = tensor.memory() if take == "pieces" and tied == "once" else None
                if memory is not None and names.setdefault(memory, tensor_name) != tensor_name:
                    self._tied[tensor_name] = names[memory]
                else:
                    self._add(tensor, parts_of(given)[0])
            if unknown := sorted(set(self._casts) - {tensor.name for tensor, _ in self._tensors}):
                raise InvalidInput(f"casts name tensor {unknown[0]}, which is not among the tensors", tensor=unknown[0])
            self._raw.attach()
        except BaseException:
            self._raw.close()
            raise

    def _has(self, callback: str) -> bool:
        return callback in self._given or getattr(type(self), f"on_{callback}") is not getattr(Replica, f"on_{callback}")

    def _add(self, tensor: _tensors.Described, given: Any) -> None:
        kept, part, address = tensor._replace(own=None), None, 0
        if self._take == "pieces":
            address, own = tensor.dense()
            kept, part = tensor._replace(own=own, address=address), given
        try:
            self._raw.add_tensor(tensor.name, self._casts.get(tensor.name, tensor.dtype), list(tensor.shape),
                                 [tuple(r) for r in tensor.ranges], address, tensor.dtype)
        except Error as failure:
            failure.tensor = tensor.name
            raise
        self._tensors.append((kept, part))

    # Callbacks.

    def on_pause(self, pause: Pause) -> None:
        """Leader: stop serving at a step that all ranks agree on, and return at once. Every rank calls `paused` when it has
        stopped. With `led_steps` it does neither, and the default does nothing: the next `lead_step` stops the ranks.

        Args:
            pause: what becomes of running requests, until when all ranks must have stopped, and for which version.
        """
        del pause
        if not self._led_steps:
            self.serving = False
            self.paused(self.step)

    def _end_work(self) -> None:
        """Waits until nothing that torch has submitted to the GPU of the tensors reads them any more."""
        torch = sys.modules.get("torch")
        if self.gpu is not None and torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
            torch.cuda.synchronize(self.gpu)

    def on_load_begin(self, version: Version) -> None:
        """The weights are about to change."""

    def on_load_layer(self, version: Version, layer: int, tensors: Mapping[str, Any]) -> Any:
        """A complete layer, in the order of the layers. Its bytes are compared with the version before the commit.

        Args:
            version: the version that is loaded.
            layer: the number of the layer.
            tensors: the tensors of the layer by name. "pieces": your own arrays or tensors. "whole": arrays that are yours.
                "adopt": read-only arrays, until another version is committed, or the replica is closed. "borrow": the same, until
                the commit of this version is answered. In both cases also until the load fails; after that they read zeros.

        Returns:
            None; or, with "adopt" and "borrow", `LATER`: the arrays are used on another thread, which calls `loaded` at the end,
            also if the load has failed in the meantime. They are valid until then. The layers that follow are passed all the same.
        """

    def on_commit(self, version: Version) -> Any:
        """Every byte is in place and verified. The rank stays paused.

        Returns:
            None; or `LATER`: another thread calls `committed`.
        """

    def on_resume(self) -> None:
        """Leader: start serving. Also cancels a pause that has not taken effect yet. With `led_steps` the default does nothing."""
        if not self._led_steps:
            self.serving = True

    def on_check_version(self, version: Version, tensors: Mapping[str, Spec]) -> None:
        """A version is staged. An exception refuses it: this replica keeps the version that it serves, and nobody pauses. Called
        while the engine serves, so it must return soon. A rank that has not answered after 5 s is no longer awaited: the version is
        decided without it.

        Args:
            version: the version.
            tensors: what it has for this rank.
        """

    def on_read_tensor(self, name: str, offset: int, out: np.ndarray) -> None:
        """"whole" and "borrow": write bytes of a tensor as held into `out`, for `wsync verify` and for scrubs: from time to time, while
        the replica serves, a `poll` calls this for about 1 ms, with at most 256 KiB at once, and for at most 1 % of the time. The
        bytes must be those of the version, bit for bit. What differs counts as damaged memory: all bytes are loaded again, and after
        three times in a row the replica is not used. So leave it out if you keep rounded or changed values. An exception ends the
        scrub, which is repeated after a minute; `wsync status` has its text if that fails as well. Without this callback, the fleet
        says that the replica is not scrubbed, and that its tensors cannot be read back.

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
            Refused: the sidecar does not take this rank. `tensor`, `expected` and `found` say what does not fit, if a tensor does
                not. A refusal that names no tensor is about other processes, such as one that is attached under the same name.
                That one may be about to end, so the exception is raised only when the rank has been refused for 10 s. The link
                goes on trying, so poll again to wait until the reason is gone; it is raised again if the reason has changed. A rank that serves goes on serving what it has: it is raised then only without a time limit. In every case
                the logs of the library have it, and `status().refused`.
            Busy: another thread polls, or a callback calls this.
            Closed: the replica has been closed, or the interpreter ends. A thread that ends with it then prints nothing.
            EngineRefused: the link cannot be served.
        """
        seconds = -1.0 if timeout is None else float(timeout)
        interrupt: Optional[BaseException] = None
        has_begun = False
        while True:
            try:
                # Inside of the try, because Python may raise Ctrl-C before the next statement.
                if not has_begun:
                    has_begun = True
                    if not self._raw.begin_poll(seconds):
                        break
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

    def _poll_on(self, timeout: Optional[float]) -> None:
        """`poll` for adapters: a refusal, which the library has logged, ends nothing."""
        with contextlib.suppress(Refused):
            self.poll(timeout)

    def start(self) -> None:
        """Serves the link on a thread of Python, which runs the callbacks. A sidecar that refuses this rank is asked again, and
        `status().refused` says why. Without `led_steps`, `on_pause` must then be overridden
        or given, because only your program knows when its own loop stands still.

        Raises:
            InvalidInput: a leader has the default of `on_pause`, or the replica was started before.
        """
        if not self._has("pause") and not self._led_steps:
            raise InvalidInput("start() needs a pause callback that makes your loop stop and then reports paused(step); the "
                               "default is for a loop that calls poll()")
        if self._thread is not None:
            raise InvalidInput(f"replica '{self.name}' was started before")
        self._raw.check()  # not in a forked child
        self._thread = threading.Thread(target=_serve, args=(weakref.ref(self), self._raw), name=f"wsync {self.name}", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """A descriptor that is readable when `poll` has something to do: for select, or asyncio's add_reader."""
        return self._raw.fileno()

    def lead_step(self) -> tuple[bool, bytes]:
        """Leader with `led_steps`: decides between two steps whether the next one is begun. Send the header to every other rank
        before you begin it, whatever it says. The call says that the last step has ended: reports to the fleet depend on it. Call
        it from one thread, which need not be the one that polls; while it says no, wait for events of the link (`poll`).

        Returns:
            Whether to begin the step, and the header: 40 bytes, the same as `wsync_step_header` in C. `serving` and `step` are set.

        Raises:
            EngineRefused: the steps are not led, or this rank is not the leader.
            Closed: the replica has been closed.
        """
        self._end_work()
        self.serving, header = self._raw.lead_step()
        self._note_step(header)
        return self.serving, header

    def follow_step(self, header: bytes) -> bool:
        """Every other rank with `led_steps`: takes the header of its leader, each one and in their order. The call says that the
        last step has ended.

        Args:
            header: the bytes that `lead_step` has returned.

        Returns:
            Whether to begin the step now; otherwise stand until the next header. `serving` and `step` are set.

        Raises:
            EngineRefused: this rank must not step although its leader does, and why: it holds another version (both are named), or
                has missed a header or got one twice. The fleet is told that it stands.
            Closed: the replica has been closed.
        """
        self.serving = False
        self._end_work()
        self.serving = self._raw.follow_step(bytes(header))
        self._note_step(header)
        return self.serving

    def _note_step(self, header: bytes) -> None:
        self.step = int.from_bytes(header[16:24], sys.byteorder)  # wsync_step_header.step

    def paused(self, step: int) -> None:
        """This rank has stopped serving after `step`. Waits for the work of torch on the GPU that has the tensors."""
        self._end_work()
        self._raw.report_paused(step)

    def running(self, step: int) -> None:
        """Followers: this rank serves again, beginning with `step`."""
        self._raw.report_running(step)

    def loaded(self, version: Version, error: Union[BaseException, str, None] = None) -> None:
        """Ends a load for which `on_load_layer` has returned `LATER`: all of its layers have been used, or it has failed.

        Args:
            version: the version.
            error: why it has failed, for the fleet to read. None: it has not.
        """
        self._late_loads.discard(version)
        if error is not None or version != self._loading:
            self._drop(version)
        self._raw.report_loaded(version.epoch, version.step, self._failure_of(error))

    def committed(self, version: Version, error: Union[BaseException, str, None] = None) -> None:
        """Ends a commit for which `on_commit` has returned `LATER`. The arguments are those of `loaded`."""
        self._late_commits.discard(version)
        if error is None:
            self._after_commit(version)
        self._raw.report_committed(version.epoch, version.step, self._failure_of(error))

    def _failure_of(self, error: Union[BaseException, str, None]) -> Optional[str]:
        if error is None:
            return None
        self.error = error if isinstance(error, str) else sentence_of(error)
        return self.error

    def suspend(self) -> None:
        """Call it before the memory of the weights is given away for a time, for example to a trainer on the same device. When it
        returns, nothing of wsync touches that memory any more, nor keeps it alive, except through the objects that were given for
        the tensors; no callback is called, and `poll` only waits, until `resume`. The rank then holds no version. A load that is under way fails. Arrays of "adopt" read zeros. The fleet says that this rank has
        given its memory away, and no update waits for it. Call it on all ranks of a replica when none of them serves.

        Raises:
            Busy: a callback runs, other than `on_read_tensor` on another thread, whose end is awaited. If one of another thread began
                meanwhile, arrays of "adopt" and "borrow" read zeros already, and the sentence says so: do not serve from them, and
                call this again.
            EngineRefused: it is suspended already, or `LATER` was answered and is not reported yet.
            KeyboardInterrupt: Ctrl-C. The replica is suspended even so, unless it comes a second time.
        """
        self._raw.check()
        try:
            self._suspend(is_interrupted=False)
        except Error:
            raise
        except BaseException:  # Ctrl-C: what was begun goes on, so that its end is awaited
            with contextlib.suppress(Error):
                self._suspend(is_interrupted=True)
            raise

    def _suspend(self, is_interrupted: bool) -> None:
        had_arrays = False
        try:
            with self._order:
                # What another thread reads for a scrub comes at any time, and is only awaited.
                is_read = self._reader not in (None, threading.get_ident())
                if self._is_answering and not is_read and not is_interrupted:
                    raise Busy("a callback of this replica is running; suspend it outside of the callbacks")
                for late, what in ((self._late_loads, "load"), (self._late_commits, "commit")):
                    for version in late:
                        raise EngineRefused(f"replica '{self.name}' has not answered the {what} of {version} yet: report it before "
                                            "the memory is given away")
                self._is_suspending = True  # so that no layer is given to a callback from here on
                had_arrays = bool(self._mapped)
                for version in list(self._mapped):  # before the lease ends, so that nobody reads the bytes of a later version
                    self._drop(version)
            self._suspend_link(is_interrupted)
        except Error as failure:
            if not had_arrays:
                raise
            raise type(failure)(f"{failure.sentence}; the arrays of replica '{self.name}' read zeros already: do not serve from "
                                "them, and suspend it again") from failure
        finally:
            self._is_suspending = False
        self.serving = False
        self._loading = None
        self._tensors = [(tensor._replace(own=None), part) for tensor, part in self._tensors]
        self._before_resume = []
        self._after_suspend()

    def _suspend_link(self, is_interrupted: bool) -> None:
        while True:
            try:
                return self._raw.suspend()
            except Busy:  # the call that was interrupted is under way
                if not is_interrupted:
                    raise
                time.sleep(0.001)
            except EngineRefused:  # it is suspended already
                if not is_interrupted:
                    raise
                return None

    def _after_suspend(self) -> None:
        """For classes that note which version they have: it holds none any more."""

    def resume(self, tensors: Any = None) -> None:
        """The memory is there again; its content does not matter. The newest version is loaded as into an engine that has just
        started.

        Args:
            tensors: the tensors that are in other memory now, by name, as `Replica` takes them with "pieces": of the same dtypes
                and shapes, and on the same GPU. Those that are left out must be at the addresses from before. None: all of them.

        Raises:
            Busy: a callback runs.
            EngineRefused: it is not suspended.
            InvalidInput: a tensor is not one of this replica, or is not as it was; or one that is left out has another address; or
                its memory is not there. The replica stays suspended, and this may be called again.
        """
        numbers = {tensor.name: number for number, (tensor, _) in enumerate(self._tensors)}
        moved, after = [], list(self._tensors)
        for name, given in pairs(tensors or {}):
            if name in self._tied:
                continue  # it is where its first name is
            if name not in numbers or self._destinations is None:
                raise InvalidInput(f"replica '{self.name}' writes into no tensor {name}; expected "
                                   f"{', '.join(list(numbers)[:3]) or 'none, because it takes no pieces'}", tensor=name)
            was = self._tensors[numbers[name]][0]
            now = self._destinations.describe(name, given)
            if (was.dtype, was.shape, was.ranges) != (now.dtype, now.shape, now.ranges):
                raise InvalidInput(f"tensor {name} is {now.dtype} {list(now.shape)} with {len(now.ranges)} ranges now; expected "
                                   f"{was.dtype} {list(was.shape)} with {len(was.ranges)}, as before", tensor=name)
            address, own = now.dense()
            after[numbers[name]] = (now._replace(own=own, address=address), parts_of(given)[0])
            moved.append((numbers[name], address))
        if self._destinations is not None:
            left_out = set(range(len(after))).difference(number for number, _ in moved)
            for number in left_out:
                after[number] = self._where_it_was(*after[number])
        self._before_resume = before = self._tensors
        self._tensors = after  # also if this fails, or if a signal ends the wait: the library has the new addresses then
        try:
            self._raw.resume(moved)
        except (Busy, EngineRefused):  # but not then
            self._tensors = before
            raise
        self._before_resume = []

    def _where_it_was(self, was: _tensors.Described, part: Any) -> tuple:
        """An element of `_tensors`, with what keeps its memory alive."""
        address, own = self._destinations.describe(was.name, part).dense()
        if address != was.address:
            raise InvalidInput(f"tensor {was.name} has other memory than before replica '{self.name}' was suspended: give it to "
                               "resume()", tensor=was.name)
        return was._replace(own=own), part

    def status(self) -> ReplicaStatus:
        """The state of this rank now."""
        attached, state, epoch, step, refusals, refused = self._raw.status()
        return ReplicaStatus(attached, RankState(state), version_or_none(epoch, step), refusals, refused or None)

    def close(self) -> None:
        """Detaches from the sidecar. May be called twice, from any thread and from a callback, whose step then fails. Arrays of
        "adopt" and "borrow" read zeros afterwards."""
        for version in list(self._mapped):  # before the lease ends, so that nobody reads the bytes of a later version
            self._drop(version)
        self._raw.close()
        for version in list(self._mapped):
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
        with self._order:
            self._is_answering = True
            self._reader = threading.get_ident() if call.name == "read_tensor" else None
            is_suspending = self._is_suspending
        try:
            return self._answer_in_order(call, is_suspending)
        finally:
            self._is_answering = False

    def _answer_in_order(self, call: _Call, is_suspending: bool) -> Optional[BaseException]:
        out = np.empty(call.bytes if call.name == "read_tensor" else 0, np.uint8)
        # Before the callback: the thread that it hands the layer to may be done before it returns.
        was_late = call.version in self._late_loads
        if call.name == "load_layer":
            self._late_loads.add(call.version)
        elif call.name == "commit":
            self._late_commits.add(call.version)
        try:
            if is_suspending and call.name in ("load_begin", "load_layer", "commit"):
                raise Busy(f"replica '{self.name}' is being suspended")
            returned = self._run(call, out)
            is_late = returned is LATER and call.name in ("load_layer", "commit")
        except BaseException as failure:
            self.error = sentence_of(failure)
            if isinstance(failure, Error) and (is_suspending or call.name == "check_version"):  # no mistake of the engine
                _log.warning("replica %s: %s", self.name, self.error)
            elif isinstance(failure, Exception):
                _log.error("replica %s: the callback %s failed", self.name, call.name, exc_info=failure)
            if call.name == "load_layer" and not was_late:
                self._late_loads.discard(call.version)
            self._late_commits.discard(call.version)
            if call.name in ("load_begin", "load_layer") and call.version not in self._late_loads:
                self._drop(call.version)
            self._raw.answer(_FAILED, self.error, 0, 0)
            return None if isinstance(failure, Exception) else failure
        if call.name == "load_layer" and not is_late and not was_late:
            self._late_loads.discard(call.version)
        if call.name == "commit" and not is_late:
            self._late_commits.discard(call.version)
            self._after_commit(call.version)
        self._raw.answer(_LATER if is_late else _DONE, "", out.ctypes.data, out.size)
        return None

    def _run(self, call: _Call, out: np.ndarray) -> Any:
        callback: Callable[..., Any] = self._given.get(call.name) or getattr(self, f"on_{call.name}")
        if call.name == "pause":
            return callback(call.pause)
        if call.name == "check_version":
            return callback(call.version, {one.name: Spec(one.dtype, one.shape) for one in call.layout})
        if call.name == "load_begin":
            self._before_load(call)
            return callback(call.version)
        if call.name == "load_layer":
            return callback(call.version, call.layer, self._layer(call.version, call.tensors))
        if call.name == "commit":
            return callback(call.version)
        if call.name == "resume":
            return callback()
        return callback(self._tensors[call.tensor][0].name, call.offset, out)

    def _before_load(self, call: _Call) -> None:
        """What was loaded and never committed is no longer valid, unless another thread still uses it."""
        active = self.status().active if self._take == "adopt" else None
        self._loading = call.version
        for version in list(self._mapped):
            if version != active and version not in self._late_loads:
                self._drop(version)
        if self._any_layout:
            self._tensors = [(one, None) for one in call.layout]

    def _after_commit(self, committed: Version) -> None:
        for version in list(self._mapped):
            if version not in self._late_loads and (self._take == "borrow" or version != committed):
                self._drop(version)

    def _layer(self, version: Version, tensors: list) -> dict:
        """The tensors of a layer by name."""
        if self._take == "pieces":
            return {self._tensors[index][0].name: self._tensors[index][1] for index, _, _ in tensors}
        if self._take == "whole":
            copies = {}
            for index, address, size in tensors:
                copies[index] = np.empty(size, np.uint8)
                core.copy_out(address, copies[index].ctypes.data, size)
            return {self._tensors[index][0].name: self._array(index, copy) for index, copy in copies.items()}
        # One mapping for the whole layer: a process can have some 65,000, and a model more tensors.
        begin = min((address for _, address, size in tensors if size), default=0)
        end = max((address + size for _, address, size in tensors if size), default=0)
        memory = core.Memory(begin, end - begin, False)
        self._mapped.setdefault(version, []).append(memory)
        layer = np.frombuffer(memory, np.uint8) if end > begin else np.empty(0, np.uint8)
        return {self._tensors[index][0].name: self._array(index, layer[address - begin:address - begin + size] if size else layer[:0])
                for index, address, size in tensors}

    def _array(self, index: int, memory: Any) -> Any:
        described = self._tensors[index][0]
        return array_of(memory, described.dtype, _tensors.part_shape(described.shape, described.ranges))

    def _drop(self, version: Version) -> None:
        for memory in self._mapped.pop(version, ()):
            memory.detach()


def _next_call(raw: "core.Engine") -> Optional[tuple]:
    """The next callback; None: the poll is over, also if the sidecar refuses the rank."""
    try:
        return raw.next_call()
    except Refused:  # the library has logged it
        return None


def _serve(reference: "weakref.ref[Replica]", raw: "core.Engine") -> None:
    """The thread of start(). Between callbacks it does not keep the replica alive."""
    try:
        while True:
            raw.begin_poll(-1.0)
            while (found := _next_call(raw)) is not None:
                replica = reference()
                if replica is None:
                    raw.answer(_FAILED, "the Replica object has been garbage-collected", 0, 0)
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

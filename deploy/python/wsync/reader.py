"""Reading versions of the weights without being an engine: evaluation jobs, converters, and engines that load in their own way."""
from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Optional

import numpy as np

from ._errors import Busy, Closed, DeadlineExceeded, InvalidInput
from ._exit import OfOneProcess, close_at_exit
from ._native import core
from ._sidecars import engine_socket
from ._tensors import Array, Spec, array_of
from ._values import Version, step_of


class StagedVersion(OfOneProcess):
    """A version that a `Reader` has open. Close it as soon as it has been read: its memory is the sidecar's own staged copy, and is
    not used for another version meanwhile. It is a context manager.

    Attributes:
        version: its name.
        specs: name -> `Spec` (dtype and shape), in the order of the layers.
        tensors: name -> read-only array over the staged bytes, in the same order. Nothing is copied. After `close`, arrays that are
            kept read zeros, and asking for `tensors` raises `Closed`. `wsync.torch.as_tensor(array)` makes a tensor of torch over the
            same memory.
    """

    def __init__(self, raw: "core.Reader", version: Version):
        self.version = version
        self._raw: Optional[core.Reader] = raw
        listed = raw.tensors()
        filled = [(address, size) for _, _, _, address, size in listed if size]
        begin = min((address for address, _ in filled), default=0)
        end = max((address + size for address, size in filled), default=0)
        self._memory = core.Memory(begin, end - begin, False)
        everything = np.frombuffer(self._memory, np.uint8) if end > begin else np.empty(0, np.uint8)
        specs, tensors = {}, {}
        for name, dtype, shape, address, size in listed:
            specs[name] = Spec(dtype, tuple(shape))
            at = address - begin if size else 0
            tensors[name] = array_of(everything[at:at + size], dtype, shape)
        self.specs: Mapping[str, Spec] = MappingProxyType(specs)
        self._tensors: Mapping[str, Array] = MappingProxyType(tensors)

    @property
    def tensors(self) -> Mapping[str, Array]:
        """The arrays by name, while the version is open."""
        if self.closed:
            raise Closed(f"version {self.version} has been closed: its memory may be used for another version")
        return self._tensors

    def close(self) -> None:
        """Gives the version back. The arrays read zeros afterwards. May be called twice."""
        raw, self._raw = self._raw, None
        if raw is not None:
            self._memory.detach()  # before the lease ends, so that nobody reads the bytes of a later version
            if not raw.is_closed:
                raw.close_version()

    @property
    def closed(self) -> bool:
        """Whether the version has been given back."""
        return self._raw is None or self._raw.is_closed

    def __enter__(self) -> "StagedVersion":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_memory", None) is not None:
            self.close()


class Reader(OfOneProcess):
    """Reads the versions that a sidecar holds. A reader is no replica: it takes no part in a switch, and nobody waits for it.

        with wsync.Reader("host0") as reader:
            for staged in reader.follow():                       # each version that the replicas of this host serve
                evaluate(staged.version, staged.tensors)

    Every byte of a version that opens has been compared with the digest that its trainer published.

    Use it from one thread at a time; `close` may be called from any. A forked child cannot use a reader of its parent: calls raise
    `EngineRefused` with the reason, and arrays read zeros there.

    Args:
        sidecar: the name of the sidecar, or the absolute path of its engine socket, as for `Replica`. A sidecar whose path is given
            may start later.
        name: of this reader, 1 to 128 bytes, for the sidecar's log.

    Raises:
        InvalidInput: the path or the name is not valid.
        NotFound: no sidecar of this name runs on this host.
    """

    def __init__(self, sidecar: str, name: Optional[str] = None):
        self._raw = core.Reader(engine_socket(sidecar), name or f"python-{os.getpid()}")
        # Weak: a version that nobody else holds is given back, also after a Ctrl-C that comes before the caller has it.
        self._staged: Optional[weakref.ref[StagedVersion]] = None
        close_at_exit(self)

    def open(self, step: Optional[int] = None, *, after: Optional[Version] = None, timeout: Optional[float] = None) -> StagedVersion:
        """Waits for a version, also for a sidecar that does not run yet or has restarted, and opens it. One version is open at a
        time.

        Args:
            step: the staged version of this step. It may not be decided yet, and may then never be served, because a publish can
                fail after it has been staged. None: the version that the replicas of this host serve or switch to.
            after: without `step`: a version that has been read; another one is awaited.
            timeout: seconds; None waits without limit. Ctrl-C ends the wait.

        Raises:
            Busy: a version is open.
            DeadlineExceeded: the time is over; the sentence says what was awaited.
            EngineRefused: the sidecar refuses, for example because it holds later steps only; or this is a forked child.
            InvalidInput: `step` and `after` are both given.
            Closed: the reader has been closed.
        """
        if step is not None and after is not None:
            raise InvalidInput("step and after exclude each other: give one of them")
        opened = self._staged() if self._staged is not None else None
        if opened is not None and not opened.closed:
            self._raw.tensors()  # not in a forked child, where it says why
            raise Busy(f"version {opened.version} is open: close it before another one is opened")
        step = None if step is None else step_of(step, minimum=0)
        end = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                found = self._raw.open(step, after.epoch if after else 0, after.step if after else 0)
                if found is not None:
                    break
                if end is not None and time.monotonic() >= end:
                    raise DeadlineExceeded(f"no version within {timeout:g} s: {self._raw.waited_for}")
            staged = StagedVersion(self._raw, Version(*found))
            self._staged = weakref.ref(staged)
            return staged
        except BaseException:
            self._raw.close_version()  # Ctrl-C may come when it is open already
            raise

    def follow(self, *, timeout: Optional[float] = None) -> Iterator[StagedVersion]:
        """Yields the version that the replicas of this host serve or switch to, and then each one that replaces it. Versions that
        come while one is being read are left out, but for the newest. Each is closed when the next one is asked for,
        or when nobody holds it any longer.

        Args:
            timeout: seconds to wait for each version, as for `open`.
        """
        last: Optional[Version] = None
        while True:
            staged = self.open(after=last, timeout=timeout)
            last = staged.version
            yield staged
            staged.close()

    def close(self) -> None:
        """Closes the version that is open, and the connection. May be called twice."""
        staged = self._staged() if self._staged is not None else None
        if staged is not None:
            staged.close()
        self._raw.close()

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._raw.is_closed

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


__all__ = ["Reader", "StagedVersion"]

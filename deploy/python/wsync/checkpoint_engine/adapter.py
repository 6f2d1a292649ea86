"""The replica: between the sidecar and an engine's HTTP server."""
from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Mapping
from typing import Any, Optional

import zmq

from .._errors import Busy, Error, InvalidInput, PeerLost, Refused
from .._sidecars import engine_socket
from .._tensors import Spec
from .._values import Pause, Version
from ..replica import Replica, sentence_of
from ..torch import as_tensor, dtype_of
from .conversation import Conversation, free_left_over, lists_of
from .engine import Engine

_log = logging.getLogger("wsync.checkpoint_engine")
_TURN_S = 1.0  # between two looks at the engine
_HTTP_S = 5.0  # for a request that the engine answers at once
_VERSIONS_KNOWN = 16


class Adapter:
    """One engine as a replica of the sidecar. All methods are called on one thread, except `stop`.

    Args:
        sidecar: the name of the sidecar, or the absolute path of its engine socket, as for `wsync.Replica`. Endpoints for the workers
            are made in a directory beside the socket.
        replica: the name of the replica.
        engine: the engine's server.
        devices: the name of each GPU of the engine, and a function that makes a `Buffer` of so many bytes there (`cuda_devices`).
        bucket: bytes of a half of the buffer, unless a tensor needs more.
        timeout: seconds that a worker may be silent in an update. Shorter than the fleet's `deadlines.load`.

    Raises:
        Busy: another process serves this replica.
        InvalidInput: the path of the endpoints is too long.
        NotFound: no sidecar of this name runs on this host.
    """

    def __init__(self, sidecar: str, replica: str, engine: Engine, devices: Mapping[str, Any], bucket: int = 512 << 20,
                 timeout: float = 60.0):
        socket = engine_socket(sidecar)
        self._socket, self._name, self._engine, self._devices = socket, replica, engine, dict(devices)
        self._bucket, self._timeout = bucket, timeout
        self._context = zmq.Context()
        self._stopped = False
        self._steps = 0
        self._paused = False
        self._label: Optional[str] = None  # of the version that was loaded last, if the engine says such labels
        self._counts: dict = {}  # version -> its number of tensors; the newest last
        self._layers: list = []
        self._given_up: Optional[Conversation] = None  # the engine has not left it yet
        self._reason = ""  # why it was given up
        # The same for each process with this replica, so that the next one finds what a killed one has left.
        digest = hashlib.sha256(replica.encode()).hexdigest()[:8]
        self._directory = os.path.join(os.path.dirname(socket), f"ce-{digest}")
        if len(self._directory) > 90:
            raise InvalidInput(f"the endpoints of the workers would be in {self._directory}, which is too long for a socket")
        os.makedirs(self._directory, 0o700, exist_ok=True)
        self._lock = os.open(self._directory, os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as failure:
            os.close(self._lock)
            raise Busy(f"another process serves the replica '{replica}' at {socket}") from failure
        freed = free_left_over(self._context, self._directory, _HTTP_S)
        if freed:
            _log.warning("%d workers have left an update whose server had ended", freed)

    def stop(self) -> None:
        """Ends `run` soon. May be called in a signal handler."""
        self._stopped = True

    def run(self) -> None:
        """Attaches the engine whenever it is there, until `stop`."""
        try:
            while not self._stopped:
                if self._label_of_engine()[0]:
                    self._follow()
                time.sleep(_TURN_S / 5)
        finally:
            if self._given_up is not None and not self._given_up.given_up(_HTTP_S):
                _log.error("the engine is still in the update to %s; restart it", self._given_up.version)
            self._context.destroy(1000)
            os.close(self._lock)

    def _label_of_engine(self) -> tuple:
        """(whether the engine's server is there, the version that it says)"""
        try:
            return True, self._engine.label(_HTTP_S)
        except Error as failure:
            _log.debug("%s", failure)
            return False, None

    def _follow(self) -> None:
        """While one process of the engine lives."""
        self._label, self._paused = None, False
        self._gone = False
        with Replica(self._socket, self._name, take="borrow", serving=True, pause=self._pause, check_version=self._check,
                     load_begin=self._begin, load_layer=self._load_layer, commit=self._commit, resume=self._resume) as replica:
            self._replica = replica
            _log.info("replica '%s' is %s", self._name, self._engine.url)
            looked = time.monotonic()
            while not self._stopped and not self._gone:
                replica._poll_on(_TURN_S / 5)
                if self._given_up is not None and self._given_up.given_up(0):
                    self._given_up = None
                if time.monotonic() - looked >= _TURN_S and not self._paused:
                    is_there, label = self._label_of_engine()
                    self._gone = not is_there or (self._label is not None and label != self._label)
                    looked = time.monotonic()
        _log.info("replica '%s' is detached%s", self._name, ": the engine has ended or was restarted" if self._gone else "")

    # Callbacks. Each is done when it returns.

    def _pause(self, pause: Pause) -> None:
        self._paused = True
        try:
            self._engine.pause(pause)
        except PeerLost:
            self._gone = True
            raise
        self._steps += 1
        self._replica.paused(self._steps)

    def _check(self, version: Version, tensors: Mapping[str, Spec]) -> None:
        for name, spec in tensors.items():
            dtype_of(spec.dtype)
        self._counts.pop(version, None)
        self._counts[version] = len(tensors)
        for old in list(self._counts)[:-_VERSIONS_KNOWN]:
            del self._counts[old]

    def _begin(self, version: Version) -> None:
        self._layers = []
        if self._given_up is not None:
            if not self._given_up.given_up(0):  # the sidecar tries again later
                raise Busy(f"the engine is still in the update to {self._given_up.version}, which has failed: {self._reason}")
            self._given_up = None

    def _load_layer(self, version: Version, layer: int, tensors: Mapping[str, Any]) -> None:
        self._layers.append({name: as_tensor(array) for name, array in tensors.items()})
        if sum(map(len, self._layers)) < self._counts[version]:
            return
        layers, self._layers = self._layers, []
        begin = time.perf_counter()
        lists, half = lists_of(layers, self._bucket)
        conversation = Conversation(self._context, self._directory, self._devices, self._timeout, version)
        try:
            conversation.run(self._engine, lists, half)
        except BaseException as failure:
            self._reason = sentence_of(failure)
            if not conversation.given_up(min(self._timeout, _HTTP_S)):
                self._given_up = conversation
            self._gone = not self._label_of_engine()[0]
            raise
        self._label = None  # until the engine is told, or tells
        _log.info("%s is loaded: %d lists, a buffer of 2 x %d bytes, %.1f ms", version, len(lists), half,
                  (time.perf_counter() - begin) * 1e3)

    def _commit(self, version: Version) -> None:
        try:
            self._engine.committed(version, _HTTP_S)
        except Refused as failure:  # an engine that has no labels
            _log.debug("%s", failure)
        self._label = self._label_of_engine()[1]

    def _resume(self) -> None:
        end = time.monotonic() + _HTTP_S
        while True:
            try:
                self._engine.resume(_HTTP_S)
                break
            except Error as failure:
                _log.error("the engine was not resumed: %s", failure)
                if time.monotonic() > end:
                    self._gone = True  # attached again, it is paused and resumed once more
                    raise
                time.sleep(_TURN_S / 5)
        self._paused = False

"""wsync in Ray: a sidecar on each node of a Ray cluster.

    ray.init(...)
    fleet = wsync.ray.start()                      # one sidecar for each node that is alive
    fleet.sockets()                                # node id -> the engine socket of its sidecar
    fleet.stop()

Each sidecar is the child of an actor that is pinned to its node and needs no CPUs and no GPUs. The actor starts a sidecar again
that has ended, and Ray starts an actor again that has died. Nodes that join later get a sidecar within `period` seconds, or at
once with `update()`; those that have left are forgotten. `stop` ends the sidecars and removes their directories.

The coordinator is the trainer's publisher, in whichever process makes `wsync.Publisher(settings=fleet.settings)`. **One host
only**: sidecars of other hosts are refused, because this class gives them no keys. So all nodes must be on the host of the
process that calls `start`, as several raylets of one machine are; a node of another host gets no sidecar, and `refused()` tells
why.

Run with: Ray 2.60.0, several raylets on one machine, with nodes that are killed and added. Not run: nodes of several hosts.
"""
from __future__ import annotations

import ctypes
import logging
import os
import shutil
import signal
import socket as _sockets
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any, Optional

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ._errors import DeadlineExceeded, Refused
from ._native import EXECUTABLE

_log = logging.getLogger("wsync.ray")
_START_S = 60.0  # for a sidecar to listen
_STOP_S = 10.0  # for a sidecar to sign off
_TRIES = 5  # starts of a sidecar that has never listened
_AGAIN_S = 1.0  # before a sidecar that has ended is started again


_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """In the child, before it becomes the sidecar: an actor that is killed leaves none behind."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class _Sidecar:
    """An actor of Ray: the sidecar of one node, and a thread that starts it again."""

    def __init__(self, name: str, run_dir: str, settings: Mapping[str, str], host: str):
        if _sockets.gethostname() != host:
            raise Refused(f"the node is on the host {_sockets.gethostname()}, the fleet on {host}: sidecars of other hosts are "
                          "refused, because this class gives them no keys")
        self._command = [EXECUTABLE, "sidecar", "--set", f"name={name}"]
        for key, value in settings.items():
            self._command += ["--set", f"{key}={value}"]
        self._environment = dict(os.environ, WSYNC_RUN_DIR=run_dir, WSYNC_STATE_DIR=os.path.join(run_dir, "state"))
        self._log = os.path.join(run_dir, f"{name}.log")
        self._socket = os.path.join(run_dir, f"{name}.engines")
        self._stopping = threading.Event()
        self._process: Optional[subprocess.Popen] = None
        self._starts = 0
        self._thread = threading.Thread(target=self._supervise, daemon=True)
        self._thread.start()

    def _supervise(self) -> None:
        """Starts the sidecar whenever there is none. Linux ends a sidecar with the thread that has started it, so it is always this
        one, which lives as long as the actor."""
        while not self._stopping.is_set():
            with open(self._log, "ab") as log:
                self._process = subprocess.Popen(self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log,
                                                 stderr=log, preexec_fn=_end_with_parent)
            self._starts += 1
            self._process.wait()
            if not self._stopping.wait(_AGAIN_S):
                _log.warning("the sidecar has ended with %s and is started again; its log is %s", self._process.returncode,
                             self._log)

    def wait(self) -> str:
        """The socket, when the sidecar listens there."""
        end = time.monotonic() + _START_S
        while time.monotonic() < end and self._starts < _TRIES:
            with _sockets.socket(_sockets.AF_UNIX) as attempt:
                if attempt.connect_ex(self._socket) == 0:
                    return self._socket
            time.sleep(0.02)
        with open(self._log, encoding="utf-8", errors="replace") as file:
            said = " ".join(file.read()[-1000:].split())
        raise DeadlineExceeded(f"the sidecar does not listen at {self._socket} after {self._starts} starts: {said}")

    def state(self) -> dict:
        """The process id of the sidecar, and how often this actor has started it."""
        return {"pid": self._process.pid if self._process else None, "starts": self._starts}

    def stop(self) -> None:
        """Ends the sidecar; it signs off."""
        self._stopping.set()
        process = self._process
        if process is not None:
            process.terminate()
            self._thread.join(_STOP_S)
            process.kill()
        self._thread.join()


class Fleet:
    """The sidecars of a cluster. Made by `start`; methods may be called from any thread.

    Attributes:
        run_dir: the directory in which the processes of the fleet meet.
        settings: what the trainer's `wsync.Publisher(settings=...)` needs to meet them.
    """

    def __init__(self, run_dir: str, settings: Mapping[str, str], period: float):
        self.run_dir = run_dir
        self.settings = {"run_dir": run_dir, "state_dir": os.path.join(run_dir, "trainer-state")}
        self._settings = dict(settings)
        self._actors: dict = {}  # node id -> actor
        self._sockets: dict = {}
        self._refused: dict = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(period,), name="wsync ray", daemon=True)

    def _watch(self, period: float) -> None:
        while not self._stopped.wait(period):
            try:
                self.update()
            except Exception as failure:  # of a cluster that changes meanwhile, or that is shutting down
                _log.warning("the nodes could not be looked at: %s", failure)

    def update(self) -> dict:
        """Starts a sidecar on each node that has none, and forgets nodes that have left. Returns `sockets()`.

        Raises:
            DeadlineExceeded: a sidecar does not listen after 60 s or 5 starts; the end of its log is in the sentence.
        """
        with self._lock:
            if self._stopped.is_set():
                return {}
            alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
            for node in list(self._actors):
                if node not in alive:
                    actor = self._actors.pop(node)
                    self._sockets.pop(node, None)
                    ray.kill(actor)  # Ray would wait for the node to come back
            actor_class = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=3)(_Sidecar)
            for node in alive - set(self._actors) - set(self._refused):
                # One thread for `wait`, one for `stop`.
                self._actors[node] = actor_class.options(
                    max_concurrency=2, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
                        f"ray-{node[:16]}", self.run_dir, self._settings, _sockets.gethostname())
            for node, actor in list(self._actors.items()):
                if node in self._sockets:
                    continue
                try:
                    self._sockets[node] = ray.get(actor.wait.remote(), timeout=2 * _START_S)
                except ray.exceptions.ActorDiedError as failure:
                    self._actors.pop(node)
                    if "Refused" in str(failure):
                        self._refused[node] = str(failure).strip().splitlines()[-1]
                        _log.error("node %s has no sidecar: %s", node, self._refused[node])
                    else:
                        _log.warning("node %s has left while its sidecar started", node)
            return dict(self._sockets)

    def sockets(self) -> dict[str, str]:
        """The engine socket of the sidecar of each node, by the node's id."""
        with self._lock:
            return dict(self._sockets)

    def refused(self) -> dict[str, str]:
        """Nodes that cannot have a sidecar, and why."""
        with self._lock:
            return dict(self._refused)

    def states(self) -> dict[str, dict]:
        """For each node: the process id of its sidecar (`pid`), and how often it was started (`starts`)."""
        with self._lock:
            actors = dict(self._actors)
        return {node: ray.get(actor.state.remote(), timeout=_START_S) for node, actor in actors.items()}

    def stop(self) -> None:
        """Ends all sidecars and removes the directory of the fleet. May be called twice. Close the publisher first."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._thread.join()
        with self._lock:
            for node, actor in self._actors.items():
                try:
                    ray.get(actor.stop.remote(), timeout=2 * _STOP_S)
                except ray.exceptions.RayError as failure:
                    _log.warning("the sidecar of node %s was not stopped: %s", node, failure)
                ray.kill(actor)
            self._actors, self._sockets = {}, {}
            shutil.rmtree(self.run_dir, ignore_errors=True)

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()


def start(settings: Optional[Mapping[str, str]] = None, *, period: float = 5.0) -> Fleet:
    """Starts a sidecar on each node of the cluster that this process is connected to (`ray.init`).

    Args:
        settings: of the sidecars, as `--set` of `wsync sidecar` has them: for example {"versions_held": "3"}.
        period: seconds between two looks for nodes that have joined or left.

    Raises:
        Refused: Ray is not initialized.
        DeadlineExceeded: a sidecar does not listen after 60 s or 5 starts.
    """
    if not ray.is_initialized():
        raise Refused("Ray is not initialized in this process; call ray.init() first")
    fleet = Fleet(tempfile.mkdtemp(prefix="wsync-ray-"), settings or {}, period)
    try:
        fleet.update()
    except BaseException:
        fleet._thread.start()
        fleet.stop()
        raise
    fleet._thread.start()
    return fleet

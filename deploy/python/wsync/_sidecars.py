"""The sidecars of this host: where they listen for engines, and how one is found by its name."""
from __future__ import annotations

import errno
import logging
import os
import socket as _sockets
import time
from typing import Any

from ._errors import EngineRefused, InvalidInput, NotFound

_log = logging.getLogger("wsync")
_ENDING = ".engines"  # of the engine socket, behind the name of the sidecar
WAIT_S = 5.0  # for a sidecar that is being started
_SAY_S = 1.0
_LOOK_S = 0.02


def run_dir() -> str:
    """The directory in which the processes of a fleet meet, as `wsync sidecar` finds it without a configuration."""
    given = os.environ.get("WSYNC_RUN_DIR", "")
    if given not in ("", "auto"):
        return given
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return f"{runtime}/wsync" if runtime.startswith("/") else f"/tmp/wsync-{os.getuid()}"


def _attempt(path: str) -> int:
    """The errno of a connection to the socket; 0: a process listens there."""
    with _sockets.socket(_sockets.AF_UNIX) as attempt:
        attempt.setblocking(False)
        try:
            found = attempt.connect_ex(path)
        except (OSError, ValueError):  # the path is too long for a socket, or has a zero
            return errno.ENAMETOOLONG
    return 0 if found in (errno.EAGAIN, errno.EINPROGRESS) else found


def running(directory: str) -> list:
    """The names of the sidecars that listen for engines in a run_dir, sorted."""
    try:
        names = [entry.removesuffix(_ENDING) for entry in os.listdir(directory) if entry.endswith(_ENDING)]
    except OSError:
        return []
    return sorted(name for name in names if _attempt(os.path.join(directory, name + _ENDING)) == 0)


def engine_socket(sidecar: Any, *, wait_s: float = WAIT_S) -> str:
    """The engine socket of a sidecar of this host.

    Args:
        sidecar: its name, in the run_dir of a sidecar without a configuration; or the path of its socket, which has a '/', and is
            returned as it is.
        wait_s: seconds in which a sidecar of that name may begin to listen. Ctrl-C ends the wait.

    Raises:
        NotFound: no sidecar of this name listens.
        InvalidInput: it is neither a name nor a path.
        EngineRefused: this user may not connect to the socket.
    """
    given = os.fspath(sidecar) if isinstance(sidecar, os.PathLike) else sidecar
    if not isinstance(given, str) or not given:
        raise InvalidInput(f"the sidecar is {sidecar!r}, expected its name, such as \"host0\" for `wsync sidecar --set name=host0`, "
                           "or the absolute path of its engine socket")
    if "/" in given:
        return given
    directory = run_dir()
    path = os.path.join(directory, given + _ENDING)
    begin = time.monotonic()
    said = False
    while (problem := _attempt(path)) in (errno.ENOENT, errno.ECONNREFUSED) and time.monotonic() - begin < wait_s:
        if not said and time.monotonic() - begin >= _SAY_S:
            said = True
            _log.warning("no sidecar '%s' listens at %s yet: it is awaited for %g s", given, path, wait_s)
        time.sleep(_LOOK_S)
    if problem == 0:
        return path
    if problem == errno.ENAMETOOLONG:
        raise InvalidInput(f"the engine socket of sidecar '{given}' would be {path}, which is no path of a socket (at most 107 "
                           "bytes): give the sidecar a shorter name or run_dir")
    if problem not in (errno.ENOENT, errno.ECONNREFUSED):
        raise EngineRefused(f"the engine socket {path} of sidecar '{given}' cannot be reached: {os.strerror(problem)}; sidecar and "
                            "engines run as the same user")
    left = "its socket is left over from a process that has ended" if problem == errno.ECONNREFUSED else "there is no such socket"
    others = running(directory)
    there = f"the sidecars that run there are {', '.join(others)}" if others else "no other sidecar runs there"
    raise NotFound(f"no sidecar '{given}' runs on this host: looked for {path} for {wait_s:g} s, and {left}; {there}. Start it with "
                   f"`wsync sidecar --set name={given}`, or name one that runs. For a sidecar with another run_dir, set WSYNC_RUN_DIR "
                   "to it, or give the path that the sidecar prints as \"engines attach at\"")


def adapter_socket() -> str:
    """The engine socket for an adapter that is set up by the environment: of the sidecar whose name or socket is in
    WSYNC_ENGINE_SOCKET, otherwise of the only one in the run_dir.

    Raises:
        InvalidInput: none is given, and the directory does not have exactly one.
        Error: as `engine_socket`.
    """
    given = os.environ.get("WSYNC_ENGINE_SOCKET")
    if given:
        return engine_socket(given)
    directory = run_dir()
    try:
        found = sorted(entry for entry in os.listdir(directory) if entry.endswith(_ENDING))
    except OSError:
        found = []
    if len(found) == 1:
        return os.path.join(directory, found[0])
    what = (f"several sidecars have one: {', '.join(entry.removesuffix(_ENDING) for entry in found)}" if found
            else "no sidecar has one there")
    raise InvalidInput(f"the engine socket of a sidecar was looked for in {directory}, and {what}; start `wsync sidecar --set "
                       "name=host0`, or name the sidecar in WSYNC_ENGINE_SOCKET")

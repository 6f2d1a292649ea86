"""The settings of the adapter, read from the environment."""
from __future__ import annotations

import glob
import math
import os
from dataclasses import dataclass

from .._errors import InvalidInput


@dataclass(frozen=True)
class Settings:
    """See `wsync.vllm`."""
    socket: str
    replica: str
    clears_cache: bool
    start_s: float


def run_dir() -> str:
    """The directory in which the processes of a fleet meet, as the command `wsync` finds it."""
    given = os.environ.get("WSYNC_RUN_DIR")
    if given:
        return given
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return f"{runtime}/wsync" if runtime.startswith("/") else f"/tmp/wsync-{os.getuid()}"


def engine_socket() -> str:
    """The socket of the sidecar to attach to.

    Raises:
        InvalidInput: none is given, and the directory does not have exactly one.
    """
    given = os.environ.get("WSYNC_ENGINE_SOCKET")
    if given:
        return given
    directory = run_dir()
    found = sorted(glob.glob(os.path.join(directory, "*.engines")))
    if len(found) == 1:
        return found[0]
    what = f"several sidecars have one: {', '.join(found)}" if found else "no sidecar has one there"
    raise InvalidInput(f"the engine socket of a sidecar was looked for in {directory}, and {what}; start `wsync sidecar`, or name "
                       "the socket in WSYNC_ENGINE_SOCKET")


def read(port: int, engine: str = "vllm") -> Settings:
    """Reads the settings of a server that listens on `port`; the default of the replica's name begins with `engine`.

    Raises:
        InvalidInput: a value is not one of those that are allowed.
    """
    cache = os.environ.get("WSYNC_ENGINE_CACHE", "clear")
    if cache not in ("clear", "keep"):
        raise InvalidInput(f"WSYNC_ENGINE_CACHE is '{cache}', expected clear or keep")
    start = os.environ.get("WSYNC_ENGINE_START_S", "60")
    try:
        start_s = float(start)
    except ValueError:
        start_s = -1.0
    if not 0 <= start_s < math.inf:
        raise InvalidInput(f"WSYNC_ENGINE_START_S is '{start}', expected seconds, 0 or more")
    return Settings(engine_socket(), os.environ.get("WSYNC_ENGINE_REPLICA") or f"{engine}-{port}", cache == "clear", start_s)

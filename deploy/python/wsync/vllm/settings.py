"""The settings of the adapter, read from the environment."""
from __future__ import annotations

import math
import os
from dataclasses import dataclass

from .._errors import InvalidInput
from .._sidecars import adapter_socket


@dataclass(frozen=True)
class Settings:
    """See `wsync.vllm`."""
    socket: str
    replica: str
    clears_cache: bool
    start_s: float


def read(port: int, engine: str = "vllm") -> Settings:
    """Reads the settings of a server that listens on `port`; the default of the replica's name begins with `engine`.

    Raises:
        InvalidInput: a value is not one of those that are allowed, or no sidecar is named and there is not exactly one.
        NotFound: no sidecar of the given name runs on this host.
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
    return Settings(adapter_socket(), os.environ.get("WSYNC_ENGINE_REPLICA") or f"{engine}-{port}", cache == "clear", start_s)

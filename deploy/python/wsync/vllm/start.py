"""A server that starts in a fleet that has a version opens its port with that version."""
from __future__ import annotations

import asyncio
from typing import Optional

from vllm.logger import init_logger

import wsync

from .settings import Settings

_log = init_logger("vllm.plugins.wsync")  # a name that vLLM has a handler for
_ASK_S = 1.0  # a sidecar that has a version says so at once


async def until_served(serves: asyncio.Event, settings: Settings) -> None:
    """Waits until the server has taken the version of the fleet over, so that no request is answered with the weights that it was
    started with. Does not wait if the sidecar has no version, and never longer than `settings.start_s`.

    Args:
        serves: is set when the server serves a version of the fleet.
        settings: of the adapter.
    """
    wanted = await asyncio.to_thread(_version_of, settings) if settings.start_s else None
    if wanted is None:
        return
    _log.info("the port is opened when version %s of the fleet is served, after %g s at the latest", wanted, settings.start_s)
    try:
        await asyncio.wait_for(serves.wait(), settings.start_s)
    except asyncio.TimeoutError:
        _log.warning("version %s was not loaded within %g s (WSYNC_ENGINE_START_S): the port is opened, and the weights that the "
                     "server was started with answer until then", wanted, settings.start_s)


def _version_of(settings: Settings) -> Optional[wsync.Version]:
    """The version that the replicas of the sidecar serve or switch to; None: it has none."""
    try:
        with wsync.Reader(settings.socket, settings.replica) as reader, reader.open(timeout=_ASK_S) as staged:
            return staged.version
    except wsync.Error as failure:
        _log.info("no version of the fleet is awaited: %s", failure)
        return None

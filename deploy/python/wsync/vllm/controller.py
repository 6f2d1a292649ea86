"""The part of the adapter that runs in vLLM's API server: the controller of the replica.

A worker of vLLM can neither pause its engine nor resume it; the API server can. It is the leader of the replica, without weights.
Each command of the sidecar is one turn of `_run`, in order, on the server's event loop:

    pause      pause_generation, then start_weight_update on every worker
    load       update_weights on every worker: each loads what its own link was passed
    resume     finish_weight_update on every worker, then resume_generation
"""
from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from typing import Any, Optional

from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.logger import init_logger

import wsync

from . import spans, start
from .settings import Settings, read

_log = init_logger("vllm.plugins.wsync")  # a name that vLLM has a handler for
_MODES = {wsync.PauseMode.ABORT: "abort", wsync.PauseMode.WAIT: "wait", wsync.PauseMode.KEEP: "keep"}
_LOAD_S = 10.0  # a version that a worker's link has not been passed in this time is given up; it passes pointers only
_SWITCHES_KEPT = 100


@dataclass
class Switch:
    """One pause, and what came of it. Times in milliseconds."""
    mode: str
    version: str  # that the pause was for
    served: str = ""  # afterwards; empty while the pause lasts
    pause_ms: float = 0.0  # until all requests stood still
    load_ms: float = 0.0
    whole_ms: float = 0.0  # from the pause to the next step


class Controller:
    """The leader of a replica of vLLM. Everything runs on the event loop of the API server."""

    def __init__(self, client: Any, settings: Settings, world_size: int):
        self._client = client
        self._clears_cache = settings.clears_cache
        self._commands: asyncio.Queue = asyncio.Queue()
        self._pauses = 0  # that were begun
        self._resumed = 0  # pauses that a resume has ended, or cancelled
        self._is_paused = False
        self._updating = False  # the workers have been told that the engine stands still
        self._wanted: Optional[wsync.Version] = None  # the newest version that the fleet has asked to load
        self._interrupt = asyncio.Event()  # ends the wait for a pause
        self.serves = asyncio.Event()  # a version of the fleet
        self._loop = asyncio.get_running_loop()
        self.version: Optional[wsync.Version] = None
        self.switches: list = []
        self.replica = wsync.Replica(settings.socket, settings.replica, world_size=world_size, leader=True, has_controller=True,
                                     serving=True, pause=self._asked_to_pause, load_begin=self._asked_to_load,
                                     commit=self._committed, resume=self._asked_to_resume)
        self._worker = self._loop.create_task(self._run())
        self._loop.add_reader(self.replica.fileno(), self._ready)
        self._loop.call_soon(self._ready)

    def _ready(self) -> None:
        try:
            self.replica._poll_on(0)
        except wsync.Error as failure:
            _log.error("the link to the sidecar cannot be served: %s", failure)
            self._loop.remove_reader(self.replica.fileno())

    # Callbacks: each returns at once.

    def _asked_to_pause(self, pause: wsync.Pause) -> None:
        self._pauses += 1
        self._commands.put_nowait((self._pause, (self._pauses, pause)))

    def _asked_to_load(self, version: wsync.Version) -> None:
        self._wanted = version
        self._commands.put_nowait((self._load, (version,)))

    def _committed(self, version: wsync.Version) -> None:
        self.version = version

    def _asked_to_resume(self) -> None:
        self._resumed = self._pauses
        self._wanted = None
        self._interrupt.set()
        self._commands.put_nowait((self._resume, ()))

    # Commands, one at a time.

    async def _run(self) -> None:
        while True:
            command, arguments = await self._commands.get()
            try:
                await command(*arguments)
            except Exception:
                # The sidecar's deadlines tell the fleet. An engine that has died ends the server by itself.
                _log.exception("%s failed", command.__name__.strip("_"))

    def _clears(self, pause: wsync.Pause) -> bool:
        return self._clears_cache if pause.caches is wsync.CachePolicy.ENGINE else pause.caches is wsync.CachePolicy.CLEAR

    async def _pause(self, number: int, pause: wsync.Pause) -> None:
        if number <= self._resumed:
            return  # it was cancelled before it began
        if self._updating:  # asked again: the server stands still
            self.replica.paused(number)
            return
        switch = Switch(_MODES[pause.mode], str(pause.version))
        self.switches = self.switches[1 - _SWITCHES_KEPT:] + [switch]
        self._begin = time.perf_counter()
        self._is_paused = True
        self._interrupt.clear()
        pausing = asyncio.ensure_future(self._client.pause_generation(mode=switch.mode, clear_cache=self._clears(pause)))
        interrupted = asyncio.ensure_future(self._interrupt.wait())
        await asyncio.wait({pausing, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        interrupted.cancel()
        switch.pause_ms = (time.perf_counter() - self._begin) * 1e3
        if number <= self._resumed:
            # The fleet has not waited for the requests that had to end first, and was told that the server goes on. vLLM cannot
            # cancel such a pause; it ends with these requests, after the resume, and changes nothing then.
            pausing.add_done_callback(lambda done: done.cancelled() or done.exception())
            _log.warning("the pause for %s was ended after %.0f ms, before all requests stood still (deadlines.pause)", switch.version,
                         switch.pause_ms)
            return
        await pausing
        self._updating = True  # from here on every worker must be told of the end, even if one of them has failed
        await self._client.start_weight_update()
        if number > self._resumed:
            self.replica.paused(number)

    async def _load(self, version: wsync.Version) -> None:
        # A worker would wait in vain for a load that the fleet has given up.
        if not self._updating or version != self._wanted:
            return
        begin = time.perf_counter()
        await self._client.update_weights(
            WeightTransferUpdateRequest(update_info={"version": str(version), "deadline_s": _LOAD_S}))
        self.switches[-1].load_ms = (time.perf_counter() - begin) * 1e3

    async def _resume(self) -> None:
        try:
            if self._updating:
                self._updating = False
                await self._client.finish_weight_update(weight_version=str(self.version) if self.version else None)
        finally:
            if self._is_paused:
                self._is_paused = False
                await self._client.resume_generation()
                self._report()
                if self.version is not None:
                    self.serves.set()

    def _report(self) -> None:
        switch = self.switches[-1]
        switch.whole_ms = (time.perf_counter() - self._begin) * 1e3
        switch.served = str(self.version or "")
        _log.info("serves %s: %s for %.1f ms, loaded in %.1f ms, stood still for %.1f ms", switch.served or "its own weights",
                  switch.mode, switch.pause_ms, switch.load_ms, switch.whole_ms)


class Plugin:
    """The entry point `vllm.endpoint_plugins`."""

    name = "wsync"
    required_tasks = ("generate",)

    def attach_router(self, app: Any) -> None:
        """Adds `GET /wsync`: the version that is served, whether the sidecar is there, and the last switches. The answers of the
        OpenAI routes get the versions of their tokens."""
        spans.add()

        @app.get("/wsync")
        async def wsync_state() -> dict:
            controller = app.state.wsync
            status = controller.replica.status()
            return {"replica": controller.replica.name, "version": str(controller.version or ""), "attached": status.attached,
                    "state": status.state.name.lower(), "switches": [asdict(switch) for switch in controller.switches]}

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Attaches the workers and the controller, before the port is opened."""
        settings = read(args.port)
        world_size = engine_client.vllm_config.parallel_config.world_size
        await engine_client.init_weight_transfer_engine(WeightTransferInitRequest(init_info={
            "socket": settings.socket, "replica": settings.replica, "world_size": world_size}))
        state.wsync = Controller(engine_client, settings, world_size)
        _log.info("replica '%s' of %d ranks follows %s", settings.replica, world_size, settings.socket)
        await start.until_served(state.wsync.serves, settings)

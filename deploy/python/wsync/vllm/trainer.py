"""vLLM's own API for trainers, with wsync behind it.

    wsync.vllm.register_trainer()
    engine = WeightTransferTrainerFactory.trainer_init(wsync.vllm.trainer.InitInfo(rank=0), client=client,
                                                       source=ModuleSource(model))
    engine.send_weights()
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Optional

from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine

from .._tensors import copyable
from .._values import PublishStatus
from ..publisher import Publisher


@dataclass
class InitInfo(TrainerInitInfo):
    """Settings of the fleet, as for `wsync.Publisher`, and the dtype that is published; None: as the source has it."""
    backend: ClassVar[str] = "wsync"
    settings: dict = field(default_factory=lambda: {"pause_mode": "keep"})
    dtype: Optional[str] = None


class WsyncTrainerEngine(TrainerWeightTransferEngine[InitInfo]):
    """Publishes a `WeightSource`. The client is not used: each server is driven by its own replica."""

    init_info_cls = InitInfo

    @classmethod
    def trainer_init(cls, init_info: InitInfo, *, client: Any, source: Any = None) -> "WsyncTrainerEngine":
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        engine._dtype = init_info.dtype
        engine._publisher = Publisher(settings=init_info.settings) if init_info.is_sender else None
        return engine

    def send_weights(self) -> Optional[PublishStatus]:
        """Publishes the weights and waits until the servers have switched. Ranks that do not send take part in gathering only."""
        if self._publisher is None:
            for _ in self.source:
                pass
            return None
        iterator = iter(self.source)
        try:
            with self._publisher.version() as version:
                for name, tensor in iterator:
                    version.put(name, copyable(tensor.detach()), dtype=self._dtype)
        except BaseException:
            for _ in iterator:  # other ranks take part in gathering each tensor, and would wait for this one
                pass
            raise
        return version.publish.wait("committed")

    def shutdown(self) -> None:
        """Leaves the fleet."""
        if self._publisher is not None:
            self._publisher.close()

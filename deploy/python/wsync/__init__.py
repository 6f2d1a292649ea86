"""wsync: the weights of inference engines follow those of a trainer.

`Publisher` is for trainers, `Replica` for inference engines, `Reader` for what only reads. They talk to `wsync sidecar`, which the same package brings as the
command `wsync`.
"""
import importlib as _importlib
from typing import Any as _Any

from ._errors import (Busy, Cancelled, Closed, Code, DeadlineExceeded, DigestMismatch, EngineRefused, Error, Fenced, Internal,
                      InvalidInput, IoFailure, NotFound, Partial, PeerLost, Refused, ResourceExhausted)
from ._tensors import Array, Range, Shard, Spec, as_dtype
from ._values import LATER, CachePolicy, Later, Pause, PauseMode, PublishState, PublishStatus, RankState, ReplicaStatus, RollBack, Version
from ._native.core import version as __version__
from .publisher import Draft, Publish, Publisher
from .reader import Reader, StagedVersion
from .replica import Replica

__all__ = ["__version__", "Array", "Busy", "CachePolicy", "Cancelled", "Closed", "Code", "DeadlineExceeded", "DigestMismatch", "Draft", "EngineRefused", "Error",
           "Fenced", "Internal", "InvalidInput", "IoFailure", "LATER", "Later", "NotFound", "Partial", "Pause", "PauseMode",
           "PeerLost", "Publish", "PublishState", "PublishStatus", "Publisher", "Range", "RankState", "Reader", "Refused", "Replica",
           "ReplicaStatus", "ResourceExhausted", "RollBack",
           "Shard", "Spec", "StagedVersion", "Version", "as_dtype"]

# Imported when they are first used, because each needs a framework.
_ADAPTERS = ("checkpoint_engine", "directory", "llama_cpp", "ray", "sglang", "torch", "transformers", "trl", "verl", "vllm")


def __getattr__(name: str) -> _Any:
    if name in _ADAPTERS:
        return _importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list:
    return sorted({*globals(), *_ADAPTERS})

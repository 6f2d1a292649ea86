"""The buffer that a worker maps: memory of one GPU, and what the worker needs to find it."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Optional, Protocol

import torch

from .._errors import InvalidInput


class Buffer(Protocol):
    """Memory that one worker maps. Used by one thread."""

    def handle(self) -> tuple:
        """(function, arguments) that the worker calls to map it; must be picklable. The argument at index 6 is replaced by the
        number of the worker's device."""

    def write(self, offset: int, data: torch.Tensor) -> None:
        """Writes a tensor of uint8 in the memory of the host."""

    def synchronize(self) -> None:
        """Returns when everything that was written can be read."""

    def close(self) -> None:
        """Gives the memory back; the worker has unmapped it."""


class CudaBuffer:
    """Memory of a GPU of this process. Must not be of an expandable segment (PYTORCH_CUDA_ALLOC_CONF)."""

    def __init__(self, device: int, size: int):
        self._device = device
        self._memory: Optional[torch.Tensor] = torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")

    def handle(self) -> tuple:
        from torch.multiprocessing.reductions import reduce_tensor
        return reduce_tensor(self._memory)

    def write(self, offset: int, data: torch.Tensor) -> None:
        assert self._memory is not None, "closed"
        self._memory[offset:offset + data.numel()].copy_(data)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def close(self) -> None:
        self._memory = None
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()


def cuda_devices(numbers: Optional[list] = None) -> dict[str, Callable[[int], Any]]:
    """The GPUs of an engine, as the name that its worker has for each, and a function that makes a buffer of so many bytes there.

    Args:
        numbers: of the GPUs, as this process counts them. None: all.

    Raises:
        InvalidInput: this process sees no GPU, or not that one.
    """
    count = torch.cuda.device_count()
    numbers = list(range(count)) if numbers is None else numbers
    if not numbers or max(numbers) >= count:
        raise InvalidInput(f"this process sees {count} GPUs, wanted are {numbers or 'those of the engine'}; look at "
                           "CUDA_VISIBLE_DEVICES, --devices, and whether torch has CUDA")
    return {f"GPU-{torch.cuda.get_device_properties(number).uuid}": functools.partial(CudaBuffer, number) for number in numbers}

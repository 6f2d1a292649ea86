"""Where the library writes the weights of an engine's rank: into the memory of the host, or into that of one GPU."""
from __future__ import annotations

from typing import Any, Optional

from ._device_memory import DeviceMemory, device_memory
from ._errors import InvalidInput
from ._tensors import Described, Spec, describe, described_part, is_torch, parts_of


class Destinations:
    """The memory of all tensors of one rank, which is in one place. The first tensor says where.

    Attributes:
        gpu: the number of the GPU among those that this process sees. None: the memory of the host.
    """

    def __init__(self, first: Optional[tuple], gpu: Optional[int]):
        """first: (name, value) of the first tensor; None: the rank has none. gpu: what the user says, as `Replica`."""
        if gpu is not None and gpu < 0:
            raise InvalidInput(f"gpu is {gpu}, expected the number of a GPU of this process, counted from 0")
        self._first = "" if first is None else first[0]
        memory = None if first is None else _memory_of(*first)
        self.gpu = gpu
        if memory is not None and gpu is None:
            # The library asks the driver whether the memory is there, and refuses it by name.
            self.gpu = memory.gpu or 0

    def describe(self, name: str, given: Any) -> Described:
        """Reads what a user gives for a tensor into which the library is to write. `own` of the description keeps the memory alive.

        Raises:
            InvalidInput: it is in another place than the first one, or nothing can be written there.
        """
        memory = _memory_of(name, given)
        if memory is None:
            described = describe(name, given, writable=True)
            if self.gpu is not None:
                raise InvalidInput(f"tensor {name} is in the memory of the host, and {self._place()}; the tensors of a rank are "
                                   "all in the memory of the host, or all on one GPU", tensor=name)
            return described
        if self.gpu is None or memory.gpu not in (None, self.gpu):
            where = "on a GPU" if memory.gpu is None else f"on GPU {memory.gpu}"
            raise InvalidInput(f"tensor {name} is {where}, and {self._place()}; the tensors of a rank are all in the memory of "
                               "the host, or all on one GPU: attach a rank for each GPU", tensor=name)
        if not memory.writable:
            raise InvalidInput(f"tensor {name} must be writable, because the library writes into it", tensor=name)
        part, shape, ranges = parts_of(given)
        own = part.detach() if is_torch(part) else part  # an alias: `tensor.data = other` lets go of the memory
        return described_part(name, memory.dtype, memory.shape, shape, ranges, own, memory.pointer)

    def _place(self) -> str:
        return f"{self._first} is in the memory of the host" if self.gpu is None else f"the others are on GPU {self.gpu}"


def describe_without_memory(name: str, given: Any) -> Described:
    """Reads the dtype, the shape and the ranges of what a user gives for a tensor, wherever its memory is."""
    memory = _memory_of(name, given)
    if memory is None:
        return describe(name, given, memory=False)
    _, shape, ranges = parts_of(given)
    return described_part(name, memory.dtype, memory.shape, shape, ranges, None)


def _memory_of(name: str, given: Any) -> Optional[DeviceMemory]:
    """The memory on a GPU that is given for a tensor; None: it is elsewhere, or what is given is none."""
    part = parts_of(given)[0]
    if isinstance(part, Spec) or hasattr(part, "to_local") or hasattr(part, "full_tensor"):
        return None  # describe() says what is wrong with a DTensor
    if is_torch(part) and part.device.type == "cuda" and not part.is_contiguous():
        raise InvalidInput(f"tensor {name} is not contiguous, so the library cannot write into it", tensor=name)
    try:
        return device_memory(part)
    except InvalidInput as failure:
        raise InvalidInput(f"tensor {name}: {failure.sentence}", tensor=name) from None

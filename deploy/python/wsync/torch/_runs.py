"""Which bytes of memory are those of which tensor of a checkpoint. All offsets and lengths are in bytes."""
from __future__ import annotations

import math
from typing import Any, Optional

import numpy as np
import torch as _torch

# A contiguous run of bytes: where it is in its memory, how long it is, whose it is, and where it is in that tensor.
RUN = np.dtype([("at", np.int64), ("length", np.int64), ("name", np.int64), ("source", np.int64)])


def key_of(tensor: Any) -> int:
    """What two tensors over the same memory have in common."""
    return tensor.untyped_storage()._cdata


def pieces(tensor: Any) -> tuple:
    """The memory of a tensor in row-major order, as contiguous pieces of one length: (offsets, length)."""
    size = tensor.element_size()
    extents = [(extent, stride * size) for extent, stride in zip(tensor.shape, tensor.stride()) if extent != 1]
    length = size
    while extents and extents[-1][1] == length:
        length *= extents.pop()[0]
    offsets = np.array([tensor.storage_offset() * size], np.int64)
    for extent, stride in extents:
        offsets = (offsets[:, None] + np.arange(extent, dtype=np.int64) * stride).reshape(-1)
    return offsets, length


def split(offsets: np.ndarray, length: int, into: int) -> np.ndarray:
    """The offsets of pieces that are `into` bytes long."""
    if length == into:
        return offsets
    return (offsets[:, None] + np.arange(0, length, into, dtype=np.int64)).reshape(-1)


def without(runs: np.ndarray, begin: int, end: int) -> np.ndarray:
    """The runs outside of a range."""
    hit = (runs["at"] < end) & (runs["at"] + runs["length"] > begin)
    if not hit.any():
        return runs
    kept = [runs[~hit]]
    for run in runs[hit]:
        head, tail = begin - run["at"], run["at"] + run["length"] - end
        if head > 0:
            kept.append(np.array([(run["at"], head, run["name"], run["source"])], RUN))
        if tail > 0:
            kept.append(np.array([(end, tail, run["name"], run["source"] + run["length"] - tail)], RUN))
    return np.concatenate(kept)


def inside(runs: np.ndarray, begin: int, length: int, target: int) -> list:
    """What a piece of memory with these (sorted) runs becomes where it is copied to."""
    first = max(0, int(np.searchsorted(runs["at"], begin, "right")) - 1)
    found = []
    for run in runs[first:]:
        if run["at"] >= begin + length:
            break
        low, high = max(begin, run["at"]), min(begin + length, run["at"] + run["length"])
        if low < high:
            found.append((target + low - begin, high - low, run["name"], run["source"] + low - run["at"]))
    return found


def copied(runs: np.ndarray, source: np.ndarray, target: np.ndarray, length: int) -> np.ndarray:
    """The runs of pieces that are copied from memory with these (sorted) runs."""
    if not len(runs):
        return runs
    at = np.clip(np.searchsorted(runs["at"], source, "right") - 1, 0, None)
    whole = (runs["at"][at] <= source) & (source + length <= runs["at"][at] + runs["length"][at])
    found = np.empty(int(whole.sum()), RUN)
    found["at"], found["length"], found["name"] = target[whole], length, runs["name"][at][whole]
    found["source"] = (runs["source"][at] + source - runs["at"][at])[whole]
    rest = [run for begin, where in zip(source[~whole], target[~whole]) for run in inside(runs, begin, length, where)]
    return np.concatenate([found, np.array(rest, RUN)]) if rest else found


def covered(runs: np.ndarray, offsets: np.ndarray, length: int) -> int:
    """How many bytes of pieces of memory are in (sorted) runs."""
    if not len(runs):
        return 0
    before = np.cumsum(runs["length"]) - runs["length"]

    def below(at: np.ndarray) -> np.ndarray:
        """How many bytes of the runs are below these offsets."""
        run = np.searchsorted(runs["at"], at, "right") - 1
        return np.where(run < 0, 0, before[run] + np.minimum(at - runs["at"][run], runs["length"][run]))

    return int((below(offsets + length) - below(offsets)).sum())


def merged(runs: np.ndarray, by: str) -> np.ndarray:
    """Sorted by one of the offsets, with neighbours in both made one."""
    runs = runs[np.argsort(runs[by], kind="stable")]
    if len(runs) < 2:
        return runs
    joined = (runs["at"][1:] == runs["at"][:-1] + runs["length"][:-1]) & (runs["name"][1:] == runs["name"][:-1]) & \
        (runs["source"][1:] == runs["source"][:-1] + runs["length"][:-1])
    begins = np.flatnonzero(np.concatenate([[True], ~joined]))
    lengths = np.add.reduceat(runs["length"], begins)
    runs = runs[begins].copy()
    runs["length"] = lengths
    return runs


def part(runs: np.ndarray, shape: tuple, size: int) -> Optional[list]:
    """The ranges (dim, begin, length) of a tensor that its runs have, sorted by source. None: they are no part that is a box.

    Args:
        runs: of one tensor.
        shape, size: of the tensor, and the bytes of an element.
    """
    starts, lengths = runs["source"] // size, runs["length"] // size
    if ((runs["source"] % size) | (runs["length"] % size)).any():
        return None
    common = int(np.gcd.reduce(np.concatenate([starts, lengths])))
    # The dimension in whose rows the runs begin and end: everything behind it is whole.
    dim = next((d for d in range(len(shape)) if common % math.prod(shape[d + 1:]) == 0), 0)
    behind = math.prod(shape[dim + 1:])
    group = math.gcd(common // behind, shape[dim]) if shape else 1
    unit = group * behind
    grid = (*shape[:dim], shape[dim] // group) if shape else (1,)
    units = np.concatenate([np.arange(start, start + length, unit) for start, length in zip(starts, lengths)]) // unit
    if len(np.unique(units)) != len(units):
        return None
    coordinates = [np.unique(one) for one in np.unravel_index(units, grid)]
    if math.prod(len(one) for one in coordinates) != len(units):
        return None
    ranges = []
    for d, found in enumerate(coordinates):
        if len(found) == grid[d]:
            continue
        scale = group if d == dim else 1
        for block in np.split(found, np.flatnonzero(np.diff(found) != 1) + 1):
            ranges.append((d, int(block[0]) * scale, len(block) * scale))
    return ranges


def tensor_over(storage: Any, offset: int, dtype: Any, shape: tuple) -> Any:
    """A contiguous tensor over a part of a storage."""
    empty = _torch.empty(0, dtype=dtype, device=storage.device)
    strides = [math.prod(shape[d + 1:]) for d in range(len(shape))]
    return empty.set_(storage, offset // empty.element_size(), shape, strides)

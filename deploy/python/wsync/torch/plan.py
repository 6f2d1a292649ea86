"""Where a model's own loader puts the tensors of a checkpoint.

    plan = wsync.torch.record(model, model.load_weights, tensors)
    replica = plan.attach("host0", "r0")

`record` runs the loader once, with tensors whose copies are watched. What is only copied, whole or in parts, is from then on
written by the library into the memory of the model, and no code of Python touches it. What the loader computes (a cast, an
addition, a transpose) is not: it is received beside the model, and given to the loader with each version.

Run with: transformers 5.19 (fused experts, tied heads) and a loader of the kind of vLLM's (fused QKV and gate_up, two ranks) on the
CPU; a loader with fused weights and a factor on one H100. Not run: loaders that copy on other threads. The parameters may be on one
GPU: the library then writes there, and what is received beside the model is on that GPU too.
"""
from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional

import numpy as np
import torch as _torch

from .._errors import InvalidInput, Refused
from .._tensors import Range, Shard, Spec, as_dtype, describe, pairs, part_shape, storage_dtype
from .._values import Version
from ..replica import Replica
from . import _runs
from ._watch import NONE, Watch
from .tensors import as_tensor, dtype_of


class Recorded(Replica):
    """A replica whose weights go where a plan says. Made by `Plan.attach`.

    Attributes:
        version: the `Version` that is held, or None: before the first one, from the begin of a load to its commit (also if it
            fails), and after `suspend`.
        loaded_by_python: how many tensors the loader has been given since the replica was attached: 0 if all are only copied.
    """

    def __init__(self, plan: "Plan", sidecar: str, name: str, dropped: Iterable[str], **options: Any):
        self.version: Optional[Version] = None
        self.loaded_by_python = 0
        self._plan = plan
        beside = {key: _memory_for(spec, plan.device) for key, spec in plan.specs.items() if key in plan.loaded or key in dropped}
        super().__init__(sidecar, name, {**plan.pieces, **beside}, **options)

    def on_load_layer(self, version: Version, layer: int, tensors: Mapping[str, Any]) -> Any:
        names = [name for name in tensors if name in self._plan.loaded]
        if names:
            self.loaded_by_python += len(names)
            rest = [(other, _tensor_of(tensors[name])) for name in names for other in (name, *self._plan.tied.get(name, ()))]
            with _torch.no_grad():
                self._plan.load(iter(rest))
            self._end_work()  # on a GPU, before the memory beside the model may be written to again
        return None

    def on_load_begin(self, version: Version) -> None:
        self.version = None

    def on_commit(self, version: Version) -> Any:
        self.version = version
        return None

    def _after_suspend(self) -> None:
        self.version = None


def _memory_for(spec: Spec, device: Any) -> Any:
    """Memory for a whole tensor that the model does not have: with all other memory of the rank, on its GPU or in the host."""
    if device is not None:
        return _torch.empty(tuple(spec.shape), dtype=dtype_of(spec.dtype), device=device)
    return as_dtype(np.empty(spec.shape, storage_dtype(spec.dtype)), spec.dtype)


def _tensor_of(given: Any) -> Any:
    return given if isinstance(given, _torch.Tensor) else as_tensor(given)


class Plan:
    """Where the tensors of a checkpoint go. Made by `record`.

    Attributes:
        specs: name -> `Spec`: the tensors of the checkpoint, as versions must have them.
        pieces: name -> `Shard`: the memory in the model, and which part of the tensor it is. These are only copied.
        loaded: name -> why not: these must be given to the loader with each version.
        unused: names that the loader has put nowhere: what it ignores, and what other ranks have.
        tied: name -> other names of the same memory. Versions have the first name only, and the loader is given all.
        device: the GPU that has the parameters, or None: they are in the memory of the host.
    """

    def __init__(self, load: Callable, specs: dict, pieces: dict, loaded: dict, unused: list, tied: dict, device: Any, keep: Any):
        self.load, self.specs, self.pieces, self.loaded, self.unused, self.tied = load, specs, pieces, loaded, unused, tied
        self.device = device
        self._keep = keep

    def attach(self, sidecar: str, name: str, *, dropped: Optional[Iterable[str]] = None, **options: Any) -> Recorded:
        """A replica that receives versions of this layout. It polls as any `Replica` does.

        A sidecar refuses a version with a tensor of which the ranks of a replica together do not take all. What the loader ignores
        is therefore received too, into memory of its size, and dropped. This is done for whole tensors only: one of which no rank
        loads some rows is refused, and the sidecar's sentence says which.

        Args:
            sidecar: the name of the sidecar, or the absolute path of its engine socket, as for `wsync.Replica`.
            name: the name of the replica.
            dropped: which of the names in `unused` this rank receives and drops. None: all of them on rank 0, none on other ranks.
                Of several ranks, give rank 0 those that are in the `unused` of every rank; otherwise it has memory for what only
                other ranks use.
            options: of `Replica`, without `tensors`, `take`, `load_begin`, `load_layer` and `commit`, which are the plan's.

        Raises:
            InvalidInput: a name in `dropped` is not in `unused`, or an option is the plan's; or as `Replica`.
            EngineRefused: as `Replica`.
        """
        if dropped is None:
            dropped = [] if options.get("rank", 0) else self.unused
        if own := sorted({"take", "load_begin", "load_layer", "commit"} & set(options)):
            raise InvalidInput(f"{own[0]} cannot be given: the plan has its own")
        dropped = set(dropped)
        if unknown := sorted(dropped - set(self.unused)):
            raise InvalidInput(f"dropped names tensor {unknown[0]}, which is not in `unused`", tensor=unknown[0])
        return Recorded(self, sidecar, name, dropped, **options)


def record(model: Any, load: Callable[[Iterable], Any], tensors: Any, *, seed: int = 1, tied: str = "once") -> Plan:
    """Runs a loader once, and finds out where it puts each tensor.

    The weights of the model are those of `tensors` afterwards, or random numbers if these are descriptions; the first version
    replaces them. The plan is true as long as the parameters keep their memory. It is compared with the bytes in the model before
    it is returned, so what a loader does without the knowledge of torch is not taken for a copy. A loader that keeps the tensors
    that it is given makes them the memory of the model: they are written to by later versions.

    Args:
        model: the module whose parameters are loaded, all in the memory of the host or all on one GPU. None: the module that `load`
            returns.
        load: a function of an iterator of (name, tensor), such as a model's `load_weights`. It runs on this thread, and must copy
            on this thread. It must take some of the names alone, if the plan says that they must be loaded.
        tensors: the checkpoint: a mapping of names, or (name, value) pairs, with tensors of torch or `Spec`s as values. It has the
            names, dtypes and shapes of the versions.
        seed: of the random numbers.
        tied: what versions have of several names for the same memory, as in `Publisher.publish`. "once": the first name. "every":
            each of them; the loader is then given copies.

    Returns:
        The plan.

    Raises:
        InvalidInput: a tensor has a dtype that torch does not have, or is not in the memory of the host; the sentence names it. Or
            `tied` is another word, or the parameters are in several places.
        Refused: a parameter has bytes that come from no tensor of the checkpoint; or `model` is None, and a tensor is not only
            copied.
    """
    if tied not in ("every", "once"):
        raise InvalidInput(f"tied is '{tied}', expected 'every' or 'once'")
    specs, watched = {}, {}
    given: dict = {}  # what the loader is given
    others: dict = {}  # name -> other names of the same memory
    first: dict = {}  # the memory of a tensor -> the first name that it has
    kept = []  # so that no address is used twice
    taken: dict = {}  # key of a storage -> the bytes that are watched already, (begin, end)
    generator = _torch.Generator().manual_seed(seed)
    for name, value in pairs(tensors):
        one = describe(name, value, memory=False)
        kept.append(value)
        if isinstance(value, Spec):
            array = as_dtype(np.empty(one.shape, storage_dtype(one.dtype)), one.dtype)
            value = as_tensor(array)
            value.view(-1).view(_torch.uint8).random_(generator=generator)
        elif tied == "once" and (same := first.setdefault(one.memory() or name, name)) != name:
            given[name] = given[same]
            others.setdefault(same, []).append(name)
            continue
        specs[name] = Spec(one.dtype, one.shape)
        given[name] = watched[name] = _own(value.detach().contiguous(), taken)
    watch = Watch(watched)
    with _torch.no_grad(), watch:
        returned = load(iter(given.items()))
    makes_model = model is None
    model = returned if makes_model else model
    if not isinstance(model, _torch.nn.Module):
        raise InvalidInput(f"the model is a {type(model).__name__}; expected a torch.nn.Module, or a loader that returns one")
    held = {_runs.key_of(tensor): tensor for tensor in [*model.buffers(), *model.parameters()] if watch.is_watchable(tensor)}
    places = sorted({str(tensor.device) for tensor in held.values() if _runs.key_of(tensor) in watch.runs})
    if len(places) > 1:
        raise InvalidInput(f"the loader writes to {' and '.join(places)}; a rank has its weights in the memory of the host, or all "
                           "on one GPU")
    device = None if places in ([], ["cpu"]) else _torch.device(places[0])
    runs: dict = {}  # name -> [(storage, its runs)]
    for key, tensor in held.items():
        found = watch.runs.get(key, NONE)
        for number in np.unique(found["name"]):
            runs.setdefault(watch.names[number], []).append((tensor, found[found["name"] == number]))
    pieces, loaded, unused = {}, {}, []
    for name, spec in specs.items():
        if name in watch.reasons:
            loaded[name] = watch.reasons[name]
        elif name not in runs:
            unused.append(name)
        else:
            piece = _piece(given[name], runs[name])
            if isinstance(piece, Shard):
                pieces[name] = piece
            else:
                loaded[name] = piece
    if makes_model and loaded:
        name = next(iter(loaded))
        raise Refused(f"{name}: {loaded[name]}, so it must be loaded again with each version, and this loader makes another model; "
                      "give `model`, and a loader that copies into it")
    _check_filled(model, watch)
    return Plan(load, specs, pieces, loaded, unused, others, device, held)


def _own(tensor: Any, taken: dict) -> Any:
    """The tensor, or a copy of it if bytes of its memory are those of an earlier one: each byte has one name."""
    spans = taken.setdefault(_runs.key_of(tensor), [])  # sorted, and apart
    begin = tensor.storage_offset() * tensor.element_size()
    end = begin + tensor.nbytes
    at = bisect.bisect_left(spans, (begin, end))
    if begin == end or at > 0 and spans[at - 1][1] > begin or at < len(spans) and spans[at][0] < end:
        return tensor.clone()
    spans.insert(at, (begin, end))
    return tensor


def _piece(tensor: Any, found: list) -> Any:
    """The Shard that a tensor is written to, or why there is none."""
    if len(found) > 1:
        return f"it is copied into {len(found)} parameters"
    target, runs = found[0]
    runs = _runs.merged(runs, "source")
    order = np.cumsum(runs["length"]) - runs["length"] + runs["at"][0]
    if (runs["at"] != order).any():
        return "its part in the model is not contiguous, or in another order"
    size = tensor.element_size()
    ranges = _runs.part(runs, tuple(tensor.shape), size)
    if ranges is None:
        return "its part in the model is no range of each dimension"
    shape = part_shape(tuple(tensor.shape), [Range(*one) for one in ranges])
    if target.dtype != tensor.dtype or runs["at"][0] % size:
        return f"its part in the model is memory of {target.dtype}"
    own = _runs.tensor_over(target.untyped_storage(), int(runs["at"][0]), tensor.dtype, shape)
    part = tensor
    for dim in sorted({one[0] for one in ranges}):
        part = _torch.cat([part.narrow(d, begin, length) for d, begin, length in ranges if d == dim], dim)
    part = part.contiguous().to(own.device)
    if math.prod(shape) and not _torch.equal(own.view(-1).view(_torch.uint8), part.view(-1).view(_torch.uint8)):
        return "its bytes in the model are not those of the checkpoint, although it was copied"
    return Shard(own, tuple(tensor.shape), ranges)


def _check_filled(model: Any, watch: Watch) -> None:
    for name, parameter in model.named_parameters():
        key = _runs.key_of(parameter)
        if key in watch.computed or not parameter.numel():
            continue
        runs = watch.runs.get(key, NONE)
        covered = _runs.covered(runs, *_runs.pieces(parameter))
        if covered < parameter.nbytes:
            raise Refused(f"parameter {name}: {covered} of its {parameter.nbytes} bytes come from the checkpoint, as far as "
                          "this thread has seen; a loader must copy on the thread that calls it")

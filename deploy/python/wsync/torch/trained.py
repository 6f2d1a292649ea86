"""What a trainer of torch has to publish: shards of FSDP2 and of other DTensors, and merged adapters of PEFT.

Run with: torch 2.13, FSDP2 and DTensors of two processes with gloo on the CPU; peft 0.21.2 with LoRA and DoRA. On one H100
plain tensors. Not run: FSDP on GPUs, FSDP1, several hosts.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

import torch as _torch

from .._tensors import Range, Shard, copyable, pairs


def _placed(tensor: Any) -> tuple:
    """(whether this rank publishes it, its range or None: the whole tensor). None instead of both: it must be gathered."""
    split = []
    for dim, placement in enumerate(tensor.placements):
        coordinate = tensor.device_mesh.get_coordinate()[dim]
        if type(placement).__name__ == "Replicate":
            if coordinate:
                return False, None  # another rank has the same
        elif type(placement).__name__ == "Shard":
            split.append((placement.dim % tensor.ndim, coordinate, tensor.device_mesh.size(dim)))
        else:
            return None, None
    if len(split) > 1:
        return None, None
    if not split:
        return True, None
    dim, coordinate, ranks = split[0]
    extent = tensor.shape[dim]
    most = -(-extent // ranks)  # as torch.chunk has it
    begin = min(extent, coordinate * most)
    length = min(most, extent - begin)
    return length > 0, Range(dim, begin, length)


def shards(model: Any, rank: Optional[int] = None) -> dict:
    """What this rank publishes of a model that is spread over several ranks, without gathering it:

        publisher = wsync.Publisher(rank=rank, world_size=world_size)      # in every rank
        publisher.publish(wsync.torch.shards(model), step=step)            # under the same step

    Each rank gives its own shards of the tensors that are split along one dimension, as FSDP2 and tensor parallelism do. Of a
    tensor that several ranks have in full, one rank gives it: the first of its mesh, or rank 0 if it is no DTensor. A tensor that
    is split along several dimensions, or not yet reduced, is gathered by all ranks, and given by rank 0; it needs memory for the
    whole tensor on every rank.

    Args:
        model: a module, or a mapping of names to tensors, such as a state dict. All ranks must call this, with the same tensors in
            the same order.
        rank: of this process. None: that of torch.distributed, or 0 without it.

    Returns:
        Name -> tensor or `wsync.Shard`. Shards are the memory of the model, on the CPU or on GPUs of NVIDIA, from where a publish
        copies them to where engines read them; those of other devices are copied to the CPU.
    """
    if rank is None:
        initialized = _torch.distributed.is_available() and _torch.distributed.is_initialized()
        rank = _torch.distributed.get_rank() if initialized else 0
    found: dict = {}
    for name, tensor in pairs(model):
        tensor = tensor.detach()
        if not hasattr(tensor, "to_local"):
            if rank == 0:
                found[name] = copyable(tensor)
            continue
        mine, own = _placed(tensor)
        if mine is None:
            whole = tensor.full_tensor()
            if rank == 0:
                found[name] = copyable(whole)
        elif mine:
            local = copyable(tensor.to_local())
            found[name] = local if own is None else Shard(local, tuple(tensor.shape), [own])
    return found


def merged(model: Any) -> Iterator:
    """The weights of a model of PEFT with its active adapters merged into them, under the names of the model below.

        with publisher.version(step) as version:
            for name, tensor in wsync.torch.merged(model):
                version.put(name, tensor)

    Each layer is merged when it is asked for, and has its own bits again before the next one: there is memory for one layer more,
    and no rounding stays. A model without adapters gives its state dict.

    Args:
        model: a PeftModel, or any module. Its weights must not change during the iteration.

    Yields:
        (name, tensor): use a tensor before the next one is asked for.
    """
    if not hasattr(model, "peft_config"):
        yield from dict(pairs(model)).items()
        return
    layers = {name: module for name, module in model.named_modules() if _is_adapted(module)}
    outer = {name: module for name, module in layers.items() if not any(name.startswith(f"{other}.") for other in layers)}
    given: set = set()  # where they are and how: tied weights are given once
    done: set = set()
    for name, tensor in model.state_dict().items():
        owner = next((owner for owner in outer if name.startswith(f"{owner}.")), None)
        if owner is None:
            yield from _plain(name, tensor, model.active_adapters, given)
        elif owner not in done:
            done.add(owner)
            yield from _layer(owner, outer[owner], given)


def _is_adapted(module: Any) -> bool:
    return hasattr(module, "base_layer") and hasattr(module, "unmerge")


def _first(tensor: Any, given: set) -> bool:
    if tensor.numel() == 0:  # all of them may have the address 0
        return True
    found = tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()  # a view may begin at the same address
    if found in given:
        return False
    given.add(found)
    return True


def _name(name: str) -> str:
    while ".base_layer." in name:
        name = name.replace(".base_layer.", ".")
    return name.removeprefix("base_model.model.")


def _plain(name: str, tensor: Any, active: list, given: set) -> Iterator:
    """A tensor without an adapter. Of a module that is trained in full, its trained copy."""
    before, trained, after = name.partition(".modules_to_save.")
    adapter, _, own = after.partition(".")
    if ".original_module." in name or (trained and adapter not in active) or not _first(tensor, given):
        return
    yield _name(f"{before}.{own}" if trained else name), tensor.detach()


def _layer(name: str, layer: Any, given: set) -> Iterator:
    """The tensors of a layer while its adapters are merged."""
    adapted = [module for module in layer.modules() if _is_adapted(module)]
    base = layer.get_base_layer()
    held = {key: (tensor.data, tensor.detach().clone()) for key, tensor in base.state_dict(keep_vars=True).items()}
    mine = [key for key, (tensor, _) in held.items() if _first(tensor, given)]
    try:
        with _torch.no_grad():
            for module in adapted:
                module.merge()
        weights = base.state_dict()
        for key in mine:
            yield _name(f"{name}.{key}"), weights[key]
    finally:
        with _torch.no_grad():
            for module in reversed(adapted):
                module.unmerge()
            for key, tensor in base.state_dict(keep_vars=True).items():
                tensor.data = held[key][0]  # some merges give it other memory
                tensor.data.copy_(held[key][1])

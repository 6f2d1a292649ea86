"""A model's memory as torch tensors, which share it."""
import os
import warnings

import torch

# Of safetensors' names; torch has none for F4, F6_E2M3 and F6_E3M2.
NAMES = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32", "U64": "uint64",
         "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
         "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
         "F8_E5M2FNUZ": "float8_e5m2fnuz"}


def dtype_of(name):
    found = getattr(torch, NAMES.get(name, ""), None)
    if found is None:
        raise TypeError(f"torch {torch.__version__} has no dtype for {name}")
    return found


def share_cores(job):
    """Gives each process of the job its share of the cores. torch takes all of them in each process, and its threads wait for each
    other after every operation: on busy cores a copy of many tensors then takes up to 60 times as long.
    """
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // (job.engines + 1)))


def tensors_of(memory):
    """name: tensor, in the order of the list."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "the given buffer is not writable"
        found = {}
        for tensor in memory.tensors:
            kind = dtype_of(tensor["dtype"])
            flat = torch.frombuffer(memory.map, dtype=torch.uint8, count=tensor["bytes"], offset=tensor["offset"])
            found[tensor["name"]] = flat.view(kind).view(tensor["shape"])
        return found

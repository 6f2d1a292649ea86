"""A model's memory as torch tensors, which share it."""
import warnings

import torch

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64, "U8": torch.uint8,
          "I8": torch.int8, "I32": torch.int32, "I64": torch.int64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}


def tensors_of(memory):
    """name: tensor, in the order of the list."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "the given buffer is not writable"
        found = {}
        for tensor in memory.tensors:
            kind = DTYPES[tensor["dtype"]]
            flat = torch.frombuffer(memory.map, dtype=torch.uint8, count=tensor["bytes"], offset=tensor["offset"])
            found[tensor["name"]] = flat.view(kind).view(tensor["shape"])
        return found

"""Tensors of torch over what wsync gives."""
from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch as _torch

from .._errors import InvalidInput
from .._tensors import _NAME_OF, _NUMPY

_TORCH = {"BF16": ("bfloat16", np.int16), "F8_E4M3": ("float8_e4m3fn", np.uint8), "F8_E5M2": ("float8_e5m2", np.uint8),
          "F8_E8M0": ("float8_e8m0fnu", np.uint8), "F8_E4M3FNUZ": ("float8_e4m3fnuz", np.uint8),
          "F8_E5M2FNUZ": ("float8_e5m2fnuz", np.uint8)}


def dtype_of(name: str) -> Any:
    """The dtype of torch that has the name in safetensors.

    Raises:
        InvalidInput: this torch has no such dtype.
    """
    word = _TORCH[name][0] if name in _TORCH else _NUMPY.get(name, "")
    found = getattr(_torch, word, None) if word else None
    if found is None:
        raise InvalidInput(f"torch {_torch.__version__} has no dtype for {name}")
    return found


def as_tensor(array: np.ndarray) -> Any:
    """A tensor of torch over the same memory, with the dtype that the array's `dtype_name` says.

    The tensor is valid as long as the array: of `take="adopt"`, until another version is committed. torch has no read-only tensors,
    so do not write to a tensor over a read-only array: the process ends with a fault if you do.

    Raises:
        InvalidInput: this torch has no such dtype.
    """
    name = getattr(array, "dtype_name", None) or _NAME_OF.get(array.dtype, "")
    word, carrier = _TORCH.get(name, ("", array.dtype))
    kind = dtype_of(name) if word else None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        tensor = _torch.from_numpy(np.asarray(array).view(carrier))
    return tensor.view(kind) if kind is not None else tensor

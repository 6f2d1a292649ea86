"""The dtypes of tensors: their names in safetensors, what NumPy has for them, and what users call them."""
from __future__ import annotations

import difflib
from typing import Any

import numpy as np

from ._errors import InvalidInput

# The names of safetensors, and the bytes of an element. Types that NumPy does not have are unsigned integers there.
_NUMPY = {"F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
          "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64"}
_RAW = {"BF16": "uint16", "F8_E4M3": "uint8", "F8_E5M2": "uint8", "F8_E8M0": "uint8", "F8_E4M3FNUZ": "uint8",
        "F8_E5M2FNUZ": "uint8"}
_NAME_OF = {np.dtype(known): name for name, known in _NUMPY.items()}
_STORAGE = {name: np.dtype(known) for name, known in _RAW.items()}
# The dtypes of the package ml_dtypes, if the program uses it, and those of torch.
_NAME_OF_WORD = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
                 "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ"}
_NAME_OF_WORD |= {known: name for name, known in _NUMPY.items()}
# Other usual names, in small letters.
_ALIASES = {"half": "F16", "fp16": "F16", "float": "F32", "fp32": "F32", "double": "F64", "fp64": "F64", "bfloat": "BF16",
            "fp8_e4m3": "F8_E4M3", "fp8_e4m3fn": "F8_E4M3", "float8_e4m3": "F8_E4M3", "e4m3": "F8_E4M3", "f8_e4m3fn": "F8_E4M3",
            "fp8_e5m2": "F8_E5M2", "e5m2": "F8_E5M2", "fp8_e8m0": "F8_E8M0", "float8_e8m0": "F8_E8M0", "char": "I8", "byte": "U8",
            "short": "I16", "int": "I32", "long": "I64", "boolean": "BOOL"}
_ALIASES |= _NAME_OF_WORD | {name.lower(): name for name in (*_NUMPY, *_RAW)}
CASTS = ("F32", "F16", "BF16")  # converted into each other, and to F8_E4M3


def dtype_name_of(dtype: Any, what: str = "dtype") -> str:
    """The name in safetensors of what a user gives for a dtype: that name, in capitals or not, a usual alias such as "bfloat16",
    "half" or "fp8_e4m3", or a dtype of torch, NumPy or ml_dtypes.

    Args:
        dtype: what is given.
        what: names the argument in the sentence.

    Raises:
        InvalidInput: it is no dtype, or one that safetensors does not have; the sentence has the nearest name.
    """
    if isinstance(dtype, str):
        word = dtype
    elif type(dtype).__module__ == "torch" and type(dtype).__name__ == "dtype":
        word = str(dtype)
    else:
        try:
            word = np.dtype(dtype).name if dtype is not None else ""
        except TypeError:
            word = ""
    found = _ALIASES.get(word.lower().removeprefix("torch."))
    if found is not None:
        return found
    nearest = difflib.get_close_matches(word.lower(), _ALIASES, 1, 0.5) if word else []
    said = f"'{dtype}' is unknown" if isinstance(dtype, str) else f"is {dtype!r}, which is none"
    hint = f"; did you mean '{_ALIASES[nearest[0]]}'?" if nearest else ";"
    raise InvalidInput(f"{what} {said}{hint} expected a dtype of torch or NumPy, or one of {', '.join(sorted(_NUMPY | _RAW))}")


def storage_dtype(dtype_name: str) -> np.dtype:
    """The NumPy dtype that holds elements of a dtype of safetensors: of BF16 and the F8 types an unsigned integer of that size.

    Raises:
        InvalidInput: the name is not known.
    """
    return np.dtype(_NUMPY.get(dtype_name) or _RAW.get(dtype_name) or storage_dtype(dtype_name_of(dtype_name)))

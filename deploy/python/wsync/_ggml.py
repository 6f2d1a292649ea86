"""The tensors of a model of llama.cpp that another library has loaded, found with ctypes."""
from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterator
from typing import Any, Union

from ._errors import InvalidInput, Refused
from ._tensors import array_of, storage_dtype

_GET_TENSOR = "_ZNK11llama_model10get_tensorEPKc"  # llama_model::get_tensor(char const*) const
_SYMBOLS = (_GET_TENSOR, "llama_model_meta_val_str", "llama_model_n_layer", "llama_model_rope_type", "llama_model_size",
            "ggml_get_name", "ggml_get_data", "ggml_nbytes", "ggml_type_name", "ggml_backend_buffer_is_host",
            "ggml_backend_buffer_name")
ROPE_NEOX = 2  # LLAMA_ROPE_TYPE_NEOX: the rows of q and k have the order of the checkpoint
ARCHITECTURES = ("qwen3", "qwen3moe")
DTYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
# The modules of these architectures in checkpoints; `gguf` knows their names in GGUF.
_MODULES = ("model.embed_tokens", "model.norm", "lm_head")
_LAYER_MODULES = ("input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                  "self_attn.o_proj", "self_attn.q_norm", "self_attn.k_norm", "mlp.gate", "mlp.gate_proj", "mlp.up_proj",
                  "mlp.down_proj", "mlp.experts.gate_proj", "mlp.experts.up_proj", "mlp.experts.down_proj")


class _Head(ctypes.Structure):
    """How a ggml_tensor begins."""

    _fields_ = [("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_size_t * 4)]


class Library:
    """The shared library that has loaded the model."""

    def __init__(self, library: Union[str, ctypes.CDLL, None]):
        if library is None:
            module = sys.modules.get("xllamacpp.xllamacpp")
            if module is None:
                raise InvalidInput("the library of llama.cpp is not known: import xllamacpp before, or give `library`, the path of "
                                   "the shared library that has loaded the model")
            library = str(module.__file__)
        self.path = library if isinstance(library, str) else library._name
        self.calls = ctypes.CDLL(self.path)
        missing = [symbol for symbol in _SYMBOLS if not hasattr(self.calls, symbol)]
        if missing:
            raise Refused(f"{self.path} does not export {', '.join(missing)}, so the tensors of its models cannot be found; use a "
                          "build of llama.cpp that does, such as xllamacpp 2026.10.11549")

    def call(self, name: str, result: Any, *arguments: Any) -> Any:
        function = self.calls[name]  # an object of its own, so that nobody else's declarations change
        function.restype = result
        return function(*arguments)

    def text(self, name: str, *arguments: Any) -> str:
        return (self.call(name, ctypes.c_char_p, *arguments) or b"").decode()


def _files() -> list:
    """(begin, end, path) of the memory of this process that is a file's."""
    found = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            if fields[4] != "0":
                begin, end = fields[0].split("-")
                found.append((int(begin, 16), int(end, 16), fields[5].strip()))
    return found


class _Tensor:
    """A tensor of the model: its type, its shape as in checkpoints, and its memory as an array."""

    def __init__(self, library: Library, address: int, name: str, files: list):
        head = _Head.from_address(address)
        size = library.call("ggml_nbytes", ctypes.c_size_t, ctypes.c_void_p(address))
        kind = library.text("ggml_type_name", head.type)
        if library.text("ggml_get_name", ctypes.c_void_p(address)) != name or not head.buffer or \
                any(not 1 <= extent <= 2**40 for extent in head.ne):
            raise Refused(f"{library.path} has another layout of ggml_tensor than this adapter knows; it was written for that of "
                          "xllamacpp 2026.10.11549")
        buffer = library.text("ggml_backend_buffer_name", ctypes.c_void_p(head.buffer))
        if not library.call("ggml_backend_buffer_is_host", ctypes.c_bool, ctypes.c_void_p(head.buffer)):
            raise Refused(f"{name} is in the buffer {buffer}, whose weights are on a device or in an order of its own; load the "
                          "model on the CPU with use_extra_bufts = false")
        self.dtype = DTYPES.get(kind)
        if self.dtype is None:
            raise Refused(f"{name} has the type {kind}; only F32, F16 and BF16 can be updated, because versions are not quantized; "
                          "convert the model without quantization")
        data = library.call("ggml_get_data", ctypes.c_void_p, ctypes.c_void_p(address))
        for begin, end, path in files:
            if begin < data + size and data < end:
                raise Refused(f"{name} is mapped from {path}, and writing to it would end the process or change the file; load the "
                              "model with load_mode = LLAMA_LOAD_MODE_NONE")
        # ggml has the fastest dimension first, checkpoints last; a trailing 1 is no dimension.
        extents = list(head.ne)
        while len(extents) > 1 and extents[-1] == 1:
            extents.pop()
        self.name, self.shape = name, tuple(reversed(extents))
        if math.prod(self.shape) * storage_dtype(self.dtype).itemsize != size:
            raise Refused(f"{name} has {size} bytes in memory, and {list(self.shape)} of {self.dtype} in its description")
        self.array = array_of((ctypes.c_char * size).from_address(data), self.dtype, self.shape)


def _names(gguf: Any, architecture: str, layers: int) -> Iterator:
    """(name in the checkpoint, name in GGUF) of each tensor that a model of this architecture can have."""
    kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    table = gguf.get_tensor_name_map(kind, layers)
    modules = [*_MODULES, *(f"model.layers.{layer}.{module}" for layer in range(layers) for module in _LAYER_MODULES)]
    for module in modules:
        if (found := table.get_name(module)) is not None:
            yield f"{module}.weight", f"{found}.weight"


def tensors_of(library: Library, model: int, architecture: str, fused: bool) -> dict:
    """Name in the versions -> the arrays of ggml that have it: one, or two halves of its rows."""
    import gguf
    layers = library.call("llama_model_n_layer", ctypes.c_int32, ctypes.c_void_p(model))
    files = _files()
    found: dict = {}
    size = 0
    for name, gguf_name in _names(gguf, architecture, layers):
        address = library.call(_GET_TENSOR, ctypes.c_void_p, ctypes.c_void_p(model), gguf_name.encode())
        if not address:  # of another kind of layer; or a head that is the embedding
            continue
        array = _Tensor(library, address, gguf_name, files).array
        size += array.nbytes
        before, experts, after = name.partition(".experts.")
        if not experts:
            found[name] = [array]
        elif fused:
            matrix = "down_proj" if after == "down_proj.weight" else "gate_up_proj"  # gate_proj comes before up_proj
            found.setdefault(f"{before}.experts.{matrix}", []).append(array)
        else:
            found |= {f"{before}.experts.{number}.{after}": [array[number]] for number in range(len(array))}
    whole = library.call("llama_model_size", ctypes.c_uint64, ctypes.c_void_p(model))
    if size != whole:
        raise Refused(f"{size} of the model's {whole} bytes are in tensors that this adapter knows; a model with tensors of its "
                      "own, or with two copies of one, cannot be updated")
    return found

"""Whether a version has the weights of the model that a server was started with."""
from __future__ import annotations

import difflib
import glob
import json
import math
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from .._errors import InvalidInput, Refused
from .._tensors import Spec, same_bits

# In models whose head is the embedding, a checkpoint may have it or not.
_TIED = "lm_head.weight"
_FLOATS = {"F64", "F32", "F16", "BF16"}
# A tensor of one expert, or of all experts of a layer: "(…experts).0.gate_proj.weight", "(…experts).gate_up_proj".
_STACK = re.compile(r"(.*\.experts)\.(?:\d+\..+|[^.]+)$")


@dataclass(frozen=True)
class Tensor:
    """A tensor of a checkpoint."""
    dtype: str  # as in safetensors
    shape: tuple


class Layout:
    """The tensors of a checkpoint by name."""

    def __init__(self, tensors: dict, tied: bool):
        self.tensors = tensors
        self._tied = tied
        # Only a head that is not computed from weights of its own may be missing, or be there in addition.
        self._optional = {_TIED} if tied or _TIED not in tensors else set()

    def check(self, version: Mapping[str, Spec]) -> None:
        """Compares the tensors of a version with these.

        Raises:
            Refused: the version does not fit.
        """
        found = {name: Tensor(spec.dtype, tuple(spec.shape)) for name, spec in version.items()}
        for name, tensor in found.items():
            own = self.tensors.get(name)
            if own is None:
                continue
            if own.shape != tensor.shape:
                raise Refused(f"{name}: the model has the shape {list(own.shape)}, the version {list(tensor.shape)}")
            if own.dtype != tensor.dtype and not {own.dtype, tensor.dtype} <= _FLOATS:
                raise Refused(f"{name}: the model has {own.dtype}, the version {tensor.dtype}, and only "
                              f"{', '.join(sorted(_FLOATS))} are converted into each other")
        names = set(found) - self._optional
        own_names = set(self.tensors) - self._optional
        lacking, unknown = sorted(own_names - names), sorted(names - own_names)
        if self._is_fused(lacking, unknown, found):
            return
        if lacking:
            nearest = difflib.get_close_matches(lacking[0], unknown, 1)
            raise Refused(f"{lacking[0]}: the model has it, the version does not"
                          + (f"; nearest: {nearest[0]}" if nearest else "")
                          + (f"; and {len(lacking) - 1} more" if len(lacking) > 1 else ""))
        raise Refused(f"{unknown[0]}: the version has it, the model does not"
                      + (f"; and {len(unknown) - 1} more" if len(unknown) > 1 else ""))

    def check_tied(self, tensors: Mapping[str, Any]) -> None:
        """Compares the head of a version with its embedding, if the model has one tensor for both. Which of the two vLLM would keep
        depends on the model.

        Args:
            tensors: the arrays of a whole version by name.

        Raises:
            Refused: the version has both, with other bytes.
        """
        head = tensors.get(_TIED)
        if not self._tied or head is None:
            return
        for name, other in tensors.items():
            if name != _TIED and "embed" in name and other.shape == head.shape and same_bits(other, head):
                return
        raise Refused(f"{_TIED} has other bytes than the embedding, and the model has one tensor for both (tie_word_embeddings): "
                      "publish the weights of a model whose head is its embedding, or start the server with a checkpoint that has both")

    def _is_fused(self, lacking: list, unknown: list, version: dict) -> bool:
        """Whether the names differ only because one of both has the experts of a layer in one tensor, as transformers 5 has:
        `mlp.experts.gate_up_proj` for all `mlp.experts.0.gate_proj.weight`. Also true if no name differs."""
        return _elements_of_stacks(lacking, self.tensors) == _elements_of_stacks(unknown, version) is not None


def _elements_of_stacks(names: list, tensors: dict) -> Optional[dict]:
    """The number of elements of each stack of modules that has one of the names; None if a name is of no stack."""
    elements: dict = {}
    for name in names:
        stack = _STACK.match(name)
        if stack is None:
            return None
        elements[stack[1]] = elements.get(stack[1], 0) + math.prod(tensors[name].shape)
    return elements


def of_checkpoint(model: str, tied: bool) -> Layout:
    """The layout of the checkpoint from which a server was started.

    Args:
        model: a directory, or a name of the Hugging Face hub whose files are in the local cache.
        tied: whether the head is the embedding.

    Raises:
        InvalidInput: its files are not in the safetensors format, or not on this host.
    """
    directory = model
    if not os.path.isdir(directory):
        try:
            from huggingface_hub import snapshot_download
            directory = snapshot_download(model, local_files_only=True, allow_patterns=["*.safetensors"])
        except Exception as failure:  # not in the cache, in one of many ways
            raise InvalidInput(f"the files of the model {model} are not on this host, so versions cannot be compared with them: "
                               f"{failure}") from failure
    tensors = {}
    for path in sorted(glob.glob(os.path.join(directory, "*.safetensors"))):
        with open(path, "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        tensors.update({name: Tensor(entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()
                        if name != "__metadata__"})
    if not tensors:
        raise InvalidInput(f"the model {directory} has no *.safetensors files, so versions cannot be compared with it")
    return Layout(tensors, tied)

"""The tensors of the last publish, with which the next one is compared."""
from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any, Optional

from ._errors import make
from ._native import core


class LastTensors:
    """What is known of the tensors of the last publish, if all of them were tensors of torch in the memory of the host, whole, in
    row-major order and with their values as they are.

    A training loop publishes the same model at each step. Then the extension module compares all tensors in one pass, and takes only
    their addresses anew. To describe each of them in Python would take 1 to 2 microseconds.
    """

    def __init__(self) -> None:
        self._known: Optional[core.KnownTensors] = None
        self._layout: Optional[list] = None
        self._asked: Optional[tuple] = None

    def remember(self, described: list, layout: list, asked: tuple) -> None:
        """Remembers the tensors of a publish.

        Args:
            described: all of them, as `Described`, in the order in which they were given.
            layout: the description that the library has. It is another object after any other description.
            asked: the dtype and the tied names that the user has asked for.
        """
        torch = sys.modules.get("torch")
        self._known = None
        if hasattr(torch, "Tensor"):
            self._known = core.KnownTensors.make(described, (torch.Tensor, torch.nn.Parameter), asked[1] == "once")
        self._layout, self._asked = layout, asked

    def read(self, tensors: Any, layout: Optional[list], asked: tuple) -> Optional[list]:
        """What keeps the tensors alive, if these are the same ones, perhaps in other memory: then `put` writes them. Otherwise None."""
        if self._known is None or self._layout is not layout or self._asked != asked or type(tensors) not in (dict, OrderedDict):
            return None
        return self._known.read(tensors)

    def put(self, raw: core.Draft) -> None:
        """Writes what was read. The caller keeps the result of `read` until then."""
        code, sentence, name = raw.put_known(self._known)
        if code != 0:
            failure = make(code, sentence)
            failure.tensor = name
            raise failure

"""The exceptions of the package. Each has a code, a sentence, and what else is known of the failure."""
from __future__ import annotations

import enum
from typing import Any, Optional


class Code(enum.IntEnum):
    """The kind of a failure, with the numbers of the C library (wsync/trainer.h)."""

    INVALID_INPUT = 1
    NOT_FOUND = 2
    REFUSED = 3
    BUSY = 4
    DEADLINE = 5
    PEER_LOST = 6
    FENCED = 7
    DIGEST_MISMATCH = 8
    RESOURCE_EXHAUSTED = 9
    CANCELLED = 10
    IO = 11
    INTERNAL = 12
    PARTIAL = 13
    CLOSED = 100  # of this package: the object has been closed
    ENGINE_REFUSED = 101  # of this package: the engine's library gives a sentence, and no code


class Error(Exception):
    """A failure of wsync. `str(error)` is the sentence.

    Attributes:
        code: the kind of the failure.
        sentence: what failed and why, with the names of tensors, replicas and files.
        tensor: the name of the tensor that was being put or described, or for which a layout was refused; or None.
        expected: of a layout that was refused: dtype and shape of `tensor` in the engine, such as "BF16 [64, 32]"; or None.
        found: the same, as published; or None. Only one of both is set if the other side does not have the tensor.
        status: the `PublishStatus` when a wait ended, or None.
        roll_back: the `RollBack` of a rollback that is not complete, or None.
    """

    code: Code = Code.INTERNAL

    def __init__(self, sentence: str, *, code: Optional[Code] = None, tensor: Optional[str] = None, status: Any = None,
                 roll_back: Any = None, expected: Optional[str] = None, found: Optional[str] = None):
        super().__init__(sentence)
        self.sentence = sentence
        if code is not None:
            self.code = code
        self.tensor = tensor
        self.expected = expected
        self.found = found
        self.status = status
        self.roll_back = roll_back

    def __reduce__(self):
        return _restore, (type(self), self.sentence, self.code, self.tensor, self.status, self.roll_back, self.expected, self.found)


def _restore(kind, sentence, code, tensor, status, roll_back, expected=None, found=None):
    return kind(sentence, code=code, tensor=tensor, status=status, roll_back=roll_back, expected=expected, found=found)


class InvalidInput(Error, ValueError):
    """An argument, a configuration or a description breaks a rule."""

    code = Code.INVALID_INPUT


class NotFound(Error, LookupError):
    """Something that was named does not exist."""

    code = Code.NOT_FOUND


class Refused(Error):
    """The inference side or another rank refused, and nothing changed."""

    code = Code.REFUSED


class Busy(Error):
    """No memory is free for a version, or another process or thread has what is needed."""

    code = Code.BUSY


class DeadlineExceeded(Error, TimeoutError):
    """The time was over. What was begun goes on."""

    code = Code.DEADLINE


class PeerLost(Error, ConnectionError):
    """Another process has ended or does not answer."""

    code = Code.PEER_LOST


class Fenced(Error):
    """A newer trainer controls the fleet, so this one can never publish again."""

    code = Code.FENCED


class DigestMismatch(Error):
    """Bytes arrived that are not those of the version."""

    code = Code.DIGEST_MISMATCH


class ResourceExhausted(Error):
    """There is not enough memory, or there are too few descriptors."""

    code = Code.RESOURCE_EXHAUSTED


class Cancelled(Error):
    """The publish was superseded by a newer one, or cancelled by `wsync cancel`."""

    code = Code.CANCELLED


class IoFailure(Error):
    """A file or a socket cannot be used."""

    code = Code.IO


class Internal(Error):
    """A rule of wsync itself is broken. Please report it."""

    code = Code.INTERNAL


class Partial(Error):
    """It is decided, but not every replica serves it. The switch continues."""

    code = Code.PARTIAL


class Closed(Error):
    """The object has been closed, or the interpreter is ending."""

    code = Code.CLOSED


class EngineRefused(Error):
    """The engine's library refused a call, or the link to the sidecar cannot be served."""

    code = Code.ENGINE_REFUSED


_CLASSES: dict[int, type[Error]] = {kind.code: kind for kind in (
    InvalidInput, NotFound, Refused, Busy, DeadlineExceeded, PeerLost, Fenced, DigestMismatch, ResourceExhausted, Cancelled,
    IoFailure, Internal, Partial, Closed, EngineRefused)}
for _kind in (Error, *_CLASSES.values()):
    _kind.__module__ = "wsync"  # where a program finds it, also in a traceback


def make(code: int, sentence: str, tensor: str = "", expected: str = "", found: str = "") -> Error:
    """The exception for a code of the library. The extension module raises what this returns. An empty text is not known."""
    return _CLASSES.get(code, Internal)(sentence, tensor=tensor or None, expected=expected or None, found=found or None)

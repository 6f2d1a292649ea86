"""What the calls return: versions, states and statuses, as typed values that do not change."""
from __future__ import annotations

import enum
import operator
from dataclasses import dataclass
from typing import Any, Optional

from ._errors import Code, InvalidInput


@dataclass(frozen=True, order=True)
class Version:
    """A version of the weights. Later versions are greater; `str(version)` is, for example, "1.3"."""

    epoch: int
    step: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.step}"

    @classmethod
    def parse(cls, text: str) -> "Version":
        """The version of a text such as "1.3"."""
        epoch, dot, step = text.partition(".")
        if dot and epoch.isdecimal() and step.isdecimal():
            return cls(int(epoch), int(step))
        raise InvalidInput(f"'{text}' is no version; expected epoch.step, such as 1.3")


STEP_MAX = 2**63 - 1  # of any version


def step_of(step: Any, minimum: int = 1, maximum: int = STEP_MAX, why_below: str = "") -> int:
    """A step that a user gives, as an integer: an int, or an integer of NumPy or torch.

    Args:
        why_below: of a step above `maximum`: why that is the limit; continues the sentence.

    Raises:
        InvalidInput: it is none, or out of range.
    """
    try:
        if isinstance(step, (bool, str, bytes, float)):
            raise TypeError
        number = operator.index(step)
    except TypeError:
        text = f"; did you mean {int(step)}?" if isinstance(step, str) and step.isdecimal() else ""
        raise InvalidInput(f"step is {step!r} ({type(step).__name__}), expected a whole number such as 14{text}") from None
    if not minimum <= number <= maximum:
        raise InvalidInput(f"step is {number}, expected {minimum} to {maximum}{why_below if number > maximum else ''}")
    return number


def version_or_none(epoch: int, step: int) -> Optional[Version]:
    """0.0 is no version."""
    return Version(epoch, step) if (epoch, step) != (0, 0) else None


class PublishState(enum.IntEnum):
    """How far a publish is. States up to COMMITTED follow each other; the last two end it without success."""

    PENDING = 0
    SNAPSHOTTED = 1
    STAGED = 2
    COMMITTED = 3
    SUPERSEDED = 4
    FAILED = 5


@dataclass(frozen=True)
class PublishStatus:
    """The status of a publish. Times are in seconds."""

    state: PublishState
    code: Optional[Code]  # if it failed: the kind of the failure
    step: int
    version: Optional[Version]  # None until it exists: the publish waits for sidecars
    content_digest: Optional[str]  # 32 hexadecimal digits, as `wsync status` prints them; None until it has ended
    bytes: int  # of the whole model; 0 until it has ended
    snapshot_s: float
    staged_s: float
    paused_s: float  # the longest pause of a replica
    replicas: int  # that have committed
    done_bytes: int  # of the current phase, on rank 0
    total_bytes: Optional[int]  # None: not known yet
    reason: str  # if it failed, was superseded or waits: one sentence; otherwise ""


def publish_status(raw: tuple) -> PublishStatus:
    (state, code, step, epoch, version_step, low, high, size, snapshot_ns, staged_ns, paused_ns, replicas, done, total,
     reason) = raw
    return PublishStatus(PublishState(state), Code(code) if code else None, step, version_or_none(epoch, version_step),
                         f"{high:016x}{low:016x}" if (high, low) != (0, 0) else None, size, snapshot_ns / 1e9, staged_ns / 1e9,
                         paused_ns / 1e9, replicas, done, total or None, reason)


@dataclass(frozen=True)
class RollBack:
    """A rollback of the fleet."""

    before: Optional[Version]
    after: Optional[Version]


class PauseMode(enum.IntEnum):
    """What becomes of the requests that run when an engine pauses."""

    ABORT = 0  # they are ended
    WAIT = 1  # they finish first
    KEEP = 2  # they go on with the new weights


class CachePolicy(enum.IntEnum):
    """What becomes of what an engine has computed with the old weights, such as cached prefixes."""

    ENGINE = 0  # as the engine decides
    CLEAR = 1
    KEEP = 2


@dataclass(frozen=True)
class Pause:
    """What a pause is for, so that the engine can choose what becomes of its requests and caches."""

    mode: PauseMode
    deadline_s: float  # the sidecar resumes the old version after this time, in seconds
    version: Version  # that will be loaded; it may still be replaced by a newer one
    bytes: Optional[int]  # of the whole version, all ranks together; None: not known
    caches: CachePolicy = CachePolicy.ENGINE  # as `caches` of the trainer says


class Later:
    """The type of `LATER`."""

    def __repr__(self) -> str:
        return "wsync.LATER"


LATER = Later()
"""What `on_load_layer` and `on_commit` may return: the answer follows with `Replica.loaded` or `Replica.committed`."""


class RankState(enum.IntEnum):
    """What a rank of a replica holds."""

    LOADING = 0  # nothing yet
    SERVING = 1
    PAUSED = 2
    LOADED = 3  # every byte has arrived; not committed
    TAINTED = 4  # the memory belongs to no version


@dataclass(frozen=True)
class ReplicaStatus:
    """The state of a rank, as its library has it.

    Attributes:
        attached: a sidecar has taken it.
        state: what it holds.
        active: the version that it serves, or None.
        refusals: how often something was refused: messages and commands of the sidecar by this rank, and attempts to attach by the
            sidecar. It grows with each attempt of a rank that is not taken, also when the reason is the same.
        refused: why the sidecar does not take this rank now, one sentence; None: it does, or has not answered.
    """

    attached: bool
    state: RankState
    active: Optional[Version]
    refusals: int
    refused: Optional[str] = None


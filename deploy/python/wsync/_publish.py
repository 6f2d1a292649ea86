"""A publish on its way to the replicas, for the trainer that waits for it."""
from __future__ import annotations

import logging
import time
from typing import Optional, Union

from ._errors import Code, InvalidInput, make
from ._exit import OfOneProcess
from ._native import core
from ._values import PublishState, PublishStatus, publish_status

_log = logging.getLogger("wsync")
_SAY_S = 2.0  # after which a wait says what it waits for
_WAIT_FOR = {state.name.lower(): state for state in (PublishState.SNAPSHOTTED, PublishState.STAGED, PublishState.COMMITTED)}


class Publish(OfOneProcess):
    """A publish on its way to the replicas. `Publisher.publish` and `Draft.publish` return it; it is then snapshotted."""

    def __init__(self, raw: "core.Trainer", number: int):
        self._raw = raw
        self._number = number

    def status(self) -> PublishStatus:
        """The status now. The last 1024 publishes that have ended are kept."""
        return publish_status(self._raw.poll(self._number))

    @property
    def step(self) -> int:
        """The step under which it was published."""
        return self.status().step

    def wait(self, state: Union[str, PublishState] = "committed", timeout: Optional[float] = None) -> PublishStatus:
        """Waits until the publish is in a state, or in a later one. Ctrl-C ends the wait; the publish goes on.

        If nothing travels after 2 s, because no sidecar or too few engines are there, the logger "wsync" warns of what is missing.

        Args:
            state: "snapshotted" (the weights may change), "staged" (every byte is on the inference side and verified) or
                "committed" (the replicas serve it).
            timeout: seconds. None: until the publish itself has ended, which it does within `deadlines.publish` once enough
                sidecars and engines are there.

        Returns:
            The status in that state.

        Raises:
            DeadlineExceeded: the time is over, and the publish goes on.
            Cancelled: a newer publish superseded it, or `wsync cancel` ended it.
            Refused: it failed, and every engine keeps its version: something does not fit, or `deadlines.publish` was over before
                the switch was decided. No engine will switch to it later. If a tensor does not fit, `error.tensor`,
                `error.expected` and `error.found` say which, and how.
            Partial: it is decided, but not every replica serves it yet, or has told so before `deadlines.publish`. The fleet goes
                on trying, so an engine may switch to it later.
            Error: it failed; the class tells how. `error.status` has the status in each of these cases.
        """
        wanted = _WAIT_FOR.get(state.lower()) if isinstance(state, str) else state
        if wanted is None or wanted not in _WAIT_FOR.values():
            raise InvalidInput(f"state is {state!r}, expected one of {', '.join(_WAIT_FOR)}")
        if timeout is not None and timeout < 0:
            raise InvalidInput(f"timeout is {timeout}, expected seconds from 0 on, or None")
        rest = -1.0 if timeout is None else float(timeout)
        code, sentence, raw = self._raw.wait(self._number, int(wanted), _SAY_S if timeout is None else min(rest, _SAY_S))
        status = publish_status(raw)
        if code == Code.DEADLINE and status.state < PublishState.COMMITTED and not 0 <= rest <= _SAY_S:
            if status.version is None and status.reason:  # nothing travels yet: it would be seen at the deadline only
                until = "without a limit" if timeout is None else time.strftime("until %H:%M:%S", time.localtime(time.time() + rest - _SAY_S))
                _log.warning("the publish%s is not on its way yet: %s; wait() waits for it %s", f" of step {status.step}" if status.step else "",
                             status.reason, until)
            code, sentence, raw = self._raw.wait(self._number, int(wanted), rest if timeout is None else rest - _SAY_S)
            status = publish_status(raw)
        if code == 0:
            return status
        if code == Code.DEADLINE and status.reason and status.reason not in sentence:
            sentence = f"{sentence} ({status.reason})"
        tensor = self._raw.problem(self._number) if status.state == PublishState.FAILED and code != Code.CLOSED else ()
        failure = make(code, sentence, *tensor)
        failure.status = status if code != Code.CLOSED else None
        raise failure

    def __repr__(self) -> str:
        return f"<wsync.Publish {self._number}>"

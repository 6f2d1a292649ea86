"""What keeps the forward passes of a model of torch and the switches of its weights apart."""
from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple, Optional

import torch as _torch

# A pass that torch does not report as ended wakes nobody. Who waits looks again after this time.
_LOOK_S = 0.02


class _Pass(NamedTuple):
    """A forward pass that has begun."""

    thread: int
    frame: Optional[FrameType]  # of torch, in which the whole pass runs; None: unknown

    def has_ended(self) -> bool:
        """Whether it is over, also if torch has not called its hook. False if that is unknown."""
        if self.frame is None:
            return False
        try:
            self.frame.clear()  # refused as long as the frame runs; it only drops variables of torch's call of a module
        except RuntimeError:
            return False
        return True


class ForwardGate:
    """Lets through either forward passes of one thread, of which one may run inside of another, or a pause.

    A pass is known by the frame of torch that calls the hooks and the model's `forward`. torch calls no hook at the end of a pass
    that `KeyboardInterrupt` or `SystemExit` ends, and calls it for a pass that never began because the hook of somebody else raised
    an exception. So what counts is whether the frame still runs.

    Attributes:
        passes: how many passes have begun.
    """

    def __init__(self) -> None:
        self.passes = 0
        # Signals interrupt the model's thread anywhere, so this is no threading.Condition, whose lock may then stay as it is.
        self._mutex = threading.RLock()  # of all that follows; a signal's handler may run a pass as well
        self._running: list[_Pass] = []  # of one thread, the outer ones first
        self._is_pausing = False  # or is paused
        self._is_closed = False
        self._hooks: list[Any] = []
        self._waiting: list[Any] = []  # locks, each released when something has changed

    def watch(self, model: Any) -> None:
        """Registers the hooks of a module of torch. A compiler of torch calls them and does not look into them."""
        before, after = _torch.compiler.disable(self._before), _torch.compiler.disable(self._after)
        self._hooks = [model.register_forward_pre_hook(before), model.register_forward_hook(after, always_call=True)]

    def close(self) -> None:
        """Removes the hooks, and lets every pass through from here on."""
        for hook in self._hooks:
            hook.remove()
        with self._mutex:
            self._is_closed = True
            self._wake()

    def pause(self) -> None:
        """Returns when no pass runs; none begins until `resume`, also while this waits. Does nothing if it is paused."""
        with self._mutex:
            self._is_pausing = True
        self._until(lambda: not self._running)

    def resume(self) -> None:
        """Ends a pause, if there is one."""
        with self._mutex:
            self._is_pausing = False
            self._wake()

    def _before(self, *_: Any) -> None:
        own = _Pass(threading.get_ident(), _frame_of_torch(sys._getframe(1)))

        def begins() -> bool:
            is_held_up = self._running[0].thread != own.thread if self._running else self._is_pausing
            if is_held_up and not self._is_closed:
                return False
            self._running.append(own)
            self.passes += 1
            return True
        self._until(begins)

    def _after(self, *_: Any) -> None:
        frame, thread = _frame_of_torch(sys._getframe(1)), threading.get_ident()
        with self._mutex:
            if self._running and self._running[-1] == (thread, frame):
                self._running.pop()
            self._forget_ended()
            self._wake()

    def _until(self, holds: Callable[[], bool]) -> None:
        changed = None
        while True:
            with self._mutex:
                if changed in self._waiting:
                    self._waiting.remove(changed)
                self._forget_ended()
                if holds():
                    return
                changed = threading.Lock()
                changed.acquire()
                self._waiting.append(changed)
            changed.acquire(timeout=_LOOK_S)

    def _forget_ended(self) -> None:
        self._running = [one for one in self._running if not one.has_ended()]

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for changed in waiting:
            changed.release()


def _frame_of_torch(frame: Optional[FrameType]) -> Optional[FrameType]:
    """The nearest frame of torch's call of a module, which calls a hook and then goes on."""
    while frame is not None and frame.f_globals.get("__name__") != "torch.nn.modules.module":
        frame = frame.f_back
    return frame

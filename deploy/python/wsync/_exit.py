"""What happens when the interpreter ends: everything is closed before Python takes itself apart.

The extension's own threads never enter Python. A thread of Python that is in a call of this package returns from it first, because
a thread that comes back later is ended in the middle of C++, and the process with it."""
from __future__ import annotations

import atexit
import sys
import threading
import weakref

from ._errors import Closed
from ._native import core

LIMIT_S = 10.0
_open: "weakref.WeakSet" = weakref.WeakSet()


def close_at_exit(closable) -> None:
    """Closes the object when the interpreter ends, if it still exists."""
    _open.add(closable)


class OfOneProcess:
    """What has sockets and threads, so that no other process can have it."""

    def __reduce__(self):
        kind = next(one.__name__ for one in type(self).__mro__ if one.__module__.partition(".")[0] == __package__)
        raise TypeError(f"a {kind} belongs to its process; make one there")


def _say_nothing_of_closed() -> None:
    """A thread that is in a call when the interpreter ends gets Closed, which is no mistake of it."""
    before = threading.excepthook

    def hook(raised) -> None:
        if not issubclass(raised.exc_type, Closed):
            before(raised)
    threading.excepthook = hook


def _close_all() -> None:
    _say_nothing_of_closed()
    for closable in list(_open):
        try:
            closable.close()
        except Exception as failure:  # the others are closed all the same
            print(f"wsync: {failure}", file=sys.stderr)
    if not core.end_calls(LIMIT_S):
        print(f"wsync: at the end of the interpreter a thread is still in a call of wsync after {LIMIT_S:.0f} s", file=sys.stderr)


atexit.register(_close_all)

"""One update of an engine: the server's side of checkpoint-engine's worker protocol, for all workers of the engine.

The server sends pickles and the worker answers with bytes: empty for success, otherwise a traceback.

    handle      of a buffer with two halves                  the worker maps it
    list        of {name, dtype, shape, offset}, repeated    it loads what these tensors hold
    None        once                                         it unmaps the buffer
    None        again                                        it does what follows a load, and leaves
    exception   in the place of a list                       it raises it, and leaves
"""
from __future__ import annotations

import os
import pickle
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import torch
import zmq

from .._errors import DeadlineExceeded, Error, PeerLost, Refused
from .engine import UpdateCall

_ALIGNMENT = 256  # of tensors in a buffer, in bytes
_WORDS = 400  # characters of a worker's failure that a sentence repeats
_LAST_WORDS_S = 1.0  # for workers to answer whose engine has ended the update call
_PROTOCOL = 4  # of pickle: every Python that a worker may have reads it


class Item(NamedTuple):
    """A tensor at its place in a half of the buffer."""
    name: str
    tensor: torch.Tensor
    offset: int


def _size(tensor: torch.Tensor) -> int:
    return -(-tensor.numel() * tensor.itemsize // _ALIGNMENT) * _ALIGNMENT


def lists_of(layers: Sequence[Mapping[str, torch.Tensor]], bucket: int) -> tuple[list, int]:
    """Packs layers into lists in their order. A layer is in one list if a half has room for it.

    Returns:
        The lists of `Item`, and the size of a half in bytes: `bucket`, or what the largest tensor needs.
    """
    half = max([bucket] + [_size(tensor) for layer in layers for tensor in layer.values()])
    lists: list = [[]]
    used = 0
    for layer in layers:
        if used and used + sum(map(_size, layer.values())) > half:
            lists.append([])
            used = 0
        for name, tensor in layer.items():
            if used and used + _size(tensor) > half:
                lists.append([])
                used = 0
            lists[-1].append(Item(name, tensor, used))
            used += _size(tensor)
    return [one for one in lists if one], half


def _said(reply: bytes) -> str:
    """What a traceback ends with, in one line."""
    lines = [line for line in reply.decode("utf-8", "replace").splitlines() if line.strip()]
    frames = [number for number, line in enumerate(lines) if line.startswith("  File ")]
    rest = lines[frames[-1] + 1:] if frames else lines
    while len(rest) > 1 and rest[0].startswith("    "):  # the code of the last frame
        rest = rest[1:]
    return " ".join(" ".join(rest).split())[:_WORDS]


class _Worker:
    """The socket to the worker of one GPU."""

    def __init__(self, context: zmq.Context, directory: str, uuid: str):
        self.uuid = uuid
        self.path = os.path.join(directory, secrets.token_hex(6))
        self.socket = context.socket(zmq.REQ)
        self.socket.linger = 1000  # the exception that frees it is sent, if it is there
        self.socket.bind(f"ipc://{self.path}")
        self.owes = False  # an answer
        self._freed = False

    def free(self) -> bool:
        """Sends the exception, if the worker can take it now. Returns whether it has been sent."""
        if self.owes and not self._freed:
            if not self.socket.poll(0, zmq.POLLIN):
                return False
            self.socket.recv()
            self.owes = False
        if not self._freed and self.socket.poll(0, zmq.POLLOUT):
            self.socket.send(pickle.dumps(RuntimeError("wsync has given up this update"), _PROTOCOL), zmq.NOBLOCK)
            self._freed = True
        return self._freed

    def close(self) -> None:
        self.socket.close()
        if os.path.exists(self.path):
            os.remove(self.path)


class Conversation:
    """An update of an engine. Used by one thread.

    Args:
        context: of ZeroMQ.
        directory: for the sockets, closed to other users.
        devices: the name of each GPU of the engine, and a function that makes a buffer there.
        timeout: seconds that a worker may be silent.
        version: that is loaded; for sentences.
    """

    def __init__(self, context: zmq.Context, directory: str, devices: Mapping[str, Any], timeout: float, version: Any):
        self.version = version
        self._devices = devices
        self._timeout = timeout
        self._buffers: list = []
        self._workers = [_Worker(context, directory, uuid) for uuid in devices]
        self._call: Optional[UpdateCall] = None

    def run(self, engine: Any, lists: Sequence[Sequence[Item]], half: int) -> None:
        """Updates the engine. If it raises, call `given_up` until it returns True.

        Raises:
            wsync.Error: the sentence says which worker failed, when and why.
        """
        self._buffers = [make(2 * half) for make in self._devices.values()]
        self._call = UpdateCall(engine, {worker.uuid: f"ipc://{worker.path}" for worker in self._workers}, self.version)
        self._send("its buffer", [pickle.dumps(buffer.handle(), _PROTOCOL) for buffer in self._buffers])
        asked = "map its buffer"
        for number, items in enumerate(lists):
            begin = number % 2 * half
            for buffer in self._buffers:
                for name, tensor, offset in items:
                    buffer.write(begin + offset, tensor.reshape(-1).view(torch.uint8))
                buffer.synchronize()
            self._receive(asked)  # the other half is free now, too
            asked = f"load list {number + 1} of {len(lists)} ({items[0].name} and {len(items) - 1} more)"
            self._send(asked, [pickle.dumps([{"name": name, "dtype": tensor.dtype, "shape": tuple(tensor.shape),
                                              "offset": begin + offset} for name, tensor, offset in items], _PROTOCOL)])
        self._receive(asked)
        for asked in "unmap its buffer", "end the update":
            self._send(asked, [pickle.dumps(None, _PROTOCOL)])
            self._receive(asked)
        self._wait(None, 0, "the update call has not returned")
        failure = self._call.failure
        if failure is not None:
            raise failure
        self._close()

    def _wait(self, worker: Optional[_Worker], event: int, what: str) -> None:
        """Returns when the socket of the worker is ready; with None, when the call has ended."""
        call = self._call
        assert call is not None
        poller = zmq.Poller()
        poller.register(call.ended, zmq.POLLIN)
        if worker is not None:
            poller.register(worker.socket, event)
        found = dict(poller.poll(round(self._timeout * 1000)))
        if worker is None and found or worker is not None and worker.socket in found:
            return
        if found:
            raise call.failure if isinstance(call.failure, Error) else PeerLost(
                f"the engine's update call has ended before the update: {call.failure or 'it was answered with success'}; {what}")
        raise DeadlineExceeded(f"{what} for {self._timeout:.0f} s")

    def _send(self, what: str, payloads: list) -> None:
        for number, worker in enumerate(self._workers):
            self._wait(worker, zmq.POLLOUT, f"the worker of {worker.uuid} was to be sent: {what}, and is not connected")
            worker.socket.send(payloads[number % len(payloads)], zmq.NOBLOCK)
            worker.owes = True

    def _receive(self, what: str) -> None:
        for worker in self._workers:
            self._wait(worker, zmq.POLLIN, f"the worker of {worker.uuid} was told to {what}, and has not answered")
            reply = worker.socket.recv()
            worker.owes = False
            if reply:
                raise Refused(f"the worker of {worker.uuid} could not {what}: {_said(reply)}")

    def given_up(self, timeout: float) -> bool:
        """After a failure: frees workers that can be freed, for so many seconds at most. Returns whether the engine has left the
        update."""
        end = time.monotonic() + timeout
        ended = self._call is None
        while self._call is not None:
            poller = zmq.Poller()
            stuck = [worker for worker in self._workers if not worker.free()]
            for worker in stuck:
                poller.register(worker.socket, zmq.POLLIN if worker.owes else zmq.POLLOUT)
            if not ended:
                poller.register(self._call.ended, zmq.POLLIN)
            elif not any(worker.owes for worker in stuck):
                break
            found = [key for key, _ in poller.poll(round(max(0.0, end - time.monotonic()) * 1000))]
            if not found:
                break
            if self._call.ended.fileno() in found:
                ended = True  # what one worker has made it end with, others may not know yet
                end = min(end, time.monotonic() + _LAST_WORDS_S)
        if not ended:
            return False
        self._close()
        return True

    def _close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._workers = []
        for buffer in self._buffers:
            buffer.close()
        self._buffers = []
        if self._call is not None:
            self._call.close()
            self._call = None


def free_left_over(context: zmq.Context, directory: str, timeout: float) -> int:
    """Frees workers that wait for a process that was killed in an update: binds its endpoints once more, and sends the exception.

    Args:
        timeout: seconds for each of them to connect.

    Returns:
        The number of workers that were freed.
    """
    freed = 0
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        os.remove(path)
        with context.socket(zmq.REQ) as socket:
            socket.linger = 1000
            socket.bind(f"ipc://{path}")
            if socket.poll(round(timeout * 1000), zmq.POLLOUT):
                socket.send(pickle.dumps(RuntimeError("the process that served this update has ended"), _PROTOCOL), zmq.NOBLOCK)
                freed += 1
        if os.path.exists(path):
            os.remove(path)
    return freed

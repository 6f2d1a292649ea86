"""What every process of a peer shares: how it speaks with the benchmark, the model's bytes, and the digest.

The benchmark starts a trainer (rank 0) and engines (1 to N). Each connects to its Unix socket, says that it is ready, and then
for each {"go": k} makes the model k's bytes go from the trainer's memory to its own, and answers with the digest of what it has
there. The end of the connection is the end of the process. One JSON object a line:

    {"event": "ready", "rank": 1}
    {"event": "done", "rank": 1, "digest": "32 hex digits"}
    {"event": "failed", "rank": 1, "why": "a sentence"}

Standard library only; XXH3-128 is libxxhash's, which wsync itself needs.
"""
import ctypes
import ctypes.util
import json
import mmap
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from multiprocessing.connection import Client, Listener

PIECE = 64 << 20


class _Digest(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


_xxhash = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
_xxhash.XXH3_createState.restype = ctypes.c_void_p
_xxhash.XXH3_128bits_reset.argtypes = [ctypes.c_void_p]
_xxhash.XXH3_128bits_update.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_xxhash.XXH3_128bits_digest.argtypes = [ctypes.c_void_p]
_xxhash.XXH3_128bits_digest.restype = _Digest


def die_with_parent():
    """The kernel kills this process when the one that started it is gone."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def address_of(view):
    return ctypes.addressof((ctypes.c_char * 1).from_buffer(view)) if len(view) else 0


class Digester:
    """XXH3-128 of pieces of memory in the order given, taken by a thread beside the caller's work; the call releases the GIL."""

    def __init__(self):
        self._state = _xxhash.XXH3_createState()
        self._pieces = queue.SimpleQueue()
        self._done = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        _xxhash.XXH3_128bits_reset(self._state)
        while True:
            piece = self._pieces.get()
            if piece is None:
                digest = _xxhash.XXH3_128bits_digest(self._state)
                _xxhash.XXH3_128bits_reset(self._state)
                self._done.put(f"{digest.high:016x}{digest.low:016x}")
            else:
                _xxhash.XXH3_128bits_update(self._state, *piece)

    def update(self, address, size):
        self._pieces.put((address, size))

    def finish(self):
        self._pieces.put(None)
        return self._done.get()


class Memory:
    """A model's place in this process's memory: one private mapping, every page touched, tensors at the offsets of the list."""

    def __init__(self, tensors, size):
        self.tensors = tensors
        self.map = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                self.map.madvise(mmap.MADV_HUGEPAGE)
            except OSError:
                pass  # a kernel without huge pages
        for at in range(0, size, mmap.PAGESIZE):
            self.map[at] = 0
        self.view = memoryview(self.map)[:size]
        self.address = address_of(self.map)

    def load(self, path):
        with open(path, "rb", buffering=0) as file:
            at = 0
            while at < len(self.view):
                got = file.readinto(self.view[at:at + PIECE])
                if not got:
                    raise OSError(f"{path} ends at byte {at}, expected {len(self.view)}")
                at += got

    def digest_tensors(self, digester, tensors=None):
        for tensor in self.tensors if tensors is None else tensors:
            digester.update(self.address + tensor["offset"], tensor["bytes"])

    def of(self, tensor):
        return self.view[tensor["offset"]:tensor["offset"] + tensor["bytes"]]


def pieces_of(tensors, most):
    """Neighbouring tensors in groups of at most so many bytes; a tensor that is larger is a group of its own."""
    group, size = [], 0
    for tensor in tensors:
        if group and size + tensor["bytes"] > most:
            yield group
            group, size = [], 0
        group.append(tensor)
        size += tensor["bytes"]
    if group:
        yield group


class Bell:
    """What a trainer tells its engines ("there is a new file"): a message to each over a Unix socket."""

    def __init__(self, job):
        path = os.path.join(job.directory, "bell")
        if job.rank == 0:
            listener = Listener(path, "AF_UNIX", backlog=job.engines)
            self._connections = [listener.accept() for _ in range(job.engines)]
        else:
            self._connections = [patiently(lambda: Client(path, "AF_UNIX"))]

    def ring(self, message):
        for connection in self._connections:
            connection.send(message)

    def wait(self):
        return self._connections[0].recv()


def patiently(connect, seconds=60):
    end = time.monotonic() + seconds
    while True:
        try:
            return connect()
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > end:
                raise
            time.sleep(0.002)


class Job:
    """One process's part: `job.json` of the directory in WSYNC_PEER_DIRECTORY, its rank in WSYNC_PEER_RANK or as given."""

    def __init__(self, rank=None):
        die_with_parent()
        self.directory = os.environ["WSYNC_PEER_DIRECTORY"]
        with open(os.path.join(self.directory, "job.json"), encoding="utf-8") as file:
            job = json.load(file)
        self.rank = int(os.environ["WSYNC_PEER_RANK"]) if rank is None else rank
        self.engines = job["engines"]
        self.variant = job["variant"]
        self.data_directory = job["data_directory"]
        with open(job["tensors"], encoding="utf-8") as file:
            tensors = json.load(file)
        self.tensors = tensors["tensors"]
        self.size = tensors["size"]
        self.is_trainer = self.rank == 0
        # The trainer has both models, which it sends in turn; an engine has the place of one.
        self.models = [Memory(self.tensors, self.size) for _ in job["models"]] if self.is_trainer else []
        for memory, path in zip(self.models, job["models"]):
            memory.load(path)
        self.memory = None if self.is_trainer else Memory(self.tensors, self.size)
        self.digester = Digester()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(job["socket"])
        self._lines = self._socket.makefile("r", encoding="utf-8")

    def say(self, **line):
        self._socket.sendall((json.dumps({"rank": self.rank, **line}) + "\n").encode())

    def run(self, send, receive):
        """Serves until the benchmark ends. send(memory) is the trainer's part; receive() an engine's, which leaves the model in
        job.memory and has given every tensor to job.digester in the order of job.tensors."""
        self.say(event="ready")
        for line in self._lines:
            model = json.loads(line)["go"]
            if self.is_trainer:
                self.models[model].digest_tensors(self.digester)
                send(self.models[model])
            else:
                receive()
            self.say(event="done", digest=self.digester.finish())


def main(body, rank=None):
    """Runs body(job); an exception is told to the benchmark. Ends at once: what a library would do at exit is nobody's gain."""
    job = None
    try:
        job = Job(rank)
        body(job)
        code = 0
    except BaseException as error:  # pylint: disable=broad-except
        traceback.print_exc()
        if job is not None:
            try:
                job.say(event="failed", why=f"{type(error).__name__}: {error}"[:1000])
            except OSError:
                pass
        code = 1
    sys.stderr.flush()
    os._exit(code)

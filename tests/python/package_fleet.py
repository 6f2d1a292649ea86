"""A sidecar of the wheel and programs that use the package, in a directory of its own, for the tests of the package. The
environment
that runs these tests has the wheel and NumPy only."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import wsync
from wsync._native import EXECUTABLE


def slowness():
    """How many times slower than alone a process runs here now, 1 at least."""
    begin, end = time.monotonic(), time.process_time() + 0.1
    while time.process_time() < end:
        pass
    measured = max((time.monotonic() - begin) / 0.1, os.getloadavg()[0] / os.cpu_count())
    return max(1.0, min(measured, 10.0), float(os.environ.get("WSYNC_TEST_SLOWNESS", "1")))


# The one limit of every wait for an event: reached when it never comes.
DEADLINE_S = 60 * slowness()
HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(wsync.__file__)))  # it may be in a folder that is not installed
NAMES = [f"model.layers.{layer}.mlp.weight" for layer in range(3)]


def bf16(values):
    """BF16 of float32 values, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return wsync.as_dtype(rounded.astype(np.uint16).reshape(np.shape(values)), "BF16")


def float_of(array):
    """float32 of BF16 values."""
    return (np.asarray(array).astype(np.uint32) << 16).view(np.float32)


def weights_of(seed, shape=(64, 32), names=NAMES):
    random = np.random.default_rng(seed)
    return {name: bf16(random.standard_normal(shape, np.float32)) for name in names}


def empty_like(weights):
    return {name: wsync.as_dtype(np.zeros_like(np.asarray(array)), array.dtype_name) for name, array in weights.items()}


def equal(case, held, published):
    for name in published:
        case.assertEqual(np.ascontiguousarray(held[name]).tobytes(), np.ascontiguousarray(published[name]).tobytes(), name)


def until(holds, what):
    end = time.monotonic() + DEADLINE_S
    while not (found := holds()):
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come within {DEADLINE_S:.0f} s")
    return found


class Served:
    """A replica that a thread of the test polls, as the loop of an engine does."""

    def __init__(self, replica):
        self.replica = replica
        self.ended = threading.Event()
        self.failure = None
        self.thread = threading.Thread(target=self.loop, daemon=True)
        self.thread.start()

    def loop(self):
        try:
            while not self.ended.is_set():
                self.replica.poll(0.02)
                self.replica.step += 1
        except wsync.Error as failure:
            self.failure = failure

    def stop(self):
        self.ended.set()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive(), "the thread of a replica did not end"
        self.replica.close()


class PackageFleet:
    def __init__(self):
        self.directory = tempfile.mkdtemp(prefix="wsync-")
        self.run_dir = self.path("run")
        self.environment = dict(os.environ, WSYNC_RUN_DIR=self.run_dir, WSYNC_STATE_DIR=self.path("state"),
                                WSYNC_LOG_LEVEL="warning", PYTHONFAULTHANDLER="1",
                                PYTHONPATH=os.pathsep.join((HERE, PACKAGE)))
        self.settings = {"run_dir": self.run_dir, "state_dir": self.path("state"), "log.level": "warning", "bucket_bytes": "1MiB"}
        self.processes = []
        self.served = []

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        for served in self.served:
            served.stop()
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream and not stream.closed:
                    stream.close()
        if failure[0]:
            for name in sorted(os.listdir(self.directory)):
                if name.endswith(".log"):
                    with open(self.path(name), encoding="utf-8", errors="replace") as file:
                        print(f"--- {name}\n{file.read()[-3000:]}", file=sys.stderr)
        shutil.rmtree(self.directory)

    def path(self, name):
        return os.path.join(self.directory, name)

    def start(self, *command):
        with open(self.path(f"{len(self.processes)}.log"), "w", encoding="utf-8") as log:
            process = subprocess.Popen(command, env=self.environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=log)
        process.log = log.name
        self.processes.append(process)
        return process

    def sidecar(self, name="host", *settings):
        """(process, socket)"""
        socket = os.path.join(self.run_dir, f"{name}.engines")
        if os.path.exists(socket):
            os.remove(socket)  # of one that was killed
        process = self.start(EXECUTABLE, "sidecar", "--set", f"name={name}", *settings)
        until(lambda: os.path.exists(socket) or process.poll() is not None, f"the socket of sidecar {name}")
        assert process.poll() is None, f"sidecar {name} has ended: {self.said(process)}"
        return process, socket

    def program(self, text, *arguments):
        """A program of Python that prints "ready" when the test may go on."""
        path = self.path(f"{len(self.processes)}.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        process = self.start(sys.executable, path, *map(str, arguments))
        return process

    def ready(self, process, word="ready"):
        line = process.stdout.readline().strip()
        assert line == word, f"it said '{line}': {self.said(process)}"

    def end(self, process):
        """Its exit status and what it said on both streams."""
        out = process.communicate(timeout=DEADLINE_S)[0]
        return process.returncode, out, self.said(process)

    def said(self, process):
        with open(process.log, encoding="utf-8", errors="replace") as file:
            return file.read()

    def publisher(self, **settings):
        return wsync.Publisher(settings=self.settings | settings)

    def serve(self, replica):
        """Polls it until the test ends."""
        self.served.append(Served(replica))
        return self.served[-1]

    def ask(self, *arguments):
        """The exit status of a command of the fleet, and the object that --json prints."""
        done = subprocess.run([EXECUTABLE, *arguments, "--json", "--coordinator", f"ipc://{self.run_dir}/control"], text=True,
                              env=self.environment, capture_output=True, timeout=DEADLINE_S)
        return done.returncode, json.loads(done.stdout)


def interrupt(process):
    process.send_signal(signal.SIGINT)

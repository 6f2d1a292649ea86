"""A fleet of real wsync processes on this machine, in a directory of its own, for scenario tests."""
import glob
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from schema import validate

# What a process says of a callback that kept its loop for 100 ms or longer (shared/loop/lag.h). It has left out what the
# callback waited for a processor, so that tests that run side by side, or a busy machine, are not taken for a slow callback.
KEPT = re.compile(r"the loop was blocked for (\d+) ms by .*")
KEPT_MS = 100


def slowness():
    """How many times slower than alone a process runs here now, 1 at least: the wall time that 0.1 s of computing takes, and
    the load of each core. WSYNC_TEST_SLOWNESS sets a least value, for machines and builds that are slow by themselves."""
    begin, end = time.monotonic(), time.process_time() + 0.1
    while time.process_time() < end:
        pass
    measured = max((time.monotonic() - begin) / 0.1, os.getloadavg()[0] / os.cpu_count())
    # More than 10 is a machine that stood still for a moment.
    return max(1.0, min(measured, 10.0), float(os.environ.get("WSYNC_TEST_SLOWNESS", "1")))


SLOWNESS = slowness()
# The one limit of every wait for an event: reached when it never comes.
DEADLINE_S = 60 * SLOWNESS


def short(milliseconds):
    """A deadline of the product that a test sets short, as on a machine that does nothing else. What stands still misses any
    deadline; what is only slow must not miss it."""
    return f"{round(milliseconds * SLOWNESS)}ms"


# How long `status` waits for an answer, in seconds, where a test asks again and again and nobody may be there.
ASK_S = str(round(SLOWNESS + 0.5))


def processes_of(directory):
    """Processes that have the directory's name in their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if directory.encode() in file.read() and int(pid) != os.getpid():
                    found.append(int(pid))
        except OSError:
            pass  # it has ended meanwhile
    return found


def listens(path):
    """Whether a process listens on the Unix socket at the path."""
    with socket.socket(socket.AF_UNIX) as attempt:
        return attempt.connect_ex(path) == 0


def interrupt_leaves_nothing(case, command, directory, processes, deadline_s):
    """Interrupts a benchmark that works in `directory` when it has so many processes."""
    bench = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    case.addCleanup(lambda: (bench.stdout.close(), bench.stderr.close()))
    end = time.monotonic() + deadline_s
    while len(processes_of(directory)) < processes:
        case.assertLess(time.monotonic(), end)
        case.assertIsNone(bench.poll())
    bench.send_signal(signal.SIGINT)
    out, _ = bench.communicate(timeout=deadline_s)
    case.assertEqual(bench.returncode, 130, out)
    case.assertEqual(validate(bench.args, out)["error"]["code"], "cancelled")
    case.assertEqual(processes_of(directory), [])
    case.assertEqual(os.listdir(directory), [])


class Fleet:
    """Starts processes, waits for what they say, and leaves nothing behind."""

    def __init__(self, wsync):
        self.wsync = wsync
        self.directory = tempfile.mkdtemp(prefix="wsync-")
        self.run_dir = os.path.join(self.directory, "run")
        self.environment = dict(os.environ, WSYNC_RUN_DIR=self.run_dir,
                                WSYNC_STATE_DIR=os.path.join(self.directory, "state"))
        # What a sanitizer of the build has to say goes to files, so that no process's report is lost.
        for name in ("ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"):
            given = self.environment.get(name)
            self.environment[name] = ":".join(filter(None, [given, f"log_path={self.path('sanitizer')}"]))
        self.address = f"ipc://{self.run_dir}/control"
        self.processes = []
        self.halted = False  # a process was: that counts for the callback that it was in
        self.unchecked = set()  # logs of processes that the test holds up

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        # All are killed before anything that may fail: what is left running makes every later test slow.
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout)):
                pipe.close()
        kept = [] if self.halted else self.kept_loops()
        reports = [pathlib.Path(path).read_text() for path in glob.glob(self.path("sanitizer.*"))]
        shutil.rmtree(self.directory)
        assert not reports, "a sanitizer reports:\n" + "\n".join(reports)
        stood_still = "a loop stood still:\n" + "\n".join(kept)
        if kept and failure[0]:
            print(stood_still, file=sys.stderr)  # may be why
        assert failure[0] or not kept, stood_still

    def kept_loops(self):
        """What the processes have said of callbacks that kept their loops too long. On a machine that is busy now, or was when
        the test began, the kernel keeps each system call longer, as those that wait for a lock of its own or write a log."""
        logs = {path for path in pathlib.Path(self.directory).glob("*log*") if path.is_file()}
        kept = [(log.name, said) for log in sorted(logs - set(map(pathlib.Path, self.unchecked)))
                for said in KEPT.finditer(log.read_text(errors="replace"))]
        limit_ms = KEPT_MS * max(SLOWNESS, slowness()) if kept else KEPT_MS
        return [f"{name}: {said[0]}" for name, said in kept if int(said[1]) >= limit_ms]

    def halt(self, pid):
        """Stops a process (SIGSTOP)."""
        self.halted = True
        os.kill(pid, signal.SIGSTOP)

    def log(self):
        """A new file for what a process says on its standard error."""
        return open(self.path(f"{len(self.processes)}.log"), "w", encoding="utf-8")

    def path(self, name):
        return os.path.join(self.directory, name)

    def start(self, *arguments):
        with self.log() as log:
            process = subprocess.Popen([self.wsync, *arguments], env=self.environment, text=True,
                                       stdout=subprocess.PIPE, stderr=log)
        process.log_path = log.name
        self.processes.append(process)
        if arguments[0] == "trainer" and "-c" not in arguments:
            self.until_listening(process, arguments)
        return process

    def until_listening(self, trainer, arguments):
        """A command finds out at once that no coordinator listens, so a trainer must listen before the next command. One that
        ends instead, because it refuses to start, is left to its test."""
        settings = dict(s.split("=", 1) for s in arguments if "=" in s and not s.startswith("-"))
        where = settings.get("listen", f"ipc://{settings.get('run_dir', self.run_dir)}/control")
        if where.startswith("ipc://"):
            self.until(lambda: trainer.poll() is not None or listens(where.removeprefix("ipc://")), f"the trainer at {where}")

    def checkpoint(self, name, seed, *more, size="16MiB"):
        path = self.path(name)
        subprocess.run([self.wsync, "make-checkpoint", path, "--size", size, "--seed", str(seed), *more],
                       check=True, stdout=subprocess.DEVNULL)
        return path

    def sidecar(self, name, *settings):
        process = self.start("sidecar", "--set", f"name={name}", *settings)
        socket = os.path.join(self.run_dir, f"{name}.engines")
        self.until(lambda: os.path.exists(socket), f"the socket of sidecar {name}")
        return process, socket

    def engine(self, socket, replica, checkpoint, *more):
        process = self.start("engine", "--json", "--sidecar", socket, "--replica", replica,
                             "--checkpoint", checkpoint, "--stats-ms", "0", *more)
        self.event(process, "attached")
        return process

    def event(self, process, name):
        """The next event of that name; the process must say it before it ends."""
        for line in process.stdout:
            event = self.parsed(process, line)
            if event.get("event") == name:
                return event
        raise AssertionError(f"process ended without saying '{name}'")

    def parsed(self, process, line):
        """What a process has said on one line; that of wsync as its schema has it, that of a test's program as it is."""
        return validate(process.args, line) if process.args[0] == self.wsync else json.loads(line)

    def ask(self, *arguments, address=None):
        """Runs a command of the fleet; its exit code and the object that --json prints."""
        done = subprocess.run([self.wsync, *arguments, "--json", "--coordinator", address or self.address],
                              env=self.environment, text=True, capture_output=True, timeout=DEADLINE_S)
        return done.returncode, validate(done.args, done.stdout)

    def state(self):
        """The answer to `status` without its history of updates, which has ages and what was refused, and without how versions came and
        replicas were loaded and proved last, of which a coordinator hears with a later heartbeat."""
        code, answer = self.ask("status")
        for sidecar in answer.get("result", {}).get("sidecars", []):
            sidecar.pop("last_copy", None)
            for replica in sidecar["replicas"]:
                replica.pop("last_load", None)
                replica.pop("proof", None)
        for name in ("last_update", "updates", "incidents"):
            answer.get("result", {}).pop(name, None)
        return code, answer

    @staticmethod
    def log_text(process):
        """What a process of the fleet has logged."""
        with open(process.log_path, encoding="utf-8") as log:
            return log.read()

    def until(self, holds, what):
        end = time.monotonic() + DEADLINE_S
        while not holds():
            if time.monotonic() > end:
                raise AssertionError(f"{what} did not come within {DEADLINE_S:.0f} s")

    def replicas(self):
        code, answer = self.ask("status")
        if code != 0:
            return {}
        return {r["replica"]: r for s in answer["result"]["sidecars"] for r in s["replicas"]}

    def until_ready(self, version, *replicas):
        def ready():
            found = self.replicas()
            return all(r in found and found[r]["ready"] and found[r]["version"] == version for r in replicas)
        self.until(ready, f"{version} on {replicas}")

    def stop(self, process):
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        for line in rest.splitlines() if "--json" in process.args else ():
            self.parsed(process, line)
        return process.wait(timeout=DEADLINE_S), rest

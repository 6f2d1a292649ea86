"""A fleet whose processes are killed, stopped and held in the middle of what they do."""
import contextlib
import hashlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from fleet import ASK_S, DEADLINE_S, Fleet, short
from schema import validate

PAGE_BYTES = 4096
F_SETPIPE_SZ = 1031


class Process:
    """A wsync process, what it says, and its signals.

    Its output is a pipe of one page: while nobody reads, it comes to a halt inside whatever it says
    most of. hold_at() leaves off reading at an event, go_on() reads on.
    """

    def __init__(self, fleet, label, arguments):
        self.label = label
        self.fleet = fleet
        self.arguments = arguments
        self.log_path = fleet.path(f"{len(fleet.processes)}-{label}.log")
        with open(self.log_path, "w", encoding="utf-8") as log:
            self.popen = subprocess.Popen([fleet.wsync, *arguments], env=fleet.environment,
                                          stdout=subprocess.PIPE, stderr=log, bufsize=0)
        self.pid = self.popen.pid
        self.stdin = None  # it reads nothing
        self.stdout = self.popen.stdout
        fcntl_pipe_of_one_page(self.stdout)
        self.changed = threading.Condition()
        self.events = []
        self.seen = 0
        self.lines = []  # that its schema has not checked yet: the reader must not be slow
        self.ended = False
        self.hold = None
        self.held = False
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        rest = b""
        while chunk := os.read(self.stdout.fileno(), 512):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self.lines.append(line)
                self._take(json.loads(line))
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def _take(self, event):
        with self.changed:
            self.events.append(event)
            self.held = self.hold is not None and matches(event, *self.hold)
            self.changed.notify_all()
            while self.held:
                self.changed.wait()

    def hold_at(self, name, **fields):
        """The process is to be held from its next event of that kind on."""
        self.fleet.unchecked.add(self.log_path)
        with self.changed:
            self.hold = (name, fields)

    def until_held(self):
        self._until(lambda: self.held, f"a hold at {self.hold}")

    def go_on(self):
        with self.changed:
            self.hold = None
            self.held = False
            self.changed.notify_all()

    def expect(self, name, **fields):
        """The next event of that name and fields, after the last one that was expected."""
        def found():
            for at in range(self.seen, len(self.events)):
                if matches(self.events[at], name, fields):
                    self.seen = at + 1
                    return True
            return False
        with self.changed:
            self._until(found, f"event {name} {fields}")
            return self.events[self.seen - 1]

    def _until(self, holds, what):
        end = time.monotonic() + DEADLINE_S
        with self.changed:
            while not holds():
                if self.ended or not self.changed.wait(end - time.monotonic()):
                    how = "it ended" if self.ended else f"it did not come within {DEADLINE_S:.0f} s"
                    raise AssertionError(f"{self.label}: {what}: {how}")

    def skip(self):
        """What was said until now is not expected any more."""
        with self.changed:
            self.seen = len(self.events)

    # The kernel's own signals: no process can do anything about them.

    def kill(self):
        self.popen.send_signal(signal.SIGKILL)
        self.go_on()
        self.popen.wait(timeout=DEADLINE_S)

    def freeze(self):
        """Returns when every thread of it stands still."""
        self.fleet.unchecked.add(self.log_path)
        self.popen.send_signal(signal.SIGSTOP)
        end = time.monotonic() + DEADLINE_S
        while any(state != "T" for state in thread_states(self.pid)):
            if time.monotonic() > end:
                raise AssertionError(f"{self.label} does not stop")

    def thaw(self):
        self.popen.send_signal(signal.SIGCONT)

    def end(self):
        """Asks it to stop; its exit code and the last thing it said."""
        self.go_on()
        self.thaw()
        self.popen.send_signal(signal.SIGTERM)
        return self.result()

    def result(self):
        """Waits until it has ended; its exit code and the last thing it said."""
        code = self.popen.wait(timeout=DEADLINE_S)
        self.reader.join(DEADLINE_S)
        self.check_lines()
        return code, self.events[-1] if self.events else None

    def check_lines(self):
        """What it has said is as its schema has it."""
        lines, self.lines = self.lines, []
        for line in lines:
            validate(self.popen.args, line.decode())

    # What Fleet does with every process when it leaves.
    def poll(self):
        return self.popen.poll()

    def wait(self):
        self.reader.join(DEADLINE_S)


def fcntl_pipe_of_one_page(pipe):
    fcntl.fcntl(pipe.fileno(), F_SETPIPE_SZ, PAGE_BYTES)


def matches(event, name, fields):
    return event.get("event") == name and all(event.get(k) == v for k, v in fields.items())


def thread_states(pid):
    """Of the threads that have not ended meanwhile."""
    states = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            with open(f"/proc/{pid}/task/{thread}/stat", encoding="utf-8") as stat:
                states.append(stat.read().rpartition(")")[2].split()[0])
    return states


def arenas(pid):
    """The arenas that a process has open: inode -> a path to it."""
    found = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        try:
            if os.readlink(path).startswith("/memfd:wsync"):
                found[os.stat(path).st_ino] = path
        except FileNotFoundError:  # closed meanwhile
            pass
    return found


def digest_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def write_locked():
    """Inodes under an OFD write lock: of arenas that somebody writes."""
    with open("/proc/locks", encoding="utf-8") as locks:
        return {int(inode) for inode in
                re.findall(r"OFDLCK\s+ADVISORY\s+WRITE\s+\S+\s+\w+:\w+:(\d+)", locks.read())}


class KillFleet(Fleet):
    """A Fleet of Processes."""

    def __exit__(self, *error):
        if error[0] is not None:
            for socket in [n for n in os.listdir(self.run_dir) if re.fullmatch(r"(.*\.)?control", n)]:
                print(socket, self.ask("status", "--timeout", ASK_S, address=f"ipc://{self.run_dir}/{socket}"),
                      file=sys.stderr)
            for process in self.processes:
                with open(process.log_path, encoding="utf-8") as log:
                    print(f"---- {process.label} ({process.pid}): {process.arguments}\n"
                          f"{log.read()}{process.events[-12:]}", file=sys.stderr)
        for process in self.processes:
            process.go_on()
        super().__exit__(*error)
        for process in self.processes if error[0] is None else ():
            process.reader.join(DEADLINE_S)
            process.check_lines()

    def start(self, *arguments, label=None):
        process = Process(self, label or arguments[0], arguments)
        self.processes.append(process)
        return process

    def trainer(self, *settings, label="trainer"):
        settings = ["--json", "--set", "heartbeat.interval=100ms", "--set", f"heartbeat.deadline={short(800)}", *settings]
        process = self.start("trainer", *settings, label=label)
        self.until_listening(process.popen, settings)
        return process

    def sidecar(self, name, *settings):
        process = self.start("sidecar", "--json", "--set", f"name={name}",
                             "--set", "heartbeat.interval=100ms", "--set", f"heartbeat.deadline={short(800)}",
                             *settings, label=name)
        # Its own answer: a socket file may be a killed predecessor's.
        self.until(lambda: self.of(name)[0] == 0 and self.of(name)[1]["pid"] == process.pid,
                   f"sidecar {name}")
        return process

    def engine(self, sidecar, replica, checkpoint, *more):
        process = self.start("engine", "--json", "--sidecar", os.path.join(self.run_dir, f"{sidecar}.engines"),
                             "--replica", replica, "--checkpoint", checkpoint, "--stats-ms", "50", *more,
                             label=replica)
        process.expect("attached")
        return process

    def of(self, sidecar):
        """What a sidecar says of itself."""
        code, answer = self.ask("status", "--timeout", ASK_S,
                                address=f"ipc://{self.run_dir}/{sidecar}.control")
        return code, answer["result"]["sidecars"][0] if code == 0 else None

    def of_replica(self, sidecar, replica):
        code, report = self.of(sidecar)
        return {r["replica"]: r for r in report["replicas"]}.get(replica) if code == 0 else None

    def activity(self):
        code, answer = self.ask("status", "--timeout", ASK_S)
        return answer["result"]["activity"] if code == 0 else ""

    def until_activity(self, wanted):
        self.until(lambda: self.activity().startswith(wanted), f"a coordinator that is {wanted}")

    def until_joined(self, *sidecars):
        def joined():
            code, answer = self.ask("status", "--timeout", ASK_S)
            if code != 0 or answer["result"]["activity"].split(";")[0] in ("gathering", "claiming"):
                return False
            return {s["name"] for s in answer["result"]["sidecars"] if s["connected"]} >= set(sidecars)
        self.until(joined, f"sidecars {sidecars}")

    def until_at_target(self, *replicas):
        """Waits until they serve whatever the coordinator's target is, and returns it."""
        target = None
        def there():
            nonlocal target
            code, answer = self.ask("status", "--timeout", ASK_S)
            target = answer["result"]["target"] if code == 0 else None
            found = {r["replica"]: r for s in answer["result"]["sidecars"] for r in s["replicas"]} if code == 0 else {}
            return all(r in found and found[r]["ready"] and found[r]["version"] == target for r in replicas)
        self.until(there, f"{replicas} at the coordinator's target")
        return target

    def push(self, path, *more):
        """A push that goes on beside the test; what was said before it is not expected any more."""
        for process in self.processes:
            process.skip()
        return self.start("push", path, "--json", "--coordinator", self.address, *more)


class KillCase(unittest.TestCase):
    """Checkpoints that take many buckets, and what every scenario asserts."""
    wsync = None

    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="wsync-")
        cls.addClassCleanup(cls.directory.cleanup)
        cls.one, cls.two = (os.path.join(cls.directory.name, name) for name in ("one", "two"))
        for seed, path in enumerate((cls.one, cls.two)):
            subprocess.run([cls.wsync, "make-checkpoint", path, "--size", "96MiB", "--seed", str(seed)],
                           check=True, stdout=subprocess.DEVNULL)

    def fleet(self):
        return KillFleet(self.wsync)

    def published(self, fleet, path):
        code, answer = fleet.ask("push", path)
        self.assertEqual(code, 0, answer)
        return answer["result"]["version"]

    def verified(self, fleet, version, ranks):
        code, answer = fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        self.assertEqual([r["version"] for r in answer["result"]["ranks"]], [version] * ranks)

    def serves(self, engine, version):
        """It makes steps of that version now."""
        engine.skip()
        before = engine.expect("stats", state="serving", active=version)["steps"]
        while engine.expect("stats", state="serving", active=version)["steps"] == before:
            pass

    def stands_still(self, engine):
        """It makes no step, whatever it holds."""
        engine.skip()
        before = engine.expect("stats")
        after = engine.expect("stats")
        self.assertNotEqual(after["state"], "serving")
        self.assertEqual(after["steps"], before["steps"])

    def leaves_nothing(self, fleet, *processes):
        """All that still run end in order; nothing torn was ever read; no file is left."""
        for process in processes:
            code, last = process.end()
            self.assertEqual(code, 0, (process.label, last))
            if "torn" in last.get("result", {}):
                self.assertEqual(last["result"]["torn"], 0)
        for process in fleet.processes:
            self.assertIsNotNone(process.poll(), f"{process.label} still runs")
            self.assertNotIn("torn", [event.get("event") for event in process.events])
        self.assertEqual(os.listdir(fleet.run_dir), [])
        left = os.listdir(os.path.join(fleet.environment["WSYNC_STATE_DIR"], "default"))
        self.assertEqual([name for name in left if not name.endswith((".record", ".decisions"))], [])

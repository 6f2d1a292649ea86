"""Training runs of real rank processes on this machine, for scenario tests."""
import glob
import hashlib
import json
import os
import re
import select
import subprocess
import time

from fleet import DEADLINE_S, Fleet
from schema import validate

# A model that takes a few milliseconds a step. Tokens are bytes, so the vocabulary is no smaller.
TINY = {"model.hidden": 16, "model.heads": 2, "model.key_value_heads": 1, "model.head_dim": 8, "model.experts": 4,
        "model.expert_hidden": 16, "data.sequence": 16, "data.micro_batch": 2}
# The same when a checkpoint says what the model is.
TINY_DATA = {key: value for key, value in TINY.items() if not key.startswith("model.")}
LOOK_S = 0.002  # from one look at the processes of a run to the next
FILES = ("config.json", "model.safetensors", "optimizer/state.safetensors")  # of a saved state


def settings(values):
    """--set arguments; a value may be any that json writes as YAML reads it."""
    arguments = []
    for key, value in values.items():
        arguments += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    return arguments


def digests(directory):
    """Of each file of a saved state."""
    found = {}
    for path in glob.glob("**", root_dir=directory, recursive=True):
        if os.path.isfile(os.path.join(directory, path)):
            with open(os.path.join(directory, path), "rb") as file:
                found[path] = hashlib.file_digest(file, "blake2b").hexdigest()
    return found


class Training:
    """A process of `wsync train`: the launcher of a run, or one rank that is started by itself."""

    def __init__(self, fleet, arguments, as_text=False, fail_point=None):
        environment = fleet.environment | ({"WSYNC_FAIL_POINT": fail_point} if fail_point else {})
        self.log_path = fleet.path(f"{len(fleet.processes)}.log")
        with open(self.log_path, "w", encoding="utf-8") as log:
            self.popen = subprocess.Popen([fleet.wsync, "train", *([] if as_text else ["--json"]), *arguments],
                                          env=environment, text=True, stdout=subprocess.PIPE, stderr=log)
        self.fleet = fleet
        self.pid = self.popen.pid
        # What Fleet does with every process when it leaves.
        self.stdin, self.stdout = None, self.popen.stdout
        self.poll, self.kill, self.wait = self.popen.poll, self.popen.kill, self.popen.wait

    def log(self):
        with open(self.log_path, encoding="utf-8") as log:
            return log.read()

    def send(self, signal):
        self.popen.send_signal(signal)

    def until(self, holds, what):
        """Waits while the process runs."""
        end = time.monotonic() + DEADLINE_S
        while not (found := holds()):
            if self.poll() is not None:
                raise AssertionError(f"{what}: the process ended with {self.poll()}\n{self.log()}")
            if time.monotonic() > end:
                raise AssertionError(f"{what} did not come within {DEADLINE_S:.0f} s\n{self.log()}")
        return found

    def last_step(self):
        return max((int(step) for step in re.findall(r"step (\d+)/\d+: loss", self.log())), default=0)

    def until_step(self, step):
        self.until(lambda: self.last_step() >= step, f"step {step}")

    def ranks(self, count):
        """The processes of the ranks that it has started, in their order."""
        path = f"/proc/{self.pid}/task/{self.pid}/children"

        def there():
            with open(path, encoding="ascii") as children:
                found = sorted(int(pid) for pid in children.read().split())
            return found if len(found) == count else None

        return self.until(there, f"{count} ranks")

    def processes_of_ranks(self):
        """Of each rank that there is, the processes that are it, in the order in which they were started. A sanitizer's own child is
        none."""
        found = {}
        try:
            with open(f"/proc/{self.pid}/task/{self.pid}/children", encoding="ascii") as children:
                pids = [int(pid) for pid in children.read().split()]
        except (FileNotFoundError, ProcessLookupError):
            return found
        for pid in pids:
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended
            if b"--rank" in words:
                found.setdefault(int(words[words.index(b"--rank") + 1]), []).append(pid)
        return found

    def processes_until_its_end(self):
        """As processes_of_ranks(), of all that there have been; one that lives for some milliseconds is seen."""
        seen = {}
        end = os.pidfd_open(self.pid)
        try:
            while not select.select([end], [], [], LOOK_S)[0]:
                for rank, pids in self.processes_of_ranks().items():
                    known = seen.setdefault(rank, [])
                    known += [pid for pid in pids if pid not in known]
        finally:
            os.close(end)
        return seen

    def replacement(self, rank, *before):
        """The process of a rank that is none of those before."""
        def there():
            return [pid for pid in self.processes_of_ranks().get(rank, []) if pid not in before]

        return self.until(there, f"another process of rank {rank}")[0]

    def text_result(self, deadline_s=DEADLINE_S):
        """Its exit code, what it printed, and the log."""
        out, _ = self.popen.communicate(timeout=deadline_s)
        return self.popen.returncode, out, self.log()

    def result(self, deadline_s=DEADLINE_S):
        """Its exit code, what --json printed, and the log."""
        code, out, log = self.text_result(deadline_s)
        return code, validate("train", out) if out else None, log


class TrainingFleet(Fleet):
    """A Fleet in whose directory training runs keep what they write."""

    def training(self, values, *arguments, as_text=False, fail_point=None):
        """`fail_point`: RANK:POINT:HITS, where the first process of a rank kills itself."""
        process = Training(self, [*settings(values), *arguments], as_text, fail_point)
        self.processes.append(process)
        return process

    def train(self, values, *arguments, **more):
        """Runs to the end; the exit code, what --json printed, and the log."""
        return self.training(values, "--log-level", "warning", *arguments, **more).result()

    def trained(self, values, *arguments, **more):
        """The result of a run that must succeed."""
        code, answer, log = self.train(values, *arguments, **more)
        assert code == 0, f"{values} {arguments}: exit {code}: {answer}\n{log}"
        return answer["result"]

    def left(self):
        """Processes that have this fleet's directory in their command line."""
        found = {}
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                with open(path, "rb") as file:
                    line = file.read().decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
                continue
            if self.directory in line:
                found[int(path.split("/")[2])] = line.replace("\0", " ")
        return found

    def until_none_is_left(self):
        self.until(lambda: not self.left(), "the end of every process")


def what_ranks_compute(result):
    """All numbers of the steps that do not come from a clock."""
    return [(step["step"], step["loss"], step["gradient_norm"], step["learning_rate"]) for step in result["steps"]]

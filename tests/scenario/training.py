"""Training runs of real rank processes on this machine, for scenario tests."""
import glob
import hashlib
import json
import os
import re
import subprocess
import time

from fleet import DEADLINE_S, Fleet

# A model that takes a few milliseconds a step. Tokens are bytes, so the vocabulary is no smaller.
TINY = {"model.hidden": 16, "model.heads": 2, "model.key_value_heads": 1, "model.head_dim": 8, "model.experts": 4,
        "model.expert_hidden": 16, "data.sequence": 16, "data.micro_batch": 2}
# The same when a checkpoint says what the model is.
TINY_DATA = {key: value for key, value in TINY.items() if not key.startswith("model.")}
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
    """A process of `wsync trainer`: the launcher of a run, or one rank that is started by itself."""

    def __init__(self, fleet, arguments, as_text=False):
        self.log_path = fleet.path(f"{len(fleet.processes)}.log")
        with open(self.log_path, "w", encoding="utf-8") as log:
            self.popen = subprocess.Popen([fleet.wsync, "trainer", *([] if as_text else ["--json"]), *arguments],
                                          env=fleet.environment, text=True, stdout=subprocess.PIPE, stderr=log)
        self.fleet = fleet
        self.pid = self.popen.pid
        # What Fleet does with every process when it leaves.
        self.stdout = self.popen.stdout
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
                raise AssertionError(f"{what} did not come within {DEADLINE_S} s\n{self.log()}")
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

    def children_until_its_end(self):
        """Every rank that was seen to be a child of it; one that lives for some milliseconds is. A sanitizer's own child is none."""
        seen = set()
        while self.poll() is None:
            try:
                with open(f"/proc/{self.pid}/task/{self.pid}/children", encoding="ascii") as children:
                    for child in children.read().split():
                        with open(f"/proc/{child}/cmdline", "rb") as words:
                            if b"--segment" in words.read():
                                seen.add(child)
            except (FileNotFoundError, ProcessLookupError):
                continue  # one of them has just ended
        return seen

    def text_result(self, deadline_s=DEADLINE_S):
        """Its exit code, what it printed, and the log."""
        out, _ = self.popen.communicate(timeout=deadline_s)
        return self.popen.returncode, out, self.log()

    def result(self, deadline_s=DEADLINE_S):
        """Its exit code, what --json printed, and the log."""
        code, out, log = self.text_result(deadline_s)
        return code, json.loads(out) if out else None, log


class TrainingFleet(Fleet):
    """A Fleet in whose directory training runs keep what they write."""

    def training(self, values, *arguments, as_text=False):
        process = Training(self, [*settings(values), *arguments], as_text)
        self.processes.append(process)
        return process

    def train(self, values, *arguments):
        """Runs to the end; the exit code, what --json printed, and the log."""
        return self.training(values, "--log-level", "warning", *arguments).result()

    def trained(self, values, *arguments):
        """The result of a run that must succeed."""
        code, answer, log = self.train(values, *arguments)
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

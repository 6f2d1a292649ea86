"""A fleet on one host whose sidecars copy, and what is told of memory that is changed in place."""
import contextlib
import glob
import os
import re
import shutil

import tensors
from fleet import ASK_S
from kill_fleet import KillCase, KillFleet
from pages import get
from patching import PatchFleet

BY_TCP = ("--set", "transport=tcp")
IN_PLACE = "the copy of {} was changed in place"
BESIDE = "the copy of {} was copied and changed"


class InPlaceFleet(PatchFleet, KillFleet):
    """Sidecars s0, s1 and so on, with replicas, and a trainer whose versions have many buckets."""

    def __init__(self, wsync, by=BY_TCP):
        """`by`: the transport of the sidecars, as settings."""
        super().__init__(wsync)
        self.by = by
        self.sidecars, self.engines = {}, {}

    def begin(self, sidecars=1, replicas=("a",), sidecar=(), engine=(), trainer=()):
        """All of it; the name of the first version, which they serve."""
        for number in range(sidecars):
            self.begin_sidecar(f"s{number}", *sidecar)
        for replica in replicas:
            self.begin_engine(replica, *engine)
        self.begin_trainer("--set", f"min_sidecars={sidecars}", "--set", f"min_replicas={len(replicas)}", *trainer)
        return self.pushed(self.one)["version"]

    def begin_sidecar(self, name, *settings):
        self.sidecars[name] = self.sidecar(name, *self.by, *settings)

    def begin_engine(self, replica, *more):
        """On the sidecar of its number: a on s0, a1 on s1."""
        self.engines[replica] = self.engine(f"s{replica[1:] or 0}", replica, self.one, *more)

    def begin_trainer(self, *settings):
        self.coordinator = self.trainer("--set", "bucket_bytes=1MiB", *settings)

    @contextlib.contextmanager
    def armed(self, point):
        """What is started within it kills itself at this point."""
        before = self.environment
        self.environment = before | {"WSYNC_FAIL_POINT": point}
        yield
        self.environment = before

    def updated(self, every=1000):
        """Pushes a version that comes as changes; its name."""
        return self.pushed(self.next(every))["version"]

    def full(self, seed):
        """A checkpoint in which everything is different."""
        self.versions += 1
        return self.checkpoint(f"v{self.versions}", seed)

    def with_other_tensor(self, name):
        """A checkpoint of which one tensor is different, in every element."""
        before = self.path(f"v{self.versions}")
        self.versions += 1
        directory = self.path(f"v{self.versions}")
        shutil.copytree(before, directory)
        for path in glob.glob(os.path.join(directory, "*.safetensors")):
            header, data = tensors.read_file(path)
            if name not in header:
                continue
            begin, end = header[name]["data_offsets"]
            other = bytes(b ^ 1 for b in data[begin:end])
            tensors.write_file(path, header, data[:begin] + other + data[end:])
        return directory

    def log_of(self, name):
        with open(self.sidecars[name].log_path, encoding="utf-8") as log:
            return log.read()

    def trainer_log(self):
        with open(self.coordinator.log_path, encoding="utf-8") as log:
            return log.read()

    def trainer_says(self, words):
        self.until(lambda: words in self.trainer_log(), f"'{words}' in the log of the trainer")

    def trainer_arena_bytes(self):
        """All that the trainer holds, as its page tells."""
        return self.arena_bytes("control")

    def is_told(self, name, words):
        """Waits until the log of a sidecar says so: a log is written by a thread of its own."""
        self.until(lambda: words in self.log_of(name), f"'{words}' in the log of {name}")

    def said_by(self, name):
        """What a sidecar says to `status`."""
        code, answer = self.ask("status", "--timeout", ASK_S, address=f"ipc://{self.run_dir}/{name}.control")
        return answer["result"] if code == 0 else {"activity": ""}

    def arena_bytes(self, name="s0"):
        """All that the sidecar holds, as its page tells."""
        status, text = get(os.path.join(self.run_dir, f"{name}.http"), "/metrics")
        assert status == 200, text
        return float(re.search(r"^wsync_arena_bytes (\S+)$", text, re.MULTILINE)[1])

    def mapped_bytes(self, process=None):
        """Memory of arenas and patches in a process, s0 or another one, as the kernel counts it."""
        with open(f"/proc/{(process or self.sidecars['s0']).pid}/smaps", encoding="utf-8") as file:
            return sum(int(size) << 10 for size in re.findall(r"/memfd:wsync.*\n(?:.*\n)*?Rss:\s+(\d+) kB", file.read()))

    def model_bytes(self):
        return self.said_by("s0")["sidecars"][0]["last_copy"]["bytes"]


class InPlaceCase(KillCase):
    @classmethod
    def setUpClass(cls):
        """Each test has checkpoints of its own."""

    def fleet(self):
        return InPlaceFleet(self.wsync)

    def verified(self, fleet, version, *replicas):
        """Every byte of these replicas, which are all, is that of the version."""
        fleet.until_ready(version, *replicas)
        self.verify_each(fleet, dict.fromkeys(replicas, version))

    def verify_each(self, fleet, versions):
        code, answer = fleet.ask("verify")
        found = {rank["replica"]: (rank["version"], rank["failure"], rank["mismatches"]) for rank in answer["result"]["ranks"]}
        self.assertEqual(found, {replica: (version, "", []) for replica, version in versions.items()})
        self.assertEqual(code, 0, answer)

    def begin_two(self, fleet):
        """Sidecars s0, which changes its copy in place, and s1, which does not: its engine has to answer before a version is staged."""
        fleet.begin_sidecar("s0")
        fleet.begin_sidecar("s1", "--set", "patch.in_place=off")
        return fleet.begin(0, ("a", "a1"), trainer=("--set", "min_sidecars=2"))

    def held_before_the_decision(self, fleet):
        """A push of a version that s0 has as changes, while the engine of s1 stands still."""
        fleet.engines["a1"].freeze()
        push = fleet.push(fleet.next(1000))
        fleet.until(lambda: len(fleet.said_by("s0")["sidecars"][0]["staged"]) == 2, "that s0 has staged it")
        self.assertNotIn("is complete", fleet.log_of("s0"))
        return push

    def came_as_changes(self, fleet, name, version, base, how=IN_PLACE):
        fleet.is_told(name, f"{version} is complete: " + how.format(base))
        copy = fleet.said_by(name)["sidecars"][0]["last_copy"]
        self.assertEqual((copy["version"], copy["base"]), (version, base))
        self.assertLess(copy["travelled_bytes"], copy["bytes"] / 2)

    def ends(self, fleet):
        """All that still run end in order, and nothing torn was ever read."""
        running = [process for process in (*fleet.engines.values(), *fleet.sidecars.values(), fleet.coordinator) if process.poll() is None]
        self.leaves_nothing(fleet, *running)

"""The fleet of fault_run.py: its processes, what is published, and what must hold when no fault lasts."""
import collections
import contextlib
import json
import os
import queue
import random
import re
import signal
import subprocess
import sys
import threading
import time
import unittest

import soak  # noqa: F401  (its import finds the scenarios' modules)
import fault_figures
from disc import Disc
from fleet import DEADLINE_S, processes_of, short
from plugin_fleet import COMMITTED, DEADLINE_MS, PluginFleet
from soak_weights import Checkpoint, Weights

MIB = 2**20
# Replica: its sidecar, the options of its engines, and the number of its ranks. None is a program over the C API that can fork.
REPLICAS = {
    "a": ("s0", [], 1), "b": ("s0", ["--adopt"], 1), "c": ("s0", [], 2),
    "d": ("s1", [], 1), "e": ("s1", ["--adopt"], 1), "f": ("s1", None, 1),
    "g": ("s2", [], 2), "h": ("s2", ["--whole"], 1)}
# s1 has arenas of its own and fetches only what changes, s0 and s1 patch their engines, and s2 loads through buffers.
SIDECARS = {"s0": ["patch.mode=auto"], "s1": ["transport=tcp", "patch.mode=auto"], "s2": ["devices.kind=separate"]}
# The same without an engine that serves from the arena of its trainer, which can therefore be changed in place.
LENDING = REPLICAS | {"b": ("s0", ["--whole"], 1)}
RANKS = sum(ranks for _, _, ranks in REPLICAS.values())
# What a process may have beyond what it had after the warm-up, at rest. Another arena has two descriptors.
MORE_DESCRIPTORS, MORE_BYTES, MORE_ARENAS = 8, 32 * MIB, 6
LINES_KEPT = 40
# What changes from a version to the next: how many places of the model, or every byte. Some are equal to the one before, most differ little,
# some in too many places for a patch. Each with its share of the versions.
CHANGES = {"nothing": (0, 5), "one place": (1, 20), "50 places": (50, 30), "1000 places": (1000, 25), "20000 places": (20000, 5),
           "every byte": (None, 15)}


class Member:
    """One place in the fleet: the process that has it now, and how another one is started."""

    def __init__(self, name, kind, replica=None, sidecar=None):
        self.name, self.kind, self.replica, self.sidecar = name, kind, replica, sidecar
        self.begin = None  # starts a process
        self.process = None
        self.disc = None

    @property
    def pid(self):
        return self.process.pid

    def __str__(self):
        return f"{self.name} (process {self.pid})"


class Speech:
    """What a process has said on its standard output. Somebody always reads, so that it never waits."""

    def __init__(self, process):
        self.process, self.events, self.torn = process, queue.Queue(), []
        self.last = collections.deque(maxlen=LINES_KEPT)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        with contextlib.suppress(ValueError):  # closed meanwhile
            for line in self.process.stdout:
                self.last.append(line.strip())
                event = json.loads(line)
                if event.get("event") == "torn":
                    self.torn.append(line.strip())
                if event.get("event") in ("attached", "started", "published", "waited", "forked", "dumped", "failed") or "result" in event:
                    self.events.put(event)
            self.process.stdout.close()

    def expect(self, name, ends_at):
        """The next event of the name; None if the process has ended, or has not said it in time."""
        while time.monotonic() < ends_at:
            try:
                event = self.events.get(timeout=0.05)
                if event.get("event") == name:
                    return event
            except queue.Empty:
                if self.process.poll() is not None and self.events.empty():
                    return None
        return None


def used(pid):
    """Descriptors, and the proportional set size in bytes."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        pss = int(re.search(r"^Pss: +(\d+) kB", file.read(), re.M)[1]) * 1024
    return len(os.listdir(f"/proc/{pid}/fd")), pss


def arenas_of(pids):
    """The arenas that any of the processes has open or mapped: their inodes, each with its name and those who have it."""
    found = collections.defaultdict(set)
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
                for line in maps:
                    if "/memfd:wsync" in line:
                        fields = line.split(maxsplit=5)
                        found[fields[4], name_of(fields[5])].add(pid)
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(FileNotFoundError):
                    target = os.readlink(f"/proc/{pid}/fd/{fd}")
                    if target.startswith("/memfd:wsync"):
                        found[str(os.stat(f"/proc/{pid}/fd/{fd}").st_ino), name_of(target)].add(pid)
    return found


def name_of(path):
    return path.strip().removeprefix("/memfd:").removesuffix(" (deleted)")


def inherited(pid):
    """What a child has of the library's: sockets, arenas, locks."""
    names = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # exec has closed it meanwhile
            names.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        names += [line.split(maxsplit=5)[-1].strip() for line in maps if "/memfd:" in line]
    return [name for name in names if re.search(r"socket:|memfd:wsync|\.lock|\.epoch", name)]


class FaultFleet(PluginFleet):
    """Three sidecars, eight replicas, and a trainer that publishes in a thread of its own."""

    def __init__(self, wsync, trainer_rank, forking_engine, seed, replicas=None):
        super().__init__(wsync, trainer_rank)
        self.replicas = replicas or REPLICAS
        self.forking_engine, self.random = forking_engine, random.Random(seed)
        self.pauses = random.Random(seed)  # between publishes
        self.halted = True  # processes are stopped, and that counts for the callback that each was in
        self.logs, self.speeches = 0, {}
        self.step, self.published, self.refused = 0, 0, 0
        self.kinds = collections.Counter({kind: 0 for kind in CHANGES})  # of the versions that the trainer has taken
        self.weights = None, None  # the process of a trainer, and what its weights are
        self.loads, self.loads_at_rest = fault_figures.Loads(), collections.defaultdict(collections.Counter)
        self.verified, self.ranks_verified, self.bytes_verified = 0, 0, 0
        self.talks = threading.Lock()  # one conversation with the trainer at a time
        self.publishes = False
        self.thread = threading.Thread(target=self.publish_on, daemon=True)
        self.children = []
        self.leave = contextlib.ExitStack()
        self.members = {}

    # ---- processes ----

    def __enter__(self):
        super().__enter__()
        try:
            self.build()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, *failure):
        self.publishes = False
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.end_children()
        if self.thread.ident is not None:
            self.thread.join(DEADLINE_S)
        if failure[0] and not issubclass(failure[0], KeyboardInterrupt):
            self.explain()
        self.leave.close()
        super().__exit__(*failure)

    def explain(self):
        for member in self.members.values():
            if member.process is None:
                continue
            with open(member.process.log_path, encoding="utf-8", errors="replace") as log:
                said = log.read().splitlines()[-LINES_KEPT:]
            print(f"---- {member}: exit code {member.process.poll()}", *said, *list(self.speeches[member.pid].last)[-8:],
                  sep="\n", file=sys.stderr)

    def log(self):
        self.logs += 1
        return open(self.path(f"{self.logs}.log"), "w", encoding="utf-8")

    def speech(self, process):
        if process.pid not in self.speeches:
            self.speeches[process.pid] = Speech(process)
        return self.speeches[process.pid]

    def event(self, process, name):
        speech = self.speech(process)
        event = speech.expect(name, time.monotonic() + DEADLINE_S)
        assert event, f"{process.args} has not said '{name}': {list(speech.last)}"
        return event

    def add(self, member, begin):
        def started():
            process = begin()
            self.speech(process)
            return process
        member.begin = started
        member.process = started()
        self.members[member.name] = member

    def disc(self, name):
        """A state directory on a disc of its own, where one can be made; else in the fleet's directory."""
        disc = Disc(self.path(f"disc-{name}"))
        try:
            self.leave.enter_context(disc)
        except unittest.SkipTest:
            return disc.directory, None
        return disc.directory, disc

    def build(self):
        self.model = self.path("model")
        subprocess.run([self.wsync, "make-checkpoint", self.model, "--size", "2MiB", "--seed", "1"], check=True,
                       stdout=subprocess.DEVNULL)
        self.checkpoint = Checkpoint(self.wsync, self.model)
        quick = ["heartbeat.interval=100ms", f"heartbeat.deadline={short(1500)}"]
        for name, settings in SIDECARS.items():
            state, disc = self.disc(name)
            words = [word for s in [*settings, *quick, f"engine_deadline={short(500)}", f"state_dir={state}"] for word in ("--set", s)]
            member = Member(name, "sidecar", sidecar=name)
            member.disc = disc
            self.add(member, lambda name=name, words=words: self.sidecar(name, *words)[0])
        for replica, (sidecar, options, ranks) in self.replicas.items():
            socket = os.path.join(self.run_dir, f"{sidecar}.engines")
            for rank in range(ranks):
                if options is None:
                    member = Member(replica, "program", replica, sidecar)
                    begin = lambda socket=socket, replica=replica: self.program(  # noqa: E731
                        "attached", self.forking_engine, socket, replica, self.model, "pieces")
                else:
                    member = Member(f"{replica}{rank}", "engine", replica, sidecar)
                    more = ["--rank", str(rank), "--world-size", str(ranks), "--step-interval", "20ms", *options]
                    begin = lambda socket=socket, replica=replica, more=more: self.engine(  # noqa: E731
                        socket, replica, self.model, *more)
                self.add(member, begin)
        state, disc = self.disc("trainer")
        member = Member("trainer", "trainer")
        member.disc = disc
        self.add(member, lambda: self.trainer(self.model, *quick, f"state_dir={state}"))
        self.publishes = True
        self.thread.start()

    def replace(self, member):
        """Starts another process in the place of one that has ended, or is ended now."""
        old = member.process
        if old.poll() is None:
            old.kill()
        old.wait()
        with contextlib.suppress(BrokenPipeError):
            if old.stdin:
                old.stdin.close()
        assert not self.speeches[old.pid].torn, self.speeches.pop(old.pid).torn
        self.speeches.pop(old.pid)
        self.processes.remove(old)
        os.unlink(old.log_path)
        member.process = member.begin()

    def end_children(self):
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.children.clear()

    # ---- publishing ----

    def converse(self, member, event, *words, seconds=DEADLINE_S):
        """Tells a program of the tests something, and returns its answer; None if it has ended."""
        try:
            self.tell(member.process, *words)
        except (BrokenPipeError, ValueError):
            return None
        speech = self.speeches.get(member.pid)
        return speech and speech.expect(event, time.monotonic() + seconds)

    def publish_one(self):
        """Changes the trainer's weights, and publishes them. The same is computed here."""
        self.step += 1
        trainer = self.members["trainer"]
        process, weights = self.weights
        if process is not trainer.process:  # another one starts from the checkpoint
            weights = Weights(self.checkpoint)
            self.weights = trainer.process, weights
        kind = self.pauses.choices(list(CHANGES), [share for _, share in CHANGES.values()])[0]
        places = CHANGES[kind][0]
        try:
            self.tell(trainer.process, *(("rewrite", self.step) if places is None else ("scatter", self.step, places)))
        except (BrokenPipeError, ValueError):
            return False
        if places is None:
            weights.rewrite(self.step)
        else:
            weights.scatter(self.step, places)
        answer = self.converse(trainer, "published", "publish_async", self.step)
        taken = bool(answer) and answer["code"] == 0
        self.published += taken
        self.refused += not taken
        self.kinds[kind] += taken
        return taken

    def publish_on(self):
        while self.publishes:
            with self.talks:
                self.publish_one()
            time.sleep(self.pauses.uniform(0.01, 0.2))

    # ---- what must hold ----

    def served(self, least, names):
        """Whether all of these replicas are ready, and serve the same version of at least this step."""
        code, answer = self.ask("status")
        found = {r["replica"]: r for s in answer["result"]["sidecars"] for r in s["replicas"]} if code == 0 else {}
        if not all(name in found and found[name]["ready"] for name in names):
            return False
        versions = {found[name]["version"] for name in names}
        return len(versions) == 1 and int(versions.pop().split(".")[1]) >= least

    def others_go_on(self, member):
        """The replicas that a fault does not concern get versions while it lasts."""
        names = [name for name, (sidecar, _, _) in self.replicas.items()
                 if name != member.replica and (member.kind != "sidecar" or sidecar != member.sidecar)]
        least = self.step + 1
        def newer():
            code, answer = self.ask("status")
            found = {r["replica"]: r for s in answer["result"]["sidecars"] for r in s["replicas"]} if code == 0 else {}
            return all(name in found and found[name]["version"] and int(found[name]["version"].split(".")[1]) >= least for name in names)
        self.until(newer, f"versions from step {least} on, on {names}")

    def settle(self, may_end=None):
        """No fault lasts: every replica comes to the newest version, with every byte of it. `may_end`: the process in this place may
        still have been ending when its fault did."""
        with self.talks:
            self.until(self.publish_one, "a publish that the trainer takes")
            newest = self.step

            def served():
                if may_end and may_end.process.poll() is not None:
                    self.replace(may_end)
                return self.served(newest, self.replicas)
            self.until(served, f"step {newest} on every replica")
            code, answer = self.ask("verify")
            assert code == 0, answer
            ranks = answer["result"]["ranks"]
            assert len(ranks) == RANKS and all(r["version"].endswith(f".{newest}") for r in ranks), ranks
            self.compare(newest, ranks)
            self.count_loads(SIDECARS)
            torn = {name: self.speeches[m.pid].torn for name, m in self.members.items() if self.speeches[m.pid].torn}
            assert not torn, f"torn steps: {torn}"
            return self.rest()

    def compare(self, step, ranks):
        """The weights of the version are those that were computed a second time: by the digest that the trainer has published and `verify`
        has compared every rank with, and byte by byte in the memory of the program."""
        process, weights = self.weights
        trainer, program = self.members["trainer"], self.members["f"]
        assert process is trainer.process, f"step {step} is of a trainer that has ended"
        expected = self.checkpoint.digest_of(weights, self.path("recomputed"))
        told = self.converse(trainer, "waited", "wait", COMMITTED, DEADLINE_MS)
        assert told and told["digest"] == expected and told["version"].endswith(f".{step}"), \
            f"step {step} was published as {told}; its weights have the digest {expected}"
        path = self.path("dumped")
        dumped = self.converse(program, "dumped", "dump", path)
        assert dumped and dumped["ok"], f"{program} has not written its weights: {dumped}"
        with open(path, "rb") as file:
            for name in dumped["tensors"]:
                found = file.read(len(weights.bytes_of[name]))
                assert found == weights.bytes_of[name], f"{program} serves step {step}, and {name} has other bytes than the step"
        os.unlink(path)
        self.verified += 1
        self.ranks_verified += len(ranks)
        self.bytes_verified += sum(rank["bytes"] for rank in ranks)

    def count_loads(self, names):
        """Reads what these sidecars have counted. None of them stands still."""
        for name in names:
            self.loads.read(self.members[name].process, os.path.join(self.run_dir, f"{name}.http"))

    def failed_patches(self):
        """What the sidecars have said of patches that failed, the newest first."""
        found = []
        for name in SIDECARS:
            with open(self.members[name].process.log_path, encoding="utf-8", errors="replace") as log:
                found += re.findall(r"^\S+ warning .*its patch did not fit.*", log.read(), re.M)
        return sorted(found, reverse=True)[:LINES_KEPT]

    def count_last_loads(self):
        """How each replica was loaded last. A coordinator hears of it late, so the sidecars are asked."""
        for name in SIDECARS:
            code, answer = self.ask("status", address=f"ipc://{self.run_dir}/{name}.control")
            assert code == 0, answer
            for replica in answer["result"]["sidecars"][0]["replicas"]:
                self.loads_at_rest[replica["replica"]][replica["last_load"]["kind"]] += 1

    def rest(self):
        """What exists at rest: names of files, and what each process uses."""
        names = {"run": sorted(os.listdir(self.run_dir)), "/dev/shm": sorted(os.listdir("/dev/shm"))}
        for name in (*SIDECARS, "trainer"):
            folder = self.path(f"disc-{name}")
            names[f"state of {name}"] = sorted(os.path.join(path, file)[len(folder) + 1:] for path, _, files in os.walk(folder) for file in files)
        pids = [m.pid for m in self.members.values()]
        name_of_pid = {m.pid: n for n, m in self.members.items()}
        arenas = collections.Counter()
        for (_, name), holders in arenas_of(pids).items():
            arenas[f"{name} of {', '.join(sorted(name_of_pid[pid] for pid in holders))}"] += 1
        return {"names": names, "used": {n: used(m.pid) for n, m in self.members.items()}, "arenas": arenas}

    def left_over(self, before):
        """What is there at rest that was not there before: empty, or a sentence for each thing."""
        now, found = self.rest(), []
        for where, names in now["names"].items():
            if names != before["names"][where]:
                found.append(f"files of {where}: {names}, and before: {before['names'][where]}")
        known = {m.pid for m in self.members.values()}
        for pid in set(processes_of(self.directory)) - known:
            found.append(f"process {pid} is left")
        for name, (descriptors, pss) in now["used"].items():
            descriptors_before, pss_before = before["used"][name]
            if descriptors > descriptors_before + MORE_DESCRIPTORS:
                found.append(f"{self.members[name]} has {descriptors} descriptors, and before: {descriptors_before}")
            if pss > pss_before + MORE_BYTES:
                found.append(f"{self.members[name]} has {pss // MIB} MiB, and before: {pss_before // MIB}")
        if now["arenas"].total() > before["arenas"].total() + MORE_ARENAS:
            found.append(f"{now['arenas'].total()} arenas, and before: {before['arenas'].total()}; now {dict(now['arenas'])}, "
                         f"and before: {dict(before['arenas'])}")
        return found, now

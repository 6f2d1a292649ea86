"""A fleet under a trainer that publishes all the time, in which random processes are killed, stopped, forked, and kept from discs
and memory. README.md (faults) says what must hold after every fault."""
import collections
import contextlib
import math
import os
import resource
import signal
import time

import soak  # noqa: F401  (its import finds the scenarios' modules)
import fault_figures
from fault_fleet import MIB, FaultFleet, inherited
from fleet import DEADLINE_S, processes_of
from kill_fleet import thread_states

STOPPED_S = 0.1, 10
WARM_UP = 8  # versions before what the processes use is noted
WAYS = "", "again", "run", "spawn"


# ---- faults: each ends with a fleet in which no fault lasts ----

def killed(fleet, member):
    if member.kind == "sidecar":
        fleet.count_loads([member.name])
    member.process.kill()
    member.process.wait()
    if member.kind != "trainer":
        fleet.others_go_on(member)
    fleet.replace(member)


def stopped(fleet, member):
    seconds = math.exp(fleet.random.uniform(*map(math.log, STOPPED_S)))
    os.kill(member.pid, signal.SIGSTOP)
    fleet.until(lambda: all(state == "T" for state in thread_states(member.pid)), f"{member} that stands still")
    time.sleep(seconds)  # the fault, not a wait
    os.kill(member.pid, signal.SIGCONT)


def stopped_for_ever(fleet, member):
    if member.kind == "sidecar":
        fleet.count_loads([member.name])
    os.kill(member.pid, signal.SIGSTOP)
    fleet.until(lambda: all(state == "T" for state in thread_states(member.pid)), f"{member} that stands still")
    if member.kind != "trainer":
        fleet.others_go_on(member)
    fleet.replace(member)


def forked(fleet, member):
    way = fleet.random.choice(WAYS)
    with fleet.talks:
        event = fleet.converse(member, "forked", "fork", way)
    assert event, f"{member} has not forked"
    fleet.children.append(event["pid"])
    fleet.until(lambda: not inherited(event["pid"]), f"a child with nothing of {member}: it has {inherited(event['pid'])}")
    fleet.others_go_on(member)


def killed_with_a_child(fleet, member):
    """The child has the descriptors, because no library was told of it."""
    event = fleet.converse(member, "forked", "fork_unnoticed")
    assert event, f"{member} has not forked"
    fleet.children.append(event["pid"])
    killed(fleet, member)


def without_disc(fleet, member):
    member.disc.fill()
    started = fleet.published + fleet.refused
    fleet.until(lambda: fleet.published + fleet.refused > started + 3, "publishes while the disc is full")
    member.disc.empty()


@contextlib.contextmanager
def limited(member, what, value):
    before = resource.prlimit(member.pid, what)
    resource.prlimit(member.pid, what, (value, before[1]))
    yield
    with contextlib.suppress(ProcessLookupError):  # it may end for it
        resource.prlimit(member.pid, what, before)


def without_files(fleet, member):
    with limited(member, resource.RLIMIT_FSIZE, 0):
        started = fleet.published + fleet.refused
        fleet.until(lambda: fleet.published + fleet.refused > started + 3, "publishes while no file can be written")
    if member.process.poll() is not None:
        fleet.replace(member)


def without_memory(fleet, member):
    with open(f"/proc/{member.pid}/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    with limited(member, resource.RLIMIT_AS, now + fleet.random.choice((0, MIB, 4 * MIB))):
        started = fleet.published + fleet.refused
        fleet.until(lambda: fleet.published + fleet.refused > started + 3 or member.process.poll() is not None,
                    "publishes while there is no memory")
    if member.process.poll() is not None:
        fleet.replace(member)


ALL = "sidecar", "engine", "program", "trainer"
FAULTS = [(killed, ALL), (stopped, ALL), (stopped_for_ever, ALL), (forked, ("program", "trainer")), (killed_with_a_child, ("program",)),
          (without_disc, ("sidecar", "trainer")), (without_files, ("sidecar", "engine")), (without_memory, ALL)]


class FaultRun:
    """Cycles of a fault and its end. `say` gets a line for each."""

    def __init__(self, programs, seed, faults=FAULTS, say=print, replicas=None):
        self.programs, self.seed, self.faults, self.say, self.replicas = programs, seed, faults, say, replicas
        self.took = collections.defaultdict(list)  # by fault and kind: seconds from its end until all serve the newest version
        self.most = collections.Counter()
        self.cycles = 0
        self.fleets = 1

    def __getstate__(self):
        """What was counted. A run that has ended goes to another process."""
        return {name: value for name, value in self.__dict__.items() if name not in ("programs", "faults", "say", "replicas")}

    def run(self, cycles=None, seconds=math.inf):
        begin = time.monotonic()
        with FaultFleet(*self.programs, self.seed, self.replicas) as fleet:
            for _ in range(WARM_UP):
                before = fleet.settle()
            last = "no fault"
            try:
                while (cycles is None or self.cycles < cycles) and time.monotonic() - begin < seconds:
                    # A kind of process first, so that each kind gets as many faults as the others.
                    kind = fleet.random.choice(ALL)
                    fault = fleet.random.choice([f for f, kinds in self.faults if kind in kinds])
                    member = fleet.random.choice([m for m in fleet.members.values() if m.kind == kind])
                    time.sleep(fleet.random.uniform(0, 0.3))  # the fault comes at any moment of a publish
                    self.cycles += 1
                    last = f"cycle {self.cycles}: {fault.__name__} on {member}"
                    self.cycle(fleet, fault, member, before)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                raise AssertionError(f"after {last} (seed {self.seed}): {error}") from error
            self.end(fleet)
            self.publishes, self.refused, self.kinds = fleet.published, fleet.refused, fleet.kinds
            self.loads, self.loads_at_rest = fleet.loads.sums(), fleet.loads_at_rest
            self.verified, self.ranks_verified, self.bytes_verified = fleet.verified, fleet.ranks_verified, fleet.bytes_verified
        self.seconds = time.monotonic() - begin
        return self

    def cycle(self, fleet, fault, member, before):
        if fault is without_disc and member.disc is None:
            fault = without_files if member.kind == "sidecar" else killed
        failed_before = fleet.loads.sums()[fault_figures.FALLBACKS]
        fault(fleet, member)
        ended = time.monotonic()
        fleet.settle(member if fault is without_memory and member.kind != "trainer" else None)
        took = time.monotonic() - ended
        self.took[(fault.__name__, member.kind)].append(took)
        fleet.count_last_loads()
        # Every rank has what its patch is made for, unless it cannot have the memory to read it.
        failed = fleet.loads.sums()[fault_figures.FALLBACKS] - failed_before
        assert failed == 0 or fault is without_memory, f"{failed} patches failed: {fleet.failed_patches()}"
        fleet.end_children()
        found = []
        def clean():
            found[:], now = fleet.left_over(before)
            if found:
                with fleet.talks:
                    fleet.publish_one()  # what an older version holds is given back with the next ones
            else:
                for name, (descriptors, pss) in now["used"].items():
                    self.most["descriptors"] = max(self.most["descriptors"], descriptors - before["used"][name][0])
                    self.most["bytes"] = max(self.most["bytes"], pss - before["used"][name][1])
                self.most["arenas"] = max(self.most["arenas"], now["arenas"].total() - before["arenas"].total())
            return not found
        try:
            fleet.until(clean, "a fleet at rest as before")
        except AssertionError as error:
            raise AssertionError(f"{error}: {'; '.join(found)}") from error
        self.say(f"cycle {self.cycles}: {fault.__name__} on {member}: all serve step {fleet.step} after {took:.2f} s")

    def end(self, fleet):
        """All end in order, and leave no file and no process."""
        fleet.publishes = False
        fleet.thread.join(DEADLINE_S)
        for member in reversed(fleet.members.values()):
            if member.kind in ("program", "trainer"):
                fleet.tell(member.process, "quit")
            else:
                member.process.send_signal(signal.SIGTERM)
            code = member.process.wait(timeout=DEADLINE_S)
            assert code == 0, f"{member} has ended with {code}"
            if member.kind == "engine":
                result = fleet.speeches[member.pid].expect(None, time.monotonic() + DEADLINE_S)
                assert result["result"]["torn"] == 0, result
        names = [name for name in os.listdir(fleet.run_dir) if not name.endswith(".lock")]
        assert not names, f"left in the run directory: {names}"
        assert not processes_of(fleet.directory), f"processes are left: {processes_of(fleet.directory)}"

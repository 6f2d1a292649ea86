"""faults.py for some seconds, and that it finds what it looks for. No time is compared with anything: the machine may be busy."""
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import unittest

from fault_fleet import MIB, MORE_ARENAS, MORE_BYTES, MORE_DESCRIPTORS, FaultFleet
from fault_figures import object_of, text_of
from fault_fleets import run_fleets, together
from fault_run import ALL, FaultRun, killed

PROGRAMS = sys.argv[-3:]  # wsync, trainer_rank, forking_engine
del sys.argv[-3:]
SECONDS = 20


def goes_wrong(fleet, member):
    raise AssertionError(f"{member.name} has gone wrong")


class GoesWrongOnce:
    """In one of several fleets. Those that come later get no fault."""

    def __init__(self):
        self.__name__ = "goes_wrong"
        self.left = multiprocessing.Semaphore(1)

    def __call__(self, fleet, member):
        if self.left.acquire(block=False):
            goes_wrong(fleet, member)


class Faults(unittest.TestCase):
    def test_random_faults(self):
        seed = int(os.environ.get("WSYNC_SOAK_SEED", "1"))
        print(f"seed {seed}", file=sys.stderr, flush=True)
        run = FaultRun(PROGRAMS, seed, say=lambda line: print(line, file=sys.stderr)).run(seconds=SECONDS)
        print(text_of(run), file=sys.stderr)
        self.assertGreater(run.cycles, 0)
        self.assertGreater(run.publishes, run.cycles)
        # Both ways of a switch were used, and a version of each cycle was computed a second time.
        figures = object_of(run)
        self.assertGreater(min(figures["loads"]["patch"], figures["loads"]["full"]), 0, figures)
        self.assertEqual(sum(run.kinds.values()), run.publishes)
        self.assertGreaterEqual(figures["verified"]["versions"], run.cycles)
        self.assertEqual(figures["torn"], 0)

    def test_a_failure_names_the_fault_before_it(self):
        with self.assertRaisesRegex(AssertionError, r"^after cycle 1: goes_wrong on (\S+) \(process \d+\) \(seed 7\): \1 has gone wrong"):
            FaultRun(PROGRAMS, 7, [(goes_wrong, ALL)]).run(cycles=1)

    def test_several_fleets_beside_each_other(self):
        runs = run_fleets(PROGRAMS, (3, 4), cycles=5, seconds=600, faults=[(killed, ALL)])
        self.assertEqual([(seed, runs[seed].cycles) for seed in (3, 4)], [(3, 3), (4, 2)])
        figures = object_of(together(runs.values()))
        self.assertEqual((figures["seed"], figures["fleets"], figures["cycles"]), (3, 2, 5))
        self.assertEqual(sum(fault["times"] for fault in figures["faults"]), 5)
        self.assertEqual(figures["published"], sum(run.publishes for run in runs.values()))

    def test_the_failure_of_one_fleet_ends_the_others(self):
        with self.assertRaisesRegex(AssertionError, r"^after cycle 1: goes_wrong on (\S+) .*\(seed [34]\): \1 has gone wrong"):
            run_fleets(PROGRAMS, (3, 4), cycles=10**9, seconds=math.inf, faults=[(GoesWrongOnce(), ALL)])

    def test_what_is_left_or_torn_is_found(self):
        with FaultFleet(*PROGRAMS, 1) as fleet:
            before = fleet.settle()
            fleet.until(lambda: not fleet.left_over(before)[0], "a fleet at rest")
            stray = os.path.join(fleet.run_dir, "stray")
            with open(stray, "w", encoding="ascii"):
                pass
            process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", fleet.directory])
            self.addCleanup(process.wait)
            self.addCleanup(process.send_signal, signal.SIGKILL)
            before["used"]["s0"] = [n - more - MIB for n, more in zip(before["used"]["s0"], (MORE_DESCRIPTORS, MORE_BYTES))]
            before["arenas"].clear()
            before["arenas"]["fewer"] = -MORE_ARENAS
            found = "\n".join(fleet.left_over(before)[0])
            for words in ("files of run: .*'stray'", rf"process {process.pid} is left", r"s0 \(process \d+\) has \d+ descriptors",
                          r"s0 \(process \d+\) has \d+ MiB", r"\d+ arenas, and before"):
                self.assertRegex(found, words)
            fleet.speeches[fleet.members["a0"].pid].torn.append('{"event":"torn"}')
            with self.assertRaisesRegex(AssertionError, "^torn steps: {'a0'"):
                fleet.settle()


if __name__ == "__main__":
    unittest.main()

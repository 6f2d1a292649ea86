"""Processes that read versions and are no engines: the C example, which prints the bytes that it has read."""
import functools
import operator
import os
import signal
import subprocess
import sys
import unittest

import tensors
from fleet import DEADLINE_S, Fleet

WSYNC, READER = sys.argv[-2:]


def packed(directory):
    """What the example prints of a checkpoint."""
    value = count = 0
    for shard in sorted(os.listdir(directory)):
        if shard.endswith(".safetensors"):
            header, data = tensors.read_file(os.path.join(directory, shard))
            value ^= functools.reduce(operator.xor, data, 0)
            count += sum(name != "__metadata__" for name in header)
    return f"{count} tensors, xor {value:02x}"


def said(process):
    with open(process.log, encoding="utf-8") as file:
        return file.read().strip()


class ReaderFleet(Fleet):
    def socket(self, sidecar):
        return os.path.join(self.run_dir, f"{sidecar}.engines")

    def reader(self, socket, *arguments):
        with self.log() as log:
            process = subprocess.Popen([READER, socket, *map(str, arguments)], env=self.environment, text=True, stdout=subprocess.PIPE,
                                       stderr=log)
        process.log = log.name
        self.processes.append(process)
        return process

    def serving(self, *settings):
        """(sidecar, socket) of a fleet with one engine."""
        sidecar, engines = self.sidecar("s0", *settings)
        self.start("trainer")
        self.engine(engines, "a", tensors.make(self.path("held"), 9))
        return sidecar, engines

    def pushed(self, path):
        code, answer = self.ask("push", path)
        if code != 0:
            raise AssertionError(answer)
        return answer["result"]["version"]


class Readers(unittest.TestCase):
    def ended(self, process):
        self.assertEqual(process.wait(DEADLINE_S), 0, said(process))
        return process.stdout.read().splitlines()

    def test_one_that_comes_before_the_sidecar_reads_each_version(self):
        with ReaderFleet(WSYNC) as fleet:
            os.mkdir(fleet.run_dir, 0o700)
            process = fleet.reader(fleet.socket("s0"), 3)
            fleet.serving()
            expected = []
            for seed in (1, 2, 3):
                path = tensors.make(fleet.path(f"v{seed}"), seed)
                expected.append(f"read version {fleet.pushed(path)}: {packed(path)}")
                # It asks for the next one when it has read this one, so it must have read it before there is another.
                self.assertEqual(process.stdout.readline().strip(), expected[-1])
            self.assertEqual(self.ended(process), [])

    def test_it_follows_a_rollback(self):
        with ReaderFleet(WSYNC) as fleet:
            _, engines = fleet.serving()
            one, two = tensors.make(fleet.path("one"), 1), tensors.make(fleet.path("two"), 2)
            first, second = fleet.pushed(one), fleet.pushed(two)
            process = fleet.reader(engines, 2)
            self.assertEqual(process.stdout.readline().strip(), f"read version {second}: {packed(two)}")
            code, answer = fleet.ask("rollback")
            self.assertEqual(code, 0, answer)
            self.assertEqual(self.ended(process), [f"read version {first}: {packed(one)}"])

    def test_a_step_that_is_held_and_one_that_is_gone(self):
        with ReaderFleet(WSYNC) as fleet:
            _, engines = fleet.serving("--set", "versions_held=2")
            paths = [tensors.make(fleet.path(f"v{seed}"), seed) for seed in (1, 2, 3)]
            versions = [fleet.pushed(path) for path in paths]
            steps = [version.split(".")[1] for version in versions]
            self.assertEqual(self.ended(fleet.reader(engines, 1, steps[1])), [f"read version {versions[1]}: {packed(paths[1])}"])
            gone = fleet.reader(engines, 1, steps[0])
            self.assertEqual(gone.wait(DEADLINE_S), 1)
            self.assertEqual(said(gone),
                             f"no version of step {steps[0]} is staged here, and later ones are (staged: {versions[1]}, {versions[2]}): "
                             "ask for one of them, or raise `versions_held` of the sidecar")
            # One of a step to come waits for it.
            waits = fleet.reader(engines, 1, int(steps[2]) + 1)
            four = tensors.make(fleet.path("v4"), 4)
            version = fleet.pushed(four)
            self.assertEqual(self.ended(waits), [f"read version {version}: {packed(four)}"])

    def test_a_sidecar_that_is_killed_and_comes_back(self):
        with ReaderFleet(WSYNC) as fleet:
            sidecar, engines = fleet.serving()
            one, two = tensors.make(fleet.path("one"), 1), tensors.make(fleet.path("two"), 2)
            first = fleet.pushed(one)
            process = fleet.reader(engines, 2)
            self.assertEqual(process.stdout.readline().strip(), f"read version {first}: {packed(one)}")
            sidecar.send_signal(signal.SIGKILL)
            sidecar.wait()
            # Otherwise its last report may still be taken for one of the next process.
            fleet.until(lambda: not fleet.ask("status")[1]["result"]["sidecars"][0]["connected"], "the loss of the sidecar")
            fleet.sidecar("s0")
            fleet.until(lambda: fleet.replicas().get("a", {}).get("ready"), "the engine again")
            second = fleet.pushed(two)
            self.assertEqual(self.ended(process), [f"read version {second}: {packed(two)}"])

    def test_readers_that_are_killed_leave_nothing(self):
        with ReaderFleet(WSYNC) as fleet:
            sidecar, engines = fleet.serving()
            one, two = tensors.make(fleet.path("one"), 1), tensors.make(fleet.path("two"), 2)
            fleet.pushed(one)
            descriptors = f"/proc/{sidecar.pid}/fd"
            before = len(os.listdir(descriptors))
            waiting = [fleet.reader(engines, 2) for _ in range(20)]
            for process in waiting:
                process.stdout.readline()  # it waits for the next version now
            for process in waiting[1:]:
                process.kill()
                process.wait()
            fleet.until(lambda: len(os.listdir(descriptors)) < before + 20, "the end of the connections")
            version = fleet.pushed(two)
            self.assertEqual(self.ended(waiting[0]), [f"read version {version}: {packed(two)}"])

    def test_a_fleet_of_readers_alone(self):
        """Without an engine, a publish is decided when it is staged, if the trainer is told that no replica is needed."""
        with ReaderFleet(WSYNC) as fleet:
            _, engines = fleet.sidecar("s0")
            fleet.start("trainer", "--set", "min_replicas=0")
            process = fleet.reader(engines, 2)
            for seed in (1, 2):
                path = tensors.make(fleet.path(f"v{seed}"), seed)
                version = fleet.pushed(path)
                self.assertEqual(process.stdout.readline().strip(), f"read version {version}: {packed(path)}")
            self.assertEqual(self.ended(process), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:-2])

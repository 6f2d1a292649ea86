#!/usr/bin/env python3
"""A fleet that is upgraded, process by process, while it serves: an older build of the same protocol version, then this one.

The older build is the program that WSYNC_PREVIOUS names, for example of a checkout of an earlier commit (deploy/guides/operate.md). Without
it the test is skipped. Nothing is relaxed for it: after each step every replica serves what is pushed, and no step was torn.
"""
import json
import os
import re
import subprocess
import sys
import unittest

from fleet import DEADLINE_S, Fleet
from fleet_case import FleetCase

WSYNC = sys.argv.pop()
PREVIOUS = os.environ.get("WSYNC_PREVIOUS", "")
SIDECARS = ("maps", "copies")


class MixedFleet(Fleet):
    """Two sidecars with an engine each, a third engine beside the first, and a trainer. Each process is of a build of its own."""

    def __init__(self):
        super().__init__(WSYNC)
        self.running = {}
        self.weights = [self.checkpoint(f"step_{seed}", seed, size="4MiB") for seed in range(1, 3)]
        self.pushes = 0

    def begin_with(self, build, *arguments):
        own, self.wsync = self.wsync, build
        try:
            return self.start(*arguments)
        finally:
            self.wsync = own

    def until_listening(self, trainer, arguments):
        if not any(argument.startswith("coordinator=") for argument in arguments):
            super().until_listening(trainer, arguments)

    def parsed(self, process, line):
        """What another build says has the schema of that build."""
        return super().parsed(process, line) if process.args[0] == WSYNC else json.loads(line)

    def trainer(self, build):
        self.running["trainer"] = self.begin_with(build, "trainer")

    def sidecar(self, name, build):
        more = ["--set", "transport=tcp"] if name == "copies" else []
        self.running[name] = self.begin_with(build, "sidecar", "--set", f"name={name}", *more)
        path = os.path.join(self.run_dir, f"{name}.engines")
        self.until(lambda: os.path.exists(path), f"the socket of sidecar {name}")

    def engine(self, name, sidecar, build, *more):
        path = os.path.join(self.run_dir, f"{sidecar}.engines")
        process = self.begin_with(build, "engine", "--json", "--sidecar", path, "--replica", name, "--checkpoint",
                                  self.weights[0], "--stats", "0", *more)
        self.running[name] = process
        self.event(process, "attached")


class Upgrade(FleetCase):
    ENGINES = {"a": "maps", "b": "copies", "c": "maps"}

    def serves(self, fleet):
        """One more version is pushed, and every replica has it, byte by byte."""
        version = self.push(fleet, fleet.weights[fleet.pushes % 2])
        fleet.pushes += 1
        fleet.until_ready(version, *self.ENGINES)
        code, answer = fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        return version

    def ended(self, fleet, name):
        process = fleet.running.pop(name)
        code, said = fleet.stop(process)
        self.assertEqual(code, 0, f"{name}: {said}{Fleet.log_text(process)}")
        return said

    def begin(self, fleet, build):
        fleet.trainer(build)
        for name in SIDECARS:
            fleet.sidecar(name, build)
        for name, sidecar in self.ENGINES.items():
            fleet.engine(name, sidecar, build, *(["--adopt"] if name == "c" else []))
        self.serves(fleet)
        return self.serves(fleet)

    def replaced(self, fleet, name, build, target):
        """Another build takes the place of a sidecar or of the trainer. Until then, and after it, every replica serves the target."""
        self.ended(fleet, name)
        if name == "trainer":
            fleet.trainer(build)
        else:
            fleet.sidecar(name, build)
        fleet.until_ready(target, *self.ENGINES)
        return self.serves(fleet)

    def engines_replaced(self, fleet, build):
        for name, sidecar in self.ENGINES.items():
            self.assertIn('"torn":0', self.ended(fleet, name))
            fleet.engine(name, sidecar, build, *(["--adopt"] if name == "c" else []))
            self.serves(fleet)

    def end(self, fleet):
        """A rollback, and an end in order."""
        code, answer = fleet.ask("rollback")
        self.assertEqual(code, 0, answer)
        fleet.until_ready(answer["result"]["to"], *self.ENGINES)
        self.serves(fleet)
        for name in self.ENGINES:
            self.assertIn('"torn":0', self.ended(fleet, name))
        for name in (*SIDECARS, "trainer"):
            self.ended(fleet, name)

    def whole(self, before, after, *order):
        with MixedFleet() as fleet:
            target = self.begin(fleet, before)
            for name in order:
                target = self.replaced(fleet, name, after, target)
            self.engines_replaced(fleet, after)
            self.end(fleet)

    @unittest.skipUnless(PREVIOUS, "WSYNC_PREVIOUS names no older build")
    def test_sidecars_first_then_the_trainer_then_engines(self):
        self.whole(PREVIOUS, WSYNC, *SIDECARS, "trainer")

    @unittest.skipUnless(PREVIOUS, "WSYNC_PREVIOUS names no older build")
    def test_the_trainer_first(self):
        self.whole(PREVIOUS, WSYNC, "trainer", *SIDECARS)

    @unittest.skipUnless(PREVIOUS, "WSYNC_PREVIOUS names no older build")
    def test_back_to_the_older_build(self):
        self.whole(WSYNC, PREVIOUS, *SIDECARS, "trainer")

    def with_a_coordinator(self, coordinator, trainer):
        """A coordinator that is a process of its own is of another build than its trainer, its sidecars and their engines."""
        commands = subprocess.run([PREVIOUS, "--help"], capture_output=True, text=True, timeout=DEADLINE_S).stdout
        if not re.search(r"^ +coordinator\b", commands, re.MULTILINE):
            self.skipTest("the older build has no coordinator of its own")
        with MixedFleet() as fleet:
            fleet.running["coordinator"] = fleet.begin_with(coordinator, "coordinator")
            fleet.until(lambda: fleet.ask("status")[0] == 0, "the coordinator")
            fleet.running["trainer"] = fleet.begin_with(trainer, "trainer", "--set", f"coordinator={fleet.address}",
                                                        "--set", f"run_dir={fleet.path('trainer')}")
            for name in SIDECARS:
                fleet.sidecar(name, trainer)
            for name, sidecar in self.ENGINES.items():
                fleet.engine(name, sidecar, trainer)
            fleet.until(lambda: "no trainer" not in fleet.ask("status")[1]["result"]["activity"], "the trainer at the coordinator")
            self.serves(fleet)
            self.serves(fleet)
            self.end(fleet)
            self.ended(fleet, "coordinator")

    @unittest.skipUnless(PREVIOUS, "WSYNC_PREVIOUS names no older build")
    def test_an_older_coordinator(self):
        self.with_a_coordinator(PREVIOUS, WSYNC)

    @unittest.skipUnless(PREVIOUS, "WSYNC_PREVIOUS names no older build")
    def test_an_older_trainer_of_a_newer_coordinator(self):
        self.with_a_coordinator(WSYNC, PREVIOUS)

    def test_each_process_is_restarted_while_the_fleet_serves(self):
        """As an upgrade to the same build."""
        self.whole(WSYNC, WSYNC, *SIDECARS, "trainer")


if __name__ == "__main__":
    unittest.main()

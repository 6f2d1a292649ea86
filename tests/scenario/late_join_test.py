"""Sidecars that come later take the version that the fleet serves from other sidecars: real processes, every byte verified."""
import re
import signal
import sys
import unittest

from coordinator_fleet import CoordinatorFleet
from fleet_case import FleetCase

WSYNC = sys.argv.pop()
BY_TCP = ("--set", "transport=tcp")


class LateJoin(FleetCase):
    def serve(self, fleet, holders, *versions):
        """These sidecars, given as names with settings, serve the last of these weights."""
        engines = []
        for name, settings in holders.items():
            process, engines_socket = fleet.sidecar(name, *settings)
            setattr(fleet, name, process)
            engines.append(fleet.engine(engines_socket, f"r-{name}", fleet.weights[0]))
        fleet.until(lambda: len(fleet.replicas()) >= len(holders), "the sidecars")
        for weights in versions:
            version = self.push(fleet, weights)
            fleet.until_ready(version, *(f"r-{name}" for name in holders))
        return engines

    def kill_trainer(self, fleet, trainer):
        trainer.kill()
        trainer.wait()
        fleet.until_gone()

    def late(self, fleet, name, *settings):
        process, engines_socket = fleet.sidecar(name, *settings)
        fleet.engine(engines_socket, f"r-{name}", fleet.weights[0])
        return process

    def is_served(self, fleet, version, *names):
        fleet.until_ready(version, *(f"r-{name}" for name in names))
        code, answer = fleet.ask("verify")
        self.assertEqual(code, 0, answer)

    def source(self, fleet, process):
        """From where a sidecar has received its last version."""
        return re.findall(r"is staged from (\S+) by", fleet.log_text(process))[-1]

    def test_the_trainer_is_gone(self):
        for way, settings in (("maps", ()), ("copies", BY_TCP)):
            with self.subTest(way), CoordinatorFleet(WSYNC) as fleet:
                fleet.coordinate()
                trainer = fleet.trainer()
                fleet.until_attached()
                engines = self.serve(fleet, {"holder": settings}, fleet.weights[0], fleet.weights[1])
                self.kill_trainer(fleet, trainer)
                self.late(fleet, "near")
                self.late(fleet, "far", *BY_TCP)
                self.is_served(fleet, "1.2", "holder", "near", "far")
                # Another trainer does not have that version either.
                fleet.trainer(name="another")
                fleet.until_attached()
                self.late(fleet, "last")
                self.is_served(fleet, "1.2", "holder", "near", "far", "last")
                version = self.push(fleet, fleet.weights[2])
                self.is_served(fleet, version, "holder", "near", "far", "last")
                self.stopped_whole(fleet, *engines)

    def test_after_a_rollback_without_a_trainer(self):
        with CoordinatorFleet(WSYNC) as fleet:
            fleet.coordinate()
            trainer = fleet.trainer()
            fleet.until_attached()
            engines = self.serve(fleet, {"one": (), "two": BY_TCP}, fleet.weights[0], fleet.weights[1])
            self.kill_trainer(fleet, trainer)
            code, answer = fleet.ask("rollback")
            self.assertEqual((code, answer["result"]["to"]), (0, "1.1"), answer)
            self.late(fleet, "late")
            self.is_served(fleet, "1.1", "one", "two", "late")
            self.stopped_whole(fleet, *engines)

    def test_a_coordinator_that_has_just_started_knows_nothing_of_the_version(self):
        with CoordinatorFleet(WSYNC) as fleet:
            trainer = fleet.start("trainer")
            engines = self.serve(fleet, {"holder": ()}, fleet.weights[0])
            trainer.kill()
            trainer.wait()
            fleet.start("trainer")
            fleet.until_ready("1.1", "r-holder")
            self.late(fleet, "late", *BY_TCP)
            self.is_served(fleet, "1.1", "holder", "late")
            self.assertEqual(self.push(fleet, fleet.weights[1]), "2.2")
            self.is_served(fleet, "2.2", "holder", "late")
            self.stopped_whole(fleet, *engines)

    def test_holders_that_hang(self):
        """The first hangs for ever, the second goes on after a while."""
        with CoordinatorFleet(WSYNC) as fleet:
            fleet.coordinate()
            trainer = fleet.trainer()
            fleet.until_attached()
            self.serve(fleet, {"one": BY_TCP, "two": ()}, fleet.weights[0])
            self.kill_trainer(fleet, trainer)
            for holder in (fleet.one, fleet.two):
                fleet.halt(holder.pid)
            self.late(fleet, "late")
            fleet.until(lambda: "r-late" in fleet.replicas(), "the late one")
            fleet.two.send_signal(signal.SIGCONT)
            fleet.until_ready("1.1", "r-two", "r-late")
            fleet.one.kill()
            code, answer = fleet.ask("verify")
            self.assertTrue(all(rank["version"] == "1.1" for rank in answer["result"]["ranks"] if not rank["failure"]), answer)

    def test_a_holder_is_killed_and_many_come_at_once(self):
        with CoordinatorFleet(WSYNC) as fleet:
            fleet.coordinate()
            trainer = fleet.trainer()
            fleet.until_attached()
            weights = fleet.checkpoint("large", 4, size="128MiB")
            fleet.weights[0] = weights
            engines = self.serve(fleet, {"one": BY_TCP, "two": ()}, weights)
            self.kill_trainer(fleet, trainer)
            names = [f"late{i}" for i in range(5)]
            late = [self.late(fleet, name, *BY_TCP) for name in names]
            fleet.one.kill()
            fleet.until_ready("1.1", *(f"r-{name}" for name in names))
            sources = {self.source(fleet, process) for process in late}
            self.assertGreater(len(sources), 1, "all have fetched from one sidecar")
            self.assertIsNone(engines[1].poll())


if __name__ == "__main__":
    unittest.main()

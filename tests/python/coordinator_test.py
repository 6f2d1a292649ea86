"""A trainer in Python whose coordinator is a process of its own: it outlives the trainer, and the trainer outlives it."""
import http.client
import json
import os
import signal
import socket
import unittest

import wsync
from package_fleet import DEADLINE_S, EXECUTABLE, PackageFleet, empty_like, equal, until, weights_of


class Coordinator(unittest.TestCase):
    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        self.control = f"ipc://{self.fleet.run_dir}/control"
        self.coordinator = self.coordinate()
        self.sidecar, self.socket = self.fleet.sidecar()
        self.held = empty_like(weights_of(0))
        self.fleet.serve(wsync.Replica(self.socket, "r0", self.held))
        # In a run_dir of its own, as on a host of its own.
        self.settings = self.fleet.settings | {"coordinator": self.control, "run_dir": self.fleet.path("trainer")}

    def coordinate(self):
        process = self.fleet.start(EXECUTABLE, "coordinator")
        until(lambda: process.poll() is not None or self.fleet.ask("status")[0] == 0, "the coordinator")
        self.assertIsNone(process.poll(), self.fleet.said(process))
        return process

    def publisher(self, **more):
        return wsync.Publisher(settings=self.settings | more)

    def served(self, publisher, seed):
        publish = publisher.publish(weights_of(seed), step=seed)
        publish.wait("committed", DEADLINE_S)
        equal(self, self.held, weights_of(seed))
        return publish

    def is_connected(self):
        """What the page of the trainer says."""
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(os.path.join(self.fleet.path("trainer"), "trainer.http"))
        connection.request("GET", "/readyz")
        status = connection.getresponse().status
        connection.close()
        return status == 200

    def is_ready(self, version):
        code, answer = self.fleet.ask("status")
        return code == 0 and [(r["version"], r["ready"]) for s in answer["result"]["sidecars"] for r in s["replicas"]] == [(version, True)]

    def test_publishes_of_one_trainer_and_of_the_next(self):
        with self.publisher() as trainer:
            self.served(trainer, 1)
            self.served(trainer, 2)
        with self.publisher() as trainer:  # nobody waits for the one before
            self.served(trainer, 3)
            trainer.roll_back()
            self.assertTrue(self.is_ready("1.2"))
            equal(self, self.held, weights_of(2))

    def test_the_coordinator_is_killed_and_comes_back(self):
        with self.publisher() as trainer:
            self.served(trainer, 1)
            self.coordinator.kill()
            self.coordinator.wait()
            until(lambda: not self.is_connected(), "that the trainer has noticed it")
            publish = trainer.publish(weights_of(2), step=2)  # it waits
            self.coordinate()
            publish.wait("committed", DEADLINE_S)
            equal(self, self.held, weights_of(2))
            self.served(trainer, 3)

    def test_the_coordinator_stands_still(self):
        with self.publisher() as trainer:
            self.served(trainer, 1)
            os.kill(self.coordinator.pid, signal.SIGSTOP)
            publish = trainer.publish(weights_of(2), step=2)
            with self.assertRaises(wsync.DeadlineExceeded):
                publish.wait("committed", 0.3)
            os.kill(self.coordinator.pid, signal.SIGCONT)
            publish.wait("committed", DEADLINE_S)
            equal(self, self.held, weights_of(2))

    def test_a_trainer_that_is_killed_has_a_successor(self):
        trainer = self.fleet.program("""
import json, sys
import wsync
from package_fleet import DEADLINE_S, weights_of
with wsync.Publisher(settings=json.loads(sys.argv[1])) as publisher:
    publisher.publish(weights_of(1), step=1).wait("committed", DEADLINE_S)
    print("ready", flush=True)
    sys.stdin.read()
""", json.dumps(self.settings))
        self.fleet.ready(trainer)
        trainer.kill()
        trainer.wait()
        self.assertTrue(self.is_ready("1.1"))
        with self.publisher() as successor:
            self.served(successor, 2)

    def test_a_second_trainer_waits_for_the_first(self):
        with self.publisher() as first:
            self.served(first, 1)
            with self.publisher(run_dir=self.fleet.path("second")) as second:
                publish = second.publish(weights_of(5), step=5)
                with self.assertRaises(wsync.Error):
                    publish.wait("committed", 1)
                self.served(first, 2)
                first.close()
                publish.wait("committed", DEADLINE_S)
                equal(self, self.held, weights_of(5))

    def test_several_ranks(self):
        other = self.fleet.program("""
import json, sys
import wsync
from package_fleet import DEADLINE_S, weights_of
with wsync.Publisher(settings=json.loads(sys.argv[1]), rank=1, world_size=2) as publisher:
    print("ready", flush=True)
    for step in (1, 2):
        weights = weights_of(step)
        publisher.publish({name: weights[name] for name in sorted(weights)[1::2]}, step=step).wait("committed", DEADLINE_S)
""", json.dumps(self.settings))
        with wsync.Publisher(settings=self.settings, rank=0, world_size=2) as publisher:
            for step in (1, 2):
                weights = weights_of(step)
                publisher.publish({name: weights[name] for name in sorted(weights)[::2]}, step=step).wait("committed", DEADLINE_S)
                equal(self, self.held, weights)
            code, _, said = self.fleet.end(other)
            self.assertEqual(code, 0, said)

    def test_decided_versions_are_written_to_a_folder(self):
        folder = self.fleet.path("published")
        with self.publisher(**{"directory.publish": folder}) as trainer:
            self.served(trainer, 1)
            self.served(trainer, 2)
        found = next(wsync.directory.follow(folder, poll=0.01, timeout=DEADLINE_S))  # the newest one at the end
        self.assertEqual(str(found.version), "1.2")
        equal(self, found.tensors, weights_of(2))


if __name__ == "__main__":
    unittest.main()

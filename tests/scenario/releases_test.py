"""Releases of one protocol version: a newer process beside one that lacks what is new (shared/control/capability.h).

What a process of an older release says is that of this release without its capabilities. A relay between a sidecar and its coordinator
takes them out of the first messages, and looks at every message that passes.
"""
import contextlib
import os
import struct
import sys
import threading
import unittest

import wire
from fleet import DEADLINE_S
from sleeper_test import SleeperFleet

WSYNC, SLEEPER = sys.argv[-2:]
SWITCHED = 10
ALL_BITS = 0b111111011
NONE, ALL = struct.pack("<I", 0), struct.pack("<I", ALL_BITS)
NAMES = {wire.HELLO: "the sidecar's Hello", wire.WELCOME: "the coordinator's Welcome"}


class Relay:
    """Between one sidecar and its coordinator. `older`: neither names a capability, as if the other one were of an older release."""

    def __init__(self, path, coordinator, older):
        self.router = wire.Router(path)
        self.coordinator, self.older = coordinator, older
        self.named, self.headers, self.failures = {}, {}, []
        self.thread = threading.Thread(target=self.run)
        self.ports = []

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        for port in self.ports:
            with contextlib.suppress(OSError):
                port.peer.shutdown(2)
        self.router.__exit__()
        self.thread.join(DEADLINE_S)
        for port in self.ports:
            port.peer.close()

    def run(self):
        with contextlib.suppress(OSError):  # the test has ended
            self.router.accept()
            self.ports = [self.router.port, wire.Dealer(self.coordinator)]
            for port in self.ports:
                port.peer.settimeout(None)
            back = threading.Thread(target=self.pass_on, args=(self.ports[1], self.ports[0]))
            back.start()
            self.pass_on(*self.ports)
            back.join()

    def pass_on(self, source, target):
        with contextlib.suppress(OSError):  # one side is gone
            while True:
                body = source.receive()
                kind, = struct.unpack_from("<H", body, 6)
                self.headers.setdefault(kind, set()).add(struct.unpack_from("<I", body, 76)[0])
                if kind in NAMES:
                    self.named[kind] = body[-4:]
                    if self.older:
                        body = body[:-4] + NONE
                target.send(body)


class Releases(unittest.TestCase):
    @contextlib.contextmanager
    def fleet_with_a_sleeper(self, older):
        """A replica that has taken two versions and sleeps; its sidecar reaches the coordinator by the relay."""
        with SleeperFleet(WSYNC) as fleet:
            fleet.start("trainer")
            fleet.until(lambda: os.path.exists(f"{fleet.run_dir}/control"), "the trainer")
            os.mkdir(fleet.path("relay"), mode=0o700)
            path = os.path.join(fleet.path("relay"), "control")
            with Relay(path, f"{fleet.run_dir}/control", older) as relay:
                _, engines = fleet.sidecar("s0", "--set", f"coordinator=ipc://{path}")
                process = fleet.sleeper(engines)
                for bits in (3, 5):
                    directory, total = fleet.checkpoint(bits)
                    version = fleet.pushed(directory)
                    self.assertEqual(process.stdout.readline(), f"holds {version}, sum {total}\n")
                self.assertEqual(relay.named, {wire.HELLO: ALL, wire.WELCOME: ALL})
                fleet.tell(process, "sleep", "sleeps")
                fleet.until(lambda: "is suspended" in fleet.replicas().get("a", {}).get("reason", ""), "that status says it")
                yield fleet, relay, process
                process.stdin.close()
                self.assertEqual(process.wait(DEADLINE_S), 0)

    def woken(self, fleet, process, bits):
        fleet.tell(process, "wake", "is awake")
        self.assertEqual(process.stdout.readline(), f"holds 1.1, sum {bits * 300 * 1001}\n")
        fleet.until(lambda: fleet.replicas()["a"]["state"] == "serving", "that it serves")

    def test_both_of_this_release(self):
        with self.fleet_with_a_sleeper(older=False) as (fleet, relay, process):
            code, answer = fleet.ask("rollback")
            self.assertEqual((code, answer["result"]["partial"]), (0, False), answer)
            self.assertEqual(relay.headers[SWITCHED], {ALL_BITS}, "what is suspended is told")
            self.assertEqual(relay.headers[wire.HELLO], {0}, "a first message has what every release reads")
            self.woken(fleet, process, 3)

    def test_one_of_an_older_release(self):
        with self.fleet_with_a_sleeper(older=True) as (fleet, relay, process):
            code, answer = fleet.ask("rollback")
            self.assertEqual((code, answer["result"]["partial"]), (1, True), answer)
            self.assertIn("replica 'a' (rank 0 is suspended", answer["result"]["reason"])
            self.assertEqual({header for headers in relay.headers.values() for header in headers}, {0},
                             f"a field that the other has not named: {relay.headers}")
            self.woken(fleet, process, 3)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:-2])

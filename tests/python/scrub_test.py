"""Engines in Python that hold their own weights: they are asked for them while they serve, and what has changed is found and mended."""
import os
import signal
import threading
import time
import unittest

import numpy as np
import wsync
from package_fleet import DEADLINE_S, NAMES, PackageFleet, equal, until, weights_of

SPECS = {name: wsync.Spec("BF16", (64, 32)) for name in NAMES}


class Keeping:
    """An engine that keeps copies of the layers of the newest version, and returns their bytes."""

    def __init__(self):
        self.held = {}
        self.reads = 0
        self.before_read = lambda: None

    def load_layer(self, version, layer, tensors):
        for name, array in tensors.items():
            self.held[name] = np.array(array, copy=True)

    def read_tensor(self, name, offset, out):
        self.reads += 1
        self.before_read()
        out[:] = self.held[name].view(np.uint8).reshape(-1)[offset:offset + out.size]


class Scrubs(unittest.TestCase):
    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        settings = {"scrub.interval": "100ms", "scrub.max_share": "0.5", "engine_deadline": "1s"}
        _, self.socket = self.fleet.sidecar("host", *(f"--set={key}={value}" for key, value in settings.items()))
        self.publisher = self.enterContext(self.fleet.publisher())
        self.engine = Keeping()

    def replica(self, take):
        return wsync.Replica(self.socket, "r0", None if take == "borrow" else SPECS, take=take, load_layer=self.engine.load_layer,
                             read_tensor=self.engine.read_tensor)

    def report(self):
        code, answer = self.fleet.ask("status")
        return [replica for one in answer["result"]["sidecars"] for replica in one["replicas"]][0] if code == 0 else {}

    def proof(self, *path):
        return self.report().get("proof", {})

    def published(self, seed):
        return str(self.publisher.publish(weights_of(seed)).wait(timeout=DEADLINE_S).version)

    def test_a_flipped_bit_is_found_named_and_mended(self):
        for take in ("whole", "borrow"):
            with self.subTest(take):
                replica = self.replica(take)
                served = self.fleet.serve(replica)
                version = self.published(1)
                reads = self.engine.reads
                until(lambda: self.engine.reads > reads and self.proof().get("version") == version, "a proof")
                self.assertEqual((self.proof()["not_scrubbed"], self.proof()["mismatches"]), ("", 0))
                self.engine.held[NAMES[1]][5, 7] ^= 1
                until(lambda: self.proof().get("mismatches") == 1, "the scrub")
                what = self.proof()["last_mismatch"]
                for part in ("rank 0", NAMES[1], version, "expected sum ", "found "):
                    self.assertIn(part, what)
                until(lambda: self.report()["ready"] and self.proof()["version"] == version, "that it is mended")
                equal(self, self.engine.held, weights_of(1))
                self.assertEqual(self.report()["last_load"]["kind"], "full")
                version = self.published(2)
                until(lambda: self.proof().get("version") == version, "a proof of the next version")
                self.assertEqual(self.proof()["mismatches"], 1)
                served.stop()
                self.fleet.served.remove(served)
                until(lambda: self.fleet.ask("forget", "host/r0")[0] == 0, "that it is forgotten")

    def test_an_engine_that_fails_is_not_scrubbed_and_status_says_why(self):
        self.enterContext(self.assertLogs("wsync", "ERROR"))
        self.fleet.serve(self.replica("whole"))
        version = self.published(1)

        def refuse():
            raise RuntimeError("its cache is being moved")
        self.engine.before_read = refuse
        until(lambda: self.proof().get("not_scrubbed"), "that it is not scrubbed")
        for part in ("rank 0: ", "read_tensor", "its cache is being moved"):
            self.assertIn(part, self.proof()["not_scrubbed"])
        self.assertTrue(self.report()["ready"])
        self.engine.before_read = lambda: None
        until(lambda: not self.proof()["not_scrubbed"], "a scrub")
        self.assertEqual((self.proof()["version"], self.proof()["mismatches"]), (version, 0))

    def test_a_call_that_hangs_makes_the_replica_not_ready(self):
        self.fleet.serve(self.replica("borrow"))
        version = self.published(1)
        goes_on = threading.Event()
        self.addCleanup(goes_on.set)
        self.engine.before_read = lambda: goes_on.wait(DEADLINE_S)
        until(lambda: not self.report().get("ready", True), "that it is not ready")
        self.assertIn("rank 0", self.report()["reason"])
        goes_on.set()
        until(lambda: self.report()["ready"] and self.proof()["version"] == version, "that it serves again")
        self.assertEqual(self.proof()["mismatches"], 0)

    def test_a_slow_call_takes_its_share_of_the_time(self):
        self.fleet.serve(self.replica("whole"))
        self.published(1)
        slow_s = 0.05
        self.engine.before_read = lambda: time.sleep(slow_s)
        reads, begin = self.engine.reads, time.monotonic()
        until(lambda: self.engine.reads >= reads + 20, "twenty calls")
        # One call before the first wait, and one that runs now.
        self.assertGreaterEqual(time.monotonic() - begin, 17 * slow_s / 0.5)
        self.published(2)
        self.assertEqual(self.proof()["mismatches"], 0)

    def test_a_forked_child_changes_nothing(self):
        self.fleet.serve(self.replica("whole"))
        version = self.published(1)
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        try:
            reads = self.engine.reads
            until(lambda: self.engine.reads > reads, "a scrub beside the child")
            self.engine.held[NAMES[2]][0, 0] ^= 1
            until(lambda: self.proof().get("mismatches") == 1, "the scrub")
            until(lambda: self.report()["ready"] and self.proof()["version"] == version, "that it is mended")
            equal(self, self.engine.held, weights_of(1))
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def test_another_thread_suspends_it_while_it_is_asked(self):
        replica = wsync.Replica(self.socket, "r0", SPECS, take="whole", load_layer=self.engine.load_layer,
                                read_tensor=self.engine.read_tensor, pause=lambda _: replica.paused(1))
        self.addCleanup(replica.close)
        replica.start()
        self.published(1)
        is_asked, is_over = threading.Event(), threading.Event()

        def read():
            is_asked.set()
            time.sleep(0.1)
            is_over.set()
        for seed in (2, 3):
            is_asked.clear()
            self.engine.before_read = read
            self.assertTrue(is_asked.wait(DEADLINE_S))
            replica.suspend()
            self.assertTrue(is_over.is_set())
            self.engine.before_read = lambda: None
            reads = self.engine.reads
            self.engine.held.clear()
            time.sleep(0.3)  # three intervals
            self.assertEqual(self.engine.reads, reads, "it is asked while its memory is someone else's")
            replica.resume()
            version = self.published(seed)
            until(lambda: self.proof().get("version") == version and self.engine.reads > reads, "a proof")
            self.assertEqual(self.proof()["mismatches"], 0)

    def test_it_may_not_suspend_itself_while_it_is_asked(self):
        replica = self.replica("whole")
        self.fleet.serve(replica)
        self.published(1)
        said = []

        def suspend():
            try:
                replica.suspend()
            except wsync.Busy as failure:
                said.append(failure.sentence)
        self.engine.before_read = suspend
        until(lambda: said, "the refusal")
        self.assertIn("a callback of this replica is running", said[0])


if __name__ == "__main__":
    unittest.main()

"""Readers in Python: what they see, how long it is valid, and whom they hold up."""
import gc
import multiprocessing
import os
import signal
import threading
import time
import unittest

import numpy as np
import wsync
from package_fleet import DEADLINE_S, NAMES, PackageFleet, empty_like, equal, interrupt, weights_of

FOLLOWER = """
import sys, wsync
with wsync.Reader(sys.argv[1], "follower") as reader:
    print("ready", flush=True)
    for staged in reader.follow():
        print(staged.version, sum(int(a.sum(dtype="u8")) for a in staged.tensors.values()), flush=True)
"""


def sum_of(weights):
    return sum(int(np.asarray(array).sum(dtype="u8")) for array in weights.values())


class Readers(unittest.TestCase):
    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        self.sidecar, self.socket = self.fleet.sidecar()
        self.publisher = self.enterContext(self.fleet.publisher())
        self.held = empty_like(weights_of(0))
        self.fleet.serve(wsync.Replica(self.socket, "r0", self.held))

    def committed(self, seed):
        return self.publisher.publish(weights_of(seed)).wait(timeout=DEADLINE_S).version

    def test_what_it_reads(self):
        version = self.committed(1)
        with wsync.Reader(self.socket) as reader, reader.open(timeout=DEADLINE_S) as staged:
            self.assertEqual(staged.version, version)
            self.assertEqual(list(staged.tensors), NAMES)
            self.assertEqual(dict(staged.specs), {name: wsync.Spec("BF16", (64, 32)) for name in NAMES})
            equal(self, staged.tensors, weights_of(1))
            for array in staged.tensors.values():
                self.assertEqual((array.dtype_name, array.flags.writeable), ("BF16", False))
            self.assertRaisesRegex(wsync.Busy, f"version {version} is open", reader.open)

    def test_a_version_is_open_as_long_as_somebody_holds_it(self):
        self.committed(1)
        with wsync.Reader(self.socket) as reader:
            staged = next(reader.follow(timeout=DEADLINE_S))  # the generator is gone after this line
            equal(self, staged.tensors, weights_of(1))
            self.assertRaises(wsync.Busy, reader.open)
            del staged
            reader.open(timeout=DEADLINE_S)
            with reader.open(timeout=DEADLINE_S) as staged:  # nobody has kept the one before
                equal(self, staged.tensors, weights_of(1))
            with self.assertRaisesRegex(wsync.Closed, f"version {staged.version} has been closed"):
                staged.tensors

    def test_a_version_that_is_held_open_stays_what_it_is_and_holds_up_nobody(self):
        self.committed(1)
        with wsync.Reader(self.socket) as reader:
            staged = reader.open(timeout=DEADLINE_S)
            for seed in range(2, 8):  # more than there are arenas
                self.committed(seed)
            equal(self, staged.tensors, weights_of(1))
            equal(self, self.held, weights_of(7))
            array = staged.tensors[NAMES[0]]
            staged.close()
            self.assertFalse(array.any())
            with reader.open(timeout=DEADLINE_S) as newest:
                equal(self, newest.tensors, weights_of(7))

    def test_it_follows_each_version(self):
        follower = self.fleet.program(FOLLOWER, self.socket)
        self.fleet.ready(follower)
        for seed in (1, 2, 3):
            version = self.committed(seed)
            self.assertEqual(follower.stdout.readline().split(), [str(version), str(sum_of(weights_of(seed)))])
        interrupt(follower)
        code, _, said = self.fleet.end(follower)
        self.assertNotEqual(code, 0)
        self.assertIn("KeyboardInterrupt", said)

    def test_one_that_hangs_holds_up_nobody(self):
        follower = self.fleet.program(FOLLOWER, self.socket)
        self.fleet.ready(follower)
        self.committed(1)
        follower.stdout.readline()
        follower.send_signal(signal.SIGSTOP)
        for seed in range(2, 8):
            self.committed(seed)
        equal(self, self.held, weights_of(7))
        follower.send_signal(signal.SIGCONT)
        # Versions that came meanwhile are left out, but for the newest.
        said = []
        while said[-1:] != [["1.7", str(sum_of(weights_of(7)))]]:
            line = follower.stdout.readline()
            if not line:
                self.fail((said, follower.wait(DEADLINE_S), self.fleet.said(follower)))
            said.append(line.split())

    def test_no_version_in_time(self):
        with wsync.Reader(self.socket) as reader:
            with self.assertRaisesRegex(wsync.DeadlineExceeded, "no version has been published at the sidecar of .*host.engines yet"):
                reader.open(timeout=0.1)
            with self.assertRaisesRegex(wsync.DeadlineExceeded, "no version of step 5 has been staged"):
                reader.open(5, timeout=0.1)
            # A step that is looked up may be higher than those that may be given to a publish.
            with self.assertRaisesRegex(wsync.DeadlineExceeded, f"no version of step {2**63 - 1} has been staged"):
                reader.open(2**63 - 1, timeout=0.1)
            with self.assertRaisesRegex(wsync.InvalidInput, f"step is {2**63}, expected 0 to {2**63 - 1}$"):
                reader.open(2**63, timeout=0.1)
            version = self.committed(1)
            reader.open(timeout=DEADLINE_S).close()
            with self.assertRaisesRegex(wsync.DeadlineExceeded, f"no version has replaced {version}"):
                reader.open(after=version, timeout=0.1)
            self.assertRaises(wsync.InvalidInput, reader.open, 1, after=version)
        self.assertRaises(wsync.Closed, reader.open)
        with wsync.Reader(self.fleet.path("nobody")) as reader:
            with self.assertRaisesRegex(wsync.DeadlineExceeded, "no sidecar answers at .*/nobody: there is no such file; expected the engine socket of a sidecar"):
                reader.open(timeout=0.1)
        self.assertRaisesRegex(wsync.InvalidInput, "expected the absolute path", wsync.Reader, "./relative")
        self.assertRaisesRegex(wsync.InvalidInput, "1 to 128 bytes", wsync.Reader, self.socket, "x" * 129)

    def test_a_step_that_is_gone(self):
        for seed in range(1, 6):
            self.committed(seed)
        with wsync.Reader(self.socket) as reader:
            with self.assertRaisesRegex(wsync.EngineRefused, "no version of step 1 is staged here, and later ones are"):
                reader.open(1, timeout=DEADLINE_S)
            with reader.open(5, timeout=DEADLINE_S) as staged:
                equal(self, staged.tensors, weights_of(5))

    def test_a_child_cannot_use_it(self):
        self.committed(1)
        with wsync.Reader(self.socket) as reader, reader.open(timeout=DEADLINE_S) as staged:
            context = multiprocessing.get_context("fork")
            ours, theirs = context.Pipe()

            def child():
                try:
                    reader.open(after=staged.version)
                except wsync.Error as failure:
                    theirs.send((bool(staged.tensors[NAMES[0]].any()), type(failure).__name__, failure.sentence))

            process = context.Process(target=child)
            process.start()
            reads_ones, kind, sentence = ours.recv()
            process.join(DEADLINE_S)
            self.assertEqual((process.exitcode, reads_ones, kind), (0, False, "EngineRefused"), sentence)
            self.assertIn("fork", sentence)
            equal(self, staged.tensors, weights_of(1))

    def test_closed_while_another_thread_waits(self):
        reader = wsync.Reader(self.socket)
        failures = []

        def wait():
            try:
                reader.open()
            except wsync.Error as failure:
                failures.append(failure)

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)  # most likely it waits by now; the test holds in either case
        reader.close()
        thread.join(DEADLINE_S)
        self.assertEqual([type(failure) for failure in failures], [wsync.Closed])

    def test_what_is_not_closed_gives_its_descriptors_back(self):
        self.committed(1)

        def read_once():
            array = wsync.Reader(self.socket).open(timeout=DEADLINE_S).tensors[NAMES[0]]
            gc.collect()
            return array

        read_once()
        before = len(os.listdir("/proc/self/fd"))
        arrays = [read_once() for _ in range(20)]
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)
        self.assertFalse(any(array.any() for array in arrays))


if __name__ == "__main__":
    unittest.main()

"""`wsync verify` against real engines whose memory was changed behind their backs, and how that is mended."""
import signal
import sys
import unittest

from damage import bytes_of_tensor, flip_bit
from fleet import DEADLINE_S, Fleet, short
from patching import PatchFleet

WSYNC = sys.argv.pop()
TENSOR = "model.layers.1.self_attn.o_proj.weight"


class Verify(unittest.TestCase):
    def verify(self, fleet):
        code, answer = fleet.ask("verify")
        self.assertEqual(answer["result"]["match"], code == 0)
        self.follows = {r["replica"]: r["follows"] for r in answer["result"]["ranks"]}
        self.failures = {r["replica"]: r["failure"] for r in answer["result"]["ranks"]}
        return code, {r["replica"]: [m["tensor"] for m in r["mismatches"]] for r in answer["result"]["ranks"]}

    def test_one_flipped_bit_is_named_and_mended(self):
        with Fleet(WSYNC) as fleet:
            one = fleet.checkpoint("one", 1)
            _, engines = fleet.sidecar("s0")
            a = fleet.engine(engines, "a", one)
            fleet.engine(engines, "b", one)
            fleet.start("trainer")
            self.assertEqual(fleet.ask("push", one)[0], 0)
            self.assertEqual(self.verify(fleet), (0, {"a": [], "b": []}))
            self.assertEqual(flip_bit(a.pid, bytes_of_tensor(one, TENSOR)), 1)
            self.assertEqual(self.verify(fleet), (1, {"a": [TENSOR], "b": []}), "a changed bit was not seen")
            self.assertEqual(self.follows, {"a": "all bytes are loaded again", "b": ""})
            fleet.until(lambda: fleet.replicas()["a"]["proof"]["mismatches"] == 1, "that the coordinator knows of it")
            fleet.until_ready("1.1", "a", "b")
            self.assertEqual(self.verify(fleet), (0, {"a": [], "b": []}))
            self.assertIn(TENSOR, fleet.replicas()["a"]["proof"]["last_mismatch"])

    def test_an_engine_that_hangs_is_named_and_keeps_nobody_waiting(self):
        with Fleet(WSYNC) as fleet:
            one = fleet.checkpoint("one", 1)
            _, engines = fleet.sidecar("s0", "--set", f"engine_deadline={short(1000)}")
            a = fleet.engine(engines, "a", one)
            fleet.engine(engines, "b", one)
            fleet.start("trainer")
            self.assertEqual(fleet.ask("push", one)[0], 0)
            fleet.halt(a.pid)
            # It begins to hang before the sidecar knows so, and later it is known. A verification that waits for the answer takes
            # longer than ask() does.
            for _ in range(2):
                self.assertEqual(self.verify(fleet), (1, {"a": [], "b": []}))
                self.assertEqual(self.failures["b"], "")
                self.assertRegex(self.failures["a"],
                                 rf"^it has not polled its link for \S+ \(engine_deadline\): process {a.pid} is suspended, or "
                                 rf"hangs in a step; continue it \(kill -CONT {a.pid}\), or end it, and verify again$")
                fleet.until(lambda: not fleet.replicas()["a"]["ready"], "that a is known to be silent")
            a.send_signal(signal.SIGCONT)
            fleet.until_ready("1.1", "a", "b")
            self.assertEqual(self.verify(fleet), (0, {"a": [], "b": []}))

    def test_the_replicas_of_a_sidecar_that_is_killed_are_named(self):
        with Fleet(WSYNC) as fleet:
            one = fleet.checkpoint("one", 1)
            sidecar, engines = fleet.sidecar("s0")
            fleet.engine(engines, "a", one)
            _, others = fleet.sidecar("s1")
            fleet.engine(others, "b", one)
            fleet.start("trainer")
            self.assertEqual(fleet.ask("push", one)[0], 0)
            sidecar.kill()
            fleet.until(lambda: not fleet.replicas()["a"]["ready"], "that s0 is lost")
            self.assertEqual(self.verify(fleet), (1, {"a": [], "b": []}))
            self.assertEqual(self.failures, {"a": "its sidecar s0 is not connected", "b": ""})

    def test_without_scrubs_the_next_update_mends_it(self):
        with PatchFleet(WSYNC) as fleet:
            _, engines = fleet.sidecar("s0", "--set", "scrub.interval=0s")
            a = fleet.engine(engines, "a", fleet.one)
            fleet.start("trainer")
            version = fleet.pushed(fleet.one)["version"]
            self.assertEqual(flip_bit(a.pid, bytes_of_tensor(fleet.one, TENSOR)), 1)
            for _ in range(4):
                self.assertEqual(self.verify(fleet), (1, {"a": [TENSOR]}))
                self.assertIn("it serves them until the next update, which loads all bytes", self.follows["a"])
            self.assertTrue(fleet.replicas()["a"]["ready"])
            self.assertEqual(fleet.replicas()["a"]["version"], version)
            fleet.pushed(fleet.next(300))
            self.assertEqual(self.verify(fleet), (0, {"a": []}))

    def test_a_patch_does_not_hide_it(self):
        with PatchFleet(WSYNC) as fleet:
            sidecar, engines = fleet.sidecar("s0", "--set", "patch.mode=auto")
            a = fleet.engine(engines, "a", fleet.one)
            fleet.start("trainer")
            fleet.pushed(fleet.one)
            self.assertEqual(flip_bit(a.pid, bytes_of_tensor(fleet.one, TENSOR)), 1)
            self.assertEqual(self.verify(fleet), (1, {"a": [TENSOR]}))
            fleet.pushed(fleet.next(1000))
            self.assertEqual(self.verify(fleet), (0, {"a": []}))
            fleet.pushed(fleet.next(1000))
            self.assertEqual(fleet.load_of("a")["kind"], "patch")
            # A sidecar that begins again does not know what the engine has gone through. A scrub finds it, or the next update loads
            # all bytes.
            self.assertEqual(flip_bit(a.pid, bytes_of_tensor(fleet.path("v3"), TENSOR)), 1)
            sidecar.send_signal(signal.SIGKILL)
            sidecar.wait(DEADLINE_S)
            fleet.sidecar("s0", "--set", "patch.mode=auto")
            fleet.until_ready("1.3", "a")
            fleet.pushed(fleet.next(1000))
            self.assertEqual(self.verify(fleet), (0, {"a": []}))
            fleet.pushed(fleet.next(1000))
            self.assertEqual(fleet.load_of("a")["kind"], "patch")
            self.assertEqual(self.verify(fleet), (0, {"a": []}))


if __name__ == "__main__":
    unittest.main()

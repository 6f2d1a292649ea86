"""Engines read their weights again while they serve: what flips there is found, named, and mended by a load of all bytes."""
import signal
import subprocess
import sys
import unittest

from damage import bytes_of_tensor, flip_bit
from fleet import Fleet

WSYNC = sys.argv.pop()
OFTEN = "--set", "scrub.interval=200ms", "--set", "scrub.max_share=0.5", "--set", "patch.mode=auto"
TENSOR = "model.layers.1.self_attn.q_proj.weight"


class ScrubFleet(Fleet):
    def __init__(self, wsync):
        super().__init__(wsync)
        self.one = self.checkpoint("v1", 1)

    def pushed(self, path):
        code, answer = self.ask("push", path)
        if code != 0:
            raise AssertionError(answer)
        return answer["result"]["version"]

    def proof(self, replica):
        return self.replicas()[replica]["proof"]

    def text(self):
        return subprocess.run([self.wsync, "status", "--coordinator", self.address], env=self.environment, text=True,
                              capture_output=True, check=True).stdout


class Scrub(unittest.TestCase):
    def verified(self, fleet):
        code, answer = fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        self.assertTrue(answer["result"]["match"])

    def test_one_flipped_bit_is_found_named_and_mended(self):
        with ScrubFleet(WSYNC) as fleet:
            sidecar, engines = fleet.sidecar("s0", *OFTEN)
            fleet.start("trainer")
            fleet.engine(engines, "a", fleet.one)
            ranks = [fleet.engine(engines, "b", fleet.one, "--rank", str(rank), "--world-size", "2") for rank in (0, 1)]
            version = fleet.pushed(fleet.one)
            fleet.until(lambda: fleet.proof("b")["version"] == version, "a proof")
            self.assertIn(f"proved at {version}, ", fleet.text())
            rows = bytes_of_tensor(fleet.one, TENSOR)
            self.assertEqual(flip_bit(ranks[1].pid, rows[len(rows) // 2:]), 1)
            fleet.until(lambda: fleet.proof("b")["mismatches"] == 1, "the scrub of b")
            fleet.until_ready(version, "a", "b")
            fleet.until(lambda: fleet.proof("b")["version"] == version, "another proof")
            self.verified(fleet)
            what = fleet.proof("b")["last_mismatch"]
            for part in ("rank 1", TENSOR, version, "expected sum ", "found "):
                self.assertIn(part, what)
            self.assertEqual(fleet.proof("a")["mismatches"], 0)
            self.assertEqual(fleet.replicas()["b"]["last_load"]["kind"], "full")
            _, answer = fleet.ask("status")
            self.assertIn(what, "".join(incident["text"] for incident in answer["result"]["incidents"]))
            with open(sidecar.log_path, encoding="utf-8") as log:
                self.assertIn("a scrub has found damaged memory: " + what, log.read())
            self.assertEqual(fleet.pushed(fleet.checkpoint("v2", 2)), fleet.replicas()["b"]["version"])
            self.verified(fleet)

    def test_an_engine_that_takes_whole_tensors_is_asked_for_them(self):
        with ScrubFleet(WSYNC) as fleet:
            sidecar, engines = fleet.sidecar("s0", *OFTEN)
            fleet.start("trainer")
            ranks = [fleet.engine(engines, "a", fleet.one, "--whole", "--rank", str(rank), "--world-size", "2") for rank in (0, 1)]
            version = fleet.pushed(fleet.one)
            fleet.until(lambda: fleet.proof("a")["version"] == version, "a proof")
            self.assertEqual(fleet.proof("a")["not_scrubbed"], "")
            self.assertNotIn("not scrubbed", fleet.text())
            rows = bytes_of_tensor(fleet.one, TENSOR)
            # In its weights, and in what a load may have left in freed memory.
            self.assertGreaterEqual(flip_bit(ranks[1].pid, rows[len(rows) // 2:]), 1)
            fleet.until(lambda: fleet.proof("a")["mismatches"] == 1, "the scrub")
            fleet.until_ready(version, "a")
            fleet.until(lambda: fleet.proof("a")["version"] == version, "another proof")
            what = fleet.proof("a")["last_mismatch"]
            for part in ("rank 1", TENSOR, version, "expected sum ", "found "):
                self.assertIn(part, what)
            self.assertEqual(fleet.replicas()["a"]["last_load"]["kind"], "full")
            with open(sidecar.log_path, encoding="utf-8") as log:
                self.assertIn("a scrub has found damaged memory: " + what, log.read())
            self.verified(fleet)
            # Switches go on beside scrubs.
            for seed in (2, 3):
                version = fleet.pushed(fleet.checkpoint(f"v{seed}", seed))
                fleet.until(lambda: fleet.proof("a")["version"] == version, f"a proof of {version}")
                self.verified(fleet)
            self.assertEqual(fleet.proof("a")["mismatches"], 1)

    def test_engines_that_hang_or_end_within_a_scrub(self):
        with ScrubFleet(WSYNC) as fleet:
            _, engines = fleet.sidecar("s0", *OFTEN, "--set", "engine_deadline=1s")
            fleet.start("trainer")
            a = fleet.engine(engines, "a", fleet.one)
            b = fleet.engine(engines, "b", fleet.one)
            fleet.pushed(fleet.one)
            fleet.halt(a.pid)
            fleet.until(lambda: not fleet.replicas()["a"]["ready"], "that a stands still")
            b.kill()
            b.wait()
            fleet.engine(engines, "b", fleet.one)
            fleet.ask("push", fleet.checkpoint("v2", 2))
            a.send_signal(signal.SIGCONT)
            version = fleet.replicas()["b"]["version"]
            fleet.until_ready(version, "a", "b")
            for replica in ("a", "b"):
                fleet.until(lambda: fleet.proof(replica)["version"] == version, f"a proof of {replica}")
                self.assertEqual(fleet.proof(replica)["mismatches"], 0)
            self.verified(fleet)

    def test_without_scrubs_status_says_so_and_nothing_is_patched(self):
        with ScrubFleet(WSYNC) as fleet:
            _, engines = fleet.sidecar("s0", "--set", "scrub.interval=0s", "--set", "patch.mode=auto")
            fleet.start("trainer")
            fleet.engine(engines, "a", fleet.one)
            version = fleet.pushed(fleet.one)
            fleet.until(lambda: fleet.proof("a")["version"] == version, "the proof by its load")
            self.assertEqual(fleet.proof("a")["not_scrubbed"], "scrub.interval is 0")
            self.assertIn("not scrubbed: scrub.interval is 0", fleet.text())
            fleet.pushed(fleet.one)
            self.assertEqual(fleet.replicas()["a"]["last_load"]["kind"], "full")


if __name__ == "__main__":
    unittest.main()

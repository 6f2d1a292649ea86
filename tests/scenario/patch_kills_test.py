"""SIGKILL of trainer, sidecar and engine at each step of a patch: it is compared, made, received, read, opened, written, summed. After the
process is back the fleet serves one version, every byte is verified, no step of the others was torn, and patches are used again."""
import contextlib
import signal
import sys
import unittest

from fleet import DEADLINE_S
from patching import PatchFleet

WSYNC = sys.argv.pop()


class Kills(unittest.TestCase):
    @contextlib.contextmanager
    def armed(self, fleet, point):
        """What is started within it kills itself at this point."""
        before = fleet.environment
        fleet.environment = before | {"WSYNC_FAIL_POINT": point}
        yield
        fleet.environment = before

    def start(self, fleet, what):
        if what == "trainer":
            self.running[what] = fleet.start("trainer", "--set", "patch.in_place=off")  # patches are sent with arenas
        elif what == "sidecar":
            self.running[what], self.engines = fleet.sidecar("s0")
        else:
            replica, rank, world = {"engine": ("a", 0, 1), "follower": ("b", 1, 2), "leader": ("b", 0, 2)}[what]
            self.running[what] = fleet.engine(self.engines, replica, fleet.one, "--rank", str(rank), "--world-size", str(world))

    def until_patched(self, fleet):
        def patched():
            fleet.ask("push", fleet.next(300))
            if not all(fleet.load_of(replica)["kind"] == "patch" for replica in ("a", "b")):
                return False
            version = fleet.replicas()["a"]["version"]
            return all(r["ready"] and r["version"] == version for r in fleet.replicas().values())

        fleet.until(patched, "a version that both replicas load by a patch")
        code, answer = fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        self.assertTrue(answer["result"]["match"])
        self.assertEqual(len({rank["version"] for rank in answer["result"]["ranks"]}), 1, answer)

    def killed_at(self, what, point):
        with PatchFleet(WSYNC) as fleet:
            self.running = {}
            for each in ("sidecar", "trainer", "engine", "follower", "leader"):
                with self.armed(fleet, point) if each == what else contextlib.nullcontext():
                    self.start(fleet, each)
            fleet.pushed(fleet.one)
            victim = self.running[what]

            def is_killed():
                if victim.poll() is None:
                    fleet.ask("push", fleet.next(300))
                return victim.poll() is not None

            fleet.until(is_killed, f"{what} at {point}")
            self.assertEqual(victim.returncode, -signal.SIGKILL)
            # Ranks of a replica end together: the one that is left waits for the other in its next step.
            if what in ("follower", "leader"):
                other = "leader" if what == "follower" else "follower"
                self.running[other].kill()
                self.running[other].wait(DEADLINE_S)
                self.start(fleet, other)
            self.start(fleet, what)
            self.until_patched(fleet)
            for each in ("engine", "leader"):
                code, said = fleet.stop(self.running[each])
                self.assertEqual(code, 0, said)
                self.assertIn('"torn":0', said)

    def test_trainer(self):
        for point in ("patch_compared:1", "patch_made:1", "patch_made:2"):
            with self.subTest(point):
                self.killed_at("trainer", point)

    def test_sidecar(self):
        for point in ("patch_received:1", "patch_read:1", "patch_summed:1", "patch_summed:2"):
            with self.subTest(point):
                self.killed_at("sidecar", point)

    def test_engine(self):
        for what, point in (("engine", "patch_opened:1"), ("engine", "patch_run:1"), ("engine", "patch_run:3"), ("engine", "patch_written:1"),
                            ("follower", "patch_run:2"), ("leader", "patch_written:2")):
            with self.subTest(what=what, point=point):
                self.killed_at(what, point)

    def test_what_is_no_fail_point_is_refused(self):
        with PatchFleet(WSYNC) as fleet:
            for given in ("patch_made", "patch_made:0", "patch_made:x", ":1", "forward:1"):
                with self.subTest(given), self.armed(fleet, given):
                    process = fleet.start("sidecar", "--set", "name=s0")
                    self.assertEqual(process.wait(DEADLINE_S), 2)
                    with open(process.log_path, encoding="utf-8") as log:
                        self.assertIn("WSYNC_FAIL_POINT: expected POINT:HITS", log.read())


if __name__ == "__main__":
    unittest.main()

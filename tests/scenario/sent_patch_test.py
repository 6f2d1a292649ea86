"""The trainer makes the patch while it copies the weights, and engines on its host are switched by it: real processes, every byte
verified."""
import signal
import sys
import unittest

from fleet import DEADLINE_S
from patching import PatchFleet

WSYNC = sys.argv.pop()
COPIES = "--set", "patch.in_place=off"


class SentPatches(unittest.TestCase):
    def verified(self, fleet, version=None):
        code, answer = fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        self.assertTrue(answer["result"]["match"])
        if version:
            self.assertEqual({rank["version"] for rank in answer["result"]["ranks"]}, {version}, answer)

    def until_patched(self, fleet, *replicas, sidecar="s0", every=300):
        """Pushes versions in which few weights change until one is loaded by a patch: the trainer hears of engines that take patches by
        a heartbeat."""
        def patched():
            fleet.pushed(fleet.next(every))
            return all(fleet.load_of(replica, sidecar)["kind"] == "patch" for replica in replicas)

        fleet.until(patched, "a version that is loaded by a patch")
        self.verified(fleet)

    def expect(self, fleet, kind, *replicas):
        for replica in replicas:
            load = fleet.load_of(replica)
            self.assertEqual(load["kind"], kind, load)
        self.verified(fleet)

    def test_few_changes_come_as_a_patch_and_everything_else_in_full(self):
        with PatchFleet(WSYNC) as fleet:
            sidecar, engines = fleet.sidecar("s0")
            fleet.start("trainer", *COPIES)
            fleet.engine(engines, "a", fleet.one)
            for rank in (0, 1):
                fleet.engine(engines, "b", fleet.one, "--rank", str(rank), "--world-size", "2")
            fleet.pushed(fleet.one)
            self.expect(fleet, "full", "a", "b")
            self.until_patched(fleet, "a", "b")
            for every in (1000, 500):
                fleet.pushed(fleet.next(every))
                self.expect(fleet, "patch", "a", "b")
            # What leads back was made of what led there.
            newest = fleet.replicas()["a"]["version"]
            fleet.until(lambda: f"patch from {newest} to " in fleet.log_text(sidecar), "what leads back")
            code, answer = fleet.ask("rollback")
            self.assertEqual(code, 0, answer)
            self.expect(fleet, "patch", "a", "b")
            fleet.pushed(fleet.next(500))
            self.verified(fleet)
            fleet.pushed(fleet.next(500))
            self.expect(fleet, "patch", "a", "b")
            # Everything has changed.
            fleet.pushed(fleet.checkpoint("other", 9))
            self.expect(fleet, "full", "a", "b")
            self.assertNotIn("cannot be read", fleet.log_text(sidecar))

    def test_who_switches_patches_off_gets_none(self):
        for settings in (("--set", "patch.mode=off"), ("--set", "patch.transfer=off"), ("--set", "scrub.interval=0")):
            with self.subTest(settings), PatchFleet(WSYNC) as fleet:
                _, engines = fleet.sidecar("s0", *settings)
                fleet.start("trainer", *COPIES)
                fleet.engine(engines, "a", fleet.one)
                fleet.pushed(fleet.one)
                # As many heartbeats as a trainer needs to hear of engines that take patches.
                for _ in range(4):
                    fleet.pushed(fleet.next(300))
                    self.expect(fleet, "full", "a")

    def test_an_engine_that_comes_late_loads_everything(self):
        with PatchFleet(WSYNC) as fleet:
            _, engines = fleet.sidecar("s0")
            fleet.start("trainer", *COPIES)
            fleet.engine(engines, "a", fleet.one)
            fleet.pushed(fleet.one)
            self.until_patched(fleet, "a")
            fleet.engine(engines, "b", fleet.one)
            fleet.until_ready(fleet.replicas()["a"]["version"], "a", "b")
            self.expect(fleet, "full", "b")
            fleet.pushed(fleet.next(300))
            self.expect(fleet, "patch", "a", "b")

    def test_processes_that_are_killed_and_come_back(self):
        with PatchFleet(WSYNC) as fleet:
            sidecar, engines = fleet.sidecar("s0")
            trainer = fleet.start("trainer", *COPIES)
            engine = fleet.engine(engines, "a", fleet.one)
            fleet.pushed(fleet.one)
            self.until_patched(fleet, "a")
            served = fleet.replicas()["a"]["version"]

            # The sidecar maps the arena anew; what its engine serves is known again only by a load.
            sidecar.send_signal(signal.SIGKILL)
            sidecar.wait(DEADLINE_S)
            sidecar, engines = fleet.sidecar("s0")
            fleet.until_ready(served, "a")
            self.until_patched(fleet, "a")

            # Another trainer has no snapshot to compare with: its first version comes in full.
            served = fleet.replicas()["a"]["version"]
            trainer.send_signal(signal.SIGKILL)
            trainer.wait(DEADLINE_S)
            fleet.start("trainer", *COPIES)
            fleet.until_ready(served, "a")
            fleet.pushed(fleet.next(300))
            self.expect(fleet, "full", "a")
            self.until_patched(fleet, "a")

            served = fleet.replicas()["a"]["version"]
            engine.send_signal(signal.SIGKILL)
            engine.wait(DEADLINE_S)
            fleet.engine(engines, "a", fleet.one)
            fleet.until_ready(served, "a")
            self.expect(fleet, "full", "a")
            self.until_patched(fleet, "a")


if __name__ == "__main__":
    unittest.main()

"""Only what changes travels to sidecars that copy: real processes, every byte verified, and everything where a base is missing."""
import re
import signal
import sys
import unittest

from fleet import DEADLINE_S, short
from patching import PatchFleet

WSYNC = sys.argv.pop()
BY_TCP = ("--set", "transport=tcp")


class Changes(unittest.TestCase):
    def copies(self, fleet):
        """How the last version came to each sidecar, as the sidecars say themselves."""
        said = {}
        for name in ("s0", "s1"):
            code, answer = fleet.ask("status", address=f"ipc://{fleet.run_dir}/{name}.control")
            self.assertEqual(code, 0, answer)
            said[name] = answer["result"]["sidecars"][0]["last_copy"]
        return said

    def came(self, fleet, version, bases):
        """Every sidecar has this version: by changes from the base of its name, or in full (None)."""
        copies = self.copies(fleet)
        for name, base in bases.items():
            copy = copies[name]
            self.assertEqual((copy["version"], copy["base"]), (version, base or "0.0"), copies)
            if base is None:
                self.assertGreaterEqual(copy["travelled_bytes"], copy["bytes"] * 0.99, copies)
            else:
                self.assertLess(copy["travelled_bytes"], copy["bytes"] / 20, copies)
            # Engines are switched by what has come, unless that is switched off.
            kind = "patch" if base and self.patches else "full"
            self.assertEqual(fleet.load_of(f"r{name}", name)["kind"], kind)
        code, answer = fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        self.assertEqual({rank["version"] for rank in answer["result"]["ranks"]}, {version}, answer)

    def serving(self, fleet, *settings, of_trainer=("min_sidecars=2",)):
        """Two sidecars, of which the second reads from the first, with an engine each, that serve 1.1."""
        self.patches = "patch.mode=off" not in settings
        self.sidecars = {}
        self.engines = {}
        for name in ("s0", "s1"):
            self.sidecars[name], self.engines[name] = fleet.sidecar(name, *BY_TCP, *settings)
            fleet.engine(self.engines[name], f"r{name}", fleet.one)
        trainer = fleet.start("trainer", *(word for setting in of_trainer for word in ("--set", setting)))
        fleet.until(lambda: len(fleet.replicas()) == 2, "both sidecars")
        fleet.pushed(fleet.one)
        self.came(fleet, "1.1", {"s0": None, "s1": None})
        return trainer

    def test_what_changes_and_back(self):
        with PatchFleet(WSYNC) as fleet:
            self.serving(fleet)
            for step, every in ((2, 300), (3, 1000)):
                fleet.pushed(fleet.next(every))
                before = f"1.{step - 1}"
                self.came(fleet, f"1.{step}", {"s0": before, "s1": before})
            text = fleet.said("status")
            self.assertRegex(text, r"1\.3 came as changes from 1\.2 \([0-9.]+ KiB of [0-9.]+ MiB\)")
            told = r"1\.3 came as changes to 2 of 2 sidecars \([0-9.]+ KiB of [0-9.]+ MiB\), and was loaded by a patch in 2 of 2 replicas\n"
            # At once: what is told of a version is told with it.
            self.assertRegex(fleet.said("top", "--once"), told)
            # A rollback loads what is held, and the next version is compared with what is served then.
            code, answer = fleet.ask("rollback")
            self.assertEqual(code, 0, answer)
            fleet.pushed(fleet.next(500))
            served = fleet.replicas()["rs0"]["version"]
            self.assertEqual({c["version"] for c in self.copies(fleet).values()}, {served})
            # Everything has changed.
            fleet.pushed(fleet.checkpoint("other", 9))
            served = fleet.replicas()["rs0"]["version"]
            self.came(fleet, served, {"s0": None, "s1": None})

    def test_one_that_stood_still_gets_what_changes(self):
        """It misses two versions. The one that it holds is in nobody's memory any more when it goes on."""
        for name, other in (("s1", "s0"), ("s0", "s1")):
            with self.subTest(name), PatchFleet(WSYNC) as fleet:
                self.serving(fleet, of_trainer=[f"heartbeat.deadline={short(1000)}"])
                stopped = self.sidecars[name]
                fleet.halt(stopped.pid)
                for _ in range(2):
                    fleet.pushed(fleet.next(300))
                self.assertEqual(fleet.replicas()[f"r{other}"]["version"], "1.3")
                stopped.send_signal(signal.SIGCONT)
                fleet.until_ready("1.3", "rs0", "rs1")
                self.came(fleet, "1.3", {name: "1.1", other: "1.2"})
                with open(stopped.log_path, encoding="utf-8") as log:
                    self.assertRegex(log.read(), r"version 1\.3: .* have travelled, because (\d+) of \1 buckets came as changes")

    def test_off(self):
        with PatchFleet(WSYNC) as fleet:
            self.serving(fleet, "--set", "patch.transfer=off")
            fleet.pushed(fleet.next(300))
            self.came(fleet, "1.2", {"s0": None, "s1": None})

    def test_engines_load_everything_if_patches_are_switched_off(self):
        with PatchFleet(WSYNC) as fleet:
            self.serving(fleet, "--set", "patch.mode=off")
            fleet.pushed(fleet.next(300))
            self.came(fleet, "1.2", {"s0": "1.1", "s1": "1.1"})

    def test_a_sidecar_that_begins_again_has_no_base(self):
        with PatchFleet(WSYNC) as fleet:
            self.serving(fleet)
            self.sidecars["s1"].send_signal(signal.SIGKILL)
            self.sidecars["s1"].wait(DEADLINE_S)
            self.sidecars["s1"], _ = fleet.sidecar("s1", *BY_TCP)
            fleet.until_ready("1.1", "rs0", "rs1")
            fleet.pushed(fleet.next(300))
            copies = self.copies(fleet)
            self.assertEqual(copies["s0"]["base"], "1.1")
            fleet.pushed(fleet.next(300))
            self.came(fleet, "1.3", {"s0": "1.2", "s1": "1.2"})

    def test_a_trainer_that_begins_again_has_no_base(self):
        with PatchFleet(WSYNC) as fleet:
            trainer = self.serving(fleet)
            trainer.send_signal(signal.SIGKILL)
            trainer.wait(DEADLINE_S)
            fleet.start("trainer", "--set", "min_sidecars=2")
            fleet.pushed(fleet.next(300))
            version = fleet.replicas()["rs0"]["version"]
            # The second sidecar reads from the first one, which holds the base.
            copies = self.copies(fleet)
            self.assertEqual(sorted(copy["base"] for copy in copies.values()), ["0.0", "1.1"], copies)
            fleet.pushed(fleet.next(300))
            newest = fleet.replicas()["rs0"]["version"]
            self.came(fleet, newest, {"s0": version, "s1": version})

    def test_a_sidecar_that_is_killed_while_changes_arrive(self):
        with PatchFleet(WSYNC) as fleet:
            self.serving(fleet)
            push = fleet.start("push", fleet.next(300), "--json", "--coordinator", fleet.address)
            self.sidecars["s0"].send_signal(signal.SIGKILL)
            self.sidecars["s0"].wait(DEADLINE_S)
            self.sidecars["s0"], _ = fleet.sidecar("s0", *BY_TCP)
            push.wait(DEADLINE_S)
            fleet.pushed(fleet.next(300))
            newest = fleet.replicas()["rs1"]["version"]
            fleet.until_ready(newest, "rs0", "rs1")
            code, answer = fleet.ask("verify")
            self.assertEqual(code, 0, answer)


if __name__ == "__main__":
    unittest.main()

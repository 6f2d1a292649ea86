"""Sidecars and replicas that are gone: forgotten after `forget_after` and by `wsync forget`, and back as new ones."""
import os
import re
import sys
import unittest

from fleet import short
from kill_fleet import KillCase
from pages import get
from record import newest_record

KillCase.wsync = sys.argv.pop()


class ForgetCase(KillCase):
    def known(self, fleet):
        """The sidecars that the coordinator shows, and whether each is connected."""
        code, answer = fleet.ask("status")
        return {s["name"]: s["connected"] for s in answer["result"]["sidecars"]} if code == 0 else None

    def recorded(self, fleet, name):
        """Whether the record of the coordinator names the sidecar."""
        return name.encode() in newest_record(os.path.join(fleet.environment["WSYNC_STATE_DIR"], "default", "coordinator.decisions"))

    def until_forgotten(self, fleet, name):
        fleet.until(lambda: name not in (self.known(fleet) or {name: True}), f"a status without {name}")
        fleet.until(lambda: not self.recorded(fleet, name), f"a record without {name}")

    def until_gone(self, fleet, name):
        fleet.until(lambda: (self.known(fleet) or {}).get(name) is False, f"the loss of {name}")

    def end_whole(self, *processes):
        """As leaves_nothing(), without the files of a killed sidecar that nobody replaces."""
        for process in processes:
            code, last = process.end()
            self.assertEqual(code, 0, (process.label, last))
            self.assertEqual(last.get("result", {}).get("torn", 0), 0)

    def log_of(self, process):
        with open(process.log_path, encoding="utf-8") as log:
            return log.read()


class Forgotten(ForgetCase):
    def test_a_killed_sidecar_is_forgotten_and_returns_as_a_new_one(self):
        with self.fleet() as fleet:
            left, right = fleet.sidecar("left"), fleet.sidecar("right")
            a, b = fleet.engine("left", "a", self.one), fleet.engine("right", "b", self.one)
            settings = ("--set", f"forget_after={short(500)}")
            trainer = fleet.trainer(*settings)
            fleet.until_joined("left", "right")
            first = self.published(fleet, self.one)
            fleet.until_ready(first, "a", "b")
            self.assertTrue(self.recorded(fleet, "right"))
            right.kill()
            self.until_forgotten(fleet, "right")
            self.assertEqual(set(fleet.replicas()), {"a"})
            self.assertIn("sidecar right is forgotten: ", self.log_of(trainer))
            self.serves(b, first)  # its engines go on
            second = self.published(fleet, self.two)
            fleet.until_ready(second, "a")
            # It comes back with its own record, which names the first version, and is brought to the second.
            right = fleet.sidecar("right")
            fleet.until_ready(second, "a", "b")
            self.verified(fleet, second, 2)
            fleet.until(lambda: self.recorded(fleet, "right"), "a record with it")
            fleet.until_ready(self.published(fleet, self.one), "a", "b")
            code, answer = fleet.ask("rollback")
            self.assertEqual((code, answer["result"]["to"]), (0, second), answer)
            fleet.until_ready(second, "a", "b")
            # It knows which version was withdrawn, so it may be forgotten again. The next coordinator waits for those of its
            # record only, and would wait for an hour.
            right.kill()
            self.until_forgotten(fleet, "right")
            trainer.kill()
            trainer = fleet.trainer("--set", "deadlines.gather=1h", *settings)
            fleet.until_joined("left")
            self.assertRegex(self.log_of(trainer), r"for sidecars left\n")
            self.assertEqual(self.known(fleet), {"left": True})
            self.assertTrue(self.published(fleet, self.two))
            self.end_whole(a, b, left, trainer)

    def test_a_sidecar_that_never_comes_to_a_new_coordinator(self):
        with self.fleet() as fleet:
            left, right = fleet.sidecar("left"), fleet.sidecar("right")
            a = fleet.engine("left", "a", self.one)
            trainer = fleet.trainer()
            fleet.until_joined("left", "right")
            self.published(fleet, self.one)
            trainer.kill()
            right.kill()
            trainer = fleet.trainer("--set", f"deadlines.gather={short(500)}", "--set", f"forget_after={short(500)}")
            self.assertTrue(self.recorded(fleet, "right"))
            fleet.until(lambda: not self.recorded(fleet, "right"), "a record without it")
            self.assertTrue(self.recorded(fleet, "left"))
            # The record is stored by another thread than the one that writes the line.
            fleet.until(lambda: "sidecar right is forgotten: it has not connected to this process" in self.log_of(trainer),
                        "its line in the log")
            self.end_whole(a, left, trainer)

    def test_the_replica_of_a_killed_engine(self):
        with self.fleet() as fleet:
            sidecar = fleet.sidecar("left", "--set", f"forget_after={short(500)}")
            a, b = (fleet.engine("left", name, self.one) for name in "ab")
            trainer = fleet.trainer()
            first = self.published(fleet, self.one)
            fleet.until_ready(first, "a", "b")
            pages = os.path.join(fleet.run_dir, "left.http")
            shown = lambda: set(re.findall(r'wsync_replica_ready\{replica="(\w+)"\}', get(pages, "/metrics")[1]))
            self.assertEqual(shown(), {"a", "b"})
            b.kill()
            fleet.until(lambda: set(fleet.replicas()) == {"a"}, "a status without it")
            self.assertEqual(shown(), {"a"})
            self.assertIn("replica b is forgotten", self.log_of(sidecar))
            second = self.published(fleet, self.two)
            b = fleet.engine("left", "b", self.one)
            fleet.until_ready(second, "a", "b")
            self.verified(fleet, second, 2)
            self.leaves_nothing(fleet, a, b, sidecar, trainer)


class OnRequest(ForgetCase):
    def refused(self, fleet, name, *reasons, more=(), address=None):
        code, answer = fleet.ask("forget", name, *more, address=address)
        self.assertEqual((code, answer["ok"], answer["result"]["ok"]), (1, False, False), answer)
        for reason in reasons:
            self.assertIn(reason, answer["result"]["reason"])

    def forgotten(self, fleet, name, *more, address=None):
        code, answer = fleet.ask("forget", name, *more, address=address)
        self.assertEqual(code, 0, answer)
        sidecar, _, replica = name.partition("/")
        self.assertEqual(answer["result"], {"ok": True, "reason": "", "sidecar": sidecar, "replica": replica})

    def test_names_that_are_unknown_or_connected(self):
        with self.fleet() as fleet:
            left = fleet.sidecar("left", "--set", "forget_after=0")
            a, b, c = (fleet.engine("left", name, self.one) for name in "abc")
            code, answer = fleet.ask("forget", "left", "--timeout", "1s")
            self.assertEqual((code, answer["error"]["code"]), (3, "peer_lost"), answer)
            trainer = fleet.trainer("--set", "forget_after=0")
            first = self.published(fleet, self.one)
            fleet.until_ready(first, "a", "b", "c")
            self.refused(fleet, "lfet", "knows no sidecar 'lfet'", "did you mean 'left'?", "it knows left")
            self.refused(fleet, "left", f"is connected (process {left.pid} on ", "stop it first")
            self.refused(fleet, "left", "stop it first", more=["--force"])
            self.refused(fleet, "left/x", "knows no replica 'x'", "it knows a, b, c")
            self.refused(fleet, "left/b", "replica 'b' has 1 of 1 ranks attached: stop its engines first")
            self.refused(fleet, "lfet/b", "knows no sidecar 'lfet'")
            for wrong in ("", "left/", "/b"):
                code, answer = fleet.ask("forget", wrong)
                self.assertEqual((code, answer["error"]["code"]), (2, "invalid_input"), answer)
            for engine, address in ((b, None), (c, f"ipc://{fleet.run_dir}/left.control")):
                engine.kill()
                fleet.until(lambda: fleet.replicas()[engine.label]["ranks_attached"] == 0, "the loss of the engine")
                self.forgotten(fleet, f"left/{engine.label}", address=address)
                fleet.until(lambda: engine.label not in fleet.replicas(), "a status without it")
            self.refused(fleet, "left", "only its coordinator can forget it", address=f"ipc://{fleet.run_dir}/left.control")
            self.refused(fleet, "right/a", "this is sidecar 'left'", address=f"ipc://{fleet.run_dir}/left.control")
            self.verified(fleet, first, 1)
            self.leaves_nothing(fleet, a, left, trainer)

    def test_in_a_round_and_after_a_rollback_that_it_missed(self):
        with self.fleet() as fleet:
            left, right = fleet.sidecar("left"), fleet.sidecar("right")
            a, b = fleet.engine("left", "a", self.one), fleet.engine("right", "b", self.one)
            trainer = fleet.trainer("--set", "bucket_bytes=1MiB", "--set", "forget_after=0")
            fleet.until_joined("left", "right")
            first = self.published(fleet, self.one)
            fleet.until_ready(first, "a", "b")
            a.hold_at("bucket", bucket=0)
            push = fleet.push(self.two)
            a.until_held()
            b.expect("committed")
            right.kill()
            self.until_gone(fleet, "right")
            second = fleet.ask("status")[1]["result"]["target"]
            self.refused(fleet, "right", f"takes part in the update to {second}, which is switching")
            self.refused(fleet, "right/b", "is not connected", "`wsync forget right`")
            a.go_on()
            push.result()  # it may have counted the sidecar that was lost
            fleet.until_ready(second, "a")
            self.forgotten(fleet, "right")
            self.until_forgotten(fleet, "right")
            right = fleet.sidecar("right")
            fleet.until_ready(second, "a", "b")
            # A rollback that it misses: its engine still serves what is withdrawn.
            right.kill()
            self.until_gone(fleet, "right")
            code, answer = fleet.ask("rollback")
            self.assertEqual((code, answer["result"]["partial"]), (1, True), answer)
            self.assertIn("sidecar 'right'", answer["result"]["reason"])
            self.refused(fleet, "right", f"has not acknowledged that {second} was withdrawn", "--force")
            self.assertIn("right", self.known(fleet))
            self.forgotten(fleet, "right", "--force")
            self.until_forgotten(fleet, "right")
            code, answer = fleet.ask("rollback", "--to", first)
            self.assertEqual((code, answer["result"]["ok"]), (0, True), answer)
            self.serves(b, second)
            right = fleet.sidecar("right")
            fleet.until_ready(first, "a", "b")
            self.serves(b, first)
            self.leaves_nothing(fleet, a, b, left, right, trainer)


if __name__ == "__main__":
    unittest.main()

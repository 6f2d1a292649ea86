"""Which decision a fleet goes on from: restarts in any order, lost records, records that cannot be stored, strangers, and one name twice."""
import json
import os
import resource
import signal
import subprocess
import sys
import unittest

import tensors
from disc import limited
from fleet import DEADLINE_S, Fleet
from fleet_case import FleetCase
from schema import validate

WSYNC = sys.argv.pop()


class Case(FleetCase):
    def members(self, fleet, address=None):
        code, answer = fleet.ask("status", address=address)
        return {s["name"]: s for s in answer["result"]["sidecars"]} if code == 0 else {}


class Restarts(Case):
    """1.2 is committed on a alone, while b stands still; the trainer is killed; b comes first to its successor."""

    def restart(self, with_record):
        with Fleet(WSYNC) as fleet:
            one, two = tensors.make(fleet.path("one"), 1), tensors.make(fleet.path("two"), 2)
            (a, a_engines), (b, b_engines) = fleet.sidecar("a"), fleet.sidecar("b")
            engines = [fleet.engine(a_engines, "ra", one), fleet.engine(b_engines, "rb", one)]
            quick = ("--set", "deadlines.gather=2s")
            trainer = fleet.start("trainer", *quick)
            fleet.until(lambda: [m["connected"] for m in self.members(fleet).values()] == [True, True], "both sidecars")
            first = self.push(fleet, one)
            fleet.until_ready(first, "ra", "rb")
            fleet.halt(b.pid)
            fleet.until(lambda: not self.members(fleet)["b"]["connected"], "the loss of b")
            second = self.push(fleet, two)
            fleet.until_ready(second, "ra")
            trainer.kill()
            trainer.wait()
            if not with_record:
                os.unlink(os.path.join(fleet.environment["WSYNC_STATE_DIR"], "default", "coordinator.decisions"))
            fleet.halt(a.pid)
            b.send_signal(signal.SIGCONT)
            fleet.start("trainer", *quick)
            # Only b has come when the claim is over; without a record it is all that is known.
            fleet.until(lambda: self.members(fleet).get("b", {}).get("target") == (second if with_record else first),
                        "a decision with b alone")
            a.send_signal(signal.SIGCONT)
            fleet.until(lambda: {m["target"] for m in self.members(fleet).values()} == {second} and len(self.members(fleet)) == 2,
                        "the newer decision everywhere")
            state = self.sidecar_state(fleet, "a")
            self.assertEqual((state["target"], state["withdrawn"]), (second, []))
            replica, = state["sidecars"][0]["replicas"]
            self.assertEqual((replica["version"], replica["ready"]), (second, True))
            # The engine of a never left it: it has switched twice, and then no more.
            code, said = fleet.stop(engines[0])
            self.assertEqual(code, 0, said)
            last = validate("engine", said.splitlines()[-1])["result"]
            self.assertEqual(last["torn"], 0)
            self.assertEqual(last["version"] if "version" in last else second, second)
            # And the fleet goes on.
            fleet.until_ready(self.push(fleet, one), "rb")
            self.stopped_whole(fleet, engines[1])

    def test_a_committed_version_does_not_go_back(self):
        self.restart(with_record=True)

    def test_nor_without_a_record(self):
        self.restart(with_record=False)


class Obligations(Case):
    def test_a_rollback_that_a_disc_kept_out_is_taken_when_it_can_be_written(self):
        with Fleet(WSYNC) as fleet:
            one, two = tensors.make(fleet.path("one"), 1), tensors.make(fleet.path("two"), 2)
            a, a_engines = fleet.sidecar("a")
            _, b_engines = fleet.sidecar("b")
            engines = [fleet.engine(a_engines, "ra", one), fleet.engine(b_engines, "rb", one)]
            fleet.start("trainer", "--set", "min_sidecars=2")
            first, second = self.push(fleet, one), self.push(fleet, two)
            fleet.until_ready(second, "ra", "rb")
            with limited(a, resource.RLIMIT_FSIZE, 0):
                code, answer = fleet.ask("rollback")
                self.assertEqual((code, answer["result"]["partial"]), (1, True), answer)
                self.assertIn("File too large", answer["result"]["reason"])
                fleet.until_ready(first, "rb")
                # a still serves what was withdrawn: neither side calls that ready.
                for reply in (fleet.replicas()["ra"], self.sidecar_state(fleet, "a")["sidecars"][0]["replicas"][0]):
                    self.assertEqual((reply["version"], reply["ready"]), (second, False), reply)
                    self.assertIn("withdrawn", reply["reason"])
                # Once more by hand: it is no refusal, and says the same.
                code, answer = fleet.ask("rollback", "--to", first)
                self.assertEqual((code, answer["result"]["partial"]), (1, True), answer)
            fleet.until_ready(first, "ra", "rb")  # nobody has asked again
            code, answer = fleet.ask("rollback", "--to", first)
            self.assertEqual((code, answer["result"]["ok"]), (0, True), answer)
            self.stopped_whole(fleet, *engines)

    def test_a_decision_that_the_coordinator_cannot_store_is_told_to_nobody(self):
        with Fleet(WSYNC) as fleet:
            one, two = tensors.make(fleet.path("one"), 1), tensors.make(fleet.path("two"), 2)
            _, engines = fleet.sidecar("a")
            engine = fleet.engine(engines, "ra", one)
            trainer = fleet.start("trainer")
            for checkpoint in one, two, one:  # until it has all its arenas, to which the limit applies as well
                first = self.push(fleet, checkpoint)
            with limited(trainer, resource.RLIMIT_FSIZE, 0):
                code, answer = fleet.ask("push", two)
                self.assertEqual(code, 1, answer)
                for word in ("could not be stored", "coordinator.decisions", "File too large"):
                    self.assertIn(word, answer["result"]["reason"])
                self.assertEqual(self.sidecar_state(fleet, "a")["target"], first)
            fleet.until_ready(self.push(fleet, two), "ra")
            self.assertIsNone(trainer.poll())
            self.stopped_whole(fleet, engine)


class Strangers(Case):
    def test_two_coordinators_with_one_state_directory_never_decide_both(self):
        with Fleet(WSYNC) as fleet:
            one, two = tensors.make(fleet.path("one"), 1), tensors.make(fleet.path("two"), 2)
            addresses = {name: f"ipc://{fleet.path(name)}/control" for name in ("x", "y")}
            engines = [fleet.engine(fleet.sidecar(name, "--set", f"coordinator={address}")[1], f"r{name}", one)
                       for name, address in addresses.items()]
            trainer_of = lambda name, *more: fleet.start("trainer", "--set", f"run_dir={fleet.path(name)}", *more)
            first = trainer_of("x", "--set", "deadlines.gather=2s")
            version = self.push(fleet, one, addresses["x"])
            # A second one is refused while the first lives, whatever its address.
            second = subprocess.run([WSYNC, "trainer", "--set", f"run_dir={fleet.path('y')}"], env=fleet.environment, text=True,
                                    capture_output=True, timeout=DEADLINE_S)
            self.assertEqual((second.returncode, len(second.stderr.splitlines())), (3, 1), second.stderr)
            self.assertIn(f"coordinator.lock is held by process {first.pid}: stop it", second.stderr)
            # One that takes over claims the next epoch. The first cannot decide any more, and says why.
            trainer_of("y", "--take-over", "--set", "deadlines.gather=2s")
            newer = self.push(fleet, two, addresses["y"])
            self.assertNotEqual(newer.split(".")[0], version.split(".")[0])
            code, answer = fleet.ask("push", one, address=addresses["x"])
            self.assertNotEqual(code, 0, answer)
            self.assertIn("another coordinator with the same state has claimed", json.dumps(answer))
            self.assertNotEqual(first.wait(timeout=DEADLINE_S), 0)
            self.assertEqual(self.sidecar_state(fleet, "x")["target"], version)
            self.stopped_whole(fleet, *engines)

    def test_a_sidecar_of_another_fleet_stops_nobody(self):
        with Fleet(WSYNC) as fleet:
            one, two = tensors.make(fleet.path("one"), 1), tensors.make(fleet.path("two"), 2)
            _, engines = fleet.sidecar("a")
            engine = fleet.engine(engines, "ra", one)
            trainer = fleet.start("trainer")
            first = self.push(fleet, one)
            # The other fleet comes to a higher epoch, and decides: from then on its id binds its sidecar.
            other = ("--set", "fleet=other")
            address = f"ipc://{fleet.path('other')}/control"
            stray, stray_engines = fleet.sidecar("stray", *other, "--set", f"coordinator={address}")
            stray_engine = fleet.engine(stray_engines, "rs", one)
            for _ in range(3):
                one_of_it = fleet.start("trainer", "--set", f"run_dir={fleet.path('other')}", *other)
                theirs = self.push(fleet, one, address)
                fleet.stop(one_of_it)
            fleet.stop(stray_engine)
            self.assertEqual(fleet.stop(stray)[0], 0)
            # It comes to the wrong address.
            fleet.sidecar("stray", *other)
            incidents = lambda: [i["text"] for i in fleet.ask("status")[1]["result"]["incidents"]]
            fleet.until(lambda: any("'stray' cannot join: it belongs to fleet" in text for text in incidents()), "the refusal")
            fleet.until_ready(self.push(fleet, two), "ra")
            self.assertIsNone(trainer.poll())
            self.assertEqual(set(self.members(fleet)), {"a"})
            state = self.sidecar_state(fleet, "stray")
            self.assertEqual((state["fence_epoch"], state["target"]), (3, theirs))
            self.assertNotEqual(state["fleet_id"], fleet.ask("status")[1]["result"]["fleet_id"])
            self.assertNotEqual(first, "0.0")
            self.stopped_whole(fleet, engine)

    def test_a_sidecar_that_stops_without_engines_is_waited_for_no_more(self):
        with Fleet(WSYNC) as fleet:
            one, two = tensors.make(fleet.path("one"), 1), tensors.make(fleet.path("two"), 2)
            (_, a_engines), (b, b_engines), (idle, _) = fleet.sidecar("a"), fleet.sidecar("b"), fleet.sidecar("idle")
            engines = [fleet.engine(a_engines, "ra", one), fleet.engine(b_engines, "rb", one)]
            trainer = fleet.start("trainer")
            fleet.until(lambda: set(self.members(fleet)) == {"a", "b", "idle"}, "three sidecars")
            first, second = self.push(fleet, one), self.push(fleet, two)
            fleet.until_ready(second, "ra", "rb")
            # Its last engine is gone when it stops: nobody is owed anything by way of it.
            self.assertEqual(fleet.stop(idle)[0], 0)
            fleet.until(lambda: set(self.members(fleet)) == {"a", "b"}, "the goodbye of the one without engines")
            # The other one's engine serves on, so it is still owed each decision.
            self.assertEqual(fleet.stop(b)[0], 0)
            fleet.until(lambda: not self.members(fleet)["b"]["connected"], "the loss of b")
            code, answer = fleet.ask("rollback")
            self.assertEqual(code, 1, answer)
            self.assertIn("sidecar 'b'", json.dumps(answer))
            self.assertNotIn("idle", json.dumps(answer))
            trainer.kill()
            trainer.wait()
            successor = fleet.start("trainer")

            def said():
                with open(successor.log_path, encoding="utf-8") as log:
                    return log.read()
            fleet.until(lambda: "(deadlines.gather)" in said(), "the names that are waited for")
            self.assertRegex(said(), r"for sidecars (a, b|b, a)\n")
            fleet.sidecar("b")
            fleet.until(lambda: {m["target"] for m in self.members(fleet).values()} == {first}, "the rollback everywhere")
            self.stopped_whole(fleet, *engines)

    def test_a_second_sidecar_of_one_name_waits_until_the_first_has_gone(self):
        with Fleet(WSYNC) as fleet:
            one = tensors.make(fleet.path("one"), 1)
            first, engines = fleet.sidecar("a")
            engine = fleet.engine(engines, "ra", one)
            fleet.start("trainer")
            version = self.push(fleet, one)
            own = ("--set", f"run_dir={fleet.path('second')}", "--set", f"state_dir={fleet.path('second-state')}",
                   "--set", f"coordinator={fleet.address}")
            second = fleet.start("sidecar", "--set", "name=a", *own)
            address = f"ipc://{fleet.path('second')}/a.control"
            fleet.until(lambda: fleet.ask("status", address=address)[0] == 0, "the second one")
            incidents = lambda: [i["text"] for i in fleet.ask("status")[1]["result"]["incidents"]]
            fleet.until(lambda: any(f"process {second.pid} on" in text and "is refused" in text for text in incidents()), "the refusal")
            for _ in range(3):
                member = self.members(fleet)["a"]
                self.assertEqual((member["pid"], member["connected"]), (first.pid, True))
                self.assertFalse(fleet.ask("status", address=address)[1]["result"]["sidecars"][0]["connected"])
            fleet.until_ready(self.push(fleet, one), "ra")
            first.kill()
            first.wait()
            fleet.until(lambda: self.members(fleet)["a"]["pid"] == second.pid, "the second one in the place of the first")
            self.assertNotEqual(version, "0.0")
            fleet.stop(engine)


if __name__ == "__main__":
    unittest.main()

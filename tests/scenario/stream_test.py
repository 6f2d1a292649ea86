"""Versions whose bytes reach sidecars that copy while the trainer still takes the snapshot: real processes. The trainer's last
tensors are behind a gate, so that the snapshot is complete when the test says so."""
import json
import os
import signal
import sys
import unittest

from fleet import short
from plugin_fleet import COMMITTED, DEADLINE_MS, PluginFleet

TRAINER_RANK = sys.argv.pop()
WSYNC = sys.argv.pop()

GATE = "lm_head.weight"  # the last one in the order of the buckets
BY_TCP = ("--set", "transport=tcp")
DEADLINE, CANCELLED = 5, 10


class StreamFleet(PluginFleet):
    def __init__(self):
        super().__init__(WSYNC, TRAINER_RANK)
        self.sidecars = {}  # their processes

    def gated_trainer(self, model, *settings):
        # What changes would be found before anything is sent.
        return self.trainer(model, f"fault:gate:{GATE}", "bucket_bytes=1MiB", "snapshot_threads=1", "patch.in_place=off", *settings)

    def open_gate(self, model, how="go"):
        with open(f"{model}.{how}", "w", encoding="utf-8"):
            pass

    def close_gate(self, model):
        for how in ("go", "fail"):
            if os.path.exists(f"{model}.{how}"):
                os.remove(f"{model}.{how}")

    def status(self, address=None):
        return self.ask("status", address=address)[1]["result"]

    def staged_bytes(self, name):
        return {s["name"]: s["staged_bytes"] for s in self.status()["sidecars"]}[name]


class Stream(unittest.TestCase):
    def serving(self, fleet, sidecars, model, *settings):
        """Sidecars with an engine each, whose names begin as theirs, that serve the first version of a trainer."""
        for name, *more in sidecars:
            fleet.sidecars[name], engines = fleet.sidecar(name, *more)
            fleet.engine(engines, f"r{name}", model)
        trainer = fleet.gated_trainer(model, f"min_sidecars={len(sidecars)}", *settings)
        fleet.open_gate(model)
        self.assertEqual(fleet.publish(trainer, 1)["state"], COMMITTED)
        fleet.until_ready("1.1", *(f"r{name}" for name, *_ in sidecars))
        fleet.close_gate(model)
        return trainer

    def half_way(self, fleet, trainer, step, *receivers):
        """Publishes a step, until these sidecars have a part of it and its snapshot waits at the gate."""
        fleet.tell(trainer, "change", step)
        fleet.tell(trainer, "publish", step)
        fleet.event(trainer, "gated")
        for name in receivers:
            fleet.until(lambda: fleet.staged_bytes(name) > 0, f"a bucket in {name} while the snapshot is taken")

    def serve(self, fleet, version):
        for replica in fleet.replicas().values():
            self.assertEqual((replica["ready"], replica["version"]), (True, version), replica)

    def verified(self, fleet, version):
        code, answer = fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        self.assertEqual({rank["version"] for rank in answer["result"]["ranks"]}, {version}, answer)

    def test_buckets_arrive_before_the_snapshot_is_complete(self):
        """s1 and s2 copy, and s2 reads from s1; s0 maps the arena of the trainer."""
        with StreamFleet() as fleet:
            model = fleet.checkpoint("one", 1)
            trainer = self.serving(fleet, [("s0",), ("s1", *BY_TCP), ("s2", *BY_TCP)], model)
            self.half_way(fleet, trainer, 2, "s1", "s2")
            status = fleet.status()
            self.assertEqual(status["activity"], "staging 1.2, whose snapshot is under way")
            self.assertEqual(status["update"]["phase"], "stage")
            self.assertEqual(fleet.staged_bytes("s0"), 0, "the arena that it would map is being written")
            sidecar = fleet.status(f"ipc://{fleet.run_dir}/s1.control")
            self.assertEqual(sidecar["activity"], "staging 1.2, whose snapshot is under way")
            self.serve(fleet, "1.1")
            fleet.open_gate(model)
            self.assertEqual(fleet.event(trainer, "published")["code"], 0)
            fleet.tell(trainer, "wait", COMMITTED, DEADLINE_MS)
            waited = fleet.event(trainer, "waited")
            self.assertEqual((waited["state"], waited["version"], waited["replicas"]), (COMMITTED, "1.2", 3), waited)
            fleet.until_ready("1.2", "rs0", "rs1", "rs2")
            self.verified(fleet, "1.2")
            self.overlaps(fleet, "1.2")

    def overlaps(self, fleet, version):
        """In the trace, a bucket has been received before the snapshot ends."""
        path = fleet.path("trace.json")
        code, answer = fleet.ask("trace", "get", "--output", path)
        self.assertEqual(code, 0, answer)
        with open(path, encoding="utf-8") as file:
            spans = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X"]
        snapshot = [e for e in spans if e["name"] == f"snapshot of {version}"]
        self.assertEqual(len(snapshot), 1)
        received = [e for e in spans if e["args"].get("stage") == "receive" and e["args"].get("version") == version]
        end = snapshot[0]["ts"] + snapshot[0]["dur"]
        self.assertTrue([e for e in received if e["ts"] + e["dur"] < end], "no bucket was received before")

    def test_a_trainer_that_is_killed_in_the_middle(self):
        """The sidecar has room for no third version: what has arrived is given back."""
        with StreamFleet() as fleet:
            model = fleet.checkpoint("one", 1)
            trainer = self.serving(fleet, [("s1", *BY_TCP, "--set", "host_memory=40MiB")], model)
            for step in (2, 3):
                self.half_way(fleet, trainer, step, "s1")
                trainer.send_signal(signal.SIGKILL)
                trainer.wait()
                trainer = fleet.gated_trainer(model)
                fleet.until(lambda: fleet.status()["activity"] == "idle", "a coordinator that is ready")
                self.serve(fleet, "1.1")
            fleet.open_gate(model)
            waited = fleet.publish(trainer, 4)
            self.assertEqual(waited["state"], COMMITTED, waited)
            fleet.until_ready(waited["version"], "rs1")
            self.verified(fleet, waited["version"])

    def test_a_source_that_fails_in_the_middle(self):
        """Its step may be published again, with other bytes: they were never known under that name."""
        with StreamFleet() as fleet:
            model = fleet.checkpoint("one", 1)
            trainer = self.serving(fleet, [("s0",), ("s1", *BY_TCP, "--set", "host_memory=40MiB")], model)
            self.half_way(fleet, trainer, 2, "s1")
            fleet.open_gate(model, "fail")
            fleet.tell(trainer, "wait", COMMITTED, DEADLINE_MS)
            published = fleet.event(trainer, "published")
            self.assertNotEqual(published["code"], 0)
            self.assertIn(GATE, published["error"])
            fleet.until(lambda: fleet.status()["activity"] == "idle", "the end of the round")
            self.assertIn(GATE, fleet.status()["last_update"]["reason"])
            self.serve(fleet, "1.1")
            fleet.close_gate(model)
            fleet.open_gate(model)
            fleet.tell(trainer, "change", 7)
            waited = fleet.publish(trainer, 2)
            self.assertEqual((waited["state"], waited["version"]), (COMMITTED, "1.2"), waited)
            fleet.until_ready("1.2", "rs0", "rs1")
            self.verified(fleet, "1.2")

    def test_a_publish_that_is_cancelled_in_the_middle(self):
        with StreamFleet() as fleet:
            model = fleet.checkpoint("one", 1)
            trainer = self.serving(fleet, [("s0",), ("s1", *BY_TCP, "--set", "host_memory=40MiB")], model)
            self.half_way(fleet, trainer, 2, "s1")
            code, answer = fleet.ask("cancel")
            self.assertEqual(code, 0, answer)
            self.assertEqual(answer["result"], {"ok": True, "reason": "", "version": "1.2", "phase": "stage"})
            fleet.until(lambda: fleet.status(f"ipc://{fleet.run_dir}/s1.control")["activity"] == "idle", "a sidecar that has dropped it")
            self.serve(fleet, "1.1")
            fleet.open_gate(model)
            self.assertEqual(fleet.event(trainer, "published")["code"], CANCELLED)
            waited = fleet.publish(trainer, 3)
            self.assertEqual((waited["state"], waited["version"]), (COMMITTED, "1.3"), waited)
            fleet.until_ready("1.3", "rs0", "rs1")
            self.verified(fleet, "1.3")


    def test_a_snapshot_that_is_not_complete_at_the_deadline(self):
        with StreamFleet() as fleet:
            model = fleet.checkpoint("one", 1)
            trainer = self.serving(fleet, [("s0",), ("s1", *BY_TCP, "--set", "host_memory=40MiB")], model,
                                   f"deadlines.publish={short(5000)}")
            self.half_way(fleet, trainer, 2, "s1")
            fleet.until(lambda: fleet.status()["activity"] == "idle", "the end of the round")
            self.serve(fleet, "1.1")
            fleet.open_gate(model)
            published = fleet.event(trainer, "published")
            self.assertEqual(published["code"], DEADLINE, published)
            waited = fleet.publish(trainer, 3)
            self.assertEqual((waited["state"], waited["version"]), (COMMITTED, "1.3"), waited)
            fleet.until_ready("1.3", "rs0", "rs1")
            self.verified(fleet, "1.3")

    def test_a_relay_that_is_killed_in_the_middle(self):
        """s2 reads the rest from the trainer, which is still taking the snapshot."""
        with StreamFleet() as fleet:
            model = fleet.checkpoint("one", 1)
            trainer = self.serving(fleet, [("s1", *BY_TCP), ("s2", *BY_TCP)], model)
            self.half_way(fleet, trainer, 2, "s1", "s2")
            fleet.sidecars["s1"].kill()
            fleet.until(lambda: not {s["name"]: s for s in fleet.status()["sidecars"]}["s1"]["connected"], "the loss of s1")
            fleet.open_gate(model)
            published = fleet.event(trainer, "published")
            self.assertEqual(published["code"], 0, published)
            fleet.tell(trainer, "wait", COMMITTED, DEADLINE_MS)
            waited = fleet.event(trainer, "waited")
            self.assertEqual((waited["state"], waited["version"], waited["replicas"]), (COMMITTED, "1.2", 1), waited)
            fleet.until_ready("1.2", "rs2")

    def test_a_copy_that_begins_during_another_round_streams_after_it(self):
        with StreamFleet() as fleet:
            model = fleet.checkpoint("one", 1)
            trainer = self.serving(fleet, [("s0",), ("s1", *BY_TCP)], model)
            engine = next(p for p in fleet.processes if "rs1" in p.args)
            fleet.halt(engine.pid)  # so that 1.2 cannot end
            fleet.tell(trainer, "change", 2)
            fleet.tell(trainer, "publish", 2)
            fleet.event(trainer, "gated")
            fleet.open_gate(model)
            self.assertEqual(fleet.event(trainer, "published")["code"], 0)
            fleet.until(lambda: fleet.status()["activity"].startswith("switching"), "the switch to 1.2")
            fleet.close_gate(model)
            fleet.tell(trainer, "change", 3)
            fleet.tell(trainer, "publish", 3)
            fleet.event(trainer, "gated")
            self.assertEqual(fleet.status()["update"]["version"], "1.2")
            os.kill(engine.pid, signal.SIGCONT)
            fleet.until(lambda: fleet.status()["activity"] == "staging 1.3, whose snapshot is under way", "the round of 1.3")
            fleet.until(lambda: fleet.staged_bytes("s1") > 0, "the buckets that were complete before it")
            fleet.open_gate(model)
            self.assertEqual(fleet.event(trainer, "published")["code"], 0)
            fleet.tell(trainer, "wait", COMMITTED, DEADLINE_MS)
            waited = fleet.event(trainer, "waited")
            self.assertEqual((waited["state"], waited["version"], waited["replicas"]), (COMMITTED, "1.3", 2), waited)
            fleet.until_ready("1.3", "rs0", "rs1")
            self.verified(fleet, "1.3")

    def test_a_first_version_that_is_copied_before_any_sidecar_comes(self):
        with StreamFleet() as fleet:
            model = fleet.checkpoint("one", 1)
            trainer = fleet.gated_trainer(model)
            fleet.tell(trainer, "publish", 1)
            fleet.event(trainer, "gated")
            _, engines = fleet.sidecar("s1", *BY_TCP)
            fleet.engine(engines, "rs1", model)
            fleet.until(lambda: fleet.staged_bytes("s1") > 0, "a bucket while the snapshot is taken")
            fleet.open_gate(model)
            self.assertEqual(fleet.event(trainer, "published")["code"], 0)
            fleet.tell(trainer, "wait", COMMITTED, DEADLINE_MS)
            waited = fleet.event(trainer, "waited")
            self.assertEqual((waited["state"], waited["version"], waited["replicas"]), (COMMITTED, "1.1", 1), waited)
            fleet.until_ready("1.1", "rs1")
            self.verified(fleet, "1.1")


if __name__ == "__main__":
    unittest.main()

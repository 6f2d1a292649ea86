"""Training runs that publish each step to sidecars and engines: what is served is what was trained, and training goes on
whatever becomes of the fleet."""
import json
import os
import signal
import sys
import unittest

from fleet import DEADLINE_S, short
from publishing import PublishCase, PublishingFleet
from training import TINY

WSYNC = sys.argv.pop()

ENDLESS = {"steps": 1_000_000}
IMPATIENT = {"deadline": short(2000)}  # half of it is what training waits for a fleet


class Publish(PublishCase):
    def every_step(self, more):
        steps = 30
        with PublishingFleet(WSYNC) as fleet:
            values = TINY | {"steps": steps} | more
            engines = fleet.with_engines(values, "a", "b")
            saved = fleet.path("saved")
            result = self.ended(fleet.publishing(values | {"save.directory": saved}))
            publishes = result["publishes"]
            every = more.get("publish.every", 1)
            self.assertEqual([publish["step"] for publish in publishes], list(range(every, steps + 1, every)))
            for publish in publishes:
                self.assertIn(publish["state"], ("committed", "superseded"), publish)
                if publish["state"] == "committed":
                    self.assertEqual(publish["replicas"], 2, publish)
            last = publishes[-1]
            self.assertEqual((last["state"], last["step"]), ("committed", steps))
            self.assertEqual(result["publishing"]["published"], len(publishes))
            self.assertEqual(result["publishing"]["committed"],
                             sum(publish["state"] == "committed" for publish in publishes))
            self.is_what_was_trained(fleet, last, values, f"{saved}/step_{steps}")
            fleet.ends_untorn(*engines)

    def test_two_ranks(self):
        self.every_step({})

    def test_four_ranks_with_shared_experts(self):
        self.every_step({"parallel.dp": 2, "parallel.ep": 2, "schedule.overlap": True, "schedule.offload": True})

    def test_replicas_that_publish_nothing(self):
        self.every_step({"parallel.dp": 2, "model.tied_embeddings": True, "publish.every": 3})

    def test_nothing_changes_for_training(self):
        with PublishingFleet(WSYNC) as fleet:
            values = TINY | {"steps": 10}
            engines = fleet.with_engines(values, "a")
            published = self.ended(fleet.publishing(values))
            alone = fleet.trained(values)
            self.assertEqual([step["loss"] for step in published["steps"]], [step["loss"] for step in alone["steps"]])
            fleet.ends_untorn(*engines)

    def test_to_a_coordinator_that_is_killed_in_the_middle(self):
        with PublishingFleet(WSYNC) as fleet:
            values = TINY | {"steps": 80, "publish.coordinator": fleet.address, "publish.run_dir": fleet.path("trainer")}
            coordinator = fleet.start("coordinator")
            engines = fleet.with_engines(values, "a", "b")
            run = fleet.publishing(values | {"save.directory": fleet.path("saved")})
            fleet.until(lambda: fleet.replicas().get("a", {}).get("version") not in (None, "0.0"), "the first version")
            coordinator.kill()
            coordinator.wait()
            coordinator = fleet.start("coordinator")
            result = self.ended(run)
            last = result["publishes"][-1]
            self.assertEqual((last["state"], last["step"], last["replicas"]), ("committed", 80, 2), result["publishing"])
            epochs = {publish["version"].split(".")[0] for publish in result["publishes"] if publish["state"] == "committed"}
            self.assertEqual(epochs, {"1", "2"}, "it was not killed in the middle")
            fleet.until_ready(last["version"], "a", "b")
            fleet.ends_untorn(*engines)
            coordinator.terminate()
            self.assertEqual(coordinator.wait(DEADLINE_S), 0)

    def test_the_newest_version_is_in_a_folder_at_the_end(self):
        with PublishingFleet(WSYNC) as fleet:
            values = TINY | {"steps": 10}
            fleet.with_engines(values, "a")
            folder = fleet.path("published")
            last = self.ended(fleet.publishing(values | {"publish.directory.publish": folder}))["publishes"][-1]
            with open(f"{folder}/latest", encoding="utf-8") as file:
                name = file.read()
            self.assertEqual(name, f"weight_v{last['step']:06d}")
            with open(f"{folder}/{name}/model.safetensors", "rb") as file:
                stated = json.loads(file.read(int.from_bytes(file.read(8), "little")))["__metadata__"]
            self.assertEqual((stated["wsync.version"], stated["wsync.digest"]), (last["version"], last["content_digest"]))

    def test_an_engine_killed(self):
        with PublishingFleet(WSYNC) as fleet:
            saved = fleet.path("saved")
            values = TINY | ENDLESS
            a, b = fleet.with_engines(values, "a", "b")
            run = fleet.publishing(values | {"save.directory": saved})
            fleet.event(b, "committed")
            fleet.event(b, "committed")
            b.kill()
            b.wait()
            fleet.until(lambda: fleet.replicas().get("b", {}).get("state") == "absent", "the loss of b")
            step = run.last_step()
            run.until_step(step + 20)
            run.send(signal.SIGINT)
            result = self.ended(run, 130)
            last = result["publishes"][-1]
            self.assertEqual((last["state"], last["replicas"]), ("committed", 1), last)
            self.assertEqual(last["step"], result["saved"][-1]["step"])
            self.is_what_was_trained(fleet, last, values, result["saved"][-1]["directory"])
            fleet.ends_untorn(a)

    def test_the_sidecar_killed_and_started_again(self):
        with PublishingFleet(WSYNC) as fleet:
            values = TINY | ENDLESS | IMPATIENT
            sidecar, socket = fleet.sidecar("s0")
            first = fleet.path("first")
            fleet.trained(values, "--export", first)
            engine = fleet.engine(socket, "a", first)
            run = fleet.publishing(values)
            fleet.event(engine, "committed")
            sidecar.kill()
            sidecar.wait()
            run.until(lambda: "is not served" in run.log(), "a step that is not served")
            step = run.last_step()
            run.until_step(step + 5)
            os.unlink(socket)
            fleet.sidecar("s0")
            told = len(run.log())
            run.until(lambda: "is served as" in run.log()[told:], "a step that is served again")
            run.send(signal.SIGINT)
            result = self.ended(run, 130)
            self.assertEqual(result["publishes"][-1]["state"], "committed", result["publishes"][-1])
            fleet.ends_untorn(engine)


class NoFleet(unittest.TestCase):
    def test_training_goes_on(self):
        with PublishingFleet(WSYNC) as fleet:
            for more in ({}, {"parallel.dp": 2, "parallel.ep": 2}, {"publish.min_sidecars": 0}):
                with self.subTest(more):
                    run = fleet.publishing(TINY | IMPATIENT | {"steps": 6, "trace_file": fleet.path("trace")} | more)
                    code, answer, log = run.result()
                    self.assertEqual(code, 0, log)
                    result = answer["result"]
                    self.assertEqual([publish["state"] for publish in result["publishes"]], ["failed"] * 6)
                    for publish in result["publishes"]:
                        self.assertIn(f"0 of at least 1 sidecars have joined {fleet.address}", publish["reason"])
                    self.assertEqual(len(result["steps"]), 6)
                    # Once; what comes later is not waited for.
                    self.assertEqual(sum(step["snapshot_wait_seconds"] > 1 for step in result["steps"]), 1)
                    with open(fleet.path("trace.json"), encoding="utf-8") as file:
                        json.load(file)
            fleet.until_none_is_left()

    def test_an_interrupt_ends_the_wait_for_it(self):
        with PublishingFleet(WSYNC) as fleet:
            run = fleet.publishing(TINY | {"steps": 6, "save.directory": fleet.path("saved")})
            run.until(lambda: "training waits for the fleet to begin with step 1" in run.log(), "what the run waits for")
            run.send(signal.SIGINT)
            code, answer, log = run.result()
            self.assertEqual(code, 130, log)
            self.assertEqual(os.listdir(fleet.path("saved")), ["step_2"])
            self.assertEqual([publish["state"] for publish in answer["result"]["publishes"]], ["failed"] * 2)

    def test_one_that_comes_late_is_served(self):
        with PublishingFleet(WSYNC) as fleet:
            values = TINY | ENDLESS | IMPATIENT
            run = fleet.publishing(values)
            run.until_step(5)
            engine, = fleet.with_engines(values, "a")
            fleet.event(engine, "committed")
            run.until(lambda: "is served as" in run.log(), "a step that is served")
            run.send(signal.SIGINT)
            code, answer, log = run.result()
            self.assertEqual(code, 130, log)
            self.assertEqual(answer["result"]["publishes"][0]["state"], "failed")
            self.assertEqual(answer["result"]["publishes"][-1]["state"], "committed")
            fleet.ends_untorn(engine)

    def test_an_engine_that_stands_still_holds_up_neither_steps_nor_the_end(self):
        steps = 60
        with PublishingFleet(WSYNC) as fleet:
            values = TINY | IMPATIENT | {"steps": steps, "publish.deadlines.pause": "1h", "publish.deadlines.load": "1h"}
            engine, = fleet.with_engines(values, "a")
            run = fleet.publishing(values)
            fleet.event(engine, "committed")
            fleet.halt(engine.pid)
            try:
                run.until_step(steps)
                run.until(lambda: "waiting for the fleet to serve step" in run.log(), "what the run waits for")
                run.send(signal.SIGINT)
                code, answer, log = run.result()
            finally:
                engine.send_signal(signal.SIGCONT)
            self.assertEqual(code, 0, log)
            self.assertFalse(answer["result"]["stopped"])
            self.assertEqual(len(answer["result"]["steps"]), steps)
            last = answer["result"]["publishes"][-1]
            self.assertEqual(last["state"], "failed")
            fleet.ends_untorn(engine)


if __name__ == "__main__":
    unittest.main()

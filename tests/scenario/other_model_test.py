"""A fleet changes its model: engines of another model attach when no engine serves the old one any more, wait for a version that
fits them, and are never given another. What is refused, and why, is said where a publish waits."""
import os
import signal
import subprocess
import sys
import unittest

from fleet import DEADLINE_S
from plugin_fleet import COMMITTED, PluginFleet

WSYNC, TRAINER_RANK = sys.argv[-2:]
WAIT_MS = round(1000 * DEADLINE_S)
MISFIT = "does not fit the model that is served: "


class ModelFleet(PluginFleet):
    def __init__(self, around=()):
        """`around`: a command that runs the sidecar."""
        super().__init__(WSYNC, TRAINER_RANK)
        self.old = self.checkpoint("old", 1)
        self.new = self.checkpoint("new", 2, size="8MiB")
        if not around:
            self.sidecar_process, self.engines = self.sidecar("s0")
            return
        self.sidecar_process = self.program(None, *around, WSYNC, "sidecar", "--set", "name=s0")
        self.engines = os.path.join(self.run_dir, "s0.engines")
        self.until(lambda: os.path.exists(self.engines), "the socket of the sidecar")

    def known(self):
        """The replicas as the sidecar knows them, without a coordinator."""
        code, answer = self.ask("status", address=f"ipc://{self.run_dir}/s0.control")
        assert code == 0, answer
        return {r["replica"]: r for s in answer["result"]["sidecars"] for r in s["replicas"]}

    def reason(self, replica):
        return self.known().get(replica, {}).get("reason", "")

    def until_said(self, replica, text):
        self.until(lambda: text in self.reason(replica), f"'{text}' of {replica}")

    def refused_engine(self, replica, checkpoint):
        """It goes on trying."""
        process = self.start("engine", "--json", "--sidecar", self.engines, "--replica", replica,
                             "--checkpoint", checkpoint, "--stats-ms", "0")
        self.until_said(replica, MISFIT)
        return process

    @staticmethod
    def said(process):
        with open(process.log_path, encoding="utf-8") as log:
            return log.read()

    def end(self, process):
        """An engine or a sidecar."""
        code, rest = self.stop(process)
        assert code == 0, rest

    def end_trainer(self, trainer):
        self.tell(trainer, "quit")
        assert trainer.wait(timeout=DEADLINE_S) == 0

    def serve_old(self):
        """An engine and a trainer of the old model, which is served."""
        engine = self.engine(self.engines, "a", self.old)
        trainer = self.trainer(self.old)
        published = self.publish(trainer, 1)
        assert published["code"] == 0, published
        self.until_ready("1.1", "a")
        return engine, trainer


class OtherModel(unittest.TestCase):
    def published(self, fleet, trainer, step, replica):
        published = fleet.publish(trainer, step)
        self.assertEqual((published["code"], published["error"]), (0, ""))
        fleet.until_ready(published["version"], replica)
        return published["version"]

    def test_the_sidecar_stays(self):
        with ModelFleet() as fleet:
            engine, trainer = fleet.serve_old()
            # While the old model is served, an engine of the new one is refused.
            refused = fleet.refused_engine("b", fleet.new)
            fleet.end(engine)
            # It has tried again, and attaches now.
            fleet.event(refused, "attached")
            fleet.until_said("b", "version 1.1 does not fit rank 0: ")
            report = fleet.known()["b"]
            self.assertEqual((report["ready"], report["version"], report["ranks_attached"]), (False, "0.0", 1))
            self.assertRegex(report["reason"], r"rank 0: \S+ \(.+\): publish the model of this engine, or end it$")
            self.assertNotIn("did not load", fleet.said(fleet.sidecar_process))
            # The trainer of the old model is told which engine its version does not fit.
            fleet.tell(trainer, "publish", 2)
            self.assertEqual(fleet.event(trainer, "published")["code"], 0)
            fleet.tell(trainer, "wait", COMMITTED, WAIT_MS)
            waited = fleet.event(trainer, "waited")
            self.assertNotEqual(waited["code"], 0, waited)
            self.assertIn("the layout does not fit the engines: ", waited["error"])
            self.assertIn("replica 'b'", waited["error"])
            fleet.end_trainer(trainer)
            trainer = fleet.trainer(fleet.new)
            first = self.published(fleet, trainer, 1, "b")
            # What was before it can be named, and is not loaded.
            code, answer = fleet.ask("rollback")
            self.assertNotEqual(code, 0, answer)
            fleet.until_said("b", "does not fit rank 0: ")
            self.assertFalse(fleet.known()["b"]["ready"])
            self.assertEqual(fleet.known()["b"]["version"], first)
            second = self.published(fleet, trainer, 3, "b")
            self.assertNotEqual(second, first)
            # Now it is the engine of the old model that does not fit.
            fleet.refused_engine("a", fleet.old)
            code, answer = fleet.ask("verify")
            self.assertEqual(code, 0, answer)

    def test_who_was_refused_is_reported_as_long_as_its_process_lives(self):
        with ModelFleet() as fleet:
            fleet.serve_old()
            refused = fleet.refused_engine("b", fleet.new)
            code, answer = fleet.ask("forget", "s0/b")
            self.assertEqual(code, 1, answer)
            self.assertEqual(answer["result"]["reason"],
                             f"replica 'b' rank 0 was refused, and its process {refused.pid} tries to attach again and again: stop "
                             "that process first")
            refused.kill()
            refused.wait(DEADLINE_S)
            fleet.until(lambda: "b" not in fleet.known(), "a status of the sidecar without it")
            fleet.until(lambda: "b" not in fleet.replicas(), "a status of the coordinator without it")
            code, answer = fleet.ask("forget", "s0/b")
            self.assertEqual(code, 1, answer)
            self.assertIn("knows no replica 'b'; did you mean 'a'? it knows a", answer["result"]["reason"])

    def test_who_was_refused_from_another_namespace_is_forgotten_on_request(self):
        # Root needs no user namespace, which the kernel refuses to a process with a root folder of its own.
        namespace = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--pid", "--fork", "--kill-child"]
        tried = subprocess.run([*namespace, "true"], capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            self.skipTest(f"no PID namespace can be made here: {tried.stderr.strip()}")
        with ModelFleet(namespace) as fleet:
            fleet.serve_old()
            refused = fleet.refused_engine("b", fleet.new)
            refused.kill()
            refused.wait(DEADLINE_S)
            fleet.until(lambda: MISFIT in fleet.replicas().get("b", {}).get("reason", ""), "the coordinator's word of it")
            code, answer = fleet.ask("forget", "s0/x")
            self.assertIn("it knows a, b", answer["result"]["reason"])
            code, answer = fleet.ask("forget", "s0/b")
            self.assertEqual(code, 0, answer)
            fleet.until(lambda: "b" not in fleet.replicas(), "a status without it")
            self.assertNotIn("b", fleet.known())

    def test_an_engine_of_the_old_model_returns(self):
        with ModelFleet() as fleet:
            engine, trainer = fleet.serve_old()
            fleet.end(engine)
            waiting = fleet.engine(fleet.engines, "b", fleet.new)
            fleet.until_said("b", "version 1.1 does not fit rank 0: ")
            # An engine of the model that is held is given it. Whoever waits for another one is refused, and harms no publish.
            engine = fleet.engine(fleet.engines, "a", fleet.old)
            fleet.until_said("b", MISFIT)
            fleet.until_ready("1.1", "a")
            self.assertEqual(fleet.known()["b"]["ranks_attached"], 0)
            fleet.refused_engine("c", fleet.new)
            self.published(fleet, trainer, 2, "a")
            # It has gone on trying.
            fleet.end(engine)
            fleet.until_said("b", "version 1.2 does not fit rank 0: ")
            self.assertIsNone(waiting.poll())

    def test_a_sidecar_that_starts_again_holds_nothing(self):
        with ModelFleet() as fleet:
            engine, trainer = fleet.serve_old()
            fleet.end(engine)
            # The engine attaches before the trainer can bring the version that it still has.
            fleet.halt(trainer.pid)
            fleet.sidecar_process.kill()
            fleet.sidecar_process.wait()
            os.remove(fleet.engines)
            fleet.sidecar("s0")
            fleet.engine(fleet.engines, "b", fleet.new)
            os.kill(trainer.pid, signal.SIGCONT)
            fleet.until_said("b", "version 1.1 does not fit rank 0: ")
            self.assertFalse(fleet.known()["b"]["ready"])
            fleet.end_trainer(trainer)
            self.published(fleet, fleet.trainer(fleet.new), 1, "b")

    def test_a_publish_that_waits_says_what_was_refused(self):
        with ModelFleet() as fleet:
            _, trainer = fleet.serve_old()
            fleet.end_trainer(trainer)
            fleet.refused_engine("b", fleet.new)
            trainer = fleet.trainer(fleet.old, "min_replicas=2")
            fleet.tell(trainer, "publish", 2)
            published = fleet.event(trainer, "published")
            self.assertEqual((published["code"], published["error"]), (0, ""))
            said = ("1 of at least 2 replicas have all of their ranks attached to a sidecar (min_replicas): replica 'b' has 0 of 1 "
                    f"ranks (rank 0 was refused: replica 'b' rank 0 {MISFIT}")
            def waits():
                fleet.tell(trainer, "wait", COMMITTED, 0)
                return said in fleet.event(trainer, "waited")["error"]
            fleet.until(waits, "what the publish waits for")
            code, answer = fleet.ask("status")
            self.assertEqual(code, 0, answer)
            self.assertTrue(answer["result"]["activity"].startswith("waiting to publish: " + said), answer["result"]["activity"])
            fleet.engine(fleet.engines, "c", fleet.old)
            fleet.tell(trainer, "wait", COMMITTED, WAIT_MS)
            waited = fleet.event(trainer, "waited")
            self.assertEqual((waited["code"], waited["state"]), (0, COMMITTED), waited)
            fleet.until_ready(waited["version"], "a", "c")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:-2])

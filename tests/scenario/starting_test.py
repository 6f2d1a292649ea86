"""An engine that has begun to start, and has not allocated its memory yet: everything that lacks a replica names it."""
import os
import signal
import sys
import unittest

from plugin_fleet import PluginFleet

WSYNC, TRAINER_RANK, FORKING_ENGINE = sys.argv[-3:]


class StartingFleet(PluginFleet):
    def __init__(self):
        super().__init__(WSYNC, TRAINER_RANK)
        self.said = {}  # by the engine that was started last

    def starting_engine(self, engines, replica, checkpoint):
        """It allocates nothing, and attaches when it is told to."""
        engine = self.program(None, FORKING_ENGINE, engines, replica, checkpoint, "pieces", "starting")
        self.said = self.event(engine, "starting")
        return engine

    def reason(self, replica):
        return self.replicas().get(replica, {}).get("reason", "")


class Starting(unittest.TestCase):
    def test_it_is_named_until_it_attaches(self):
        with StartingFleet() as fleet:
            one = fleet.checkpoint("one", 1)
            _, engines = fleet.sidecar("s0")
            engine = fleet.starting_engine(engines, "slow", one)
            sentence = f"rank 0 is starting (process {engine.pid}): it attaches when its memory is allocated"
            fleet.start("trainer")
            fleet.until(lambda: fleet.reason("slow") == sentence, "the word that it is starting")
            code, answer = fleet.ask("push", one)
            self.assertEqual((code, answer["result"]["code"]), (1, "refused"), answer)
            self.assertIn(f"replica 'slow' has 0 of 1 ranks ({sentence})", answer["result"]["reason"])
            self.assertNotIn("no engine has attached", answer["result"]["reason"])
            code, answer = fleet.ask("verify")
            self.assertNotEqual(code, 0, answer)
            self.assertEqual([r["failure"] for r in answer["result"]["ranks"]],
                             [f"it {sentence.removeprefix('rank 0 ')}"])
            fleet.tell(engine, "attach")
            fleet.event(engine, "attached")
            fleet.until(lambda: fleet.replicas()["slow"]["ranks_attached"] == 1, "the engine")
            self.assertNotIn("starting", fleet.reason("slow"))
            code, answer = fleet.ask("push", one)
            self.assertEqual(code, 0, answer)
            fleet.until_ready(answer["result"]["version"], "slow")

    def test_a_push_to_others_does_not_wait_for_it(self):
        with StartingFleet() as fleet:
            one = fleet.checkpoint("one", 1)
            _, engines = fleet.sidecar("s0")
            fleet.engine(engines, "a", one)
            engine = fleet.starting_engine(engines, "slow", one)
            fleet.start("trainer")
            fleet.until(lambda: {"a", "slow"} <= set(fleet.replicas()), "both")
            code, answer = fleet.ask("push", one)
            self.assertEqual(code, 0, answer)
            version = answer["result"]["version"]
            fleet.tell(engine, "attach")
            fleet.event(engine, "attached")
            fleet.until_ready(version, "a", "slow")  # it is given the version that it has missed

    def test_its_end_is_seen_though_its_child_lives(self):
        with StartingFleet() as fleet:
            one = fleet.checkpoint("one", 1)
            _, engines = fleet.sidecar("s0")
            fleet.start("trainer")
            engine = fleet.starting_engine(engines, "slow", one)
            fleet.until(lambda: "starting" in fleet.reason("slow"), "the word that it is starting")
            fleet.tell(engine, "fork_unnoticed")
            child = fleet.event(engine, "forked")["pid"]
            self.addCleanup(os.kill, child, signal.SIGKILL)
            engine.kill()
            engine.wait()
            fleet.until(lambda: "slow" not in fleet.replicas(), "the word that it has gone")

    def test_a_sidecar_that_comes_late_or_again(self):
        with StartingFleet() as fleet:
            one = fleet.checkpoint("one", 1)
            engines = f"{fleet.run_dir}/s0.engines"
            alone = fleet.starting_engine(engines, "alone", one)
            self.assertIn("s0.engines", fleet.said["error"])
            sidecar, _ = fleet.sidecar("s0")
            engine = fleet.starting_engine(engines, "slow", one)
            fleet.start("trainer")
            fleet.until(lambda: "starting" in fleet.reason("slow"), "the word that it is starting")
            sidecar.kill()
            sidecar.wait()
            fleet.sidecar("s0")
            for each in alone, engine:
                fleet.tell(each, "attach")
                fleet.event(each, "attached")
            code, answer = fleet.ask("push", one)
            self.assertEqual(code, 0, answer)
            fleet.until_ready(answer["result"]["version"], "alone", "slow")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:-3])

"""Trainers and engines that fork, as a loader of data or a web server does: nothing of the library goes with the child."""
import os
import re
import signal
import socket
import sys
import unittest

from plugin_fleet import COMMITTED, DEADLINE_MS, PluginFleet

FORKING_ENGINE = sys.argv.pop()
TRAINER_RANK = sys.argv.pop()
WSYNC = sys.argv.pop()

INVALID_INPUT = 1
WAYS = "", "again", "run", "spawn"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def by_tcp():
    """Settings of a trainer that does nothing over Unix sockets; the first is where the sidecars connect."""
    return [f"{key}=tcp://127.0.0.1:{free_port()}" for key in ("listen", "data_address", "http.address")]


class ForkFleet(PluginFleet):
    def __init__(self, wsync):
        super().__init__(wsync, TRAINER_RANK)
        self.children = []

    def __exit__(self, *rest):
        for child in self.children:
            os.kill(child, signal.SIGKILL)
        super().__exit__(*rest)

    def sidecar_of(self, settings):
        """Of a trainer with these settings; its socket for engines."""
        more = ["--set", f"coordinator={settings[0].partition('=')[2]}", "--set", "transport=tcp"] if settings else []
        return self.sidecar("s0", *more)[1]

    def forking_engine(self, engines, replica, checkpoint, take="pieces"):
        return self.program("attached", FORKING_ENGINE, engines, replica, checkpoint, take)

    def ranks_of(self, replica):
        return self.replicas().get(replica, {}).get("ranks_attached")

    def fork(self, process, how=""):
        """A child that stays; its process."""
        self.tell(process, "fork", how)
        child = self.event(process, "forked")["pid"]
        self.children.append(child)
        return child

    def end_children(self):
        for child in self.children:
            os.kill(child, signal.SIGKILL)
        self.children.clear()


class Forks(unittest.TestCase):
    def served(self, fleet, trainer, steps):
        ends = [fleet.publish(trainer, step) for step in steps]
        self.assertEqual([(end["code"], end["error"]) for end in ends], [(0, "")] * len(ends))

    def has_nothing(self, child):
        """No socket, arena or lock file, and no arena's memory."""
        def kept():
            names = []
            for fd in os.listdir(f"/proc/{child}/fd"):
                try:
                    names.append(os.readlink(f"/proc/{child}/fd/{fd}"))
                except FileNotFoundError:
                    pass  # exec has closed it meanwhile
            with open(f"/proc/{child}/maps", encoding="utf-8") as maps:
                names += [line.split(maxsplit=5)[-1].strip() for line in maps if "/memfd:" in line]
            return [name for name in names if re.search(r"socket:|memfd:|\.lock|\.epoch", name)]
        self.assertEqual(kept(), [], "the child keeps what the library has open")

    def test_a_trainer_publishes_while_its_children_live(self):
        for settings in [], by_tcp():
            with self.subTest(settings), ForkFleet(WSYNC) as fleet:
                model = fleet.checkpoint("one", 1)
                fleet.engine(fleet.sidecar_of(settings), "a", model)
                trainer = fleet.trainer(model, *settings)
                step = 1
                self.served(fleet, trainer, range(step, step + 3))
                for way in WAYS:
                    step += 5
                    child = fleet.fork(trainer, way)
                    self.served(fleet, trainer, range(step, step + 5))
                    self.has_nothing(child)
                fleet.end_children()
                self.served(fleet, trainer, [step + 5])
                code, answer = fleet.ask("verify", address=f"ipc://{fleet.run_dir}/s0.control")
                self.assertEqual(code, 0, answer)

    def test_forks_in_the_middle_of_publishes(self):
        with ForkFleet(WSYNC) as fleet:
            model = fleet.checkpoint("one", 1)
            _, engines = fleet.sidecar("s0")
            fleet.engine(engines, "a", model, "--adopt")
            trainer = fleet.trainer(model)
            for step in range(1, 31):
                fleet.tell(trainer, "publish_async", step)
                self.assertEqual(fleet.event(trainer, "published")["code"], 0)
                child = fleet.fork(trainer)
                fleet.tell(trainer, "wait", COMMITTED, DEADLINE_MS)
                end = fleet.event(trainer, "waited")
                self.assertEqual((end["code"], end["error"]), (0, ""), step)
                self.has_nothing(child)

    def test_a_trainer_is_replaced_while_its_child_lives(self):
        for settings in [], by_tcp():
            with self.subTest(settings), ForkFleet(WSYNC) as fleet:
                model = fleet.checkpoint("one", 1)
                fleet.engine(fleet.sidecar_of(settings), "a", model)
                trainer = fleet.trainer(model, *settings)
                self.served(fleet, trainer, (1, 2))
                child = fleet.fork(trainer)
                self.has_nothing(child)
                trainer.kill()
                trainer.wait()
                trainer = fleet.trainer(model, *settings)  # its addresses are free, and its lock
                self.served(fleet, trainer, (3, 4))

    def test_what_a_child_calls_is_refused(self):
        with ForkFleet(WSYNC) as fleet:
            model = fleet.checkpoint("one", 1)
            _, engines = fleet.sidecar("s0")
            engine = fleet.forking_engine(engines, "a", model, "adopt")
            trainer = fleet.trainer(model)
            self.served(fleet, trainer, (1, 2))
            fleet.tell(trainer, "fork_and_call")
            for name in "add_tensor", "start", "publish", "publish_async", "poll", "wait", "roll_back", "check":
                answer = fleet.event(trainer, name)
                self.assertEqual(answer["code"], INVALID_INPUT, answer)
                self.assertIn(f"this wsync_trainer belongs to process {trainer.pid}, which forked the current process", answer["error"])
            self.assertEqual(fleet.event(trainer, "child_ended")["status"], 0)
            self.served(fleet, trainer, (3, 4))
            fleet.tell(engine, "fork_and_call")
            called = fleet.event(engine, "called")
            self.assertEqual((called["codes"], called["attached"]), ([-1] * 6, 0))
            self.assertIn(f"this wsync_engine belongs to process {engine.pid}, which forked the current process", called["error"])
            self.assertEqual(fleet.event(engine, "child_ended")["status"], 0)
            self.served(fleet, trainer, (5, 6))
            fleet.tell(engine, "status")
            self.assertEqual(fleet.event(engine, "status")["step"], 6)

    def test_an_engine_that_maps_versions_forks(self):
        with ForkFleet(WSYNC) as fleet:
            model = fleet.checkpoint("one", 1)
            _, engines = fleet.sidecar("s0")
            engine = fleet.forking_engine(engines, "a", model, "adopt")
            fleet.fork(engine)  # between its hello and its first load
            trainer = fleet.trainer(model)
            step = 1
            for way in WAYS:
                self.served(fleet, trainer, range(step, step + 5))
                self.has_nothing(fleet.fork(engine, way))
                step += 5
            self.served(fleet, trainer, range(step, step + 5))
            code, answer = fleet.ask("verify")
            self.assertEqual(code, 0, answer)
            self.assertEqual([r["version"] for r in answer["result"]["ranks"]], [f"1.{step + 4}"])

    def test_an_engine_is_replaced_while_its_child_lives(self):
        with ForkFleet(WSYNC) as fleet:
            model = fleet.checkpoint("one", 1)
            _, engines = fleet.sidecar("s0")
            trainer = fleet.trainer(model)
            for step, take in enumerate(("pieces", "adopt"), start=1):
                engine = fleet.forking_engine(engines, "a", model, take)
                fleet.until(lambda: fleet.ranks_of("a") == 1, "the engine")
                self.served(fleet, trainer, [10 * step])
                self.has_nothing(fleet.fork(engine))
                engine.kill()
                engine.wait()
                # Attached, and brought to the version, though the child of the one before lives.
                engine = fleet.forking_engine(engines, "a", model, take)
                fleet.until_ready(f"1.{10 * step}", "a")
                self.served(fleet, trainer, range(10 * step + 1, 10 * step + 6))
                engine.kill()
                engine.wait()
                fleet.until(lambda: fleet.ranks_of("a") == 0, "the word that the engine has gone")

    def test_a_child_is_an_engine_itself(self):
        with ForkFleet(WSYNC) as fleet:
            model = fleet.checkpoint("one", 1)
            _, engines = fleet.sidecar("s0")
            engine = fleet.forking_engine(engines, "a", model)
            trainer = fleet.trainer(model)
            self.served(fleet, trainer, [1])
            fleet.tell(engine, "fork_engine", "b")
            fleet.children.append(fleet.event(engine, "attached")["pid"])
            fleet.until_ready("1.1", "a", "b")
            self.served(fleet, trainer, range(2, 7))
            fleet.until_ready("1.6", "a", "b")


if __name__ == "__main__":
    unittest.main()

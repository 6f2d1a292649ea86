"""Processes of Python that end at the worst moment, deadlines that pass, and pushes that are cancelled."""
import os
import signal
import subprocess
import threading
import unittest

import wsync
from package_fleet import DEADLINE_S, PackageFleet, empty_like, equal, interrupt, slowness, until, weights_of
from process_test import BEGIN
from wsync._native import EXECUTABLE

# A deadline that shall pass, and that what is only slow does not miss.
SHORT = f"{round(4000 * slowness())}ms"

# An engine that ends in a callback of version 2. It says after each commit which version it has.
ENGINE = BEGIN + """
where, how = sys.argv[4:6]

class Engine(wsync.Replica):
    def end_in(self, callback, version):
        if callback == where and version.step == 2:
            entered("ending")
            os._exit(9) if how == "exit" else os.kill(os.getpid(), signal.SIGKILL)

    def on_check_version(self, version, tensors):
        self.end_in("check_version", version)

    def on_pause(self, pause):
        self.end_in("pause", pause.version)
        super().on_pause(pause)

    def on_load_begin(self, version):
        self.end_in("load_begin", version)

    def on_load_layer(self, version, layer, tensors):
        if layer == 1:  # in the middle
            self.end_in("load_layer", version)

    def on_commit(self, version):
        self.version = version
        self.end_in("commit", version)

    def on_resume(self):
        self.end_in("resume", self.version)
        super().on_resume()
        entered(f"serving {self.version}")

held = empty_like(weights_of(0))
engine = Engine(socket, "r0", held)
entered()
while True:
    engine.poll(0.02 if engine.serving else None)
    if engine.serving:
        engine.step += 1
"""


class FaultCase(unittest.TestCase):
    SIDECAR = ()

    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        _, self.socket = self.fleet.sidecar("host", *self.SIDECAR)

    def program(self, text, *arguments):
        return self.fleet.program(text, self.fleet.run_dir, self.fleet.path("state_of_program"), self.socket, *arguments)

    def replicas(self):
        """What `wsync status` says of each replica."""
        code, answer = self.fleet.ask("status")
        return {replica["replica"]: replica for sidecar in answer["result"]["sidecars"] for replica in sidecar["replicas"]} \
            if code == 0 else {}


class EnginesThatEnd(FaultCase):
    def ends_in(self, callback, how, *words):
        publisher = self.enterContext(self.fleet.publisher())
        engine = self.program(ENGINE, callback, how)
        self.fleet.ready(engine)
        held = empty_like(weights_of(0))
        other = self.fleet.serve(wsync.Replica(self.socket, "r1", held)).replica
        until(lambda: {"r0", "r1"} <= set(self.replicas()), "both replicas")
        self.assertEqual(publisher.publish(weights_of(1)).wait(timeout=DEADLINE_S).replicas, 2)
        self.fleet.ready(engine, "serving 1.1")
        publish = publisher.publish(weights_of(2))
        self.fleet.ready(engine, "ending")
        self.assertEqual(engine.wait(DEADLINE_S), 9 if how == "exit" else -signal.SIGKILL)
        if words:
            with self.assertRaises(wsync.Partial) as caught:
                publish.wait("committed", DEADLINE_S)
            for word in ("replica 'r0'", *words):
                self.assertIn(word, caught.exception.sentence)
            self.assertIn(caught.exception.sentence, str(self.fleet.ask("status")[1]["result"]["incidents"]))
        else:  # it was gone before the switch was decided, so the version is not for it
            publish.wait("committed", DEADLINE_S)
        self.assertEqual((publish.status().replicas, str(other.status().active)), (1, "1.2"))
        until(lambda: self.replicas()["r0"]["state"] == "absent", "the state of the lost replica")
        equal(self, held, weights_of(2))
        steps = other.step
        until(lambda: other.serving and other.step > steps + 10, "steps of the other replica")
        # It comes back, and is given the version that it has not got.
        engine = self.program(ENGINE, "nowhere", how)
        self.fleet.ready(engine)
        self.fleet.ready(engine, "serving 1.2")
        until(lambda: all(replica["ready"] for replica in self.replicas().values()), "both replicas again")
        code, answer = self.fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        self.assertEqual(publisher.publish(weights_of(3)).wait(timeout=DEADLINE_S).replicas, 2)
        self.fleet.ready(engine, "serving 1.3")

    def test_in_check_version(self):
        self.ends_in("check_version", "exit")

    def test_in_pause(self):
        self.ends_in("pause", "kill", "was lost while pausing")

    def test_in_load_begin(self):
        self.ends_in("load_begin", "exit", "lost while loading")

    def test_in_load_layer(self):
        self.ends_in("load_layer", "kill", "lost while loading")

    def test_in_commit(self):
        self.ends_in("commit", "exit", "lost while committing")

    def test_in_resume(self):
        self.ends_in("resume", "kill", "lost while resuming")


class Engine(wsync.Replica):
    """Stands in a callback of version 2 until it is told to go on."""

    def __init__(self, socket, held, where):
        self.where = where
        self.entered, self.leave = threading.Event(), threading.Event()
        self.pauses = []
        super().__init__(socket, "r0", held)

    def stand_in(self, callback, version):
        if callback == self.where and version.step == 2:
            self.entered.set()
            self.leave.wait()

    def on_check_version(self, version, tensors):
        self.stand_in("check_version", version)

    def on_pause(self, pause):
        self.pauses.append(pause)
        if self.where == "pause" and pause.version.step == 2:  # the loop does not stand still yet
            self.entered.set()
        else:
            super().on_pause(pause)

    def on_commit(self, version):
        self.stand_in("commit", version)


class WaitingCase(FaultCase):
    # Only the deadlines of the test pass: an engine that does not poll is not lost, and may commit for long.
    SIDECAR = ("--set", "engine_deadline=10m", "--set", "deadlines.commit=10m")

    def fleet_of(self, where, **settings):
        publisher = self.enterContext(self.fleet.publisher(**settings))
        held = empty_like(weights_of(0))
        engine = Engine(self.socket, held, where)
        self.fleet.serve(engine)
        self.addCleanup(engine.leave.set)
        publisher.publish(weights_of(1)).wait(timeout=DEADLINE_S)
        publish = publisher.publish(weights_of(2))
        self.assertTrue(engine.entered.wait(DEADLINE_S))
        return publisher, held, engine, publish


class Waiting(WaitingCase):
    def test_a_wait_that_is_over_before_the_publish(self):
        _, held, engine, publish = self.fleet_of("commit")
        with self.assertRaises(wsync.DeadlineExceeded) as caught:
            publish.wait("committed", timeout=0.01)
        self.assertEqual(caught.exception.status.state, wsync.PublishState.STAGED)
        engine.leave.set()
        self.assertEqual(publish.wait("committed", DEADLINE_S).replicas, 1)  # it went on
        equal(self, held, weights_of(2))

    def test_the_deadline_of_a_publish_whose_switch_is_decided(self):
        publisher, held, engine, publish = self.fleet_of("commit", **{"deadlines.publish": SHORT})
        with self.assertRaises(wsync.Partial) as caught:
            publish.wait("committed", DEADLINE_S)
        self.assertEqual(caught.exception.status.state, wsync.PublishState.FAILED)
        for word in ("did not report before the deadline", "1.2 stays the target", "go on trying", "wsync rollback"):
            self.assertIn(word, caught.exception.sentence)
        engine.leave.set()
        until(lambda: str(engine.status().active) == "1.2", "the switch, which went on")
        equal(self, held, weights_of(2))
        until(lambda: self.replicas()["r0"]["ready"], "the replica")
        self.assertEqual(publish.status().state, wsync.PublishState.FAILED)  # what was said stays said
        publisher.publish(weights_of(3)).wait(timeout=DEADLINE_S)

    def test_the_deadline_of_a_publish_that_is_not_decided(self):
        """A second sidecar stands still, and has not staged the version."""
        process, second = self.fleet.sidecar("second")
        publisher = self.enterContext(self.fleet.publisher(**{
            "deadlines.publish": SHORT, "deadlines.announce": "10m", "deadlines.stage": "10m", "heartbeat.deadline": "10m"}))
        held = [empty_like(weights_of(0)) for _ in range(2)]
        engine = Engine(self.socket, held[0], "nowhere")
        self.fleet.serve(engine)
        self.fleet.serve(wsync.Replica(second, "r1", held[1]))
        until(lambda: {"r0", "r1"} <= set(self.replicas()), "both replicas")
        publisher.publish(weights_of(1)).wait(timeout=DEADLINE_S)
        process.send_signal(signal.SIGSTOP)
        with self.assertRaises(wsync.Refused) as caught:
            publisher.publish(weights_of(2)).wait("committed", DEADLINE_S)
        self.assertEqual(caught.exception.status.state, wsync.PublishState.FAILED)
        self.assertIn("the deadline of the whole publish (deadlines.publish) passed while", caught.exception.sentence)
        process.send_signal(signal.SIGCONT)
        status = publisher.publish(weights_of(3)).wait(timeout=DEADLINE_S)
        # Nobody has served the version that was said to have failed.
        self.assertEqual([str(pause.version) for pause in engine.pauses], [str(status.version)])
        for tensors in held:
            equal(self, tensors, weights_of(3))


class Cancelling(WaitingCase):
    def test_before_the_switch_is_decided(self):
        publisher, held, engine, publish = self.fleet_of("check_version")
        code, answer = self.fleet.ask("cancel")
        self.assertEqual((code, answer["result"]["version"]), (0, "1.2"), answer)
        with self.assertRaises(wsync.Cancelled) as caught:
            publish.wait("committed", DEADLINE_S)
        self.assertEqual(caught.exception.sentence, "cancelled on request; the engines keep the version they serve")
        equal(self, held, weights_of(1))
        engine.leave.set()
        publisher.publish(weights_of(3)).wait(timeout=DEADLINE_S)
        equal(self, held, weights_of(3))
        self.assertNotIn("1.2", [str(pause.version) for pause in engine.pauses])

    def test_while_the_engine_pauses(self):
        """Too late: it is decided. The sentence says what helps, and the rollback does."""
        publisher, held, engine, publish = self.fleet_of("pause", **{"deadlines.pause": "10m"})
        code, answer = self.fleet.ask("cancel")
        self.assertEqual((code, answer["result"]["ok"]), (1, False))
        self.assertIn("1.2 has been decided and its switch continues", answer["result"]["reason"])
        self.assertIn("wsync rollback", answer["result"]["reason"])
        equal(self, held, weights_of(1))
        engine.paused(engine.step)
        self.assertEqual(publish.wait("committed", DEADLINE_S).replicas, 1)
        equal(self, held, weights_of(2))
        publisher.roll_back(timeout=DEADLINE_S)
        equal(self, held, weights_of(1))

    def test_a_push_that_is_interrupted_while_the_engine_pauses(self):
        trainer = self.fleet.start(EXECUTABLE, "trainer", "--set", "deadlines.pause=10m")
        control = self.fleet.path("run/control")
        until(lambda: os.path.exists(control), "the trainer")
        for seed in (1, 2):
            subprocess.run([EXECUTABLE, "make-checkpoint", self.fleet.path(str(seed)), "--size", "1MiB", "--seed", str(seed)],
                           check=True, stdout=subprocess.DEVNULL)
        engine = BorrowingEngine(self.socket)
        self.fleet.serve(engine)
        until(lambda: "r0" in self.replicas(), "the replica")
        code, answer = self.fleet.ask("push", self.fleet.path("1"))
        self.assertEqual(code, 0, answer)
        push = self.fleet.start(EXECUTABLE, "push", self.fleet.path("2"), "--coordinator", f"ipc://{control}")
        self.assertTrue(engine.entered.wait(DEADLINE_S))
        interrupt(push)
        code, out, said = self.fleet.end(push)
        self.assertEqual(code, 130, out + said)
        self.assertIn("continues the requested operation", out + said)
        self.assertEqual(str(engine.status().active), "1.1")
        engine.paused(engine.step)  # the version is decided: the fleet goes on without the command
        until(lambda: self.replicas()["r0"]["ready"] and self.replicas()["r0"]["version"] == "1.2", "the switch")
        self.assertIsNone(trainer.poll())


class BorrowingEngine(wsync.Replica):
    """Takes any version, and does not stand still at once for the second one."""

    def __init__(self, socket):
        self.entered = threading.Event()
        super().__init__(socket, "r0", take="borrow")

    def on_load_layer(self, version, layer, tensors):
        pass

    def on_pause(self, pause):
        if pause.version.step == 2:
            self.entered.set()
        else:
            super().on_pause(pause)


if __name__ == "__main__":
    unittest.main()

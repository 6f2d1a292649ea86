"""A process that stands still for ever harms nobody else, and catches up when it goes on."""
import fcntl
import os
import select
import signal
import sys
import threading
import unittest

from fleet import DEADLINE_S, short
from plugin_fleet import COMMITTED, DEADLINE_MS, PluginFleet

FORKING_ENGINE = sys.argv.pop()
TRAINER_RANK = sys.argv.pop()
WSYNC = sys.argv.pop()

BUSY, DEADLINE = 4, 5
SNAPSHOTTED = 1
STEPS = 50
VERSIONS_HELD = 2  # the default


def arenas_of(process):
    """Inodes of the snapshots that a trainer has mapped."""
    with open(f"/proc/{process.pid}/maps", encoding="utf-8") as maps:
        return {line.split()[4] for line in maps if "/memfd:wsync-snapshot" in line}


class HangFleet(PluginFleet):
    def __init__(self):
        super().__init__(WSYNC, TRAINER_RANK)

    def engine(self, *arguments):
        """Its events are read, so that it never waits for a reader."""
        process = super().engine(*arguments)
        threading.Thread(target=process.stdout.read, daemon=True).start()
        return process

    def __exit__(self, *rest):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        super().__exit__(*rest)


class UnreadFleet(HangFleet):
    """The standard error of each process is a pipe that is full from the start, and that nobody reads."""

    def __init__(self):
        super().__init__()
        self.pipes = []

    def log(self):
        read, write = os.pipe()
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
        os.set_blocking(write, False)
        os.write(write, bytes(4096))
        self.pipes.append(read)
        # The process gets an open file of its own, which is blocking.
        log = open(f"/proc/self/fd/{write}", "w", encoding="utf-8")
        os.close(write)
        return log

    def __exit__(self, *rest):
        super().__exit__(*rest)
        for pipe in self.pipes:
            os.close(pipe)


class Hangs(unittest.TestCase):

    def published(self, fleet, trainer, steps, healthy):
        """Publishes each step until the healthy replicas serve it; the largest number of arenas meanwhile."""
        most = 0
        for step in steps:
            fleet.tell(trainer, "publish", step)
            published = fleet.event(trainer, "published")
            self.assertEqual((published["code"], published["error"]), (0, ""), step)
            def served():
                found = fleet.replicas()
                return all(r in found and (found[r]["version"], found[r]["state"]) == (f"1.{step}", "serving") for r in healthy)
            fleet.until(served, f"step {step} on {healthy}")
            most = max(most, len(arenas_of(trainer)))
        return most

    def verified(self, fleet, version):
        """Every rank holds every byte of this version."""
        code, answer = fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        self.assertEqual({rank["version"] for rank in answer["result"]["ranks"]}, {version})

    def with_a_stopped_engine(self, *more):
        with HangFleet() as fleet:
            model = fleet.checkpoint("one", 1)
            _, engines = fleet.sidecar("s0", "--set", f"engine_deadline={short(500)}")
            stopped = fleet.engine(engines, "a", model, *more)
            fleet.engine(engines, "b", model, *more)
            trainer = fleet.trainer(model)
            self.published(fleet, trainer, range(1, 4), ["a", "b"])
            fleet.halt(stopped.pid)
            most = self.published(fleet, trainer, range(4, 4 + STEPS), ["b"])
            found = fleet.replicas()["a"]
            self.assertEqual((found["ready"], found["version"]), (False, "1.3"))
            self.assertRegex(found["reason"], rf"^rank 0 has not polled its link for \S+ \(engine_deadline\): process "
                                              rf"{stopped.pid} is suspended, or hangs in a step$")
            os.kill(stopped.pid, signal.SIGCONT)
            fleet.until_ready(f"1.{3 + STEPS}", "a", "b")
            self.verified(fleet, f"1.{3 + STEPS}")
            # What was made for the one that stood still is given back with the next snapshots.
            self.published(fleet, trainer, range(100, 103), ["a", "b"])
            self.assertLessEqual(len(arenas_of(trainer)), VERSIONS_HELD + 1)
            return most

    def test_an_engine_that_copies_stands_still(self):
        # Outside of a load it holds no arena.
        self.assertLessEqual(self.with_a_stopped_engine(), VERSIONS_HELD + 1)

    def test_an_engine_that_maps_stands_still(self):
        # It holds what it serves.
        self.assertLessEqual(self.with_a_stopped_engine("--adopt"), VERSIONS_HELD + 2)

    def test_a_sidecar_stands_still(self):
        for more in [], ["--adopt"]:
            with self.subTest(more), HangFleet() as fleet:
                model = fleet.checkpoint("one", 1)
                stopped, engines = fleet.sidecar("s0")
                fleet.engine(engines, "a", model, *more)
                _, engines = fleet.sidecar("s1")
                fleet.engine(engines, "b", model, *more)
                trainer = fleet.trainer(model)
                self.published(fleet, trainer, range(1, 4), ["a", "b"])
                fleet.halt(stopped.pid)
                most = self.published(fleet, trainer, range(4, 4 + STEPS), ["b"])
                # It holds the versions that it has staged.
                self.assertLessEqual(most, 2 * VERSIONS_HELD + 1)
                self.assertFalse(fleet.replicas()["a"]["ready"])
                os.kill(stopped.pid, signal.SIGCONT)
                fleet.until_ready(f"1.{3 + STEPS}", "a", "b")
                self.verified(fleet, f"1.{3 + STEPS}")

    def test_a_publish_without_a_free_arena_names_who_reads(self):
        with HangFleet() as fleet:
            model = fleet.checkpoint("one", 1)
            sidecar, engines = fleet.sidecar("s0")
            fleet.engine(engines, "a", model)
            # The round of step 4 goes on for ever, with the target and the version before it in the other arenas.
            trainer = fleet.trainer(model, "heartbeat.deadline=1h", "deadlines.announce=1h", "deadlines.snapshot=200ms",
                                    "deadlines.publish=1h", "patch.in_place=off")
            self.published(fleet, trainer, range(1, 4), ["a"])
            fleet.halt(sidecar.pid)
            codes = []
            for step in range(4, 7):
                fleet.tell(trainer, "publish", step)
                published = fleet.event(trainer, "published")
                codes.append(published["code"])
            self.assertEqual(codes, [0, BUSY, BUSY])
            self.assertRegex(published["error"], rf"^snapshot of version 1\.6: all 3 arenas are still being read: .*version 1\.3 by "
                                                 rf"process {sidecar.pid}\b")
            os.kill(sidecar.pid, signal.SIGCONT)
            fleet.until_ready("1.4", "a")
            self.published(fleet, trainer, range(7, 10), ["a"])

    def test_nobody_reads_the_logs(self):
        with UnreadFleet() as fleet:
            model = fleet.checkpoint("one", 1)
            sidecar, engines = fleet.sidecar("s0")
            sidecars_log = fleet.pipes[-1]
            engine = fleet.engine(engines, "a", model)
            trainer = fleet.trainer(model)
            self.published(fleet, trainer, range(1, 6), ["a"])
            self.verified(fleet, "1.5")
            # Nothing was lost of what fits the queue.
            said = b""
            def read_on():
                nonlocal said
                if select.select([sidecars_log], [], [], 0.1)[0]:
                    said += os.read(sidecars_log, 4096)
                return b"replica a has committed 1.5," in said
            fleet.until(read_on, "the last line of the sidecar's log")
            self.assertIn(b"replica a has committed 1.1,", said)
            # A process that ends waits for a reader for a moment, and ends without one.
            for process in engine, sidecar:
                process.send_signal(signal.SIGTERM)
                self.assertEqual(process.wait(timeout=DEADLINE_S), 0)

    def test_the_trainer_comes_first(self):
        for settings in [], ["transport=tcp"]:
            with self.subTest(settings), HangFleet() as fleet:
                model = fleet.checkpoint("one", 1)
                trainer = fleet.trainer(model, *settings)
                for step in range(1, 6):
                    fleet.tell(trainer, "publish", step)
                    published = fleet.event(trainer, "published")
                    self.assertEqual((published["code"], published["error"]), (0, ""))
                fleet.tell(trainer, "wait", COMMITTED, 0)
                waited = fleet.event(trainer, "waited")
                self.assertEqual((waited["code"], waited["state"], waited["version"]), (DEADLINE, SNAPSHOTTED, "0.0"))
                self.assertRegex(waited["error"], rf": 0 of at least 1 sidecars have joined {fleet.address}: start one with "
                                 rf"`wsync sidecar --set name=host0 --set coordinator={fleet.address}` on the host of the engines; "
                                 "it goes on, and may be awaited again$")
                # A sidecar alone does not serve.
                _, engines = fleet.sidecar("s0", *[word for s in settings for word in ("--set", s)])
                def waits_for_engines():
                    fleet.tell(trainer, "wait", COMMITTED, 0)
                    return "0 of at least 1 replicas have all of their ranks attached" in fleet.event(trainer, "waited")["error"]
                fleet.until(waits_for_engines, "what the publish waits for now")
                fleet.engine(engines, "a", model)
                fleet.until_ready("1.5", "a")
                fleet.tell(trainer, "wait", COMMITTED, DEADLINE_MS)
                waited = fleet.event(trainer, "waited")
                self.assertEqual((waited["code"], waited["state"], waited["version"]), (0, COMMITTED, "1.5"))
                self.verified(fleet, "1.5")
                self.assertLessEqual(len(arenas_of(trainer)), 2)


class DeadEngines(unittest.TestCase):
    def test_a_dead_engine_whose_child_has_its_socket_is_replaced(self):
        with HangFleet() as fleet:
            model = fleet.checkpoint("one", 1)
            _, engines = fleet.sidecar("s0")
            trainer = fleet.trainer(model)
            for step, take in enumerate(("pieces", "adopt"), start=1):
                engine = fleet.program("attached", FORKING_ENGINE, engines, "a", model, take)
                fleet.until(lambda: fleet.replicas().get("a", {}).get("ranks_attached") == 1, "the engine")
                published = fleet.publish(trainer, 10 * step)
                self.assertEqual((published["code"], published["error"]), (0, ""))
                # A child that the library has not been told of: it has the engine's descriptors.
                fleet.tell(engine, "fork_unnoticed")
                child = fleet.event(engine, "forked")["pid"]
                self.addCleanup(lambda pid=child: os.kill(pid, signal.SIGKILL))
                self.assertTrue(any("socket:" in os.readlink(f"/proc/{child}/fd/{fd}")
                                    for fd in os.listdir(f"/proc/{child}/fd")))
                engine.kill()
                engine.wait()
                fleet.until(lambda: fleet.replicas()["a"]["ranks_attached"] == 0, "the word that the engine has gone")
                code, answer = fleet.ask("status")
                self.assertEqual(code, 0, answer)
                engine = fleet.program("attached", FORKING_ENGINE, engines, "a", model, take)
                fleet.until_ready(f"1.{10 * step}", "a")
                engine.kill()
                engine.wait()
                fleet.until(lambda: fleet.replicas()["a"]["ranks_attached"] == 0, "the word that the engine has gone")


if __name__ == "__main__":
    unittest.main()

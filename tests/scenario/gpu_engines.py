"""Engines on a GPU over the C API (gpu_loader.cc): they take pieces, whole tensors, or borrow; are killed while they load, give
their memory away, and lose it. For the emulated driver (cuda_engines_test.py) and for this machine's GPUs (gpu_test.py)."""
import subprocess

from cuda_fleet import BUFFER, CudaCase, cuda
from fleet import DEADLINE_S


class Loader:
    def __init__(self, fleet, program, socket, replica, checkpoint, take, device=0, *more):
        fleet.logs += 1
        log = fleet.path(f"log{fleet.logs}")
        with open(log, "w", encoding="utf-8") as file:
            self.process = subprocess.Popen([program, socket, replica, checkpoint, take, "0", str(device), *more],
                                            env=fleet.environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file)
        self.process.log = log
        fleet.processes.append(self.process)
        self.until_said("attached")

    def send(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def until_said(self, beginning):
        for line in self.process.stdout:
            if line.startswith(beginning):
                return line.strip()
        raise AssertionError(f"it ended without saying '{beginning}'")

    def ask(self, command):
        """The answer to a command: 'done ...' or 'failed: ...'."""
        self.send(command)
        for line in self.process.stdout:
            if line.startswith(("done ", "failed: ")):
                return line.strip()
        raise AssertionError(f"it ended at '{command}'")

    def quit(self):
        self.process.stdin.close()
        return self.process.wait(timeout=DEADLINE_S)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()


class EngineCase(CudaCase):
    """A subclass says by fleet() what the processes use, and in `loader` where the program is."""
    loader = ""

    def attach(self, fleet, socket, replica, checkpoint, take, device=0, *more):
        return Loader(fleet, self.loader, socket, replica, checkpoint, take, device, *more)

    def ended(self, fleet, *loaders):
        for loader in loaders:
            self.assertEqual(loader.quit(), 0, fleet.said(loader.process))

    def test_the_reference_engine_takes_whole_tensors(self):
        with self.fleet() as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            sidecar, socket = fleet.sidecar("s0", *cuda("0"), *BUFFER)
            engine = fleet.gpu_engine(socket, "a", one, 0, 0, "--whole")
            trainer = fleet.start("trainer", "--set", "arenas=4")
            for path in (one, two):
                self.verified(fleet, self.push(fleet, path), 1)
            self.stopped(fleet, engine, trainer, sidecar)

    def versions_and_a_rollback(self, take, *settings):
        with self.fleet() as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            sidecar, socket = fleet.sidecar("s0", *cuda("0"), *BUFFER, *settings)
            loader = self.attach(fleet, socket, "a", one, take)
            trainer = fleet.start("trainer", "--set", "arenas=4")
            first = self.push(fleet, one)
            self.verified(fleet, first, 1)
            self.verified(fleet, self.push(fleet, two), 1)
            code, answer = fleet.ask("rollback")
            self.assertEqual(code, 0, answer)
            fleet.until_ready(first, "a")
            self.verified(fleet, first, 1)
            self.ended(fleet, loader)
            self.stopped(fleet, trainer, sidecar)

    def test_whole_tensors_and_a_rollback(self):
        self.versions_and_a_rollback("whole")

    def test_borrowed_tensors_and_a_rollback(self):
        self.versions_and_a_rollback("borrow")

    def test_borrowed_tensors_by_buffers_that_are_not_kept(self):
        self.versions_and_a_rollback("borrow", "--set", "devices.keep_buffers=false")

    def asked_for_its_bytes(self, take):
        with self.fleet() as fleet:
            one = fleet.checkpoint("one", 1)
            sidecar, socket = fleet.sidecar("s0", *cuda("0"), *BUFFER, "--set", "scrub.interval=200ms", "--set", "scrub.max_share=0.5")
            loader = self.attach(fleet, socket, "a", one, take)
            trainer = fleet.start("trainer", "--set", "arenas=4")
            version = self.push(fleet, one)

            def proof():
                return fleet.replicas()["a"]["proof"]
            fleet.until(lambda: proof()["version"] == version, "a proof")
            self.assertEqual(proof()["not_scrubbed"], "")
            self.assertEqual(loader.ask("damage"), "done damage")
            fleet.until(lambda: proof()["mismatches"] == 1, "the scrub")
            fleet.until_ready(version, "a")
            fleet.until(lambda: proof()["version"] == version, "another proof")
            self.assertRegex(proof()["last_mismatch"], f"^rank 0: its bytes of tensor .* are not those of {version}: expected sum ")
            self.verified(fleet, version, 1)
            # Nobody asks while the memory is someone else's.
            self.assertEqual([loader.ask(command) for command in ("suspend", "sleep", "wake", "resume")],
                             ["done suspend", "done sleep", "done wake", "done resume"])
            fleet.until_ready(version, "a")
            fleet.until(lambda: proof()["version"] == version, "a proof of the other memory")
            self.assertEqual(proof()["mismatches"], 0, "since it attached anew")
            self.ended(fleet, loader)
            self.stopped(fleet, trainer, sidecar)

    def test_an_engine_that_takes_whole_tensors_is_asked_for_its_bytes(self):
        self.asked_for_its_bytes("whole")

    def test_an_engine_that_borrows_is_asked_for_its_bytes(self):
        self.asked_for_its_bytes("borrow")

    def killed_in_load_layer(self, take):
        """The other replica goes on, and what comes back gets the newest version."""
        with self.fleet() as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            sidecar, socket = fleet.sidecar("s0", *cuda("0,0"), *BUFFER)
            loader = self.attach(fleet, socket, "a", one, take)
            other = fleet.gpu_engine(socket, "b", one, 0, 1)
            trainer = fleet.start("trainer", "--set", "arenas=4")
            self.push(fleet, one)
            self.assertEqual(loader.ask("hold"), "done hold")
            push = fleet.start("push", two, "--coordinator", fleet.address)
            loader.until_said("layer 0")
            loader.kill()
            push.wait(timeout=DEADLINE_S)
            fleet.until(lambda: fleet.replicas()["a"]["state"] == "absent", "the engine's loss")
            loader = self.attach(fleet, socket, "a", one, take)
            version = self.push(fleet, two)
            fleet.until_ready(version, "a", "b")
            self.verified(fleet, version, 2)
            self.ended(fleet, loader)
            self.stopped(fleet, other, trainer, sidecar)

    def test_killed_while_it_takes_a_whole_layer(self):
        self.killed_in_load_layer("whole")

    def test_killed_while_it_borrows_a_layer(self):
        self.killed_in_load_layer("borrow")

    def test_another_version_is_decided_while_it_borrows_a_layer(self):
        """It waits for layers that do not come any more."""
        with self.fleet() as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            sidecar, socket = fleet.sidecar("s0", *cuda("0,0"), *BUFFER)
            other = fleet.gpu_engine(socket, "b", one, 0, 1)
            trainer = fleet.start("trainer", "--set", "arenas=4")
            self.push(fleet, one)
            loader = self.attach(fleet, socket, "a", one, "borrow", 0, "hold")
            loader.until_said("layer 0")
            push = fleet.start("push", two, "--coordinator", fleet.address)
            fleet.until_said(sidecar, "every engine of the group is lost")
            loader.send("go")  # it may say "given up" before its answer
            self.assertEqual(push.wait(timeout=DEADLINE_S), 0, fleet.said(push))
            loader.until_said("given up 1.1")
            fleet.until_ready("1.2", "a", "b")
            self.verified(fleet, "1.2", 2)
            self.ended(fleet, loader)
            self.stopped(fleet, other, trainer, sidecar)

    def test_the_sidecar_is_killed_while_it_borrows_a_layer(self):
        with self.fleet() as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            sidecar, socket = fleet.sidecar("s0", *cuda("0"), *BUFFER)
            loader = self.attach(fleet, socket, "a", one, "borrow")
            trainer = fleet.start("trainer", "--set", "arenas=4")
            self.push(fleet, one)
            self.assertEqual(loader.ask("hold"), "done hold")
            push = fleet.start("push", two, "--coordinator", fleet.address)
            loader.until_said("layer 0")
            sidecar.kill()
            sidecar.wait()
            loader.send("go")
            sidecar, _ = fleet.sidecar("s0", *cuda("0"), *BUFFER)
            push.wait(timeout=DEADLINE_S)
            fleet.until_ready("1.2", "a")
            loader.until_said("given up 1.2")
            self.verified(fleet, "1.2", 1)
            self.ended(fleet, loader)
            self.stopped(fleet, trainer, sidecar)

    def suspended(self, take):
        with self.fleet() as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            sidecar, socket = fleet.sidecar("s0", *cuda("0,0"), *BUFFER)
            loader = self.attach(fleet, socket, "a", one, take)
            other = fleet.gpu_engine(socket, "b", one, 0, 1)
            trainer = fleet.start("trainer", "--set", "arenas=4")
            self.push(fleet, one)
            self.assertEqual(loader.ask("suspend"), "done suspend")
            self.assertEqual(loader.ask("sleep"), "done sleep")
            version = self.push(fleet, two)
            if take == "pieces":
                self.assertRegex(loader.ask("resume"), "^failed: the destination of tensor .* cannot be borrowed")
            self.assertEqual(loader.ask("wake"), "done wake")
            self.assertEqual(loader.ask("resume"), "done resume")
            fleet.until_ready(version, "a", "b")
            self.verified(fleet, version, 2)
            self.ended(fleet, loader)
            self.stopped(fleet, other, trainer, sidecar)

    def test_a_suspended_engine_gets_the_newest_version(self):
        for take in "pieces", "whole", "borrow":
            with self.subTest(take):
                self.suspended(take)

    def test_memory_that_was_freed_between_two_loads(self):
        with self.fleet() as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            sidecar, socket = fleet.sidecar("s0", *cuda("0"), *BUFFER)
            loader = self.attach(fleet, socket, "a", one, "pieces")
            trainer = fleet.start("trainer", "--set", "arenas=4")
            self.push(fleet, one)
            self.assertEqual(loader.ask("sleep"), "done sleep")
            code, answer = fleet.ask("push", two)
            self.assertEqual(code, 1, answer)
            self.assertRegex(str(answer), "the destination of tensor .* cannot be borrowed")
            self.assertIsNone(loader.process.poll(), fleet.said(loader.process))
            self.assertEqual(loader.ask("wake"), "done wake")
            self.verified(fleet, self.push(fleet, two), 1)
            self.ended(fleet, loader)
            self.stopped(fleet, trainer, sidecar)

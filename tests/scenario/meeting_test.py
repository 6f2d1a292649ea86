"""A trainer, a push and a sidecar that are started at the same time, in any order."""
import os
import re
import signal
import subprocess
import sys
import unittest

import tensors
from fleet import DEADLINE_S, Fleet, short

WSYNC = sys.argv[-1]


class MeetingFleet(Fleet):
    def begin(self, *arguments, environment=()):
        """Starts a process and waits for nothing."""
        with self.log() as log:
            process = subprocess.Popen([self.wsync, *arguments], env=self.environment | dict(environment), text=True,
                                       stdout=subprocess.PIPE, stderr=log)
        process.log_path = log.name
        self.processes.append(process)
        return process

    def said(self, process):
        with open(process.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def until_said(self, process, text):
        self.until(lambda: re.search(text, self.said(process)) or process.poll() is not None, text)
        return re.search(text, self.said(process))

    def ended(self, process):
        out = process.communicate(timeout=DEADLINE_S)[0]
        return process.returncode, out


class Meeting(unittest.TestCase):
    def test_a_push_without_a_sidecar_says_early_what_is_missing(self):
        with MeetingFleet(WSYNC) as fleet:
            one = tensors.make(fleet.path("one"), 1)
            fleet.start("trainer")
            push = fleet.begin("push", one)
            found = fleet.until_said(push, r"wsync push: no sidecar has joined (\S+): start one with `wsync sidecar --set name=host0 "
                                           r"--set coordinator=\1` on the host of the engines; this push waits for 15m at most \(--timeout\)")
            self.assertTrue(found, fleet.said(push))
            self.assertEqual(found[1], fleet.address)
            _, engines = fleet.sidecar("s0")
            fleet.engine(engines, "a", one)
            # The engine may come after the round has begun, and is then missing.
            code, _ = self.end_or_again(fleet, push, one)
            self.assertEqual(code, 0, fleet.said(push))

    def test_the_status_has_the_addresses_of_a_sidecar_of_this_host(self):
        with MeetingFleet(WSYNC) as fleet:
            fleet.sidecar("s0")
            fleet.start("trainer")
            fleet.until(lambda: fleet.state()[1].get("result", {}).get("sidecars"), "the sidecar")

            def said(address):
                done = subprocess.run([WSYNC, "status", "--coordinator", address], env=fleet.environment, text=True,
                                      capture_output=True, timeout=DEADLINE_S)
                self.assertEqual(done.returncode, 0, done.stderr)
                return done.stdout
            place = f"{fleet.run_dir}/s0"
            for address in fleet.address, f"ipc://{place}.control":
                self.assertIn(f"; control ipc://{place}.control, engines attach at {place}.engines\n", said(address))
            self.assertIn("sidecar s0", said(f"ipc://{place}.control"))

    def end_or_again(self, fleet, push, checkpoint):
        code, out = fleet.ended(push)
        if code != 0:
            fleet.until(lambda: fleet.replicas().get("a", {}).get("ranks_attached") == 1, "the engine")
            code, out = fleet.ended(fleet.begin("push", checkpoint))
        return code, out

    def test_a_trainer_and_a_push_in_one_line_of_a_shell(self):
        """Whoever comes first: both do what they were started for."""
        with MeetingFleet(WSYNC) as fleet:
            one = tensors.make(fleet.path("one"), 1)
            _, engines = fleet.sidecar("s0")
            fleet.engine(engines, "a", one)
            for order in (("trainer", "push"), ("push", "trainer")) * 3:
                started = {name: fleet.begin(*([name] if name == "trainer" else [name, one])) for name in order}
                code, out = fleet.ended(started["push"])
                self.assertEqual(code, 0, fleet.said(started["push"]))
                version = out.split(" ")[0]
                fleet.until_said(started["trainer"], "coordinator listens at")
                self.assertIsNone(started["trainer"].poll(), fleet.said(started["trainer"]))
                fleet.until_ready(version, "a")
                self.assertEqual(fleet.stop(started["trainer"])[0], 0)

    def test_a_trainer_waits_for_a_push_to_end(self):
        with MeetingFleet(WSYNC) as fleet:
            one = tensors.make(fleet.path("one"), 1)
            _, engines = fleet.sidecar("s0", "--set", "engine_deadline=10m")
            engine = fleet.engine(engines, "a", one)
            for more in [], ["--follow-directory", fleet.path("folder")]:
                # A push that goes on until its engine does.
                fleet.halt(engine.pid)
                push = fleet.begin("push", one, environment={"WSYNC_DEADLINES_PAUSE": "10m"})
                self.assertTrue(fleet.until_said(push, "this command is the coordinator until it has ended"), fleet.said(push))
                fleet.until(lambda: fleet.ask("status", "--timeout", "1s")[0] == 0, "the push")
                trainer = fleet.begin("trainer", *more)
                self.assertTrue(fleet.until_said(trainer, rf"{fleet.run_dir}/control is held by process {push.pid} \(wsync push\), which "
                                                          r"ends by itself: it is awaited for 15m at most"), fleet.said(trainer))
                os.kill(engine.pid, signal.SIGCONT)
                code, out = fleet.ended(push)
                self.assertEqual(code, 0, fleet.said(push))
                fleet.until(lambda: fleet.state()[1].get("result", {}).get("target") == out.split(" ")[0], "the trainer")
                self.assertIsNone(trainer.poll())
                self.assertEqual(fleet.stop(trainer)[0], 0)

    def test_a_sidecar_that_follows_a_folder_serves_the_push_before(self):
        """The push is the coordinator, and needs this sidecar to end."""
        with MeetingFleet(WSYNC) as fleet:
            folder = fleet.path("folder")
            one, two = tensors.make(fleet.path("one"), 1), tensors.make(os.path.join(folder, "weight_v000001"), 2)
            push = fleet.begin("push", one)
            self.assertTrue(fleet.until_said(push, "this command is the coordinator until it has ended"), fleet.said(push))
            fleet.until(lambda: fleet.ask("status", "--timeout", "1s")[0] == 0, "the push")
            sidecar, engines = fleet.sidecar("s0", "--follow-directory", folder, "--set", "follow_interval=20ms")
            self.assertTrue(fleet.until_said(sidecar, rf"is held by process {push.pid} \(wsync push\), which ends by itself"),
                            fleet.said(sidecar))
            fleet.engine(engines, "a", one)
            code, _ = fleet.ended(push)
            self.assertIn(code, (0, 1), fleet.said(push))  # 1: the engine came after the decision
            self.assertTrue(fleet.until_said(sidecar, f"following {folder}"), fleet.said(sidecar))
            with open(os.path.join(folder, "latest"), "w", encoding="utf-8") as latest:
                latest.write("weight_v000001\n")
            found = fleet.until_said(sidecar, rf"(\d+\.\d+) is {two}\n")
            self.assertTrue(found, fleet.said(sidecar))
            fleet.until_ready(found[1], "a")
            self.assertEqual(fleet.stop(sidecar)[0], 0)

    def test_a_sidecar_whose_folder_cannot_be_followed_after_a_wait_ends(self):
        with MeetingFleet(WSYNC) as fleet:
            os.makedirs(fleet.run_dir, 0o700)
            holder = self.hold(f"{fleet.run_dir}/control.lock", "wsync push")
            sidecar = fleet.begin("sidecar", "--set", "name=s0", "--follow-directory", fleet.path("folder"))
            self.assertTrue(fleet.until_said(sidecar, "which ends by itself"), fleet.said(sidecar))
            fleet.until(lambda: os.path.exists(f"{fleet.run_dir}/s0.engines"), "the sidecar, which serves meanwhile")
            other = self.hold(f"{fleet.run_dir}/trainer-host.sock.lock", "")
            holder.communicate()
            code, _ = fleet.ended(sidecar)
            self.assertEqual(code, 3, fleet.said(sidecar))
            self.assertIn("is held by process", fleet.said(sidecar).splitlines()[-1])
            other.communicate()

    def hold(self, path, who):
        """A process that holds a lock file until its standard input ends."""
        text = ("import fcntl, os, sys\nfd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)\nfcntl.flock(fd, fcntl.LOCK_EX)\n"
                "os.write(fd, f'{os.getpid()} {sys.argv[2]}'.strip().encode())\nprint('held', flush=True)\nsys.stdin.read()\n"
                "os.unlink(sys.argv[1])\n")
        process = subprocess.Popen([sys.executable, "-c", text, path, who], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "held\n")
        return process

    def test_a_trainer_that_waits_is_interrupted_and_has_a_limit(self):
        with MeetingFleet(WSYNC) as fleet:
            os.makedirs(fleet.run_dir, 0o700)
            holder = self.hold(f"{fleet.run_dir}/control.lock", "wsync rollback")
            trainer = fleet.begin("trainer")
            fleet.until_said(trainer, "which ends by itself")
            trainer.send_signal(signal.SIGINT)
            self.assertEqual(fleet.ended(trainer)[0], 0, fleet.said(trainer))
            trainer = fleet.begin("trainer", "--set", f"deadlines.publish={short(300)}", "--set", f"deadlines.gather={short(100)}")
            code, _ = fleet.ended(trainer)
            self.assertEqual(code, 3, fleet.said(trainer))
            self.assertIn("is held by process", fleet.said(trainer).splitlines()[-1])
            holder.communicate()

    def test_another_trainer_is_not_awaited(self):
        with MeetingFleet(WSYNC) as fleet:
            first = fleet.start("trainer")
            second = fleet.begin("trainer")
            self.assertEqual(fleet.ended(second)[0], 3)
            self.assertIn(f"is held by process {first.pid}: stop it", fleet.said(second))
            self.assertNotIn("awaited", fleet.said(second))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:-1])

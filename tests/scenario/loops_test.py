"""Loops go on while memory for gigabytes is made: real processes, a large model over TCP, heartbeats as they are by default.

That no loop was kept for 100 ms is checked by the fleet itself, here as in every scenario (fleet.py, KEPT). WSYNC_DEEP=1 adds the
push of 6 GiB beside six busy processes; it takes 14 GiB of memory, 7 GiB of disc and some minutes.
"""
import os
import re
import signal
import subprocess
import sys
import unittest

from fleet import DEADLINE_S, Fleet
from pages import get
from schema import validate

WSYNC = sys.argv.pop()
GIB = 1 << 30
BY_TCP = ["--set", "transport=tcp"]


def available_bytes():
    with open("/proc/meminfo", encoding="utf-8") as file:
        return int(re.search(r"MemAvailable: +(\d+) kB", file.read()).group(1)) * 1024


class Busy:
    """Processes that do nothing but keep the processors busy."""

    def __init__(self, count):
        self.count = count

    def __enter__(self):
        self.processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(self.count)]

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()


class Loops(unittest.TestCase):
    def begun(self, fleet, gib):
        """The checkpoint, and the engine of a fleet that takes it by TCP."""
        needed = (2 * gib + 2) * GIB
        if available_bytes() < needed:
            print(f"skipped: {needed // GIB} GiB of memory are needed", flush=True)
            self.skipTest(f"{needed // GIB} GiB of memory are needed")
        model = fleet.path("model")
        subprocess.run([WSYNC, "make-checkpoint", model, "--size", f"{gib}GiB", "--seed", "1"], check=True,
                       stdout=subprocess.DEVNULL)
        os.sync()  # while the disc is busy, a line of log takes long, and it is written on the loop
        _, engines = fleet.sidecar("s0", *BY_TCP, "--set", f"http.address=ipc://{self.pages(fleet, 's0')}")
        # It uses the version in place: nobody but the trainer and the sidecar has gigabytes.
        engine = fleet.engine(engines, "a", model, "--adopt")
        fleet.start("trainer", *BY_TCP, "--set", f"http.address=ipc://{self.pages(fleet, 'trainer')}")
        fleet.until(lambda: fleet.replicas().get("a"), "the sidecar at the coordinator")
        return model, engine

    def pages(self, fleet, name):
        return os.path.join(fleet.run_dir, f"{name}.http")

    def push(self, fleet, model):
        with fleet.log() as log:
            return subprocess.Popen([WSYNC, "push", model, "--json", "--coordinator", fleet.address], env=fleet.environment,
                                    stdout=subprocess.PIPE, stderr=log, text=True)

    def activity(self, fleet):
        """What the sidecar says that it does; nothing while its loop does not answer."""
        code, answer = fleet.ask("status", address=f"ipc://{fleet.run_dir}/s0.control")
        return answer["result"]["activity"] if code == 0 else ""

    def lag(self, fleet, name):
        """Seconds that one callback kept the loop at most, and how many kept it too long."""
        text = get(self.pages(fleet, name), "/metrics")[1]
        return tuple(float(re.search(rf"^wsync_loop_{what} (\S+)$", text, re.MULTILINE).group(1))
                     for what in ("longest_callback_seconds", "slow_callbacks_total"))

    def pushed(self, gib, busy):
        with Fleet(WSYNC) as fleet:
            model, _ = self.begun(fleet, gib)
            with Busy(busy):
                push = self.push(fleet, model)
                seen = set()
                while push.poll() is None:
                    seen.add(self.activity(fleet))
                out, _ = push.communicate(timeout=DEADLINE_S)
                fleet.until(lambda: self.activity(fleet), "an answer of the sidecar")  # its log says why it was late
                self.assertEqual(push.returncode, 0, out)
                validate(push.args, out)
                self.assertTrue([text for text in seen if text.endswith(": its memory is being prepared")], seen)
            for name in ("s0", "trainer"):
                longest, slow = self.lag(fleet, name)
                print(f"{gib} GiB beside {busy} busy processes: {name}'s loop was kept for {1000 * longest:.0f} ms at most, "
                      f"{slow:.0f} times for 100 ms or longer", flush=True)
                self.assertGreater(longest, 0)

    def test_memory_is_made_beside_the_loop(self):
        self.pushed(1, busy=0)

    @unittest.skipUnless(os.environ.get("WSYNC_DEEP"), "set WSYNC_DEEP=1")
    def test_six_gibibytes_beside_six_busy_processes(self):
        self.pushed(6, busy=6)

    def test_an_update_that_is_cancelled_while_its_memory_is_made(self):
        with Fleet(WSYNC) as fleet:
            model, engine = self.begun(fleet, 1)
            engine.send_signal(signal.SIGSTOP)  # without its word the version is not staged for some seconds
            fleet.unchecked.add(engine.log_path)
            push = self.push(fleet, model)
            fleet.until(lambda: "memory" in self.activity(fleet), "memory that is being made")
            code, answer = fleet.ask("cancel")
            self.assertEqual(code, 0, answer)
            out, _ = push.communicate(timeout=DEADLINE_S)
            self.assertEqual(push.returncode, 130, out)
            self.assertEqual(validate(push.args, out)["error"]["code"], "cancelled")
            fleet.until(lambda: self.activity(fleet) == "idle", "the end of the staging")
            engine.send_signal(signal.SIGCONT)
            code, answer = fleet.ask("push", model)
            self.assertEqual(code, 0, answer)
            self.assertEqual(answer["result"]["replicas"][0]["outcome"], "committed")


if __name__ == "__main__":
    unittest.main()

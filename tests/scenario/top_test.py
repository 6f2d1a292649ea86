"""`wsync top` on a pseudo-terminal: what is drawn, what keys and sizes do, what is left behind."""
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import unittest

from fleet import DEADLINE_S, Fleet

WSYNC = sys.argv.pop()
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?25h\x1b[?1049l"


class Screen:
    """The master's side of a terminal, with what a program has drawn there."""

    def __init__(self, command, environment, rows=24, columns=80):
        self.master, slave = pty.openpty()
        self.resize(rows, columns, None)
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.said = ""
        self.process = subprocess.Popen(command, env=environment, stdin=slave, stdout=slave, stderr=slave,
                                        start_new_session=True)

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def resize(self, rows, columns, pid):
        self.rows, self.columns = rows, columns
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if pid:
            os.kill(pid, signal.SIGWINCH)  # the terminal is nobody's controlling one here

    def read(self, patience=DEADLINE_S):
        if select.select([self.master], [], [], patience)[0]:
            self.said += os.read(self.master, 65536).decode()
            return True
        return False

    def frames(self):
        """What was drawn from the top left, each time, complete ones only."""
        return [part.split("\x1b[J")[0] for part in self.said.split("\x1b[H")[1:] if "\x1b[J" in part]

    def until_frame(self, holds, what):
        """The next frame of which `holds`, as lines without control sequences."""
        seen = len(self.frames())
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            for frame in self.frames()[seen:]:
                lines = [re.sub(r"\x1b\[[0-9;]*[mK]", "", line) for line in re.split("\r*\n", frame)]
                if holds(lines):
                    return lines
                seen += 1
            self.read(1)
        raise AssertionError(f"no frame with {what}:\n{self.said[-3000:]!r}")

    def type(self, keys):
        os.write(self.master, keys)

    def ended(self):
        """The exit code, when all that was drawn has been read."""
        end = time.monotonic() + DEADLINE_S
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.1)
        while self.read(0):
            pass
        return self.process.wait(timeout=DEADLINE_S)


class Top(unittest.TestCase):
    def setUp(self):
        self.fleet = self.enterContext(Fleet(WSYNC))
        self.fleet.environment["TERM"] = "xterm-256color"
        self.fleet.environment.pop("NO_COLOR", None)

    def screen(self, *more, **size):
        screen = Screen([WSYNC, "top", "--interval", "100ms", "--coordinator", self.fleet.address, *more],
                        self.fleet.environment, **size)
        self.addCleanup(screen.close)
        return screen

    def terminal_is_as_before(self, screen):
        self.assertTrue(screen.said.rstrip("\r\n").endswith(LEAVE), screen.said[-80:])
        self.assertEqual(termios.tcgetattr(screen.slave), screen.before)

    def test_a_fleet_in_every_size_and_back(self):
        fleet = self.fleet
        one = fleet.checkpoint("one", 1)
        _, engines = fleet.sidecar("s0")
        names = [f"replica-{i}" for i in range(6)]
        for name in names:
            fleet.engine(engines, name, one)
        fleet.start("trainer")
        fleet.until(lambda: set(fleet.replicas()) >= set(names), "all replicas")
        code, answer = fleet.ask("push", one)
        self.assertEqual(code, 0, answer)
        version = answer["result"]["version"]

        screen = self.screen()
        lines = screen.until_frame(lambda f: any(f"target {version}" in line for line in f), "the target")
        self.assertIn(ENTER, screen.said)
        self.assertIn("\x1b[32m", screen.said)  # all are ready: green
        self.assertEqual(len(lines), 24)
        self.assertTrue(all(len(line) <= 80 for line in lines), lines)
        table = [line for line in lines if line.startswith("replica-")]
        self.assertEqual([line.split()[:4] for line in table], [[n, "s0", version, "serving"] for n in names])

        screen.resize(9, 40, screen.process.pid)
        small = screen.until_frame(lambda f: len(f) == 9, "nine rows")
        self.assertTrue(all(len(line) <= 40 for line in small), small)
        self.assertIn("scroll", small[-1])
        self.assertFalse(any("replica-5" in line for line in small), small)
        screen.type(b"\x1b[6~\x1b[6~")  # page down
        screen.until_frame(lambda f: any("replica-5" in line for line in f), "the last replica")
        screen.type(b"\x1b[H")
        screen.until_frame(lambda f: any("replica-0" in line for line in f), "the first replica")
        screen.resize(50, 160, screen.process.pid)
        screen.until_frame(lambda f: len(f) == 50 and f[-1] == "q quit", "all of it")
        screen.type(b"q")
        self.assertEqual(screen.ended(), 0)
        self.terminal_is_as_before(screen)

    def test_a_coordinator_that_comes_and_goes_and_an_interrupt(self):
        fleet = self.fleet
        screen = self.screen()
        screen.until_frame(lambda f: any("NO ANSWER: no process answers" in line for line in f), "nobody")
        trainer = fleet.start("trainer")
        screen.until_frame(lambda f: any("no sidecar has connected" in line for line in f), "a coordinator")
        fleet.stop(trainer)
        screen.until_frame(lambda f: any("NO ANSWER for" in line for line in f), "its end")
        screen.type(b"\x03")
        self.assertEqual(screen.ended(), 0)
        self.terminal_is_as_before(screen)

    def test_a_signal_gives_the_terminal_back(self):
        screen = self.screen()
        screen.until_frame(lambda f: True, "a frame")
        screen.process.send_signal(signal.SIGTERM)
        self.assertEqual(screen.ended(), 0)
        self.terminal_is_as_before(screen)

    def test_no_colour_where_none_is_wanted(self):
        self.fleet.environment["NO_COLOR"] = "1"
        screen = self.screen()
        screen.until_frame(lambda f: any("NO ANSWER" in line for line in f), "nobody")
        screen.type(b"q")
        self.assertEqual(screen.ended(), 0)
        self.assertEqual(re.findall(r"\x1b\[[0-9;]+m", screen.said.replace("\x1b[0m\x1b[?25h", "")), [])

    def test_one_frame_without_a_terminal(self):
        fleet = self.fleet
        code = subprocess.run([WSYNC, "top", "--coordinator", fleet.address], env=fleet.environment,
                              capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual((code.returncode, code.stdout), (3, ""))
        fleet.start("trainer")
        fleet.until(lambda: fleet.ask("status")[0] == 0, "the coordinator")
        done = subprocess.run([WSYNC, "top", "--coordinator", fleet.address], env=fleet.environment,
                              capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("no sidecar has connected", done.stdout)
        self.assertNotIn("\x1b", done.stdout)


if __name__ == "__main__":
    unittest.main()

"""`wsync demo` as a process, and what it leaves behind, for scenario tests."""
import os
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

from schema import validate

DEADLINE_S = 240


def left_behind(directory):
    """Processes that run in `directory`, and entries of it; the demo's processes name it in their environment."""
    processes = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environment:
                if directory.encode() in environment.read() and int(pid) != os.getpid():
                    processes.append(pid)
        except OSError:
            pass
    return processes, os.listdir(directory)


def texts_of(picture):
    root = ElementTree.parse(picture).getroot()
    return ["".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text")]


class DemoCase(unittest.TestCase):
    wsync = ""  # the executable; a test file sets it

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="wd-", dir="/tmp")
        self.temporary = os.path.join(self.directory.name, "t")
        os.mkdir(self.temporary)
        self.output = os.path.join(self.directory.name, "out")
        self.environment = dict(os.environ, TMPDIR=self.temporary)

    def tearDown(self):
        self.directory.cleanup()

    def start(self, *arguments):
        return subprocess.Popen([self.wsync, "demo", *arguments], env=self.environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run_demo(self, *arguments):
        with self.start("--json", "--output", self.output, *arguments) as process:
            out, err = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 0, out + err)
        self.assertEqual(left_behind(self.temporary), ([], []))
        said = validate("demo", out)
        self.assertTrue(said["ok"])
        return said["result"]

    def interrupt(self, line_with, signals, *arguments):
        """Sends signals when the demo has said so; its exit code, and what it said afterwards."""
        with self.start("--output", self.output, *arguments) as process:
            for line in process.stdout:
                if line_with in line:
                    break
            for number in signals:
                process.send_signal(number)
            _, err = process.communicate(timeout=DEADLINE_S)
        return process.returncode, err

"""What the tests of this folder share: a run of wsync_soak, and its answer as soak.json has it."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "scenario"))
from fleet import interrupt_leaves_nothing, processes_of  # noqa: E402, F401
from schema import validate  # noqa: E402

SCHEMA = "../../../tests/soak/soak"  # from the folder of the other schemas
DEADLINE_S = 1200


class SoakCase(unittest.TestCase):
    soak = ""  # the program; a test file sets it
    wsync = ""  # the one that it tests
    run_name = ""  # the command

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="wsync-soak-")
        self.addCleanup(temporary.cleanup)
        self.directory = temporary.name

    def command(self, *more):
        return [self.soak, self.run_name, "--wsync", self.wsync, "--json", "--directory", self.directory, *more]

    def result_of(self, *more):
        """The result of a run that has passed, and has left nothing behind."""
        done = subprocess.run(self.command(*more), text=True, capture_output=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(os.listdir(self.directory), [], "something is left behind")
        self.assertEqual(processes_of(self.directory), [])
        answer = validate(SCHEMA, done.stdout)
        self.assertEqual((answer["command"], answer["ok"]), (self.run_name, True))
        self.assertTrue(answer["result"]["passed"])
        return answer["result"]

    def refuses(self, *bad):
        done = subprocess.run([self.soak, self.run_name, "--wsync", self.wsync, *bad], capture_output=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 2, bad)

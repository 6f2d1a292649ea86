"""`wsync bench sync --python`: the same publish from C and from an interpreter with the wheel.

No time is compared with anything: the machine may be busy. Run by an interpreter that has jsonschema; the interpreter under test is
the one of the environment that has the wheel.

Usage: bench_test.py [options of unittest] WSYNC PYTHON
"""
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scenario"))
from fleet import interrupt_leaves_nothing  # noqa: E402
from schema import validate  # noqa: E402

PYTHON = sys.argv.pop()
WSYNC = sys.argv.pop()
DEADLINE_S = 600
MIB = 1 << 20
RELEASE = subprocess.run([WSYNC, "--version"], text=True, capture_output=True, check=True).stdout.split()[-1]
# Runs in each interpreter before its program: a binding that copies each tensor.
COPIES = """
import wsync.publisher
describe_all = wsync.publisher._tensors.describe_all
def copied(tensors, *others):
    return describe_all({name: tensor.copy() for name, tensor in tensors.items()}, *others)
wsync.publisher._tensors.describe_all = copied
"""


class Bench(unittest.TestCase):
    """What both kinds of tests need."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="wsync-bench-test-")
        self.addCleanup(temporary.cleanup)
        self.directory = os.path.join(temporary.name, "run")
        self.other = os.path.join(temporary.name, "other")
        os.mkdir(self.directory)
        os.mkdir(self.other)

    def run_bench(self, *arguments, python=PYTHON, **environment):
        command = [WSYNC, "bench", "sync", "--python", python, "--rounds", "2", "--directory", self.directory, "--json", *arguments]
        done = subprocess.run(command, text=True, capture_output=True, timeout=DEADLINE_S, env=os.environ | environment)
        self.assertEqual(os.listdir(self.directory), [], "something is left behind")
        return done, validate(done.args, done.stdout)

    def measure(self, *arguments, **environment):
        done, answer = self.run_bench(*arguments, **environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return answer["result"]

    def refused(self, *arguments, **options):
        done, answer = self.run_bench(*arguments, **options)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        return answer["error"]["message"]


class Measured(Bench):
    def test_the_same_bytes_from_c_and_from_python(self):
        for options in ((), ("--adopt",), ("--tcp", "--engines", "2")):
            result = self.measure("--size", "8MiB", "--python-tensors", "numpy", *options)
            self.assertEqual((result["engines"], result["adopt"], result["tcp"]),
                             (2 if "--tcp" in options else 1, "--adopt" in options, "--tcp" in options))
            self.assertEqual(result["python"]["wsync"], RELEASE)
            c, numpy = result["publishers"]
            self.assertEqual((c["publisher"], numpy["publisher"]), ("c", "numpy"))
            self.assertNotIn("ratio", c)
            for one, other in zip(c["rounds"], numpy["rounds"], strict=True):
                self.assertEqual(one["content_digest"], other["content_digest"])
            digests = {one["content_digest"] for one in c["rounds"]}
            self.assertEqual(len(digests), 2, "each round publishes other bytes")
            for publisher in (c, numpy):
                for one in publisher["rounds"]:
                    self.assertLessEqual(one["snapshot_ns"], one["staged_ns"])
                    self.assertLessEqual(one["staged_ns"], one["whole_ns"])
                    self.assertLessEqual(one["snapshot_cpu_ns"], one["cpu_ns"])
                    self.assertGreater(one["paused_ns"], 0)
                    self.assertGreaterEqual(one["copied_bytes"], result["bytes"])
                    self.assertLessEqual(one["copied_bytes"], result["bytes"] * 1.05)  # with padding
                    self.assertEqual(one["sent_bytes"] > 0, "--tcp" in options)
            first = numpy["rounds"][0]["snapshot_ns"] / c["rounds"][0]["snapshot_ns"]
            second = numpy["rounds"][1]["snapshot_ns"] / c["rounds"][1]["snapshot_ns"]
            self.assertAlmostEqual(numpy["ratio"]["snapshot_ns"]["median"], (first + second) / 2)

    def test_a_binding_that_copies_is_noticed(self):
        size = ("--size", "64MiB", "--python-tensors", "numpy")
        for publisher in self.measure(*size)["publishers"]:
            self.assertLess(min(one["growth_bytes"] for one in publisher["rounds"]), 24 * MIB, publisher["publisher"])
        with open(os.path.join(self.other, "sitecustomize.py"), "w", encoding="utf-8") as file:
            file.write(COPIES)
        c, numpy = self.measure(*size, PYTHONPATH=self.other)["publishers"]
        self.assertLess(min(one["growth_bytes"] for one in c["rounds"]), 24 * MIB)
        for one in numpy["rounds"]:
            self.assertGreater(one["growth_bytes"], 60 * MIB)

    def test_an_interrupt_leaves_nothing_behind(self):
        command = [WSYNC, "bench", "sync", "--python", PYTHON, "--size", "8MiB", "--rounds", "10000", "--json", "--directory",
                   self.directory]
        # The benchmark, and of each fleet an engine and a publisher, whose arguments name the directory.
        interrupt_leaves_nothing(self, command, self.directory, 5, DEADLINE_S)

    def test_a_result_file_and_the_table(self):
        path = os.path.join(self.other, "result.json")
        command = [WSYNC, "bench", "sync", "--python", PYTHON, "--size", "2MiB", "--rounds", "1", "--directory", self.directory,
                   "--output", path]
        done = subprocess.run(command, text=True, capture_output=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("snapshot", "staged", "load", "paused", "whole", "NumPy", "to C"):
            self.assertIn(word, done.stdout)
        with open(path, encoding="utf-8") as file:
            (suite,) = validate("bench-result", file.read())["suites"]
        names = [case["name"] for case in suite["cases"]]
        self.assertIn("publish, C", names)
        (case,) = [case for case in suite["cases"] if case["name"] == "publish, NumPy"]
        self.assertEqual(case["baseline"]["name"], "publish of the same bytes from C")


class Refused(Bench):
    """Nothing is generated or started, and the sentence names the interpreter and what is missing."""

    def environment(self, files):
        """The interpreter of an environment without packages but for these files."""
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.other], check=True, timeout=DEADLINE_S)
        (packages,) = glob.glob(os.path.join(self.other, "lib", "python*", "site-packages"))
        for name, text in files.items():
            path = os.path.join(packages, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(textwrap.dedent(text))
        return os.path.join(self.other, "bin", "python")

    def test_an_interpreter_that_is_not_there(self):
        self.assertIn("--python: /nowhere/python does not exist", self.refused(python="/nowhere/python"))
        self.assertIn("--python: no-such-python is not in PATH", self.refused(python="no-such-python"))
        self.assertIn(f"--python: {self.other} is not a program", self.refused(python=self.other))
        self.assertIn("as an interpreter of Python does", self.refused(python=shutil.which("true")))

    def test_an_interpreter_without_the_package(self):
        python = self.environment({})
        self.assertRegex(self.refused(python=python),
                         rf"^--python: {python} has no package wsync; expected the wheel of wsync {RELEASE}")

    def test_a_wheel_of_another_version(self):
        python = self.environment({"wsync-0.0.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: wsync\nVersion: 0.0.9\n"})
        self.assertRegex(self.refused(python=python),
                         rf"^--python: {python} has wsync 0.0.9, but this benchmark is of release {RELEASE}")

    def test_a_wheel_of_the_same_release_and_another_protocol(self):
        """Copies of the wheel under test, of which one says another version, and one none, as older wheels do."""
        (package,) = glob.glob(os.path.join(os.path.dirname(PYTHON), "..", "lib", "python*", "site-packages", "wsync"))
        for part in (package, f"{package}.libs"):
            shutil.copytree(part, os.path.join(self.other, os.path.basename(part)))
        path = os.path.join(self.other, "wsync", "_native", "__init__.py")
        with open(path, encoding="utf-8") as file:
            original = file.read()
        expected = rf"but this benchmark has the protocol version \d+; expected the wheel of the same build; `{PYTHON} -m pip install"
        for change, said in (("core.protocol = 7", "the protocol version 7"),
                             ("del core.protocol", "an older protocol version, which it does not tell")):
            with open(path, "w", encoding="utf-8") as file:
                # Python takes compiled code for current if the size and the second of the last change are equal.
                file.write(f"{original}\nfrom . import core\n{change}  # {said}\n")
            self.assertRegex(self.refused(PYTHONPATH=self.other),
                             rf"^--python: {PYTHON} has wsync {RELEASE} with {said}, {expected}")

    def test_a_package_that_cannot_be_imported(self):
        metadata = f"Metadata-Version: 2.1\nName: wsync\nVersion: {RELEASE}\n"
        python = self.environment({f"wsync-{RELEASE}.dist-info/METADATA": metadata,
                                   "wsync/__init__.py": "import numpy\n", "numpy.py": "raise ImportError('no NumPy here')\n"})
        self.assertRegex(self.refused(python=python), rf"^--python: {python} cannot import wsync \(ImportError: no NumPy here\)")

    def test_torch_that_is_not_there(self):
        said = self.refused("--python-tensors", "torch")  # the environment has NumPy only
        self.assertRegex(said, rf"^--python: {PYTHON} cannot import torch \(.*\), which --python-tensors names")

    def test_options_that_do_not_fit(self):
        for options, word in ((("--engines", "1,2"), "give one number"), (("--devices", "1"), "--devices"),
                              (("--python-tensors", "jax"), "jax"), (("--size", "1000TiB"), "copies of")):
            done, answer = self.run_bench(*options)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(word, answer["error"]["message"])
        done = subprocess.run([WSYNC, "bench", "sync", "--python-tensors", "numpy"], text=True, capture_output=True,
                              timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 2)
        self.assertIn("give it with --python", done.stderr)


if __name__ == "__main__":
    unittest.main()

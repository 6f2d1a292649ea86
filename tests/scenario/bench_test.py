"""wsync bench sync, tiny: what it reports, that every byte is checked, and that an interrupt leaves nothing behind.

No time is compared with anything: the machine may be busy.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

WSYNC = sys.argv.pop()
DEADLINE_S = 120
ROUNDS = 2


def arguments(directory, *more, rounds=ROUNDS):
    return [WSYNC, "bench", "sync", "--size", "16MiB", "--rounds", str(rounds), "--json", "--directory", directory, *more]


def processes_of(directory):
    """Processes that have the directory's name in their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if directory.encode() in file.read() and int(pid) != os.getpid():
                    found.append(int(pid))
        except OSError:
            pass  # it has ended meanwhile
    return found


class BenchSync(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="wsync-bench-test-")
        self.addCleanup(temporary.cleanup)
        self.directory = temporary.name

    def measure(self, *more):
        done = subprocess.run(arguments(self.directory, *more), text=True, capture_output=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(os.listdir(self.directory), [], "something is left behind")
        answer = json.loads(done.stdout)
        self.assertEqual((answer["command"], answer["ok"]), ("bench sync", True))
        return answer["result"]

    def check_case(self, case, bytes_of_model):
        self.assertEqual(case["expected_bytes"], case["engines"] * bytes_of_model)
        self.assertEqual(len(case["rounds"]), ROUNDS)
        for one in case["rounds"]:
            self.assertEqual(one["checked_bytes"], case["expected_bytes"])
            self.assertGreater(one["paused_ns"], 0)
            self.assertGreater(one["sidecar_pss_bytes"], 0)
        self.assertLessEqual(case["sidecar_pss_bytes"], case["sidecar_pss_limit_bytes"])

    def test_copying_engines_against_the_floor(self):
        result = self.measure("--engines", "1,2")
        self.assertGreaterEqual(result["bytes"], 15 << 20)
        self.assertGreater(result["machine"]["cores"], 0)
        self.assertEqual([case["engines"] for case in result["cases"]], [1, 2])
        for case in result["cases"]:
            self.check_case(case, result["bytes"])
            self.assertIn(case["floor_way"], [{k: v for k, v in way.items() if k != "median_ns"} for way in case["floor_ways"]])
            self.assertEqual([one["floor_first"] for one in case["rounds"]], [True, False])
            for one in case["rounds"]:
                self.assertAlmostEqual(one["ratio"], one["floor_ns"] / one["paused_ns"])

    def test_engines_that_map_the_version(self):
        result = self.measure("--engines", "2", "--adopt")
        (case,) = result["cases"]
        self.assertTrue(case["adopt"])
        self.assertNotIn("floor_ns", case)
        self.check_case(case, result["bytes"])

    def test_an_interrupt_leaves_nothing_behind(self):
        bench = subprocess.Popen(arguments(self.directory, rounds=10000), text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(lambda: (bench.stdout.close(), bench.stderr.close()))
        end = time.monotonic() + DEADLINE_S
        while len(processes_of(self.directory)) < 3:  # the benchmark, an engine, and one more at least
            self.assertLess(time.monotonic(), end)
            self.assertIsNone(bench.poll())
        bench.send_signal(signal.SIGINT)
        out, _ = bench.communicate(timeout=DEADLINE_S)
        self.assertEqual(bench.returncode, 130, out)
        self.assertEqual(json.loads(out)["error"]["code"], "cancelled")
        self.assertEqual(processes_of(self.directory), [])
        self.assertEqual(os.listdir(self.directory), [])

    def test_bad_arguments(self):
        for bad in (["--size", "many"], ["--engines", "0"], ["--rounds", "0"]):
            done = subprocess.run([WSYNC, "bench", "sync", *bad], capture_output=True, timeout=DEADLINE_S)
            self.assertEqual(done.returncode, 2, bad)


if __name__ == "__main__":
    unittest.main()

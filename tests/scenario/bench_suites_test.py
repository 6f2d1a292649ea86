"""wsync bench as a framework: suites in one line, the result file against its schema, list and compare; all tiny.

No time is compared with anything: the machine may be busy.
"""
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import jsonschema
except ImportError:
    # The system's package, where another Python runs the tests.
    sys.path.append("/usr/lib/python3/dist-packages")
    import jsonschema

WSYNC = sys.argv.pop()
DEADLINE_S = 120
SCHEMA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "result.schema.json")
BASELINE = ["baseline", "--quick", "--size", "4MiB", "--no-gpu"]
SCHEDULE = ["schedule", "--hidden", "64", "--tokens", "16", "--microbatches", "2", "--experts", "4", "--warmup", "1",
            "--latency-us", "1", "--steps", "2"]


def bench(*words):
    return subprocess.run([WSYNC, "bench", *words], text=True, capture_output=True, timeout=DEADLINE_S)


class Suites(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="wsync-bench-test-")
        self.addCleanup(temporary.cleanup)
        self.directory = os.path.join(temporary.name, "work")
        os.mkdir(self.directory)
        self.a = os.path.join(temporary.name, "a.json")
        self.b = os.path.join(temporary.name, "b.json")

    def read(self, path):
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
        with open(SCHEMA, encoding="utf-8") as file:
            schema = json.load(file)
        jsonschema.Draft7Validator.check_schema(schema)
        jsonschema.validate(result, schema)
        return result

    def write(self, path, result):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(result, file)

    def check_cases(self, suite, rounds):
        for case in suite["cases"]:
            self.assertEqual(case["value"]["count"], rounds, case)
            self.assertAlmostEqual(statistics.median(case["value"]["samples"]), case["value"]["median"])
            for sample in case["value"]["samples"]:
                self.assertTrue(0 < sample < math.inf, case)
            if "baseline" in case and case["baseline"]["value"]["count"] == rounds:
                pairs = zip(case["value"]["samples"], case["baseline"]["value"]["samples"])
                expected = [ours / other if case["higher_is_better"] else other / ours for ours, other in pairs]
                for found, wanted in zip(case["ratio"]["samples"], expected):
                    self.assertAlmostEqual(found, wanted)

    def test_the_baseline_its_file_and_a_comparison_with_itself(self):
        done = bench(*BASELINE, "--directory", self.directory, "--output", self.a)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(os.listdir(self.directory), [], "something is left behind")
        (suite,) = self.read(self.a)["suites"]
        self.assertEqual((suite["suite"], suite["parameters"]["bytes"]), ("baseline", 4 << 20))
        self.check_cases(suite, 5)
        names = {case["name"] for case in suite["cases"]}
        self.assertLessEqual({"memcpy, 1 thread", "streaming copy, 1 thread", "first touch, shared", "map filled", "XXH3",
                              "loopback TCP", "Unix socket", "ZeroMQ ipc", "tmpfs read"}, names)
        for name in names:
            self.assertIn(name, done.stdout)
        same = bench("compare", self.a, self.a, "--json")
        self.assertEqual(same.returncode, 0, same.stdout)
        result = json.loads(same.stdout)["result"]
        self.assertEqual({case["verdict"] for case in result["cases"]}, {"same"})
        self.assertEqual({case["name"] for case in result["cases"]}, names)

    def test_two_suites_are_one_run_with_one_result(self):
        done = bench(*BASELINE, "--directory", self.directory, *SCHEDULE, "--output", self.a, "--json", "--repeats", "3")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        answer = json.loads(done.stdout)
        self.assertEqual((answer["command"], answer["ok"]), ("bench baseline schedule", True))
        written = self.read(self.a)
        self.assertEqual(written["suites"], answer["result"]["suites"])
        baseline, schedule = written["suites"]
        self.assertEqual((baseline["suite"], schedule["suite"]), ("baseline", "schedule"))
        # --repeats is for all, unless a suite's own option says otherwise.
        self.check_cases(baseline, 3)
        self.check_cases(schedule, 2)
        self.assertEqual([case["name"] for case in schedule["cases"]],
                         ["step, overlap", "step, no overlap", "step, no link", "speed-up"])
        self.assertEqual(schedule["parameters"]["hidden"], schedule["details"]["hidden"])

    def test_parts_of_the_product_by_themselves(self):
        words = ["control", "--directory", self.directory, "transport", "--directory", self.directory, "codecs", "--quick"]
        done = bench(*words, "--repeats", "2", "--output", self.a)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(os.listdir(self.directory), [], "something is left behind")
        suites = self.read(self.a)["suites"]
        self.assertEqual([suite["suite"] for suite in suites], ["control", "transport", "codecs"])
        for suite in suites:
            self.check_cases(suite, 2)
            for case in suite["cases"]:
                self.assertIn(case["name"], done.stdout)
            self.assertTrue(any("ratio" in case for case in suite["cases"]), suite["suite"])
        self.assertEqual(suites[1]["parameters"]["bytes"], 32 << 20)

    def test_list_has_every_case_of_a_result(self):
        done = bench("list", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        suites = {suite["name"]: suite for suite in json.loads(done.stdout)["result"]["suites"]}
        self.assertLessEqual({"baseline", "sync", "pipeline", "scale", "schedule", "recovery", "torn", "gpu", "control",
                              "transport", "codecs"}, set(suites))
        text = bench("list").stdout
        for suite in suites.values():
            self.assertIn(f"{suite['command']}: {suite['question']}", text)
            for case in suite["cases"]:
                self.assertIn(f"  {case['name']} ({case['unit']}): {case['what']}", text)

    def compare(self, change, *more):
        """Of a result of one suite, and the same after change(case) of each of its cases."""
        case = {"name": "paused", "what": "It measures.", "unit": "ms", "higher_is_better": False,
                "value": {"samples": [10.0, 10.1, 10.2, 10.3, 10.4, 10.5]}}
        file = {"schema": "wsync-bench", "schema_version": 1, "date": "", "wsync_version": "1", "machine": {},
                "suites": [{"suite": "sync", "parameters": {}, "cases": [case], "notes": []}]}
        self.write(self.a, file)
        change(file, case)
        self.write(self.b, file)
        return bench("compare", self.a, self.b, *more)

    def test_a_regression_is_exit_1_and_named(self):
        def slower(_, case):
            case["value"]["samples"] = [2 * value for value in case["value"]["samples"]]
        done = self.compare(slower, "--json")
        self.assertEqual(done.returncode, 1, done.stdout)
        answer = json.loads(done.stdout)
        self.assertIs(answer["ok"], False)
        (case,) = answer["result"]["cases"]
        self.assertEqual((case["suite"], case["name"], case["verdict"], case["speed"]), ("sync", "paused", "worse", 0.5))
        done = self.compare(slower)
        self.assertEqual((done.returncode, done.stderr), (1, "wsync bench compare: 1 case became worse\n"))
        self.assertRegex(done.stdout, r"sync: paused .* worse")
        self.assertEqual(self.compare(slower, "--factor", "3").returncode, 0)
        back = bench("compare", self.b, self.a)
        self.assertEqual(back.returncode, 0, back.stdout)
        self.assertRegex(back.stdout, r"sync: paused .* better")

    def test_bad_result_files(self):
        def version(file, _):
            file["schema_version"] = 7
        def schema(file, _):
            file["schema"] = "other"
        def unit(_, case):
            case["unit"] = "s"
        def nothing_in_common(_, case):
            case["name"] = "load"
        for change, sentence in ((version, f"{self.b}: schema_version: expected 1, found 7; a newer wsync wrote it"),
                                 (schema, f"{self.b}: schema: expected 'wsync-bench', found 'other'"),
                                 (unit, "sync: paused: in A ms and less is better, in B s"),
                                 (nothing_in_common, "no case is in both files")):
            done = self.compare(change)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(sentence, done.stderr)
        for path in (os.path.join(self.directory, "gone"), SCHEMA, self.directory):
            done = bench("compare", self.a, path)
            self.assertEqual(done.returncode, 1 if path == self.directory else 2, done.stderr)
            self.assertIn(path, done.stderr)

    def test_bad_lines(self):
        for words, sentence in ((["bsaeline"], "no command 'bsaeline' below bench; did you mean baseline?"),
                                (["baseline", "snyc"], "snyc; did you mean sync?"),
                                (["baseline", "--quik"], "did you mean --quick?"),
                                (["list", "baseline"], "`wsync bench list` stands alone in its line"),
                                (["baseline", "--size", "1KiB"], "--size is 1024 bytes, expected 1MiB to 64GiB"),
                                (["baseline", "--size", "much"], "--size"),
                                (["baseline", "--repeats", "0"], "--repeats"),
                                (["control", "--messages", "0"], "--messages is 0, expected 1 to 1000000"),
                                (["control", "--replicas", "2000"], "--replicas has 2000, expected 1 to 1024"),
                                (["transport", "--size", "1MiB", "--bucket", "2MiB"], "--bucket has 2097152 bytes"),
                                (["transport", "--connections", "0"], "--connections has 0, expected 1 to 64"),
                                (["codecs", "--size", "1KiB"], "--size is 1024 bytes, expected 1MiB to 64GiB"),
                                (["codecs", "--model", "Qwen3"], "Qwen3"),
                                (["compare", self.a], "B is required")):
            done = bench(*words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), words)
            self.assertIn(sentence, done.stderr)
        self.assertEqual(bench(*BASELINE, "--output", "/nonexistent/result.json").returncode, 2)

    def test_an_interrupt_leaves_nothing_behind(self):
        running = subprocess.Popen([WSYNC, "bench", *BASELINE, "--repeats", "10000", "--json", "--directory", self.directory],
                                   text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(lambda: (running.stdout.close(), running.stderr.close()))
        end = time.monotonic() + DEADLINE_S
        while not os.listdir(self.directory):
            self.assertLess(time.monotonic(), end)
            self.assertIsNone(running.poll())
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=DEADLINE_S)
        self.assertEqual(running.returncode, 130, out)
        self.assertEqual(json.loads(out)["error"]["code"], "cancelled")
        self.assertEqual(os.listdir(self.directory), [])


if __name__ == "__main__":
    unittest.main()

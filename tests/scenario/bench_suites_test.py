"""wsync bench as a framework: suites in one line, the result file against its schema, list, compare and report; all tiny.

No time is compared with anything: the machine may be busy.
"""
import html.parser
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
import xml.etree.ElementTree

from schema import DIRECTORY, check, validate

WSYNC = sys.argv.pop()
DEADLINE_S = 120
BASELINE = ["baseline", "--quick", "--size", "4MiB", "--no-gpu"]
SCHEDULE = ["schedule", "--hidden", "64", "--tokens", "16", "--microbatches", "2", "--experts", "4", "--warmup", "1",
            "--latency-us", "1", "--steps", "2"]


def bench(*words, **environment):
    return subprocess.run([WSYNC, "bench", *words], text=True, capture_output=True, timeout=DEADLINE_S,
                          env={**os.environ, **environment})


class Page(html.parser.HTMLParser):
    """What a browser finds in a page: each element has its end, and no attribute names anything outside of the page."""
    EMPTY = {"meta", "rect", "line", "path", "circle", "use"}

    def __init__(self, text):
        super().__init__()
        self.open, self.cases, self.pictures, self.outside = [], [], 0, []
        self.row = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.row = self.row or ("class", "case") in attributes
        self.pictures += tag == "svg"
        self.outside += [(name, value) for name, value in attributes
                         if name in ("src", "srcset", "data", "action", "xlink:href") or name == "href" and value[0] != "#"]

    def handle_startendtag(self, tag, attributes):
        assert tag in self.EMPTY, tag

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        if self.row and self.open[-1] == "td":
            self.cases.append(data)
            self.row = False


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
        check("bench-result", result)
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
        self.check_cases(suite, 9)
        names = {case["name"] for case in suite["cases"]}
        self.assertLessEqual({"memcpy, 1 thread", "streaming copy, 1 thread", "first touch, shared", "map filled", "XXH3",
                              "loopback TCP", "Unix socket", "ZeroMQ ipc", "tmpfs read"}, names)
        for name in names:
            self.assertIn(name, done.stdout)
        same = bench("compare", self.a, self.a, "--json")
        self.assertEqual(same.returncode, 0, same.stdout)
        result = json.loads(same.stdout)["result"]
        self.assertEqual({case["verdict"] for case in result["cases"]}, {"no change shown"})
        self.assertEqual({case["name"] for case in result["cases"]}, names)

    def test_two_suites_are_one_run_with_one_result(self):
        done = bench(*BASELINE, "--directory", self.directory, *SCHEDULE, "--output", self.a, "--json", "--repeats", "3")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        answer = validate(done.args, done.stdout)
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

    def check_fleet(self, *counts):
        """Rounds over real connections, with keys and without, in which every sidecar and each of its 8 replicas must have
        switched."""
        done = bench("control", "--sidecars", ",".join(str(count) for count in counts), "--keys", "--quick", "--json",
                     "--directory", self.directory)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(os.listdir(self.directory), [], "something is left behind")
        suite, = validate(done.args, done.stdout)["result"]["suites"]
        self.check_cases(suite, 1)
        names = {case["name"] for case in suite["cases"]}
        for count in counts:
            for name in ("announce to decide", "announce to switched", "processor time", "processor time of each message",
                         "idle", "memory"):
                words = f"{name}, {count} sidecar{'s' if count > 1 else ''}"
                self.assertIn(f"fleet, {words}", names)
                self.assertIn(f"fleet with keys, {words}", names)
        return {case["name"]: case for case in suite["cases"]}

    def test_a_fleet_over_real_connections(self):
        cases = self.check_fleet(1, 3)
        self.assertIn("baseline", cases["fleet, processor time of each message, 3 sidecars"])
        self.assertEqual({"baseline" in case for name, case in cases.items() if name.startswith("fleet with keys")}, {True})
        for words, sentence in (("0", "--sidecars contains 0, expected numbers from 1 to 2048"),
                                ("2049", "--sidecars contains 2049, expected numbers from 1 to 2048"),
                                ("3,3", "--sidecars contains 3 more than once")):
            done = bench("control", "--sidecars", words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), words)
            self.assertIn(sentence, done.stderr)

    def test_the_largest_fleet_that_is_promised(self):
        self.check_fleet(1250)

    def test_list_has_every_case_of_a_result(self):
        done = bench("list", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        suites = {suite["name"]: suite for suite in validate(done.args, done.stdout)["result"]["suites"]}
        self.assertLessEqual({"baseline", "sync", "whole", "pipeline", "scale", "schedule", "gpu", "control", "transport",
                              "codecs"}, set(suites))
        # The guide to operation has a row for each.
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "guides", "operate.md"), encoding="utf-8") as file:
            rows = [line.split("|")[1] for line in file if line.startswith("| `wsync bench ")]
        for suite in suites:
            self.assertTrue([row for row in rows if f"`wsync bench {suite}`" in row or f"`{suite}`" in row], f"{suite} in {rows}")
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
        answer = validate(done.args, done.stdout)
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

    def test_a_comparison_that_can_tell_nothing_is_no_success(self):
        def once(_, case):
            case["value"]["samples"] = [20.0]
        done = self.compare(once)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("no case has enough rounds for the test", done.stderr)
        self.assertRegex(done.stdout, r"sync: paused .* too few")

    def test_bad_result_files(self):
        def version(file, _):
            file["schema_version"] = 7
        def schema(file, _):
            file["schema"] = "other"
        def unit(_, case):
            case["unit"] = "s"
        def nothing_in_common(_, case):
            case["name"] = "load"
        for change, sentence in ((version, f"{self.b}: schema_version: expected 1, found 7; a newer wsync wrote the file"),
                                 (schema, f"{self.b}: schema: expected 'wsync-bench', found 'other'"),
                                 (unit, "sync: paused: in A ms and less is better, in B s"),
                                 (nothing_in_common, "the files have no common case")):
            done = self.compare(change)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(sentence, done.stderr)
        for path in (os.path.join(self.directory, "gone"), str(DIRECTORY / "bench-result.json"), self.directory):
            done = bench("compare", self.a, path)
            self.assertEqual(done.returncode, 1 if path == self.directory else 2, done.stderr)
            self.assertIn(path, done.stderr)

    def report_input(self):
        """Two result files whose texts are no HTML."""
        def case(engines, milliseconds):
            return {"name": f"paused, {engines} engines that <b>map</b> & \"use\"", "what": "<What> it & measures",
                    "unit": "ms", "higher_is_better": False, "bytes": engines << 20,
                    "value": {"samples": [milliseconds, 2 * milliseconds]},
                    "baseline": {"name": "the <floor> & \"more\"", "value": {"samples": [milliseconds]}},
                    "ratio": {"samples": [1, 0.5]}, "target": {"of": "ratio", "value": 0.95, "met": False}}
        for path, scale in ((self.a, 1), (self.b, 64)):
            cases = [case(1, 2 * scale), case(2, 3 * scale)]
            self.write(path, {"schema": "wsync-bench", "schema_version": 1, "date": "2026-01-02T03:04:05Z",
                              "wsync_version": "1", "machine": {"cpu": "<x> & \"y\"", "cores": 2},
                              "suites": [{"suite": "sync", "parameters": {"bytes": scale << 20}, "cases": cases,
                                          "notes": ["it was <disturbed> & \"not\" quiet"]}]})

    def test_a_report_is_one_well_formed_page_and_its_plots(self):
        self.report_input()
        output, plots = os.path.join(self.directory, "report.html"), os.path.join(self.directory, "new", "plots")
        done = bench("report", self.a, self.b, "--output", output, "--plots", plots, "--json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        result = validate(done.args, done.stdout)["result"]
        with open(output, encoding="utf-8") as file:
            text = file.read()
        xml.etree.ElementTree.fromstring(text)
        page = Page(text)
        self.assertEqual((page.open, page.outside), ([], []))
        self.assertEqual(page.cases, 2 * [f"paused, {n} engines that <b>map</b> & \"use\"" for n in (1, 2)])
        names = [plot["name"] for plot in result["plots"]]
        self.assertEqual(names, ["sync-throughput", "sync-share-of-floor", "sync-paused-by-size"])
        self.assertEqual((page.pictures, result["bytes"]), (len(names), len(text.encode())))
        self.assertTrue(result["left_out"])
        for left_out in result["left_out"]:
            self.assertIn(left_out["command"], text)
        self.assertEqual(result["svg"], [os.path.join(plots, f"{name}.svg") for name in names])
        for path in result["svg"]:
            xml.etree.ElementTree.parse(path)
        pictures = result["png"]
        self.assertEqual(pictures, [os.path.join(plots, f"{name}.png") for name in names])
        self.assertEqual(result["png_left_out"], "")
        for path in pictures:
            with open(path, "rb") as file:
                self.assertEqual(file.read(8), b"\x89PNG\r\n\x1a\n")
        self.assertEqual(len(os.listdir(plots)), len(names) + len(pictures))

    def drawing_commands(self):
        """Every command that needs Python, with the file that it writes and the package that it needs."""
        page, picture = os.path.join(self.directory, "report.html"), os.path.join(self.directory, "scale.svg")
        return ((("report", self.a, "--output", page), page, "matplotlib"), (("compare", self.a, self.a), None, "scipy"),
                (("scale", "--quick", "--svg", picture), picture, "matplotlib"))

    def make_python(self, *lines):
        folder = os.path.join(self.directory, "bin")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "python3")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(["#!/bin/sh", *lines, ""]))
        os.chmod(path, 0o700)
        return folder

    def test_without_python_or_its_packages_one_sentence_says_what_is_missing(self):
        self.report_input()
        bare = self.make_python(f'exec {sys.executable} -S -E "$@"')  # without packages
        for words, output, package in self.drawing_commands():
            done = bench(*words, PATH="")
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
            self.assertIn("need python3, which is not in PATH; on Debian: apt-get install python3-matplotlib python3-scipy",
                          done.stderr)
            done = bench(*words, PATH=bare)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
            self.assertRegex(done.stderr, f"needs? the Python package.* {package}, which .*/python.* does not have; on Debian: "
                                          f"apt-get install .*python3-{package}")
            self.assertFalse(output and os.path.exists(output))
        done = bench("list", PATH="")
        self.assertEqual(done.returncode, 0, "what draws nothing needs no Python")

    def test_a_python_without_packages_hides_no_other(self):
        self.report_input()
        bare = self.make_python(f'exec {sys.executable} -S -E "$@"')
        for words, output, _ in self.drawing_commands():
            done = bench(*words, PATH=f"{bare}:{os.environ['PATH']}")
            # The comparison is done, and says that two rounds are too few.
            self.assertEqual(done.returncode, 2 if words[0] == "compare" else 0, done.stderr)
            self.assertTrue(done.stdout)
            self.assertTrue(output is None or xml.etree.ElementTree.parse(output))

    def test_a_drawing_that_fails_is_told_with_its_last_words(self):
        self.report_input()
        broken = self.make_python("echo no picture for you >&2", "exit 7")
        for words, output, _ in self.drawing_commands():
            done = bench(*words, PATH=broken)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn("plot.py ended with exit code 7: no picture for you", done.stderr)
            self.assertFalse(output and os.path.exists(output))

    def test_reports_that_are_refused(self):
        self.report_input()
        output = os.path.join(self.directory, "report.html")
        old = os.path.join(self.directory, "old.json")
        for content, sentence in (({"command": "bench sync", "ok": True, "result": {}},
                                   f"{old}: schema: expected 'wsync-bench', found nothing; the file was not written by --output"),
                                  ({"schema": "wsync-bench", "schema_version": 0},
                                   f"{old}: schema_version: expected 1, found 0; an older wsync wrote the file")):
            self.write(old, content)
            done = bench("report", old, "--output", output)  # nothing else to show
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(sentence, done.stderr)
            done = bench("report", self.a, old, "--output", output)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("of 1 result file,", done.stdout)
            self.assertIn(f"  skipped: {sentence}", done.stdout)
            os.unlink(output)
        self.write(old, {"schema": "wsync-bench", "schema_version": 2})
        done = bench("report", self.a, old, "--output", output)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("a newer wsync wrote the file", done.stderr)
        for words, sentence in (([], "RESULT is required"), ([self.a], "--output is required"),
                                ([self.directory + "/gone", "--output", output], "/gone"),
                                ([self.a, "--output", "/nonexistent/report.html"], "--output: cannot write to /nonexistent/"),
                                ([self.a, "--output", self.a], "is one of the result files"),
                                ([self.a, self.a, "--output", output], "expected each file once"),
                                ([self.a, "--output", output, "sync"], "sync")):
            done = bench("report", *words)
            self.assertEqual(done.returncode, 2, (words, done.stderr))
            self.assertIn(sentence, done.stderr)
        self.assertEqual(os.listdir(self.directory), ["old.json"])
        done = bench("report", self.a, "--output", output, "--plots", self.b)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(f"--plots: cannot create {self.b}", done.stderr)

    def test_bad_lines(self):
        for words, sentence in ((["bsaeline"], "no command 'bsaeline' under bench; did you mean baseline?"),
                                (["baseline", "snyc"], "snyc; did you mean sync?"),
                                (["baseline", "--quik"], "did you mean --quick?"),
                                (["list", "baseline"], "`wsync bench list` cannot be combined with other suites on one command line"),
                                (["baseline", "--size", "1KiB"], "--size is 1024 bytes, expected 1MiB to 64GiB"),
                                (["baseline", "--size", "much"], "--size"),
                                (["baseline", "--repeats", "0"], "--repeats"),
                                (["control", "--messages", "0"], "--messages is 0, expected 1 to 1000000"),
                                (["control", "--replicas", "3000"], "--replicas contains 3000, expected numbers from 1 to 2048"),
                                (["transport", "--size", "1MiB", "--bucket", "2MiB"], "--bucket contains 2097152 bytes"),
                                (["transport", "--connections", "0"], "--connections contains 0, expected numbers from 1 to 64"),
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
        self.assertEqual(validate(running.args, out)["error"]["code"], "cancelled")
        self.assertEqual(os.listdir(self.directory), [])


if __name__ == "__main__":
    unittest.main()

"""wsync bench gpu on the emulated driver, tiny: that it measures every case, checks every byte, calls the driver as the driver's
documentation allows, and leaves nothing behind. No GPU does any of this, and no figure is compared with anything.
"""
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from schema import validate

WSYNC, LIBRARY, DRIVER, NCCL = sys.argv[-4:]
del sys.argv[-4:]
DEADLINE_S = 240
ROUNDS = 2
UPDATES = 1
MIB = 1 << 20
READERS = re.compile(rb"\0bench\0gpu-reader\0")


def readers_of(directory):
    """Processes that read buffers for a benchmark whose logs are in `directory`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if READERS.search(file.read()) and os.readlink(f"/proc/{pid}/fd/2").startswith(directory):
                    found.append(int(pid))
        except OSError:
            pass
    return found


class BenchGpu(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="wsync-gpu-bench-")
        self.addCleanup(temporary.cleanup)
        self.directory = os.path.join(temporary.name, "work")
        os.mkdir(self.directory)
        self.misuse = os.path.join(temporary.name, "misuse")
        self.output = os.path.join(temporary.name, "result.json")

    def environment(self, **more):
        library_path = os.path.dirname(DRIVER)
        if os.environ.get("LD_LIBRARY_PATH"):
            library_path += ":" + os.environ["LD_LIBRARY_PATH"]
        return dict(os.environ, LD_LIBRARY_PATH=library_path, WSYNC_CUDA_LIBRARY=LIBRARY,
                    WSYNC_NCCL_LIBRARY=NCCL, WSYNC_EMULATED_CUDA_REPORT=self.misuse,
                    WSYNC_EMULATED_CUDA_READ_ONLY_REGISTER="1", **more)

    def arguments(self, *more, rounds=ROUNDS):
        defaults = {"--size": "12MiB", "--buffer": "2MiB", "--pause": "0", "--rounds": str(rounds)}
        given = [word for name, value in defaults.items() if name not in more for word in (name, value)]
        return [WSYNC, "bench", "gpu", "--updates", str(UPDATES), "--directory", self.directory, *given, *more]

    def run_bench(self, *more, **environment):
        return subprocess.run(self.arguments(*more), text=True, capture_output=True, timeout=DEADLINE_S,
                              env=self.environment(**environment))

    def check_left(self):
        self.assertEqual(os.listdir(self.directory), [], "something is left behind")
        self.assertEqual(readers_of(self.directory), [])
        if os.path.exists(self.misuse):
            with open(self.misuse, encoding="utf-8") as file:
                self.assertEqual(file.read(), "", "the driver was misused")

    def check_copies(self, cases, gpus):
        names = ["H2D", "publish", "publish of F32 as BF16", "reload", "reload in another process", "sum"]
        self.assertEqual([(case["gpu"], case["name"]) for case in cases], [(gpu, name) for gpu in gpus for name in names])
        for case in cases:
            self.assertEqual(case["bytes"], 2 * MIB)
            rounds = case["rounds"]
            ratios = sorted(ours / ceiling for ours, ceiling in zip(rounds["bytes_per_s"], rounds["ceiling_bytes_per_s"]))
            self.assertEqual(len(ratios), ROUNDS)
            self.assertGreater(ratios[0], 0)
            self.assertAlmostEqual(case["ratio"]["min"], ratios[0])
            self.assertAlmostEqual(case["ratio"]["median"], sum(ratios) / 2)
            self.assertEqual(case["met"], case["ratio"]["median"] >= case["ratio_target"])

    def check_page_sizes(self, cases, gpus, fallback=""):
        """Pages of 4 KiB are always there; others are measured, or it is said why they are not."""
        pages = ["4 KiB", "huge, on request", "huge, of the pool"]
        self.assertEqual([(case["gpu"], case["pages"]) for case in cases], [(gpu, name) for gpu in gpus for name in pages])
        for case in cases:
            self.assertEqual(case["bytes"], 2 * MIB)
            rounds = case["rounds"]
            if case["pages"] == "4 KiB":
                self.assertEqual(case["missing"], "")
            expected = 0 if case["missing"] else ROUNDS
            self.assertEqual((len(rounds["register_s"]), len(rounds["bytes_per_s"])), (expected, expected))
            if not case["missing"]:
                self.assertGreater(min(rounds["register_s"]), 0)
                self.assertAlmostEqual(case["bytes_per_s"]["median"], sum(rounds["bytes_per_s"]) / ROUNDS, delta=1)  # bytes/s
                self.assertIn(fallback, case["fallback"])
                self.assertEqual(case["fallback"] == "", fallback == "")

    def check_pipelines(self, cases, groups):
        self.assertEqual([case["gpus"] for case in cases], groups)
        for case in cases:
            self.assertEqual((case["bytes"], case["buffer_bytes"]), (12 * MIB, 2 * MIB))
            (only,) = case["rounds"]
            longest = max(only["h2d_s"], only["broadcast_s"], only["reload_s"])
            self.assertAlmostEqual(case["three_stages_ratio"]["median"], only["three_stages_s"] / longest)
            self.assertEqual(case["met"], case["three_stages_ratio"]["median"] <= case["three_stages_ratio_target"])

    def check_common(self, suite):
        """The same figures in the form of all suites."""
        cases = {case["name"]: case for case in suite["cases"]}
        for copy in suite["details"]["copies"]:
            case = cases[f"{copy['name']}, GPU {copy['gpu']}"]
            self.assertAlmostEqual(case["ratio"]["median"], copy["ratio"]["median"])
            self.assertEqual((case["target"]["met"], case["baseline"]["name"]), (copy["met"], copy["ceiling"]))
        for pipeline in suite["details"]["pipelines"]:
            case = cases["three stages, GPUs " + ",".join(map(str, pipeline["gpus"]))]
            self.assertAlmostEqual(case["ratio"]["median"], 1 / pipeline["three_stages_ratio"]["median"])
        self.assertIn("EMULATED DRIVER", suite["notes"][0])

    def test_the_baseline_has_rows_of_every_gpu(self):
        done = subprocess.run([WSYNC, "bench", "baseline", "--quick", "--size", "4MiB", "--repeats", "1", "--json",
                               "--directory", self.directory], text=True, capture_output=True, timeout=DEADLINE_S,
                              env=self.environment())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.check_left()
        (suite,) = validate(done.args, done.stdout)["result"]["suites"]
        names = [case["name"] for case in suite["cases"]]
        expected = [f"{name}, GPU {gpu}" for gpu in (0, 1) for name in ("H2D", "D2D", "GPU read")] + ["broadcast, 2 GPUs"]
        self.assertEqual(names[-len(expected):], expected)
        self.assertEqual([note for note in suite["notes"] if "no GPU" in note], [])

    def test_every_case_of_two_gpus(self):
        done = self.run_bench("--devices", "1,2", "--output", self.output)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.check_left()
        self.assertIn("EMULATED DRIVER", done.stdout)
        with open(self.output, encoding="utf-8") as file:
            answer = json.load(file)
        (suite,) = answer["suites"]
        self.assertEqual((suite["suite"], suite["parameters"]["emulated"]), ("gpu", True))
        self.check_common(suite)
        result = suite["details"]
        self.assertIs(result["emulated"], True)
        self.assertEqual([gpu["name"] for gpu in result["cuda"]["gpus"]], ["Emulated GPU"] * 2)
        self.check_copies(result["copies"], [0, 1])
        self.check_page_sizes(result["page_sizes"], [0, 1])
        self.assertRegex(done.stdout, r"0 +4 KiB +\d")
        self.check_pipelines(result["pipelines"], [[0], [0, 0], [0, 1]])
        met = all(case["met"] for case in result["copies"] + result["pipelines"])
        self.assertEqual(result["targets_met"], met)
        self.assertEqual((result["notes"], result["pauses"]), ([], []))

    def test_the_pause_of_engines_on_gpus(self):
        done = self.run_bench("--devices", "1", "--pause", "16MiB", "--json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.check_left()
        pauses = validate(done.args, done.stdout)["result"]["pauses"]
        self.assertEqual([pause["gpus"] for pause in pauses], [[0], [0, 1], [0], [0], [0]])
        self.assertEqual([pause["changed"] for pause in pauses], [1, 1, 1, 0.001, 0.01])
        self.assertEqual([pause["by_patch"] for pause in pauses[:4]], [False, False, False, True])
        self.assertEqual(pauses[2]["written_bytes"], pauses[2]["bytes"])
        self.assertLess(pauses[3]["written_bytes"], pauses[3]["bytes"] / 500)
        for pause in pauses:
            self.assertGreater(pause["bytes"], 15 * MIB)
            (only,) = pause["rounds"]
            self.assertEqual(only["checked_bytes"], pause["bytes"] * len(pause["gpus"]))
            self.assertEqual(pause["paused_ns"]["median"], only["paused_ns"])
            self.assertGreaterEqual(only["paused_ns"], only["load_ns"])

    def test_one_gpu_whose_driver_pins_nothing(self):
        done = self.run_bench("--gpus", "1", "--devices", "1", "--json",
                              WSYNC_EMULATED_CUDA_FAULTS="cuMemHostRegister_v2:*:CUDA_ERROR_NOT_SUPPORTED")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.check_left()
        result = validate(done.args, done.stdout)["result"]
        self.check_copies(result["copies"], [1])
        self.check_page_sizes(result["page_sizes"], [1], "CUDA_ERROR_NOT_SUPPORTED")
        self.check_pipelines(result["pipelines"], [[1]])
        (note,) = result["notes"]
        self.assertIn("GPU 1: staging memory could not be pinned", note)

    def test_bits_that_change_are_seen(self):
        # Every copy changes one bit of what it writes.
        done = self.run_bench("--gpus", "0", "--devices", "1", WSYNC_EMULATED_CUDA_FAULTS="copy:*:flip")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stderr, "have the check|CUDA_ERROR")
        self.assertEqual(os.listdir(self.directory), [])

    def test_without_a_gpu_it_says_what_is_missing(self):
        for mode, sentence in (("none", "GPU"), ("old", "CUDA")):
            done = self.run_bench("--output", self.output, WSYNC_EMULATED_CUDA_MODE=mode)
            self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
            self.assertIn(sentence, done.stderr.partition("wsync bench gpu needs a GPU: ")[2])
            self.assertIn("no case was measured", done.stderr)
            self.assertFalse(os.path.exists(self.output))
            self.check_left()
        done = subprocess.run(self.arguments("--json"), text=True, capture_output=True, timeout=DEADLINE_S,
                              env=dict(self.environment(), WSYNC_CUDA_LIBRARY="/nowhere/libwsync_cuda.so"))
        self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
        answer = validate(done.args, done.stdout)
        self.assertIs(answer["ok"], False)
        self.assertIn("libwsync_cuda.so", answer["result"]["missing"])

    def test_no_memory_on_the_gpu(self):
        done = self.run_bench("--devices", "1", WSYNC_EMULATED_CUDA_MEMORY=str(8 * MIB))
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("GPU 0", done.stderr)
        self.check_left()

    def test_an_interrupt_leaves_nothing_behind(self):
        bench = subprocess.Popen(self.arguments("--json", rounds=10000), text=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, env=self.environment())
        self.addCleanup(lambda: (bench.stdout.close(), bench.stderr.close()))
        end = time.monotonic() + DEADLINE_S
        while not readers_of(self.directory):
            self.assertLess(time.monotonic(), end)
            self.assertIsNone(bench.poll())
        bench.send_signal(signal.SIGINT)
        out, _ = bench.communicate(timeout=DEADLINE_S)
        self.assertEqual(bench.returncode, 130, out)
        self.assertEqual(validate(bench.args, out)["error"]["code"], "cancelled")
        self.check_left()

    def test_bad_arguments(self):
        for bad in (["--size", "many"], ["--size", "1MiB"], ["--buffer", "3MiB"], ["--buffer", "1MiB"], ["--devices", "0"],
                    ["--devices", "9"], ["--rounds", "0"], ["--gpus", "7"], ["--gpus", "x"]):
            done = self.run_bench(*bad)
            self.assertEqual(done.returncode, 2, (bad, done.stderr))


class GpuReader(unittest.TestCase):
    def ask(self, *lines):
        done = subprocess.run([WSYNC, "bench", "gpu-reader", "--gpu", "0", "--bytes", str(2 * MIB)], text=True,
                              input="".join(line + "\n" for line in lines), capture_output=True, timeout=DEADLINE_S,
                              env=dict(os.environ, LD_LIBRARY_PATH=os.path.dirname(DRIVER), WSYNC_CUDA_LIBRARY=LIBRARY))
        self.assertEqual(done.returncode, 0, done.stderr)
        ready, *answers = done.stdout.splitlines()
        self.assertEqual(ready, "ready")
        self.assertEqual(len(answers), len(lines))
        return answers

    def test_what_it_is_not_told_rightly(self):
        for answer in self.ask("", "copy", "copy 0 1 0 1", "copy 0 1 0 0", "import", "import 2097152 xyz", "import 2097152 00",
                               "import 2097152 0", "leave"):
            self.assertTrue(answer.startswith("failed "), answer)


class GpuScript(unittest.TestCase):
    """bench/gpu.sh, as far as it goes before it builds."""
    SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "gpu.sh")

    def run_script(self, *arguments):
        environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
        return subprocess.run([self.SCRIPT, *arguments], text=True, capture_output=True, timeout=DEADLINE_S, env=environment)

    def test_it_explains_itself(self):
        done = self.run_script("--help")
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("--prefix", "--cuda-home", "--pack", "--prebuilt", "--only", "Exit status", "build/gpu-results"):
            self.assertIn(word, done.stdout)

    def test_bad_arguments(self):
        for bad, sentence in ((["--what"], "unknown argument '--what'"), (["--build"], "--build needs a value"),
                              (["--prefix", "/nowhere"], "/nowhere is not a directory"),
                              (["--only", "probe,all"], "--only has 'all', expected probe, tests, sanitizer, python, mps or bench"),
                              (["--limit", "0"], "--limit is '0', expected a number of seconds"),
                              (["--prebuilt", "/nowhere"], "--prebuilt /nowhere has no kit.txt"),
                              (["--pack", "/tmp/x", "--prebuilt", "/tmp/y"], "give one of them"),
                              (["--pack", "/etc"], "/etc is not empty, and has no kit.txt")):
            done = self.run_script(*bad)
            self.assertEqual(done.returncode, 2, bad)
            self.assertIn(sentence, done.stderr)

    def test_without_a_driver_it_does_not_begin_to_build(self):
        try:
            ctypes.CDLL("libcuda.so.1")
            self.skipTest("this machine has a driver")
        except OSError:
            pass
        with tempfile.TemporaryDirectory(prefix="wsync-gpu-script-") as directory:
            folder = os.path.join(directory, "build")
            done = self.run_script("--build", folder)
            self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
            self.assertIn("the NVIDIA driver is not installed", done.stderr)
            self.assertIn("libcuda.so.1", done.stderr)
            self.assertFalse(os.path.exists(folder))


if __name__ == "__main__":
    unittest.main()

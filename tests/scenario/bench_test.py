"""wsync bench, tiny: what it reports, that every byte is checked, and that an interrupt leaves nothing behind.

No time is compared with anything: the machine may be busy.
"""
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

from fleet import interrupt_leaves_nothing, processes_of
from schema import validate

WSYNC = sys.argv.pop()
DEADLINE_S = 120
ROUNDS = 2


def arguments(directory, *more, rounds=ROUNDS):
    return [WSYNC, "bench", "sync", "--size", "16MiB", "--rounds", str(rounds), "--json", "--directory", directory, *more]


class BenchSync(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="wsync-bench-test-")
        self.addCleanup(temporary.cleanup)
        self.directory = temporary.name

    def measure(self, *more):
        done = subprocess.run(arguments(self.directory, *more), text=True, capture_output=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(os.listdir(self.directory), [], "something is left behind")
        answer = validate(done.args, done.stdout)
        self.assertEqual((answer["command"], answer["ok"]), ("bench sync", True))
        return answer["result"]

    def check_case(self, case, bytes_of_model):
        self.assertEqual(case["expected_bytes"], case["engines"] * bytes_of_model)
        self.assertEqual(len(case["rounds"]), ROUNDS)
        for one in case["rounds"]:
            self.assertEqual(one["checked_bytes"], case["expected_bytes"])
            self.assertGreater(one["paused_ns"], 0)
            self.assertGreater(one["sidecar_pss_bytes"], 0)
            self.assertGreater(one["cpu_ns"], 0)
            self.assertGreater(one["staged_ns"], 0)
        # Shared pages count in each: the trainer has a snapshot, an engine its own copy.
        self.assertGreater(case["trainer_peak_rss_bytes"], bytes_of_model)
        if not case["adopt"]:
            self.assertGreater(case["engine_peak_rss_bytes"], bytes_of_model)
        self.assertLessEqual(case["sidecar_pss_bytes"], case["sidecar_pss_limit_bytes"])

    def check_copies(self, case, **expected):
        """Framing and padding of pieces make it a little more than a whole number."""
        found = case["copies_per_byte"]
        for stage in ("snapshot", "sent", "received", "h2d", "broadcast", "loaded"):
            wanted = expected.get(stage, 0)
            self.assertGreaterEqual(found[stage], wanted, stage)
            self.assertLessEqual(found[stage], wanted * 1.05, stage)

    def test_copying_engines_against_the_floor(self):
        result = self.measure("--engines", "1,2")
        self.assertGreaterEqual(result["bytes"], 15 << 20)
        self.assertGreater(result["machine"]["cores"], 0)
        self.assertEqual([case["engines"] for case in result["cases"]], [1, 2])
        for case in result["cases"]:
            self.check_case(case, result["bytes"])
            self.assertIn(case["floor_way"], [{k: v for k, v in way.items() if k != "median_ns"} for way in case["floor_ways"]])
            self.assertEqual([one["floor_first"] for one in case["rounds"]], [True, False])
            self.check_copies(case, snapshot=1, loaded=1)
            for one in case["rounds"]:
                self.assertAlmostEqual(one["ratio"], one["floor_ns"] / one["paused_ns"])
                self.assertGreater(one["verified_copy_ns"], 0)

    def test_engines_that_map_the_version(self):
        result = self.measure("--engines", "2", "--adopt")
        (case,) = result["cases"]
        self.assertTrue(case["adopt"])
        self.assertNotIn("floor_ns", case)
        self.check_case(case, result["bytes"])
        self.check_copies(case, snapshot=1)

    def test_a_checkpoint_by_tcp(self):
        given = os.path.join(self.directory, "given")
        subprocess.run([WSYNC, "make-checkpoint", given, "--size", "8MiB"], check=True, capture_output=True, timeout=DEADLINE_S)
        work = os.path.join(self.directory, "work")
        os.mkdir(work)
        done = subprocess.run([WSYNC, "bench", "sync", "--checkpoint", given, "--tcp", "--engines", "1", "--rounds", str(ROUNDS),
                               "--directory", work, "--json"], text=True, capture_output=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(os.listdir(work), [])
        result = validate(done.args, done.stdout)["result"]
        (case,) = result["cases"]
        self.assertTrue(case["tcp"])
        self.check_case(case, result["bytes"])
        self.check_copies(case, snapshot=1, sent=1, received=1, loaded=1)

    def test_what_does_not_fit_in_memory_says_how_much_is_needed(self):
        # A sparse file of a terabyte, that nothing reads.
        given = os.path.join(self.directory, "huge")
        os.mkdir(given)
        header = json.dumps({"w": {"dtype": "BF16", "shape": [1 << 39], "data_offsets": [0, 1 << 40]}}).encode()
        with open(os.path.join(given, "model.safetensors"), "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + (1 << 40))
        for command in (["sync", "--engines", "8"], ["overhead"]):
            done = subprocess.run([WSYNC, "bench", *command, "--checkpoint", given, "--directory", self.directory],
                                  text=True, capture_output=True, timeout=DEADLINE_S)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("12 copies of 1.00 TiB, 12.0 TiB in total" if command[0] == "sync" else "9 copies of 1.00 TiB, 9.00 TiB in total", done.stderr)
            self.assertRegex(done.stderr, r"; choose at most [0-9]+MiB")
        self.assertEqual(os.listdir(self.directory), ["huge"])

    def test_separate_devices_by_the_size_of_their_buffers(self):
        result = self.measure("--engines", "2", "--devices", "2", "--buffer", "1MiB,4MiB")
        self.assertEqual([case["buffer_bytes"] for case in result["cases"]], [1 << 20, 4 << 20])
        for case in result["cases"]:
            self.assertEqual((case["engines"], case["devices"]), (2, 2))
            self.assertNotIn("floor_ns", case)
            self.check_case(case, result["bytes"])
            self.check_copies(case, snapshot=1, h2d=1, broadcast=1, loaded=1)

    def test_an_interrupt_leaves_nothing_behind(self):
        # The benchmark, an engine, and one more at least
        interrupt_leaves_nothing(self, arguments(self.directory, rounds=10000), self.directory, 3, DEADLINE_S)

    def test_bad_arguments(self):
        for bad in (["--size", "many"], ["--engines", "0"], ["--rounds", "0"], ["--buffer", "4MiB"], ["--devices", "0"],
                    ["--devices", "1", "--adopt"], ["--devices", "1", "--buffer", "1KiB"],
                    ["--checkpoint", self.directory, "--size", "1MiB"], ["--checkpoint", self.directory, "--model", "Kimi-K2"],
                    ["--checkpoint", self.directory]):
            done = subprocess.run([WSYNC, "bench", "sync", *bad], capture_output=True, timeout=DEADLINE_S)
            self.assertEqual(done.returncode, 2, bad)


class BenchWhole(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="wsync-bench-test-")
        self.addCleanup(temporary.cleanup)
        self.directory = temporary.name

    def command(self, *more, size="8MiB"):
        return [WSYNC, "bench", "whole", "--size", size, "--json", "--directory", self.directory, *more]

    def measure(self, *more, **options):
        done = subprocess.run(self.command("--rounds", str(ROUNDS), *more, **options), text=True, capture_output=True,
                              timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(os.listdir(self.directory), [], "something is left behind")
        suite, = validate(done.args, done.stdout)["result"]["suites"]
        cases = [case for case in suite["cases"] if not case["name"].startswith("unexplained")]
        for case in cases:
            self.assertEqual((len(case["value"]["samples"]), len(case["ratio"]["samples"])), (ROUNDS, ROUNDS), case["name"])
            self.assertGreater(case["baseline"]["value"]["min"], 0, case["name"])
        unexplained = [case for case in suite["cases"] if case not in cases]
        self.assertEqual(2 * len(unexplained), len(cases))
        work = [note for note in suite["notes"] if note.startswith("where the time of one more update went")]
        self.assertEqual(len(work), len(cases))
        for note in work:
            self.assertRegex(note, r"(snapshot of bucket \d+\.\d.*|in place.*), load \d+\.\d")
        for case in unexplained:
            self.assertTrue(0 <= case["value"]["min"] <= case["value"]["max"] < 100, case)
        return cases

    def test_both_ways_to_publish_and_their_floors(self):
        cases = self.measure()
        self.assertEqual([case["name"] for case in cases],
                         ["publish, 1 engine", "in place, 1 engine", "publish, 2 engines", "in place, 2 engines"])
        self.assertEqual({case["target"]["of"] for case in cases}, {"ratio"})
        floors = [case["baseline"]["value"]["min"] for case in cases]
        self.assertGreater(floors[0], floors[1], "the floor of a publish has one copy more")

    def test_a_small_update_has_a_time_to_keep(self):
        cases = self.measure("--engines", "1", size="1MiB")
        self.assertEqual([(case["target"]["of"], case["target"]["value"]) for case in cases], [("median", 5)] * 2)

    def test_an_interrupt_leaves_nothing_behind(self):
        interrupt_leaves_nothing(self, self.command("--rounds", "10000"), self.directory, 3, DEADLINE_S)

    def test_bad_arguments(self):
        for bad in (["--size", "many"], ["--engines", "0"], ["--rounds", "0"], ["--adopt"], ["--checkpoint", self.directory]):
            done = subprocess.run([WSYNC, "bench", "whole", *bad], capture_output=True, timeout=DEADLINE_S)
            self.assertEqual(done.returncode, 2, bad)


class BenchDelta(unittest.TestCase):
    def measure(self, *more):
        with tempfile.TemporaryDirectory(prefix="wsync-bench-test-") as directory:
            done = subprocess.run([WSYNC, "bench", "delta", "--rounds", "2", "--json", "--directory", directory, *more],
                                  text=True, capture_output=True, timeout=DEADLINE_S)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(os.listdir(directory), [], "something is left behind")
        suite, = validate(done.args, done.stdout)["result"]["suites"]
        return {case["name"]: case for case in suite["cases"]}, suite["notes"]

    def test_few_changes_are_a_patch_and_many_are_not(self):
        cases, notes = self.measure("--size", "64MiB", "--elements", "0,0.01,100", "--tensors", "1")
        shares = ["0 % of elements", "0.01 % of elements", "100 % of elements", "1 % of tensors"]
        for share in shares:
            for what in "pause", "update":
                self.assertEqual(len(cases[f"{what}, {share}"]["ratio"]["samples"]), 2, share)
        self.assertTrue(0.01 < cases["patch, 0.01 % of elements"]["value"]["min"] < 0.1, cases)
        self.assertTrue(1 <= cases["patch, 1 % of tensors"]["value"]["min"] < 10, cases)
        self.assertNotIn("patch, 100 % of elements", cases)
        self.assertTrue(any(note.startswith("100 % of elements: loaded in full in 2 of 2 rounds") for note in notes), notes)

    def trajectory(self, directory, changes, size="8MiB"):
        """Checkpoints of which each differs from the one before in this many bytes; the number of elements of one."""
        for number in range(len(changes) + 1):
            path = os.path.join(directory, f"step_{number + 9}")  # also from one digit to two
            if number == 0:
                subprocess.run([WSYNC, "make-checkpoint", path, "--size", size], check=True, capture_output=True, timeout=DEADLINE_S)
                continue
            shutil.copytree(os.path.join(directory, f"step_{number + 8}"), path)
            shards = sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith(".safetensors"))
            elements, left = 0, changes[number - 1]
            for shard in shards:
                with open(shard, "r+b") as file:
                    begin = 8 + int.from_bytes(file.read(8), "little")
                    own = (os.path.getsize(shard) - begin) // 2
                    elements += own
                    file.seek(begin)
                    count = min(left, own)
                    data = bytearray(file.read(2 * count))
                    data[::2] = bytes(byte ^ 1 for byte in data[::2])
                    file.seek(begin)
                    file.write(data)
                    left -= count
        return elements

    def test_the_steps_of_a_run(self):
        with tempfile.TemporaryDirectory(prefix="wsync-bench-run-") as run:
            changes = [500, 0, 1_000_000]
            elements = self.trajectory(run, changes)
            picture = os.path.join(run, "picture.svg")
            os.mkdir(os.path.join(run, "other"))  # is no step
            cases, notes = self.measure("--trajectory", run, "--plot", picture)
            with open(picture, encoding="utf-8") as file:
                self.assertIn("elements that change", file.read())
            for found, count in zip(cases["changed, trajectory"]["value"]["samples"], changes, strict=True):
                self.assertAlmostEqual(found, 100 * count / elements)
            self.assertEqual(len(cases["pause, trajectory"]["ratio"]["samples"]), 3)
            self.assertEqual(len(cases["update, trajectory"]["ratio"]["samples"]), 3)
            self.assertEqual(len(cases["patch, trajectory"]["value"]["samples"]), 2)
            self.assertIn("1 of 3 steps were loaded in full, because a patch would have been no cheaper", notes)
            done = subprocess.run([WSYNC, "bench", "delta", "--trajectory", run, "--rounds", "1"], text=True, capture_output=True,
                                  timeout=DEADLINE_S)
            rows = [line.split() for line in done.stdout.splitlines() if line.startswith("step_")]
            self.assertEqual([row[0] for row in rows], ["step_10", "step_11", "step_12"], done.stdout)
            self.assertEqual(rows[2][2:4], ["full", "load"])

    def test_what_is_no_run(self):
        with tempfile.TemporaryDirectory(prefix="wsync-bench-run-") as run:
            for path, code, words in ((os.path.join(run, "none"), 1, "cannot be read"),
                                      (run, 2, "has 0 checkpoints, expected two or more")):
                done = subprocess.run([WSYNC, "bench", "delta", "--trajectory", path], text=True, capture_output=True, timeout=DEADLINE_S)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertIn(words, done.stderr)
            for number, size in enumerate(("1MiB", "2MiB")):
                subprocess.run([WSYNC, "make-checkpoint", os.path.join(run, f"step_{number}"), "--size", size], check=True,
                               capture_output=True, timeout=DEADLINE_S)
            done = subprocess.run([WSYNC, "bench", "delta", "--trajectory", run], text=True, capture_output=True, timeout=DEADLINE_S)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("step_1", done.stderr)

    def test_bad_arguments(self):
        for bad in (["--elements", "101"], ["--tensors", "-1"], ["--engines", "0"], ["--rounds", "0"], ["--plot", "a.svg"],
                    ["--trajectory", "/tmp", "--size", "1MiB"]):
            done = subprocess.run([WSYNC, "bench", "delta", *bad], capture_output=True, timeout=DEADLINE_S)
            self.assertEqual(done.returncode, 2, bad)


class BenchOverhead(unittest.TestCase):
    def test_two_fleets_are_watched_and_not(self):
        with tempfile.TemporaryDirectory(prefix="wsync-bench-test-") as directory:
            done = subprocess.run([WSYNC, "bench", "overhead", "--size", "4MiB", "--rounds", "2", "--directory", directory, "--json"],
                                  text=True, capture_output=True, timeout=DEADLINE_S)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(os.listdir(directory), [])
        result = validate(done.args, done.stdout)["result"]
        self.assertEqual(len(result["rounds"]), 2)
        for one in result["rounds"]:
            self.assertGreater(one["spans"], 0)
            self.assertGreater(one["making_spans_ns"], 0)
            for kind in ("not", "kept", "asked"):
                self.assertGreater(one[kind]["cpu_ns"], 0)
                self.assertGreater(one[kind]["command_cpu_ns"], 0)
            # Both pages of each update are read at once.
            self.assertGreaterEqual(one["asked"]["pages"], 2)
            self.assertEqual((one["not"]["pages"], one["kept"]["pages"]), (0, 0))
        self.assertEqual([(one["watching"], one["beside"]) for one in result["overheads"]],
                         [("asked", "kept"), ("kept", "not"), ("asked", "not")])
        # Two pairs have no interval, so nothing is said to be met.
        self.assertEqual(result["overheads"][0]["verdict"], "open")
        self.assertNotIn("interval", result["overheads"][0])


class BenchPipeline(unittest.TestCase):
    def test_every_byte_is_checked_and_the_figures_are_there(self):
        done = subprocess.run([WSYNC, "bench", "pipeline", "--size", "1MiB", "--buffer", "64KiB", "--devices", "2", "--rounds", "1",
                               "--links", "100MiB/200MiB/200MiB", "--json"],
                              text=True, capture_output=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        cases = validate(done.args, done.stdout)["result"]["cases"]
        self.assertEqual([case["rates"] and case["rates"]["h2d_bytes_per_s"] for case in cases], [None, 100 << 20])
        for case in cases:
            self.assertEqual((case["devices"], case["buckets"]), (2, 16))
            self.assertEqual(case["checked_bytes"], 2 * 2 * 2 << 20)  # two updates in each of two rounds, two engines
            (one,) = case["rounds"]
            self.assertAlmostEqual(case["two_stages_ratio"]["median"], one["predicted_two_stages_s"] / one["two_stages_s"])

    def test_bad_arguments(self):
        for bad in (["--size", "1KiB"], ["--buffer", "1"], ["--devices", "0"], ["--devices", "65"], ["--rounds", "0"],
                    ["--links", "1MiB/1MiB"], ["--links", "1MiB/1MiB/0"], ["--links", "1/2/3"], ["--links", "none,1MiB/1MiB/1MiB"]):
            done = subprocess.run([WSYNC, "bench", "pipeline", *bad], capture_output=True, timeout=DEADLINE_S)
            self.assertEqual(done.returncode, 2, bad)


class BenchOutput(unittest.TestCase):
    def test_what_cannot_be_written_is_refused_before_anything_is_measured(self):
        with tempfile.TemporaryDirectory() as directory:
            for option, path in (("--output", directory + "/missing/x.json"), ("--output", directory), ("--svg", directory + "/missing/x.svg")):
                done = subprocess.run([WSYNC, "bench", "scale", "--quick", option, path], text=True, capture_output=True, timeout=DEADLINE_S)
                self.assertEqual((done.returncode, done.stdout), (2, ""), path)
                self.assertIn(f"{option}: ", done.stderr)
                self.assertNotIn(".part", done.stderr)


class BenchScale(unittest.TestCase):
    def test_rows_curves_and_the_picture(self):
        with tempfile.TemporaryDirectory() as directory:
            picture = directory + "/scale.svg"
            command = [WSYNC, "bench", "scale", "--model", "kimi-k2,GLM-4.5-Air", "--gpus", "8,16", "--svg", picture]
            done = subprocess.run([*command, "--json"], text=True, capture_output=True, timeout=DEADLINE_S)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            result = validate(done.args, done.stdout)["result"]
            self.assertEqual([row["published_s"] for row in result["published"]], [3.47, 6.22, 10.19, 14.36, 11.33, 16.04])
            for row in result["published"]:
                self.assertAlmostEqual(row["error"], row["checkpoint_engine"]["seconds"] / row["published_s"] - 1)
            self.assertEqual([[p["gpus"] for p in curve["points"]] for curve in result["curves"]], [[16], [8, 16]])
            self.assertEqual(result["notes"], ["Kimi-K2 on 8 GPUs is left out: 8 is not a multiple of 16, the number of GPUs for one copy of the model"])
            self.assertTrue(xml.etree.ElementTree.parse(picture).getroot().tag.endswith("svg"))
            text = subprocess.run(command, text=True, capture_output=True, timeout=DEADLINE_S).stdout
            self.assertIn("One constant is fitted, on\nDeepSeek-V3.1 x 16 GPUs", text)

    def test_quick_simulates_less_and_repeats_are_refused(self):
        done = subprocess.run([WSYNC, "bench", "scale", "--quick", "--json"], text=True, capture_output=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        (curve,) = validate(done.args, done.stdout)["result"]["curves"]
        self.assertEqual((curve["model"], [point["gpus"] for point in curve["points"]]), ("Kimi-K2", [16, 256, 2048]))
        done = subprocess.run([WSYNC, "bench", "scale", "--repeats", "5"], text=True, capture_output=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 2)
        self.assertIn("is a simulation and gives the same result each time; remove --repeats", done.stderr)

    def test_the_staging_of_one_size(self):
        command = [WSYNC, "bench", "scale", "--staging", "1GiB", "--gpus", "1,8", "--gpus-per-host", "1", "--network", "125MB"]
        done = subprocess.run([*command, "--json"], text=True, capture_output=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        result = validate(done.args, done.stdout)["result"]
        self.assertEqual((result["curves"], result["published"], result["staging_bytes"]), ([], [], 1 << 30))
        one, eight = result["staging"]
        self.assertEqual((one["hosts"], eight["hosts"], eight["staged"]["levels"]), (1, 8, 8))
        floor_s = (1 << 30) / 125e6
        for point in (one, eight):
            self.assertAlmostEqual(point["floor"]["seconds"], floor_s)
        self.assertAlmostEqual(one["staged"]["seconds"], floor_s)
        # Each of seven more hosts adds the time of one run of 1 MiB on four connections.
        self.assertAlmostEqual(eight["staged"]["seconds"], floor_s * (1 + 7 * 4 / 1024), places=3)
        text = subprocess.run(command, text=True, capture_output=True, timeout=DEADLINE_S).stdout
        self.assertIn("How 1GiB reach every host", text)

    def test_bad_arguments(self):
        for bad in (["--staging", "0"], ["--staging", "much"], ["--staging", "1GiB", "--model", "Kimi-K2"], ["--model", "Kimi-K3"], ["--model", "Kimi-K2", "--gpus", "8"], ["--gpus", "0"], ["--gpus", "100001"], ["--host", "h100"],
                    ["--pcie", "0"], ["--nvlink", "fast"], ["--network", "0"], ["--buffer", "1KiB"], ["--stages", "4"],
                    ["--gpus-per-switch", "3"], ["--oversubscription", "0.5"], ["--svg", "/nowhere/scale.svg"]):
            done = subprocess.run([WSYNC, "bench", "scale", *bad], text=True, capture_output=True, timeout=DEADLINE_S)
            self.assertNotEqual(done.returncode, 0, bad)
            self.assertIn("wsync bench scale: ", done.stderr)


class ModelCheckpoints(unittest.TestCase):
    def test_a_published_model_made_smaller_is_measured(self):
        with tempfile.TemporaryDirectory() as directory:
            made = subprocess.run([WSYNC, "make-checkpoint", directory + "/model", "--model", "Kimi-K2", "--size", "16MiB", "--json"],
                                  text=True, capture_output=True, timeout=DEADLINE_S)
            self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
            done = subprocess.run(arguments(directory, "--model", "Kimi-K2", "--engines", "1", rounds=1),
                                  text=True, capture_output=True, timeout=DEADLINE_S)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            bytes_of_model = validate(made.args, made.stdout)["result"]["bytes"]
            self.assertEqual(validate(done.args, done.stdout)["result"]["bytes"], bytes_of_model)

    def test_bad_arguments(self):
        with tempfile.TemporaryDirectory() as directory:
            for bad in (["--model", "Kimi-K3"], ["--model", "Kimi-K2", "--size", "1MiB"]):
                for command in (["make-checkpoint", directory + "/model"], ["bench", "sync", "--directory", directory]):
                    done = subprocess.run([WSYNC, *command, *bad], capture_output=True, timeout=DEADLINE_S)
                    self.assertEqual(done.returncode, 2, command + bad)
            self.assertEqual(os.listdir(directory), [])


TINY = ["--hidden", "64", "--tokens", "16", "--microbatches", "2", "--experts", "4", "--warmup", "1", "--latency-us", "1", "--json"]


class BenchSchedule(unittest.TestCase):
    def measure(self, *more):
        done = subprocess.run([WSYNC, "bench", "schedule", *TINY, "--steps", str(ROUNDS), *more], text=True,
                              capture_output=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        answer = validate(done.args, done.stdout)
        self.assertEqual((answer["command"], answer["ok"]), ("bench schedule", True))
        return answer["result"]

    def check(self, result):
        self.assertEqual([case["case"] for case in result["cases"]], ["overlap", "no_overlap", "no_link"])
        for case in result["cases"]:
            self.assertEqual(len(case["steps_ms"]), ROUNDS)
            for figure in (case["ratio"]["median"], case["step_ms"]["min"], case["predicted_step_ms"], case["costs_ms"]["attention"]):
                self.assertTrue(0 < figure < math.inf, case)
            self.assertAlmostEqual(case["ratio"]["median"], case["step_ms"]["median"] / case["predicted_step_ms"])
        for figure in (result["speed_up"]["median"], result["predicted_speed_up"], result["speed_up_ratio"], result["link"]["bytes_per_s"]):
            self.assertTrue(0 < figure < math.inf, result)

    def test_a_given_link_with_pictures(self):
        with tempfile.TemporaryDirectory(prefix="wsync-bench-test-") as directory:
            svg, trace = os.path.join(directory, "steps.svg"), os.path.join(directory, "steps.json")
            result = self.measure("--bandwidth", "50MB", "--svg", svg, "--trace", trace)
            self.check(result)
            self.assertEqual(result["link"], {"latency_ns": 1000, "bytes_per_s": 50e6, "given": True})
            # Two exchanges in a forward dispatch, one in its gradient: the latency is in what they cost.
            self.assertGreater(result["cases"][1]["costs_ms"]["dispatch"], 0.0015)
            text = "".join(xml.etree.ElementTree.parse(svg).getroot().itertext())
            self.assertIn("overlap, measured", text)
            with open(trace, encoding="utf-8") as file:
                names = {event["args"]["name"] for event in json.load(file)["traceEvents"] if event["name"] == "process_name"}
            self.assertEqual(names, {f"{what}, {how}" for what in ("overlap", "no overlap") for how in ("measured", "simulated")})

    def test_a_link_that_is_chosen_and_pipeline_ranks(self):
        result = self.measure("--pp", "2", "--share", "3")
        self.check(result)
        self.assertFalse(result["link"]["given"])
        self.assertGreater(result["cases"][0]["costs_ms"]["pp_transfer"], 0)

    def test_an_interrupt_leaves_no_process(self):
        bench = subprocess.Popen([WSYNC, "bench", "schedule", *TINY, "--bandwidth", "50MB", "--steps", "10000"], text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(lambda: (bench.stdout.close(), bench.stderr.close()))
        end = time.monotonic() + DEADLINE_S
        children = []
        while len(children) < 2:
            self.assertLess(time.monotonic(), end)
            self.assertIsNone(bench.poll())
            with open(f"/proc/{bench.pid}/task/{bench.pid}/children", encoding="ascii") as file:
                children = file.read().split()
        bench.send_signal(signal.SIGINT)
        out, _ = bench.communicate(timeout=DEADLINE_S)
        self.assertEqual(bench.returncode, 130, out)
        self.assertEqual(validate(bench.args, out)["error"]["code"], "cancelled")
        for pid in children:
            self.assertFalse(os.path.exists(f"/proc/{pid}"))

    def test_bad_arguments(self):
        for bad in (["--ep", "1"], ["--vpp", "1"], ["--dp", "3"], ["--hidden", "100"], ["--bandwidth", "fast"], ["--bandwidth", "0"],
                    ["--steps", "0"], ["--share", "0"], ["--latency-us", "-1"]):
            done = subprocess.run([WSYNC, "bench", "schedule", *bad], capture_output=True, timeout=DEADLINE_S)
            self.assertEqual(done.returncode, 2, bad)


if __name__ == "__main__":
    unittest.main()

"""wsync bench peers, tiny: what it reports, that a peer is skipped by its name, that one that fails or lies is told and harms no
other, and that an interrupt leaves nothing behind.

Runs with Python's standard library alone, whatever else is installed. No time is compared with anything: the machine may be busy.
"""
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

from fleet import interrupt_leaves_nothing, processes_of
from schema import validate

WSYNC = sys.argv.pop()
DEADLINE_S = 120
PEERS = ["raw-tmpfs", "safetensors-tmpfs", "safetensors-disk", "safetensors-disk-cold", "gloo-buckets", "gloo-tensors", "zeromq",
         "openmpi", "ucx", "redis"]

# A Python whose packages are all there, and most of them broken, each in its own way.
BROKEN = '''
import json, os, runpy, socket, sys
script = sys.argv[1]
name = os.path.basename(script)
if name == "probe.py":
    print(json.dumps({module: "0" for module in sys.argv[2:]}))
elif name == "raw_file.py":
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")
else:
    rank = int(os.environ["WSYNC_PEER_RANK"])
    with open(os.path.join(os.environ["WSYNC_PEER_DIRECTORY"], "job.json"), encoding="utf-8") as file:
        job = json.load(file)
    driver = socket.socket(socket.AF_UNIX)
    driver.connect(job["socket"])
    lines = driver.makefile("r")
    if name == "gloo_broadcast.py" and job["variant"] == "buckets":
        sys.exit("no such transport")
    driver.sendall(json.dumps({"event": "ready", "rank": rank}).encode() + b"\\n")
    for line in lines:
        if name == "zeromq_push.py":
            driver.sendall(b"frame 1 of 2\\n")
        elif name == "redis_chunks.py":
            driver.sendall(json.dumps({"event": "failed", "rank": rank, "why": "out of memory"}).encode() + b"\\n")
        else:
            driver.sendall(json.dumps({"event": "done", "rank": rank, "seconds": 0.001, "digest": "0" * 32}).encode() + b"\\n")
'''


class BenchPeers(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="wsync-bench-test-")
        self.addCleanup(temporary.cleanup)
        self.directory = os.path.join(temporary.name, "work")
        memory = tempfile.TemporaryDirectory(prefix="wsync-bench-test-", dir="/dev/shm")
        self.addCleanup(memory.cleanup)
        self.tmpfs = memory.name
        self.environment = os.path.join(temporary.name, "environment")
        for folder in (self.directory, os.path.join(self.environment, "bin")):
            os.makedirs(folder)
        self.result = os.path.join(temporary.name, "result.json")
        self.svg = os.path.join(temporary.name, "peers.svg")
        self.python(f'exec {sys.executable} -S "$@"')  # without packages, the system's among them

    def python(self, *lines):
        path = os.path.join(self.environment, "bin", "python")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(["#!/bin/sh", *lines, ""]))
        os.chmod(path, 0o700)

    def command(self, *more):
        size = [] if "--size" in more else ["--size", "8MiB"]
        places = [] if "--tmpfs" in more else ["--directory", self.directory, "--tmpfs", self.tmpfs]
        return [WSYNC, "bench", "peers", *size, "--warm-ups", "1", "--environment", self.environment, *places, "--json", *more]

    def measure(self, *more, exit_code=0):
        done = subprocess.run(self.command("--output", self.result, "--svg", self.svg, *more), text=True, capture_output=True,
                              timeout=DEADLINE_S)
        self.assertEqual(done.returncode, exit_code, done.stdout + done.stderr)
        self.assertEqual((os.listdir(self.directory), os.listdir(self.tmpfs)), ([], []), "something is left behind")
        self.assertEqual(processes_of(self.directory), [])
        with open(self.result, encoding="utf-8") as file:
            (suite,) = json.load(file)["suites"]
        result = validate(done.args, done.stdout)["result"]
        self.assertEqual(suite["details"], result)
        return result, suite

    def check_rounds(self, rounds, count):
        self.assertEqual(len(rounds), count)
        for seconds in rounds:
            self.assertTrue(0 < seconds < math.inf, rounds)

    def test_a_file_is_measured_and_everybody_else_skipped_by_name(self):
        result, suite = self.measure("--engines", "2", "--rounds", "2")
        self.assertEqual([peer["peer"] for peer in result["peers"]], PEERS)
        self.assertEqual(result["engines"], 2)
        self.assertGreaterEqual(result["bytes"], 7 << 20)
        for side in ("floor", "wsync"):
            self.check_rounds(result[side]["rounds"], 2)
        self.assertGreater(result["wsync"]["paused_s"]["median"], 0)
        raw, *others = result["peers"]
        self.assertEqual((raw["skipped"], raw["failed"]), ("", ""))
        self.check_rounds(raw["rounds"], 2)
        for peer in others:
            self.assertIn("--install", peer["skipped"])
            self.assertEqual(peer["rounds"], [])
            self.assertIn(f"{peer['peer']} was skipped: {peer['skipped']}", suite["notes"])
        self.assertEqual([case["name"] for case in suite["cases"]],
                         ["floor", "verified copies, wsync", "verified copies, raw-tmpfs", "staged, wsync", "paused, wsync"])
        picture = " ".join(xml.etree.ElementTree.parse(self.svg).getroot().itertext())
        for title in ("wsync", "raw file on tmpfs", "UCX", "skipped"):
            self.assertIn(title, picture)

    def test_peers_that_fail_or_lie_are_told_and_the_others_go_on(self):
        broken = os.path.join(self.environment, "broken.py")
        with open(broken, "w", encoding="utf-8") as file:
            file.write(BROKEN)
        self.python(f'exec {sys.executable} -S {broken} "$@"')
        result, suite = self.measure("--engines", "1", "--rounds", "1", "--peers",
                                     "redis,raw-tmpfs,safetensors-tmpfs,gloo-buckets,zeromq", exit_code=1)
        failed = {peer["peer"]: peer["failed"] or peer["skipped"] for peer in result["peers"]}
        self.assertEqual(failed["raw-tmpfs"], "")
        self.assertIn("the received bytes have the digest 00000000000000000000000000000000, expected ", failed["safetensors-tmpfs"])
        self.assertIn("no such transport", failed["gloo-buckets"])
        self.assertIn("a process sent 'frame 1 of 2', expected a JSON object", failed["zeromq"])
        self.assertRegex(failed["redis"], "out of memory|redis-server is not in PATH")
        self.assertEqual([case["name"] for case in suite["cases"]],
                         ["floor", "verified copies, wsync", "verified copies, raw-tmpfs", "staged, wsync", "paused, wsync"])
        self.assertIn(f"zeromq failed in {failed['zeromq']}", suite["notes"])

    def test_a_folder_on_the_wrong_kind_of_storage_skips_who_needs_it(self):
        broken = os.path.join(self.environment, "broken.py")
        with open(broken, "w", encoding="utf-8") as file:
            file.write(BROKEN)
        self.python(f'exec {sys.executable} -S {broken} "$@"')
        result, _ = self.measure("--engines", "1", "--rounds", "1", "--peers", "raw-tmpfs,safetensors-disk", "--tmpfs", "/proc",
                                 "--directory", self.tmpfs)
        tmpfs, disk = result["peers"]
        self.assertEqual(tmpfs["skipped"], "/proc is not on a file system in memory; choose another directory with --tmpfs")
        self.assertRegex(disk["skipped"], "is in memory and not on a disk; choose another directory with --directory")

    def test_an_interrupt_leaves_nothing_behind(self):
        # The benchmark, the sidecar and two engines; or the benchmark, a trainer and two engines
        interrupt_leaves_nothing(self, self.command("--rounds", "1000", "--peers", "raw-tmpfs"), self.directory, 4, DEADLINE_S)
        self.assertEqual(os.listdir(self.tmpfs), [])

    def test_bad_arguments(self):
        for bad, code, expected in ((["--peers", "raw-tmpfs,carrier-pigeon"], 2, "'carrier-pigeon' is not a peer, expected names from: raw-tmpfs"),
                                    (["--size", "4TiB"], 1, "of memory are available"), (["--size", "much"], 2, "--size"),
                                    (["--engines", "0"], 2, "--engines"), (["--rounds", "0"], 2, "--rounds"),
                                    (["--model", "Nobody-1B"], 2, "Nobody-1B"), (["--tmpfs", "/nowhere"], 2, "--tmpfs")):
            done = subprocess.run(self.command(*bad), text=True, capture_output=True, timeout=DEADLINE_S)
            self.assertEqual(done.returncode, code, bad)
            self.assertIn(expected, validate(done.args, done.stdout)["error"]["message"])
            self.assertEqual(os.listdir(self.directory), [])


if __name__ == "__main__":
    unittest.main()

"""`wsync demo` as a user runs it: what it shows, what it writes, and that it leaves nothing behind."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

WSYNC = sys.argv.pop()
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


class Demo(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="wd-", dir="/tmp")
        self.temporary = os.path.join(self.directory.name, "t")
        os.mkdir(self.temporary)
        self.output = os.path.join(self.directory.name, "out")
        self.environment = dict(os.environ, TMPDIR=self.temporary)

    def tearDown(self):
        self.directory.cleanup()

    def start(self, *arguments):
        return subprocess.Popen([WSYNC, "demo", *arguments], env=self.environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run_demo(self, *arguments):
        with self.start("--json", "--output", self.output, *arguments) as process:
            out, err = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 0, out + err)
        self.assertEqual(left_behind(self.temporary), ([], []))
        said = json.loads(out)
        self.assertTrue(said["ok"])
        return said["result"]

    def check_story(self, result, size, engines):
        self.assertEqual([v["version"] for v in result["versions"]], ["1.1", "1.2", "1.3"])
        for version in result["versions"]:
            self.assertEqual(version["bytes"], result["bytes"])
            self.assertGreater(version["paused_ns"], 0)
            self.assertGreater(version["floor_share"], 0)
            self.assertEqual(version["verified_bytes"], engines * result["bytes"])
        self.assertLess(size - result["bytes"], 1 << 20)
        killed = result["kill"]
        self.assertEqual(killed["version"], "1.3")
        self.assertGreaterEqual(killed["buckets_acknowledged_at_least"], 1)
        self.assertLess(killed["buckets_taken"], killed["buckets"])
        self.assertEqual(killed["state"], "absent")
        self.assertEqual([v["loaded_bytes"] // v["bytes"] for v in result["versions"]],
                         [engines, engines, engines - 1])
        self.assertIn(result["refusal"]["tensor"], result["refusal"]["reason"])
        self.assertEqual((result["rollback"]["from"], result["rollback"]["to"]), ("1.3", "1.2"))
        self.assertEqual(result["torn"], 0)
        self.assertEqual(len(result["engines"]), engines)
        for engine in result["engines"]:
            self.assertIn("1.2", engine["versions"])
            self.assertGreater(engine["steps"], 0)

    def check_files(self, result, devices):
        picture = ElementTree.parse(result["picture"]).getroot()
        texts = ["".join(t.itertext()) for t in picture.iter("{http://www.w3.org/2000/svg}text")]
        for lane in [f"H2D {d}" for d in range(devices)] + ["IPC 0", "IPC 1"]:
            self.assertIn(lane, texts)
        self.assertTrue(any(t.startswith("engines paused: ") for t in texts), texts)
        with open(result["trace"], encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        self.assertEqual(sorted(processes.values()), ["coordinator", "sidecar host0", "sidecar host1", "wsync demo"])
        threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
        spans = [e for e in events if e["ph"] == "X"]
        for span in spans:
            self.assertIn((span["pid"], span["tid"]), threads)
            self.assertGreaterEqual(span["dur"], 0)
        names = {span["name"] for span in spans}
        for name in ("publish 1.1", "snapshot of 1.1", "switch 1.2", "paused for 1.2", "staging of 1.3", "rollback to 1.2", "H2D copy of bucket 0"):
            self.assertIn(name, names)
        # All engines of a sidecar share one run of its pipeline: three versions and the rollback on each, and the repair.
        self.assertEqual(len([e for e in spans if e["name"] == "H2D copy of bucket 0"]), 9)

    def test_a_made_up_checkpoint(self):
        result = self.run_demo("--size", "16MiB")
        self.check_story(result, 16 << 20, 4)
        self.check_files(result, 4)
        self.assertEqual(len({v["content_digest"] for v in result["versions"]}), 3)
        self.assertEqual(sorted(os.listdir(self.output)), ["timeline.svg", "trace.json"])

    def test_a_given_checkpoint_and_a_work_directory(self):
        given = os.path.join(self.directory.name, "given")
        subprocess.run([WSYNC, "make-checkpoint", given, "--size", "24MiB"], check=True, stdout=subprocess.DEVNULL)
        before = {name: os.stat(os.path.join(given, name)).st_mtime_ns for name in os.listdir(given)}
        work = os.path.join(self.directory.name, "work")
        result = self.run_demo("--checkpoint", given, "--work", work, "--engines", "3", "--devices", "2")
        self.check_story(result, 24 << 20, 3)
        self.check_files(result, 2)
        self.assertFalse(result["same_bytes"])
        self.assertEqual(len({v["content_digest"] for v in result["versions"]}), 3)
        self.assertEqual(os.listdir(work), [])
        self.assertEqual(before, {name: os.stat(os.path.join(given, name)).st_mtime_ns for name in os.listdir(given)})

    def interrupt(self, line_with, signals):
        """Sends signals when the demo has said so; its exit code, and what it said afterwards."""
        with self.start("--size", "16MiB", "--output", self.output) as process:
            for line in process.stdout:
                if line_with in line:
                    break
            for number in signals:
                process.send_signal(number)
            _, err = process.communicate(timeout=DEADLINE_S)
        return process.returncode, err

    def test_an_interrupt_ends_everything_in_order(self):
        for moment in ("model:", "running:", "published 1.1", "killed engine"):
            with self.subTest(moment):
                code, err = self.interrupt(moment, [signal.SIGINT])
                self.assertEqual(code, 130, err)
                self.assertIn("interrupted", err)
                self.assertEqual(left_behind(self.temporary), ([], []))
                self.assertFalse(os.path.exists(self.output))

    def test_a_second_interrupt_ends_it_at_once(self):
        code, err = self.interrupt("published 1.1", [signal.SIGINT, signal.SIGTERM])
        self.assertEqual(code, 130, err)
        self.assertEqual(left_behind(self.temporary), ([], []))

    def test_a_process_that_dies_is_named_with_the_end_of_its_log(self):
        with self.start("--size", "16MiB") as process:
            for line in process.stdout:
                if "published 1.1" in line:
                    break
            for pid in left_behind(self.temporary)[0]:
                with open(f"/proc/{pid}/cmdline", encoding="utf-8") as arguments:
                    if "name=host0" in arguments.read():
                        os.kill(int(pid), signal.SIGKILL)
            _, err = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 1, err)
        self.assertRegex(err, r"sidecar-host0 \(pid \d+\) was killed by signal 9; the end of its log:\n +\S")
        self.assertEqual(left_behind(self.temporary), ([], []))


if __name__ == "__main__":
    unittest.main()

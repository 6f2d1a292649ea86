"""`wsync demo` as a user runs it: what it shows, what it writes, and that it leaves nothing behind."""
import json
import os
import signal
import subprocess
import sys
import time
import unittest

from demos import DEADLINE_S, DemoCase, left_behind, texts_of

WSYNC = DemoCase.wsync = sys.argv.pop()


class Demo(DemoCase):
    def check_scenario(self, result, size, engines):
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
        texts = texts_of(result["picture"])
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
        self.check_scenario(result, 16 << 20, 4)
        self.check_files(result, 4)
        self.assertEqual(len({v["content_digest"] for v in result["versions"]}), 3)
        self.assertEqual(sorted(os.listdir(self.output)), ["timeline.svg", "trace.json"])

    def test_a_given_checkpoint_and_a_work_directory(self):
        given = os.path.join(self.directory.name, "given")
        subprocess.run([WSYNC, "make-checkpoint", given, "--size", "24MiB"], check=True, stdout=subprocess.DEVNULL)
        before = {name: os.stat(os.path.join(given, name)).st_mtime_ns for name in os.listdir(given)}
        work = os.path.join(self.directory.name, "work")
        result = self.run_demo("--checkpoint", given, "--work", work, "--engines", "3", "--devices", "2")
        self.check_scenario(result, 24 << 20, 3)
        self.check_files(result, 2)
        self.assertFalse(result["same_bytes"])
        self.assertEqual(len({v["content_digest"] for v in result["versions"]}), 3)
        self.assertEqual(os.listdir(work), [])
        self.assertEqual(before, {name: os.stat(os.path.join(given, name)).st_mtime_ns for name in os.listdir(given)})

    def test_an_interrupt_ends_everything_in_order(self):
        for moment in ("model:", "running:", "published 1.1", "killed engine"):
            with self.subTest(moment):
                code, err = self.interrupt(moment, [signal.SIGINT], "--size", "16MiB")
                self.assertEqual(code, 130, err)
                self.assertIn("interrupted", err)
                self.assertEqual(left_behind(self.temporary), ([], []))
                self.assertFalse(os.path.exists(self.output))

    def test_a_second_interrupt_ends_it_at_once(self):
        code, err = self.interrupt("published 1.1", [signal.SIGINT, signal.SIGTERM], "--size", "16MiB")
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


class TrainDemo(DemoCase):
    STEPS = 12

    def check_training(self, result):
        training = result["training"]
        self.assertEqual({k: training["run"][k] for k in ("ranks", "pp", "vpp", "dp", "ep")},
                         {"ranks": 4, "pp": 2, "vpp": 2, "dp": 2, "ep": 2})
        self.assertEqual([s["step"] for s in training["steps"]], list(range(1, self.STEPS + 1)))
        losses = [s["loss"] for s in training["steps"]]
        self.assertLess(losses[-1], losses[0])
        publishes = training["publishes"]
        self.assertEqual([p["step"] for p in publishes], list(range(1, self.STEPS + 1)))
        # On a busy machine a newer step may take the place of one that waits, but never of the last.
        self.served = [p["step"] for p in publishes if p["state"] != "superseded"]
        self.assertEqual(self.served[-1], self.STEPS)
        self.assertGreater(len(self.served), 1)
        self.assertEqual([(p["version"], p["state"], p["replicas"]) for p in publishes if p["step"] in self.served],
                         [(f"1.{n}", "committed", 2) for n in self.served])
        self.assertEqual(len({p["content_digest"] for p in publishes if p["step"] in self.served}), len(self.served))

    def check_engines(self, result):
        self.assertEqual((result["published"], result["committed"]), (self.STEPS, len(self.served)))
        last = result["last"]
        self.assertEqual(last["version"], f"1.{self.STEPS}")
        self.assertEqual(last["content_digest"], result["training"]["publishes"][-1]["content_digest"])
        self.assertEqual(last["content_digest"], last["saved_content_digest"])
        self.assertEqual(result["verified"][-1], last["version"])
        self.assertGreater(len(result["verified"]), 1)
        self.assertEqual(result["verified_bytes"] % result["bytes"], 0)
        self.assertEqual(result["torn"], 0)
        self.assertEqual(len(result["engines"]), 2)
        for engine in result["engines"]:
            self.assertIn(last["version"], engine["versions"])
            self.assertEqual(sum(engine["versions"].values()), engine["steps"])

    def check_files(self, result):
        self.assertEqual(sorted(os.listdir(self.output)), ["timeline.svg", "trace.json"])
        texts = texts_of(result["picture"])
        for rank in ("0 (PP0, replica 0)", "1 (PP0, replica 1)", "2 (PP1, replica 0)", "3 (PP1, replica 1)"):
            self.assertIn(f"trainer rank {rank}", texts)
        for lane in ("computation", "communication", "copy"):
            self.assertEqual(texts.count(lane), 4)
        for text in ("sidecar host0", "staging", "engine host0-0", "engine host0-1", "reload by the engines",
                     f"step {self.STEPS - 1}"):
            self.assertIn(text, texts)
        with open(result["trace"], encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        spans = {e["name"]: e for e in events if e["ph"] == "X"}
        # One clock for trainer and sidecar: the weights of a step are staged when it is over, then switched to.
        number = self.served[-2]
        step, staging, paused = (spans[name] for name in (f"step {number}", f"staging of 1.{number}", f"paused for 1.{number}"))
        self.assertLessEqual(step["ts"] + step["dur"], staging["ts"])
        self.assertLessEqual(staging["ts"] + staging["dur"], paused["ts"])

    def test_engines_hold_what_was_trained(self):
        result = self.run_demo("--train", "--steps", str(self.STEPS))
        self.check_training(result)
        self.check_engines(result)
        self.check_files(result)

    def test_an_interrupt_ends_the_training_in_order(self):
        for moment in ("running:", "training:", "verified:"):
            with self.subTest(moment):
                code, err = self.interrupt(moment, [signal.SIGINT], "--train")
                self.assertEqual(code, 130, err)
                self.assertIn("interrupted", err)
                self.assertEqual(left_behind(self.temporary), ([], []))
                self.assertFalse(os.path.exists(self.output))

    def test_a_second_interrupt_ends_the_training_at_once(self):
        code, err = self.interrupt("verified:", [signal.SIGINT, signal.SIGTERM], "--train")
        self.assertEqual(code, 130, err)
        # The ranks are the trainer's children, and die with it.
        end = time.monotonic() + 10
        while left_behind(self.temporary) != ([], []) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(left_behind(self.temporary), ([], []))

    def test_a_rank_that_dies_is_named(self):
        with self.start("--train") as process:
            for line in process.stdout:
                if "verified:" in line:
                    break
            for pid in left_behind(self.temporary)[0]:
                with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
                    arguments = file.read().split("\0")
                if "--rank" in arguments and arguments[arguments.index("--rank") + 1] == "2":
                    os.kill(int(pid), signal.SIGKILL)
            _, err = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 1, err)
        self.assertRegex(err, r"trainer \(pid \d+\) exited with 3; the end of its log:")
        self.assertRegex(err, r"rank 2 .*was killed by signal 9")
        self.assertEqual(left_behind(self.temporary), ([], []))


if __name__ == "__main__":
    unittest.main()

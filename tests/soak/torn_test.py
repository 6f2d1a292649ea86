"""wsync_soak torn: 32 completions at once at a replica of two ranks while its weights change, and in every forward
step every rank compares the version of every layer; what the answers' tokens come to is computed anew. No time is compared with anything: the machine may be
busy."""
import os
import signal
import subprocess
import sys
import time
import unittest

from soak import DEADLINE_S, SCHEMA, SoakCase, interrupt_leaves_nothing, processes_of, validate

SoakCase.wsync, SoakCase.soak = sys.argv[-2:]
del sys.argv[-2:]
LAYERS = 5  # embeddings, two decoder layers, the norm at the end, the head


class Torn(SoakCase):
    run_name = "torn"

    def run_torn(self, steps, ranks=2, requests=32, switch_ms=500):
        result = self.result_of("--steps", str(steps), "--ranks", str(ranks), "--requests", str(requests),
                                "--switch-ms", str(switch_ms))
        self.assertEqual((result["ranks"], result["requests_at_once"], result["switch_ms"], result["steps_asked"]),
                         (ranks, requests, switch_ms, steps))
        # Every layer, on every rank, in every step.
        self.assertGreaterEqual(result["steps"], steps)
        self.assertEqual(result["layers"], LAYERS)
        self.assertEqual(result["layers_compared"], result["steps"] * LAYERS * ranks)
        self.assertEqual((result["torn"], result["torn_told"], result["aborted"]), (0, [], 0))
        # The weights did change, under requests that ran.
        self.assertGreaterEqual(result["switches"], 1)
        self.assertEqual(result["versions"], result["switches"] + 1)
        self.assertGreater(result["paused_ms"]["min"], 0)
        self.assertGreaterEqual(result["paused_ms"]["max"], result["paused_ms"]["median"])
        self.assertGreaterEqual(result["requests_met"], 1)
        self.assertLessEqual(result["requests_met"], result["requests"])
        self.assertEqual((result["requests_wrong"], result["wrong_told"]), (0, []))
        # As the sidecar counts them: each switch loads every rank, by a patch or in full.
        self.assertEqual(result["loads_by_patch"] + result["loads_in_full"], result["switches"] * ranks)
        self.assertEqual(result["patches_failed"], 0)
        self.assertGreaterEqual(result["requests"], requests)
        # Every answer that a switch met, and some of the others, computed anew from the published bytes.
        self.assertGreaterEqual(result["requests_recomputed"], result["requests_met"])
        self.assertGreaterEqual(result["tokens_recomputed"], 64 * result["requests_recomputed"])
        self.assertLessEqual(result["tokens_recomputed"], result["tokens"])
        self.assertGreater(result["difference_most"], 0)
        self.assertLess(result["difference_most"], 1e-4)
        # A step gives a token to each sequence at most, and answers have 64 to 256 tokens.
        self.assertLessEqual(result["tokens"], result["steps"] * requests)
        self.assertGreaterEqual(result["tokens"], 64 * result["requests"])
        self.assertLessEqual(result["tokens"], 256 * result["requests"])
        self.assertGreater(result["seconds"], 0)
        print(f"{result['steps']} steps in {result['seconds']:.1f} s, {result['switches']} switches", file=sys.stderr)
        return result

    def test_a_hundred_thousand_steps(self):
        result = self.run_torn(100_000)
        # Every switch meets what runs.
        self.assertGreaterEqual(result["requests_met"], result["switches"])
        # Every second version differs little from the one before.
        self.assertGreaterEqual(result["loads_by_patch"], 2 * (result["switches"] // 2 - 1))
        self.assertGreaterEqual(result["loads_in_full"], 2 * (result["switches"] // 2))

    def test_a_few_steps_with_many_switches(self):
        self.run_torn(3_000, switch_ms=20)

    def test_one_rank_and_three(self):
        self.run_torn(5_000, ranks=1, requests=4, switch_ms=10)
        self.run_torn(500, ranks=3, requests=4, switch_ms=10)

    def test_a_run_that_no_switch_has_met_shows_nothing(self):
        done = subprocess.run(self.command("--steps", "1", "--switch-ms", "3600000"), text=True, capture_output=True,
                              timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 1, done.stdout)
        error = validate(SCHEMA, done.stdout)["error"]
        self.assertEqual(error["code"], "refused")
        self.assertIn("nothing is shown", error["message"])
        self.assertEqual(os.listdir(self.directory), [])

    def test_an_interrupt_leaves_nothing_behind(self):
        # The run and both ranks
        interrupt_leaves_nothing(self, self.command(), self.directory, 3, DEADLINE_S)

    def test_a_rank_that_dies_ends_it(self):
        run = subprocess.Popen(self.command(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(lambda: (run.stdout.close(), run.stderr.close()))
        end = time.monotonic() + DEADLINE_S
        while len(processes_of(self.directory)) < 3:
            self.assertLess(time.monotonic(), end)
            self.assertIsNone(run.poll())
        os.kill(next(pid for pid in processes_of(self.directory) if pid != run.pid), signal.SIGKILL)
        out, _ = run.communicate(timeout=DEADLINE_S)
        self.assertEqual(run.returncode, 3, out)
        self.assertEqual(validate(SCHEMA, out)["error"]["code"], "peer_lost")
        self.assertEqual(processes_of(self.directory), [])
        self.assertEqual(os.listdir(self.directory), [])

    def test_bad_arguments(self):
        for bad in (["--kills", "9"], ["--steps", "0"], ["--ranks", "9"], ["--requests", "many"], ["--switch-ms", "0"],
                    ["--directory", "/nowhere"]):
            self.refuses(*bad)



if __name__ == "__main__":
    unittest.main()

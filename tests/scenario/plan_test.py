"""`wsync plan` asks the engines that run what they would refuse, and changes nothing."""
import subprocess
import sys
import unittest

from fleet import DEADLINE_S, Fleet

WSYNC = sys.argv.pop()
TENSOR = "model.layers.0.self_attn.q_proj.weight"


class Plan(unittest.TestCase):
    def test_the_running_fleet_says_what_it_would_refuse(self):
        with Fleet(WSYNC) as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            bad = fleet.checkpoint("bad", 3, "--wrong-shape", TENSOR)
            _, engines = fleet.sidecar("s0")
            _, others = fleet.sidecar("s1", "--set", "devices.kind=separate", "--set", "devices.count=2",
                                      "--set", "devices.buffer_bytes=1MiB")
            fleet.engine(engines, "a", one)
            fleet.engine(engines, "b", one)
            fleet.engine(others, "c", one, "--device-index", "0")
            fleet.start("trainer")
            fleet.until(lambda: set(fleet.replicas()) == {"a", "b", "c"}, "every replica")
            code, answer = fleet.ask("push", one)
            self.assertEqual(code, 0, answer)
            fleet.until_ready(answer["result"]["version"], "a", "b", "c")
            before = fleet.state()

            code, answer = fleet.ask("plan", two)
            self.assertEqual(code, 0, answer)
            s0, s1 = answer["result"]["sidecars"]
            self.assertEqual((s0["name"], s0["replicas"], s0["devices"], s0["problems"]), ("s0", 2, 0, []))
            self.assertEqual((s1["name"], s1["replicas"], s1["devices"], s1["problems"]), ("s1", 1, 2, []))
            self.assertGreaterEqual(s1["rounds"], answer["result"]["arena_bytes"] / (2 << 20))
            memory = answer["result"]["peak_memory"]
            self.assertEqual(memory["engine_bytes"], 3 * answer["result"]["bytes"])
            self.assertEqual(memory["buffer_bytes"], 2 * 3 << 20)

            code, answer = fleet.ask("plan", bad)
            self.assertEqual(code, 1, answer)
            for sidecar, replica in zip(answer["result"]["sidecars"], "ac"):
                problem = sidecar["problems"][0]
                self.assertEqual((problem["kind"], problem["tensor"]), ("shape", TENSOR))
                self.assertIn(f"replica '{replica}'", problem["detail"])
            # One sidecar, asked for itself.
            code, answer = fleet.ask("plan", bad, address=f"ipc://{fleet.run_dir}/s1.control")
            self.assertEqual((code, [s["name"] for s in answer["result"]["sidecars"]]), (1, ["s1"]))
            self.assertEqual(fleet.state(), before)

    def test_a_sidecar_that_is_gone_is_named(self):
        with Fleet(WSYNC) as fleet:
            one = fleet.checkpoint("one", 1)
            sidecar, engines = fleet.sidecar("s0")
            fleet.engine(engines, "a", one)
            fleet.start("trainer")
            self.assertEqual(fleet.ask("push", one)[0], 0)
            sidecar.kill()
            sidecar.wait()
            fleet.until(lambda: not fleet.ask("status")[1]["result"]["sidecars"][0]["connected"], "the loss of s0")
            code, answer = fleet.ask("plan", one)
            self.assertEqual(code, 1)
            self.assertEqual(answer["result"]["sidecars"], [{"name": "s0", "failure": "is not connected"}])

    def test_without_a_fleet_it_says_that_names_are_not_compared(self):
        with Fleet(WSYNC) as fleet:
            one = fleet.checkpoint("one", 1)
            done = subprocess.run([WSYNC, "plan", one], env=fleet.environment, text=True, capture_output=True,
                                  timeout=DEADLINE_S)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("names are not compared", done.stdout)
            code, answer = fleet.ask("plan", one, "--engines", "2")
            self.assertEqual(code, 2)
            self.assertIn("--coordinator", answer["error"]["message"])


if __name__ == "__main__":
    unittest.main()

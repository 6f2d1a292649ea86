"""`wsync plan` asks the engines that run what they would refuse, and changes nothing."""
import re
import subprocess
import sys
import unittest

from fleet import DEADLINE_S, Fleet
from schema import validate

WSYNC = sys.argv.pop()
TENSOR = "model.layers.0.self_attn.q_proj.weight"


# Where there is as little else in memory as the processes themselves.
MODEL_MIB = 256
FLEETS = {
    "memfd": ([], [[], []]),
    "engines that map": ([], [["--adopt"], ["--adopt"]]),
    "tcp": (["transport=tcp"], [[], []]),
    "tcp, engines that map": (["transport=tcp", "versions_held=3"], [["--adopt"], []]),
    "separate devices": (["devices.kind=separate", "devices.count=2"], [["--device-index", "0"], ["--device-index", "1"]]),
    "two ranks": ([], [["--rank", "0", "--world-size", "2"], ["--rank", "1", "--world-size", "2"]]),
}


def memory_of(processes):
    """Bytes of memory of all processes together; what several map counts once (PSS)."""
    total = 0
    for process in processes:
        with open(f"/proc/{process.pid}/smaps_rollup", encoding="utf-8") as file:
            total += int(re.search(r"^Pss:\s+(\d+) kB", file.read(), re.MULTILINE)[1]) << 10
    return total


class Plan(unittest.TestCase):
    def pushed(self, fleet, settings, engines, times):
        """A fleet after so many pushes, and what `plan` says of the memory that it needs at most."""
        models = [fleet.checkpoint(name, seed, size=f"{MODEL_MIB}MiB") for seed, name in enumerate(("one", "two"))]
        _, socket = fleet.sidecar("s0", *(word for setting in settings for word in ("--set", setting)))
        for number, more in enumerate(engines):
            fleet.engine(socket, "tp" if "--rank" in more else f"r{number}", models[0], *more)
        for number in range(times):
            code, answer = fleet.ask("push", models[number % 2])
            self.assertEqual(code, 0, answer)
        code, answer = fleet.ask("plan", models[0])
        self.assertEqual(code, 0, answer)
        return answer["result"]

    def test_memory_is_what_all_processes_have_after_some_pushes(self):
        for name, (settings, engines) in FLEETS.items():
            with self.subTest(name), Fleet(WSYNC) as fleet:
                fleet.start("trainer")
                result = self.pushed(fleet, settings, engines, 4)
                planned, patches = result["peak_memory"]["sum_bytes"], result["peak_memory"]["patch_bytes"]
                # Of two bases, what has come as changes, and what is kept of it for sidecars that are behind: here, and by the trainer.
                copies = sum(sidecar["own_arenas"] > 0 for sidecar in result["sidecars"])
                held = 2 * len(result["sidecars"]) + 2 * copies + (copies > 0)
                self.assertEqual(patches, held * int(0.07 * result["arena_bytes"]))
                self.assertAlmostEqual(memory_of(fleet.processes) / planned, 1, delta=0.05)

    def test_the_doctor_tells_the_share_for_patches(self):
        for settings, used in ((["transport=memfd"], True), (["transport=tcp"], True), (["transport=tcp", "patch.max_share=0.02"], True),
                               (["scrub.interval=0"], False), (["patch.mode=off"], False), (["patch.transfer=off"], False)):
            with self.subTest(settings), Fleet(WSYNC) as fleet:
                fleet.start("trainer")
                words = [word for setting in settings for word in ("--set", setting)]
                _, socket = fleet.sidecar("s0", *words)
                model = fleet.checkpoint("one", 1)
                fleet.engine(socket, "r0", model)
                fleet.until(lambda: fleet.ask("plan", model)[0] == 0, "the sidecar at the coordinator")
                _, answer = fleet.ask("plan", model)
                result = answer["result"]
                done = subprocess.run([WSYNC, "doctor", "--json", *words], env=fleet.environment, text=True, capture_output=True,
                                      timeout=DEADLINE_S)
                checks = {check["name"]: check for check in validate(done.args, done.stdout)["result"]["checks"]}
                facts = checks["patches"]["facts"]
                self.assertEqual((facts["used"], checks["patches"]["status"]), (used, "ok" if used else "warn"), checks["patches"])
                self.assertEqual(checks["scrub"]["status"], "warn" if "scrub.interval=0" in settings else "ok")
                share = facts["memory_share_mapped"] + facts["memory_share_copied"]  # one kind of transport: the other one is 0
                self.assertEqual(share > 0, used)
                # Kept for sidecars that are behind, here and by the trainer.
                share += 2 * 0.07 if "transport=tcp" in settings else 0
                self.assertAlmostEqual(share * result["arena_bytes"], result["peak_memory"]["patch_bytes"], delta=4)

    def test_what_is_idle_is_given_back(self):
        for name in "memfd", "tcp":
            settings, engines = FLEETS[name]
            with self.subTest(name), Fleet(WSYNC) as fleet:
                fleet.start("trainer", "--set", "idle_release=1s")
                result = self.pushed(fleet, [*settings, "idle_release=1s"], engines, 3)
                # At rest: the version that is served, and the one before it, once or on both sides.
                sides = 2 if name == "tcp" else 1
                rest = result["peak_memory"]["engine_bytes"] + 2 * sides * result["arena_bytes"]
                fleet.until(lambda: memory_of(fleet.processes) < 1.05 * rest, "the return of the free arenas")
                self.assertGreater(memory_of(fleet.processes), 0.95 * rest)
                # The next push allocates them again.
                code, answer = fleet.ask("push", fleet.path("two"))
                self.assertEqual(code, 0, answer)
                code, answer = fleet.ask("verify")
                self.assertEqual(code, 0, answer)

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
            # The last word of a sidecar on what it has staged comes with a heartbeat.
            fleet.until(lambda: all(s["staged_bytes"] == 0 for s in fleet.state()[1]["result"]["sidecars"]), "the end of the staging")
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

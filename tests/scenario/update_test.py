"""Real processes: trainer, sidecar and engines take versions, refuse, lose an engine, and go back."""
import os
import socket
import subprocess
import sys
import unittest

from fleet import DEADLINE_S, Fleet
from pages import copied_bytes

WSYNC = sys.argv.pop()
SEPARATE = ["--set", "devices.kind=separate", "--set", "devices.count=2"]


class Update(unittest.TestCase):
    def verified(self, fleet, version, ranks):
        code, answer = fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        self.assertEqual([r["version"] for r in answer["result"]["ranks"]], [version] * ranks)
        self.assertTrue(all(r["bytes"] > 0 for r in answer["result"]["ranks"]))

    def push(self, fleet, path):
        code, answer = fleet.ask("push", path)
        self.assertEqual(code, 0, answer)
        return answer["result"]["version"]

    def run_through(self, sidecar_settings, engine_options):
        with Fleet(WSYNC) as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            bad = fleet.checkpoint("bad", 3, "--wrong-shape", "model.layers.0.self_attn.q_proj.weight")
            sidecar, engines = fleet.sidecar("s0", *sidecar_settings)
            a = fleet.engine(engines, "a", one, *engine_options[0])
            b = fleet.engine(engines, "b", one, *engine_options[1])
            trainer = fleet.start("trainer", "--set", "arenas=4")
            first = self.push(fleet, one)
            self.verified(fleet, first, 2)
            second = self.push(fleet, two)
            self.verified(fleet, second, 2)

            code, answer = fleet.ask("push", bad)
            self.assertEqual((code, answer["result"]["code"]), (1, "refused"))
            self.assertIn("model.layers.0.self_attn.q_proj.weight", answer["result"]["reason"])
            self.verified(fleet, second, 2)

            b.kill()
            b.wait()
            fleet.until(lambda: fleet.replicas()["b"]["state"] == "absent", "the loss of b")
            b = fleet.engine(engines, "b", one, *engine_options[1])
            fleet.until_ready(second, "a", "b")
            self.verified(fleet, second, 2)

            code, answer = fleet.ask("rollback")
            self.assertEqual(code, 0, answer)
            self.assertEqual(answer["result"]["to"], first)
            self.verified(fleet, first, 2)
            for engine in (a, b):
                code, said = fleet.stop(engine)
                self.assertEqual(code, 0, said)
                self.assertIn('"torn":0', said)
            for agent in (trainer, sidecar):
                code, said = fleet.stop(agent)
                self.assertEqual(code, 0, said)

    def test_rollbacks_right_after_a_push_find_what_is_held_and_no_more(self):
        with Fleet(WSYNC) as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            _, engines = fleet.sidecar("s0")
            fleet.engine(engines, "a", one)
            fleet.start("trainer")
            # No wait between the commands: nothing but what the sidecar has told decides.
            for directory in (one, two, one):
                last = self.push(fleet, directory)
            code, answer = fleet.ask("rollback")
            self.assertEqual(code, 0, answer)
            previous = answer["result"]["to"]
            code, answer = fleet.ask("rollback")
            self.assertEqual(code, 1, answer)
            self.assertIn(f"no version before {previous} is still held", answer["result"]["reason"])
            self.assertFalse(answer["result"]["partial"])
            self.verified(fleet, previous, 1)
            self.assertNotEqual(previous, last)

    def test_unified_devices(self):
        self.run_through([], [[], []])

    def test_separate_devices(self):
        self.run_through(SEPARATE, [["--device-index", "0"], ["--device-index", "1"]])

    def test_engines_that_map_the_version(self):
        self.run_through(["--set", "versions_held=3"], [["--adopt"], ["--adopt"]])

    def test_a_tensor_parallel_replica(self):
        with Fleet(WSYNC) as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            _, engines = fleet.sidecar("s0")
            ranks = [fleet.engine(engines, "tp", one, "--rank", str(r), "--world-size", "2") for r in (0, 1)]
            fleet.start("trainer")
            for path in (one, two):
                self.verified(fleet, self.push(fleet, path), 2)
            for rank in ranks:
                code, said = fleet.stop(rank)
                self.assertEqual(code, 0, said)

    def test_ranks_on_devices_of_their_own_take_their_parts(self):
        """By default each device copies the part of its rank from host memory; by a broadcast both get all. A fifth of this model is
        of every rank, because its vocabulary is odd."""
        for transfer, copies, broadcasts in (("auto", 1.2, 0), ("own_links", 1.2, 0), ("broadcast", 1, 2)):
            with self.subTest(transfer), Fleet(WSYNC) as fleet:
                one, two = (fleet.checkpoint(name, seed, size="64MiB") for seed, name in enumerate(("one", "two"), start=1))
                _, engines = fleet.sidecar("s0", *SEPARATE, "--set", "devices.buffer_bytes=4MiB", "--set", f"devices.transfer={transfer}")
                ranks = [fleet.engine(engines, "tp", one, "--rank", str(r), "--world-size", "2", "--device-index", str(r)) for r in (0, 1)]
                fleet.start("trainer")
                for path in (one, two):
                    self.verified(fleet, self.push(fleet, path), 2)
                copied = copied_bytes(fleet, "s0")
                model = sum(os.path.getsize(os.path.join(one, file)) for file in os.listdir(one) if file.endswith(".safetensors"))
                self.assertAlmostEqual(copied["h2d"] / (2 * model), copies, delta=0.1)
                self.assertAlmostEqual(copied["broadcast"] / (2 * model), broadcasts, delta=0.1)
                for rank in ranks:
                    code, said = fleet.stop(rank)
                    self.assertEqual(code, 0, said)

    def test_a_replica_loses_a_rank_while_its_devices_copy_their_parts(self):
        """The others go on, and the replica serves one version when the rank is back."""
        with Fleet(WSYNC) as fleet:
            paths = [fleet.checkpoint(name, seed, size="64MiB") for seed, name in enumerate(("one", "two"), start=1)]
            _, engines = fleet.sidecar("s0", *SEPARATE, "--set", "devices.buffer_bytes=4MiB")

            def rank(r):
                return fleet.engine(engines, "tp", paths[0], "--rank", str(r), "--world-size", "2", "--device-index", str(r))
            ranks = [rank(0), rank(1)]
            fleet.start("trainer", "--set", "arenas=4")
            version = self.push(fleet, paths[0])
            for turn in range(4):
                loaded = copied_bytes(fleet, "s0")["h2d"]
                push = fleet.start("push", paths[(turn + 1) % 2], "--coordinator", fleet.address)
                fleet.until(lambda: copied_bytes(fleet, "s0")["h2d"] > loaded or push.poll() is not None, "a copy to a device")
                ranks[turn % 2].kill()
                ranks[turn % 2].wait()
                push.communicate(timeout=DEADLINE_S)
                ranks[turn % 2] = rank(turn % 2)
                version = self.push(fleet, paths[turn % 2])
                fleet.until_ready(version, "tp")
                self.verified(fleet, version, 2)
            self.assertEqual(copied_bytes(fleet, "s0")["broadcast"], 0)

    def test_a_sidecar_by_tcp(self):
        with Fleet(WSYNC) as fleet:
            one = fleet.checkpoint("one", 1)
            _, engines = fleet.sidecar("s0", "--set", "transport=tcp")
            fleet.engine(engines, "a", one)
            fleet.start("trainer")
            self.verified(fleet, self.push(fleet, one), 1)

    def test_a_sidecar_started_again_under_a_living_trainer_is_welcomed(self):
        with Fleet(WSYNC) as fleet:
            one = fleet.checkpoint("one", 1)
            sidecar, engines = fleet.sidecar("s0")
            fleet.engine(engines, "a", one)
            fleet.start("trainer")
            first = self.push(fleet, one)
            sidecar.kill()
            sidecar.wait()
            os.unlink(engines)
            fleet.sidecar("s0")

            def welcomed():
                code, answer = fleet.ask("status", address=f"ipc://{fleet.run_dir}/s0.control")
                return code == 0 and answer["result"]["sidecars"][0]["connected"]

            fleet.until(welcomed, "the sidecar's word that it is connected")
            fleet.until_ready(first, "a")
            # It fetches what its engine serves, and only then can compare.
            fleet.until(lambda: first in fleet.ask("status")[1]["result"]["sidecars"][0]["staged"], "the version in the new sidecar")
            self.verified(fleet, first, 1)

    def test_a_hand_over_that_fails_gives_way_to_tcp(self):
        with Fleet(WSYNC) as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            fleet.start("trainer")
            host_socket = os.path.join(fleet.run_dir, "trainer-host.sock")
            fleet.until(lambda: os.path.exists(host_socket), "the trainer's host socket")
            os.unlink(host_socket)  # as a sidecar in another mount namespace sees it
            _, engines = fleet.sidecar("s0")
            fleet.engine(engines, "a", one)
            for path in (one, two):
                self.verified(fleet, self.push(fleet, path), 1)
            _, status = fleet.ask("status")
            self.assertEqual(status["result"]["sidecars"][0]["transport"], "tcp", status)

    def test_a_push_without_a_coordinator_is_its_own(self):
        with Fleet(WSYNC) as fleet:
            one = fleet.checkpoint("one", 1)
            sidecar, engines = fleet.sidecar("s0")
            fleet.engine(engines, "a", one)
            pushed = subprocess.run([WSYNC, "push", one, "--json", "--coordinator", fleet.address], env=fleet.environment,
                                    text=True, capture_output=True, timeout=DEADLINE_S)
            self.assertEqual(pushed.returncode, 0, pushed.stdout)
            self.assertIn("this command is the coordinator until it has ended", pushed.stderr)
            code, answer = fleet.ask("verify", address=f"ipc://{fleet.run_dir}/s0.control")
            self.assertEqual(code, 0, answer)
            fleet.stop(sidecar)
            with open(sidecar.log_path, encoding="utf-8") as log:
                said = pushed.stderr + log.read()
            self.assertNotIn("warning", said, "the end of the temporary coordinator is in order")
            self.assertIn("the coordinator has ended", said)
            for line in (" is staged from ", "replica a has loaded ", "replica a has committed "):
                self.assertEqual(said.count(line), 1, said)

    def test_each_cause_of_a_missing_replica_has_its_sentence(self):
        with Fleet(WSYNC) as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            bad = fleet.checkpoint("bad", 3, "--wrong-shape", "model.layers.0.self_attn.q_proj.weight")
            _, engines = fleet.sidecar("s0")
            fleet.start("trainer")
            code, answer = fleet.ask("push", one)
            self.assertEqual((code, answer["result"]["code"]), (1, "refused"), answer)
            self.assertIn("no engine has attached to sidecar 's0' yet", answer["result"]["reason"])
            a = fleet.engine(engines, "a", one)
            fleet.until(lambda: "a" in fleet.replicas(), "the engine that came too late")
            self.assertIn("no version has been decided since: publish one", fleet.replicas()["a"]["reason"])
            self.push(fleet, one)
            a.kill()
            a.wait()
            # In either order: no engine of the model is attached when the first of them comes.
            fleet.start("engine", "--json", "--sidecar", engines, "--replica", "bad", "--checkpoint", bad)
            fleet.engine(engines, "tp", one, "--rank", "0", "--world-size", "2")
            fleet.until(lambda: "tp" in fleet.replicas() and "was refused" in fleet.replicas().get("bad", {}).get("reason", ""),
                        "what the sidecar reports of them")
            code, answer = fleet.ask("push", two)
            self.assertEqual((code, answer["result"]["code"]), (1, "refused"), answer)
            for cause in ("replica 'a' has 0 of 1 ranks (rank 0 is not attached)", "replica 'bad' has 0 of 1 ranks (rank 0 was refused: ",
                          "q_proj.weight", "replica 'tp' has 1 of 2 ranks (rank 1 is not attached)"):
                self.assertIn(cause, answer["result"]["reason"])

    def test_a_directory_named_after_a_step_keeps_its_number(self):
        with Fleet(WSYNC) as fleet:
            seven, nine = fleet.checkpoint("step_7", 1), fleet.checkpoint("step_9", 2)
            _, engines = fleet.sidecar("s0")
            fleet.engine(engines, "a", seven)
            self.assertEqual(self.push(fleet, nine).split(".")[1], "9", "without a coordinator")
            trainer = fleet.start("trainer")
            self.assertEqual(self.push(fleet, seven).split(".")[1], "7", "of another epoch than 9")
            self.assertEqual(self.push(fleet, nine).split(".")[1], "9")
            # It is not free any more: the next free number, and the log says why.
            self.assertEqual(self.push(fleet, seven).split(".")[1], "10")
            with open(trainer.log_path, encoding="utf-8") as log:
                self.assertIn("its version gets the next free step, because step 7 was used or passed", log.read())
            code, answer = fleet.ask("push", seven, "--step", "7")
            self.assertEqual((code, answer["error"]["code"]), (2, "invalid_input"), answer)
            self.assertIn("publish a step above 10, or let wsync choose the next free one", answer["error"]["message"])

    def test_a_trainer_that_is_behind_publishes_the_newest_directory(self):
        with Fleet(WSYNC) as fleet:
            first, *others = [fleet.checkpoint(f"step_{number}", number) for number in range(1, 5)]
            _, engines = fleet.sidecar("s0")
            fleet.engine(engines, "a", first)
            trainer = fleet.start("trainer", "--checkpoint", first)
            fleet.until_ready("1.4", "a")
            os.rename(fleet.checkpoint("later", 5), fleet.path("step_6"))
            fleet.until_ready("1.6", "a")
            self.assertEqual(fleet.stop(trainer)[0], 0)
            with open(trainer.log_path, encoding="utf-8") as log:
                said = log.read()
            self.assertEqual([path for path in others if f"publishing {path}\n" in said], [fleet.path("step_4")])

    def test_garbage_on_the_engine_socket_changes_nothing(self):
        with Fleet(WSYNC) as fleet:
            one = fleet.checkpoint("one", 1)
            _, engines = fleet.sidecar("s0")
            fleet.engine(engines, "a", one)
            fleet.start("trainer")
            first = self.push(fleet, one)
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(engines)
                peer.sendall(b"\xff" * 4096)
                peer.settimeout(60)
                while True:  # until the sidecar hangs up
                    try:
                        if not peer.recv(4096):
                            break
                    except ConnectionResetError:
                        break
            self.verified(fleet, first, 1)

    def test_a_second_coordinator_is_refused(self):
        with Fleet(WSYNC) as fleet:
            _, engines = fleet.sidecar("s0")
            fleet.start("trainer")
            fleet.until(lambda: fleet.ask("status")[0] == 0, "the first coordinator")
            second = subprocess.run([WSYNC, "trainer"], env=fleet.environment, text=True,
                                    capture_output=True, timeout=60)
            self.assertEqual(second.returncode, 3, second.stderr)
            self.assertIn("control", second.stderr)


if __name__ == "__main__":
    unittest.main()

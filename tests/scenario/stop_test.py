"""Real processes that stand still for a while (SIGSTOP): nobody waits for ever, and they catch up."""
import re
import sys
import unittest

from fleet import short
from kill_fleet import KillCase, arenas, write_locked

KillCase.wsync = sys.argv.pop()


class Stopped(KillCase):
    def test_engine_before_the_pause(self):
        with self.fleet() as fleet:
            sidecar = fleet.sidecar("s0")
            a, b = (fleet.engine("s0", name, self.one) for name in "ab")
            trainer = fleet.trainer("--set", f"deadlines.pause={short(500)}")
            first = self.published(fleet, self.one)
            b.freeze()
            code, answer = fleet.ask("push", self.two)
            self.assertEqual(code, 1, answer)
            outcomes = {r["replica"]: r for r in answer["result"]["replicas"]}
            self.assertEqual(outcomes["a"]["outcome"], "committed")
            self.assertEqual((outcomes["b"]["outcome"], outcomes["b"]["version"]), ("behind", first))
            self.assertIn(f"did not pause within {short(500).removesuffix('ms')} ms", outcomes["b"]["reason"])
            second = outcomes["a"]["version"]
            self.assertEqual(answer["result"]["code"], "partial", "a serves it")
            self.assertRegex(answer["result"]["reason"], f"^replica 'b': .*did not pause.*; it still serves {first}; ")
            self.assertIn(f"{second} stays the target, and the sidecars go on trying", answer["result"]["reason"])
            _, status = fleet.ask("status")
            last = status["result"]["last_update"]
            self.assertEqual((last["ok"], last["partial"], last["version"]), (False, True, second), last)
            self.serves(a, second)
            b.thaw()
            fleet.until_ready(second, "a", "b")
            self.serves(b, second)
            self.verified(fleet, second, 2)
            self.leaves_nothing(fleet, a, b, sidecar, trainer)

    def test_engine_while_loading(self):
        for settings, options in ([], []), (["--set", "devices.kind=separate", "--set", "devices.count=2",
                                             "--set", "devices.buffer_bytes=1MiB"],
                                            ["--device-index", "1"]):
            with self.subTest(settings), self.fleet() as fleet:
                sidecar = fleet.sidecar("s0", *settings)
                a = fleet.engine("s0", "a", self.one)
                b = fleet.engine("s0", "b", self.one, *options)
                trainer = fleet.trainer("--set", "bucket_bytes=1MiB", "--set", f"deadlines.load={short(1000)}")
                self.published(fleet, self.one)
                b.hold_at("bucket", bucket=0)
                push = fleet.push(self.two)
                b.until_held()
                b.freeze()
                b.go_on()
                self.assertFalse(fleet.of_replica("s0", "b")["ready"])
                code, answer = push.result()
                self.assertEqual(code, 1, answer)
                outcomes = {r["replica"]: r["outcome"] for r in answer["result"]["replicas"]}
                self.assertEqual(outcomes["a"], "committed", answer)  # b keeps nobody else
                self.assertNotEqual(outcomes["b"], "committed")
                self.assertFalse(fleet.of_replica("s0", "b")["ready"])
                second = answer["result"]["version"]
                fleet.until_ready(second, "a")
                self.serves(a, second)
                b.thaw()
                fleet.until_ready(second, "a", "b")
                self.serves(b, second)
                self.verified(fleet, second, 2)
                self.leaves_nothing(fleet, a, b, sidecar, trainer)

    def test_rank_of_two(self):
        with self.fleet() as fleet:
            sidecar = fleet.sidecar("s0")
            a = fleet.engine("s0", "a", self.one)
            leader, follower = (fleet.engine("s0", "tp", self.one, "--rank", str(r), "--world-size", "2")
                                for r in (0, 1))
            trainer = fleet.trainer("--set", f"deadlines.pause={short(500)}", "--set", f"deadlines.load={short(1000)}")
            self.published(fleet, self.one)
            follower.freeze()
            code, answer = fleet.ask("push", self.two)
            self.assertEqual(code, 1, answer)
            outcomes = {r["replica"]: r for r in answer["result"]["replicas"]}
            self.assertEqual(outcomes["a"]["outcome"], "committed", answer)
            self.assertNotEqual(outcomes["tp"]["outcome"], "committed")
            self.assertFalse(fleet.of_replica("s0", "tp")["ready"])
            second = outcomes["a"]["version"]
            self.serves(a, second)
            self.stands_still(leader)  # no step without its follower
            follower.thaw()
            fleet.until_ready(second, "a", "tp")
            self.serves(leader, second)
            self.serves(follower, second)
            self.verified(fleet, second, 3)
            self.leaves_nothing(fleet, a, leader, follower, sidecar, trainer)

    def test_sidecar(self):
        with self.fleet() as fleet:
            sidecars = [fleet.sidecar(name) for name in ("s0", "s1")]
            a, b = fleet.engine("s0", "a", self.one), fleet.engine("s1", "b", self.one)
            trainer = fleet.trainer("--set", "bucket_bytes=1MiB")
            fleet.until_joined("s0", "s1")
            first = self.published(fleet, self.one)
            sidecars[1].freeze()
            second = self.published(fleet, self.two)  # without it: it is lost inside the round
            self.serves(a, second)
            self.serves(b, first)
            sidecars[1].thaw()
            fleet.until_ready(second, "a", "b")
            self.verified(fleet, second, 2)

            # Once more, between the decision and the end of its switch.
            b.hold_at("bucket", bucket=0)
            push = fleet.push(self.one)
            b.until_held()
            sidecars[1].freeze()
            b.go_on()
            third = b.expect("loaded")["version"]
            code, answer = push.result()
            self.assertEqual(code, 1, answer)
            self.assertIn("sidecar 's1'", answer["result"]["reason"])
            self.serves(a, third)
            self.stands_still(b)
            sidecars[1].thaw()
            fleet.until_ready(third, "a", "b")
            self.verified(fleet, third, 2)
            self.leaves_nothing(fleet, a, b, *sidecars, trainer)

    def test_sidecar_that_is_told_to_stop_leaves_in_order(self):
        with self.fleet() as fleet:
            sidecars = [fleet.sidecar(name) for name in ("s0", "s1")]
            a, b = fleet.engine("s0", "a", self.one), fleet.engine("s1", "b", self.one)
            trainer = fleet.trainer()
            fleet.until_joined("s0", "s1")
            first = self.published(fleet, self.one)
            code, _ = sidecars[1].end()
            self.assertEqual(code, 0)

            def about_s1():
                with open(trainer.log_path, encoding="utf-8") as file:
                    return [line for line in file if re.search("sidecar s1 (has left|lost)", line)]
            fleet.until(about_s1, "a line of the coordinator about the end of s1")
            self.serves(b, first)
            second = self.published(fleet, self.two)  # nobody waits for it
            self.serves(a, second)
            (line,) = about_s1()
            self.assertIn("sidecar s1 has left: it has stopped in order, with 1 replica attached", line)
            self.assertIn(" info ", line)
            again = fleet.sidecar("s1")  # it is still owed the decision
            fleet.until_ready(second, "a", "b")
            self.verified(fleet, second, 2)
            self.leaves_nothing(fleet, a, b, sidecars[0], again, trainer)

    def test_trainer_in_a_snapshot_is_replaced(self):
        with self.fleet() as fleet:
            sidecar = fleet.sidecar("s0")
            a = fleet.engine("s0", "a", self.one)
            old = fleet.trainer(label="old")
            first = self.published(fleet, self.one)
            for _ in range(20):
                push = fleet.push(self.two)
                fleet.until(lambda: write_locked() & arenas(old.pid).keys() or push.poll() is not None,
                            "a snapshot that is written")
                old.freeze()
                if write_locked() & arenas(old.pid).keys():
                    break
                old.thaw()
                push.result()
            else:
                self.fail("no snapshot was met while it was written")

            first = fleet.of("s0")[1]["target"]
            new = fleet.trainer("--take-over", label="new")
            fleet.until_ready(first, "a")
            second = self.published(fleet, self.one)
            self.serves(a, second)
            old.thaw()
            code, answer = old.result()
            self.assertEqual((code, answer["error"]["code"]), (1, "fenced"), answer)
            code, answer = push.result()
            self.assertNotEqual(code, 0, answer)
            self.serves(a, second)
            self.verified(fleet, second, 1)
            self.assertEqual(fleet.ask("status")[1]["result"]["target"], second)
            third = self.published(fleet, self.two)
            self.verified(fleet, third, 1)
            self.leaves_nothing(fleet, a, sidecar, new)


if __name__ == "__main__":
    unittest.main()

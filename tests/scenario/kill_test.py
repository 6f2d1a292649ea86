"""Real processes that are killed in the middle of an update: what goes on, and what comes back."""
import sys
import unittest

from fleet import short
from kill_fleet import KillCase, arenas, digest_of

KillCase.wsync = sys.argv.pop()


class Killed(KillCase):
    def test_trainer_while_staging(self):
        with self.fleet() as fleet:
            sidecar = fleet.sidecar("s0")
            a, b = (fleet.engine("s0", name, self.one) for name in "ab")
            trainer = fleet.trainer()
            first = self.published(fleet, self.one)
            b.freeze()  # its sidecar has staged when every engine has got ready
            push = fleet.push(self.two)
            fleet.until_activity("staging")
            trainer.kill()
            code, answer = push.result()
            # It does not become a coordinator itself: the one that was lost finds its address free.
            self.assertEqual((code, answer["error"]["code"]), (3, "peer_lost"), answer)
            self.serves(a, first)
            b.thaw()
            self.serves(b, first)

            trainer = fleet.trainer()
            fleet.until_ready(first, "a", "b")
            second = self.published(fleet, self.two)
            self.verified(fleet, second, 2)
            self.leaves_nothing(fleet, a, b, sidecar, trainer)

    def test_trainer_while_bytes_arrive_by_tcp(self):
        with self.fleet() as fleet:
            sidecar = fleet.sidecar("s0", "--set", "transport=tcp")
            a = fleet.engine("s0", "a", self.one)
            trainer = fleet.trainer()
            first = self.published(fleet, self.one)
            push = fleet.push(self.two)
            fleet.until(lambda: fleet.activity().startswith("staging") or push.poll() is not None,
                        "bytes that arrive")
            trainer.kill()
            code, answer = push.result()
            trainer = fleet.trainer()
            target = fleet.until_at_target("a")
            # It was dropped, unless it had been decided before the signal came.
            self.assertTrue(target == first or code == 0 or "error" in answer, (target, answer))
            second = self.published(fleet, self.two)
            self.assertGreater(second, target)
            self.verified(fleet, second, 1)
            self.leaves_nothing(fleet, a, sidecar, trainer)

    def test_sidecar_while_staging(self):
        with self.fleet() as fleet:
            sidecar = fleet.sidecar("s0")
            a, b = (fleet.engine("s0", name, self.one) for name in "ab")
            trainer = fleet.trainer()
            first = self.published(fleet, self.one)
            b.freeze()
            push = fleet.push(self.two)
            fleet.until_activity("staging")
            sidecar.kill()
            code, answer = push.result()
            self.assertEqual(code, 1, answer)
            self.assertIn("lost", answer["result"]["reason"])
            self.serves(a, first)
            b.thaw()
            self.serves(b, first)

            sidecar = fleet.sidecar("s0")
            fleet.until_ready(first, "a", "b")
            fleet.until(lambda: first in fleet.of("s0")[1]["staged"], "the copy that it had")
            self.verified(fleet, first, 2)
            second = self.published(fleet, self.two)
            self.verified(fleet, second, 2)
            self.leaves_nothing(fleet, a, b, sidecar, trainer)

    def test_sidecar_while_switching(self):
        with self.fleet() as fleet:
            sidecar = fleet.sidecar("s0")
            a = fleet.engine("s0", "a", self.one)
            b = [fleet.engine("s0", "b", self.one, "--rank", str(r), "--world-size", "2") for r in (0, 1)]
            trainer = fleet.trainer("--set", "bucket_bytes=1MiB")
            first = self.published(fleet, self.one)
            b[1].hold_at("bucket", bucket=0)
            push = fleet.push(self.two)
            b[1].until_held()
            second = first
            while second == first:  # that event may come after the push of it has ended
                second = a.expect("committed")["version"]
            b[0].expect("loaded", version=second)
            self.serves(a, second)
            sidecar.kill()
            code, answer = push.result()
            self.assertEqual(code, 1, answer)
            self.assertIn("sidecar 's0'", answer["result"]["reason"])
            b[1].go_on()
            self.serves(a, second)
            self.stands_still(b[0])
            self.stands_still(b[1])

            trainer.freeze()  # the record on disc is all that the next sidecar has
            sidecar = fleet.sidecar("s0")
            for replica in "ab":
                fleet.until(lambda: (fleet.of_replica("s0", replica) or {}).get("ranks_attached")
                            == (1 if replica == "a" else 2), f"{replica} is attached again")
            self.assertEqual(fleet.of("s0")[1]["target"], second)
            self.assertTrue(fleet.of_replica("s0", "a")["ready"])
            self.assertFalse(fleet.of_replica("s0", "b")["ready"], fleet.of("s0"))
            trainer.thaw()
            fleet.until_ready(second, "a", "b")
            self.verified(fleet, second, 3)
            self.assertNotEqual(first, second)
            self.leaves_nothing(fleet, a, *b, sidecar, trainer)

    def test_engine_while_loading(self):
        with self.fleet() as fleet:
            sidecar = fleet.sidecar("s0")
            a, b = (fleet.engine("s0", name, self.one) for name in "ab")
            trainer = fleet.trainer("--set", "bucket_bytes=1MiB")
            self.published(fleet, self.one)
            b.hold_at("bucket", bucket=0)
            push = fleet.push(self.two)
            b.until_held()
            b.kill()
            second = a.expect("committed")["version"]
            again = fleet.engine("s0", "b", self.one)
            push.result()  # done, or failed for b's sake: it depends on how fast b came back
            self.serves(a, second)
            fleet.until_ready(second, "a", "b")
            self.verified(fleet, second, 2)
            self.assertNotIn("running", [e["event"] for e in b.events if e.get("version") == second])
            self.leaves_nothing(fleet, a, again, sidecar, trainer)

    def test_rank_of_two_while_loading(self):
        # Small buffers: a rank that loads must have more to say than its output holds.
        for settings in [], ["--set", "devices.kind=separate", "--set", "devices.buffer_bytes=1MiB"]:
            with self.subTest(settings), self.fleet() as fleet:
                sidecar = fleet.sidecar("s0", *settings)
                def rank(r):
                    return fleet.engine("s0", "tp", self.one, "--rank", str(r), "--world-size", "2")
                leader, follower = rank(0), rank(1)
                trainer = fleet.trainer("--set", "bucket_bytes=1MiB")
                self.published(fleet, self.one)
                follower.hold_at("bucket", bucket=0)
                push = fleet.push(self.two)
                follower.until_held()
                self.assertFalse(fleet.of_replica("s0", "tp")["ready"])
                follower.kill()
                self.stands_still(leader)
                self.assertFalse(fleet.of_replica("s0", "tp")["ready"])
                follower = rank(1)
                push.result()
                second = fleet.ask("status")[1]["result"]["target"]
                fleet.until_ready(second, "tp")
                self.verified(fleet, second, 2)
                self.serves(leader, second)
                self.leaves_nothing(fleet, leader, follower, sidecar, trainer)

    def test_sidecar_under_engines_that_map(self):
        with self.fleet() as fleet:
            sidecars = {name: fleet.sidecar(name, "--set", "versions_held=3") for name in ("s0", "s1")}
            a, b = (fleet.engine("s0", name, self.one, "--adopt") for name in "ab")
            c = fleet.engine("s1", "c", self.one, "--adopt")
            trainer = fleet.trainer("--set", "arenas=5")
            fleet.until_joined("s0", "s1")
            first = self.published(fleet, self.one)
            sidecars["s0"].kill()
            mapped = arenas(a.pid)
            self.assertEqual(len(mapped), 1)
            self.assertEqual(mapped.keys(), arenas(b.pid).keys())
            before = digest_of(*mapped.values())
            for checkpoint in (self.two, self.one, self.two):
                version = self.published(fleet, checkpoint)
                self.serves(c, version)
                self.assertEqual(digest_of(*mapped.values()), before)
                self.assertEqual(arenas(a.pid).keys(), mapped.keys())
                self.serves(a, first)
                self.serves(b, first)

            sidecars["s0"] = fleet.sidecar("s0", "--set", "versions_held=3")
            fleet.until_ready(version, "a", "b", "c")
            self.verified(fleet, version, 3)
            # The old version's arena is given back: nobody but the trainer has it any more.
            for engine in (a, b):
                fleet.until(lambda: not mapped.keys() & arenas(engine.pid).keys(), "the old arena's end")
            self.leaves_nothing(fleet, a, b, c, *sidecars.values(), trainer)

    def test_an_orphan_that_serves_an_old_version_holds_up_nobody(self):
        with self.fleet() as fleet:
            sidecars = {name: fleet.sidecar(name) for name in ("s0", "s1")}
            a = fleet.engine("s0", "a", self.one, "--adopt")
            b = fleet.engine("s1", "b", self.one)
            trainer = fleet.trainer("--set", "arenas=3")
            fleet.until_joined("s0", "s1")
            first = self.published(fleet, self.one)
            fleet.until_ready(first, "a", "b")
            sidecars["s0"].kill()
            # The arena that it maps does not count: another one takes its place.
            for checkpoint in (self.two, self.one, self.two, self.one):
                last = self.published(fleet, checkpoint)
            self.serves(a, first)
            self.serves(b, last)
            sidecars["s0"] = fleet.sidecar("s0")
            fleet.until_ready(last, "a", "b")
            self.verified(fleet, self.published(fleet, self.two), 2)
            self.leaves_nothing(fleet, a, b, *sidecars.values(), trainer)


if __name__ == "__main__":
    unittest.main()

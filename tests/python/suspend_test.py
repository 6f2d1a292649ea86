"""Engines that give the memory of their weights away for a time."""
import os
import signal
import unittest

import numpy as np
import wsync
from package_fleet import DEADLINE_S, NAMES, PackageFleet, empty_like, equal, until, weights_of


class Raw:
    """The library's replica, with something that happens before its suspend()."""

    def __init__(self, raw, before):
        self._raw, self._before = raw, before

    def suspend(self):
        self._before()
        self._raw.suspend()

    def __getattr__(self, name):
        return getattr(self._raw, name)


class Interrupted:
    """The library's replica. Ctrl-C ends the first wait for its suspend(), which goes on; the second call fails with `then`."""

    def __init__(self, raw, then):
        self._raw, self._failures = raw, [then] if then else []
        self._is_interrupted = False

    def suspend(self):
        if self._is_interrupted and self._failures:
            raise self._failures.pop()
        self._raw.suspend()
        self._is_interrupted = True
        raise KeyboardInterrupt

    def __getattr__(self, name):
        return getattr(self._raw, name)


def calm(replica):
    """Waits until no callback runs: a version is served when its last one is answered, which is just before that one ends."""
    until(lambda: not replica._is_answering, "the end of its callback")


class Suspension(unittest.TestCase):
    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        self.sidecar, self.socket = self.fleet.sidecar()

    def replica(self, name, **options):
        memory = empty_like(weights_of(0))
        replica = wsync.Replica(self.socket, name, memory, **options)
        self.fleet.serve(replica)
        return replica, memory

    def test_ctrl_c_while_it_waits(self):
        with self.fleet.publisher() as publisher:
            replica, memory = self.replica("r0")
            for seed, then in (1, None), (2, wsync.Busy("another thread suspends it")):
                publisher.publish(weights_of(seed)).wait(timeout=DEADLINE_S)
                calm(replica)
                replica._raw = Interrupted(replica._raw, then)
                self.assertRaises(KeyboardInterrupt, replica.suspend)
                replica._raw = replica._raw._raw
                self.assertFalse(replica.serving)
                self.assertRaisesRegex(wsync.EngineRefused, "r0 rank 0 is suspended already", replica.suspend)
                self.give_away(memory)
                replica.resume()
                until(lambda: replica.serving, "that it serves again")
                calm(replica)
                equal(self, memory, weights_of(seed))

    def reason(self, name):
        code, answer = self.fleet.ask("status")
        found = {r["replica"]: r for s in answer["result"]["sidecars"] for r in s["replicas"]} if code == 0 else {}
        return found.get(name, {}).get("reason", "")

    def give_away(self, memory):
        for array in memory.values():
            np.asarray(array)[:] = 0xAAAA

    def is_given_away(self, memory):
        return all((np.asarray(array) == 0xAAAA).all() for array in memory.values())

    def test_others_go_on_and_it_follows_when_it_has_its_memory_again(self):
        with self.fleet.publisher() as publisher:
            sleeper, memory = self.replica("r0")
            _, other = self.replica("r1")
            publisher.publish(weights_of(1)).wait(timeout=DEADLINE_S)
            equal(self, memory, weights_of(1))
            calm(sleeper)
            sleeper.suspend()
            self.assertFalse(sleeper.serving)
            self.assertIsNone(sleeper.status().active)
            self.give_away(memory)
            sentence = f"rank 0 is suspended (process {os.getpid()}): it loads the target when it resumes"
            until(lambda: sentence in self.reason("r0"), "the reason")
            for seed in (2, 3, 4):
                publisher.publish(weights_of(seed)).wait(timeout=DEADLINE_S)
            equal(self, other, weights_of(4))
            self.assertTrue(self.is_given_away(memory), "a load has written into memory that was given away")
            self.assertRaisesRegex(wsync.EngineRefused, "r0 rank 0 is suspended already", sleeper.suspend)
            sleeper.resume()
            until(lambda: sleeper.status().active == wsync.Version(1, 4), "the newest version")
            equal(self, memory, weights_of(4))
            until(lambda: sleeper.serving, "that it serves")
            calm(sleeper)
            self.assertRaisesRegex(wsync.EngineRefused, "r0 rank 0 is not suspended", sleeper.resume)

    def test_a_rollback_waits_for_no_replica_that_sleeps(self):
        with self.fleet.publisher() as publisher:
            sleeper, memory = self.replica("r0")
            _, other = self.replica("r1")
            for seed in (1, 2):
                publisher.publish(weights_of(seed)).wait(timeout=DEADLINE_S)
            calm(sleeper)
            sleeper.suspend()
            self.give_away(memory)
            until(lambda: "is suspended" in self.reason("r0"), "that status says it")
            self.assertEqual(publisher.roll_back(timeout=DEADLINE_S).after, wsync.Version(1, 1))
            equal(self, other, weights_of(1))
            self.assertTrue(self.is_given_away(memory), "a load has written into memory that was given away")
            sleeper.resume()
            until(lambda: sleeper.status().active == wsync.Version(1, 1), "the version before")
            equal(self, memory, weights_of(1))

    def test_a_rollback_names_who_has_ended(self):
        with self.fleet.publisher() as publisher:
            sleeper, _ = self.replica("r0")
            ended, _ = self.replica("r1")
            _, other = self.replica("r2")
            for seed in (1, 2):
                publisher.publish(weights_of(seed)).wait(timeout=DEADLINE_S)
            calm(sleeper)
            sleeper.suspend()
            ended.close()
            until(lambda: "is suspended" in self.reason("r0") and "not attached" in self.reason("r1"), "their reasons")
            with self.assertRaises(wsync.Partial) as caught:
                publisher.roll_back(timeout=DEADLINE_S)
            self.assertEqual(
                caught.exception.sentence,
                "1.2 is withdrawn, but these have not switched back yet: replica 'r1' (rank 0 is not attached: start its engine, or "
                "forget the replica with `wsync forget host/r1`)")
            equal(self, other, weights_of(1))
            sleeper.resume()
            until(lambda: sleeper.status().active == wsync.Version(1, 1), "the version before")

    def test_a_rollback_accounts_for_every_rank_of_a_replica(self):
        with self.fleet.publisher() as publisher:
            ranks = [self.replica("tp", rank=rank, world_size=3, leader=rank == 0)[0] for rank in range(3)]
            _, other = self.replica("r1")
            publisher.publish(weights_of(1)).wait(timeout=DEADLINE_S)
            calm(ranks[0])
            ranks[0].suspend()
            for rank in ranks[1:]:
                rank.close()
            missing = (f"rank 0 is suspended (process {os.getpid()}): it loads the target when it resumes; "
                       "ranks 1 and 2 are not attached")
            until(lambda: self.reason("tp") == missing, "that status says it of each")
            publisher.publish(weights_of(2)).wait(timeout=DEADLINE_S)
            with self.assertRaises(wsync.Partial) as caught:
                publisher.roll_back(timeout=DEADLINE_S)
            self.assertEqual(caught.exception.sentence, "1.2 is withdrawn, but these have not switched back yet: replica 'tp' "
                                                        f"({missing}: start their engines)")
            equal(self, other, weights_of(1))

    def test_a_fleet_that_sleeps_while_its_trainer_trains(self):
        with self.fleet.publisher() as publisher:
            sleeper, memory = self.replica("r0")
            publisher.publish(weights_of(1)).wait(timeout=DEADLINE_S)
            calm(sleeper)
            sleeper.suspend()
            waits = publisher.publish(weights_of(2))  # returns when the weights may change
            self.give_away(memory)
            until(lambda: "0 of at least 1 replicas" in waits.status().reason, "why it waits")
            self.assertTrue(self.is_given_away(memory))
            sleeper.resume()
            self.assertEqual(waits.wait(timeout=DEADLINE_S).replicas, 1)
            equal(self, memory, weights_of(2))
            calm(sleeper)
            sleeper.suspend()
        with self.fleet.publisher(min_replicas=0) as publisher:
            publish = publisher.publish(weights_of(3)).wait(timeout=DEADLINE_S)
            self.give_away(memory)
            sleeper.resume()
            until(lambda: sleeper.status().active == publish.version, "the newest version")
            equal(self, memory, weights_of(3))

    def test_a_sidecar_that_restarts_meanwhile(self):
        with self.fleet.publisher(min_replicas=0) as publisher:
            sleeper, memory = self.replica("r0")
            publisher.publish(weights_of(1)).wait(timeout=DEADLINE_S)
            calm(sleeper)
            sleeper.suspend()
            self.sidecar.send_signal(signal.SIGKILL)
            self.sidecar.wait()
            # Otherwise the publish could begin with the one that is lost.
            until(lambda: not self.fleet.ask("status")[1]["result"]["sidecars"][0]["connected"], "the loss of the sidecar")
            self.fleet.sidecar()
            published = publisher.publish(weights_of(2)).wait(timeout=DEADLINE_S)
            sleeper.resume()
            until(lambda: sleeper.status().active == published.version, "the newest version")
            equal(self, memory, weights_of(2))

    def test_not_inside_of_a_callback_and_not_while_a_load_is_answered_later(self):
        refusals, started = [], []

        class Late(wsync.Replica):
            def on_load_layer(self, version, layer, tensors):
                try:
                    self.suspend()
                except wsync.Busy as failure:
                    refusals.append(failure.sentence)
                if layer == len(NAMES) - 1:
                    started.append(version)
                return wsync.LATER

        with self.fleet.publisher() as publisher:
            late = Late(self.socket, "r0", take="borrow")
            self.fleet.serve(late)
            publish = publisher.publish(weights_of(1))
            until(lambda: started, "the last layer")
            self.assertEqual(len(refusals), len(NAMES))
            self.assertIn("a callback of this replica is running", refusals[0])
            # The callback may not have returned to the library yet; then this is refused as well.
            refused = until(lambda: self.refusal_of(late), "the refusal")
            self.assertIn("has not answered the load of 1.1 yet", refused)
            late.loaded(started[0])
            self.assertEqual(publish.wait(timeout=DEADLINE_S).version, wsync.Version(1, 1))
            late.suspend()
            late.resume()
            until(lambda: len(started) > 1, "the load of what was forgotten")
            late.loaded(started[-1])
            until(lambda: late.status().active == wsync.Version(1, 1), "the version again")

    def refusal_of(self, replica):
        try:
            replica.suspend()
        except wsync.Busy:
            return None
        except wsync.EngineRefused as failure:
            return failure.sentence
        raise AssertionError("it was suspended while its threads read the version")

    def test_an_adopting_engine_gives_the_version_back(self):
        arrays = {}
        with self.fleet.publisher() as publisher:
            replica = wsync.Replica(self.socket, "r0", take="adopt", load_layer=lambda v, layer, tensors: arrays.update(tensors))
            self.fleet.serve(replica)
            publisher.publish(weights_of(1)).wait(timeout=DEADLINE_S)
            equal(self, arrays, weights_of(1))
            old = dict(arrays)
            replica.suspend()
            self.assertFalse(any(np.asarray(array).any() for array in old.values()))
            replica.resume()
            until(lambda: replica.status().active == wsync.Version(1, 1), "the version again")
            equal(self, arrays, weights_of(1))

    def adopting(self):
        """A replica, and the arrays that it was given last."""
        arrays = {}
        replica = wsync.Replica(self.socket, "r0", take="adopt", load_layer=lambda v, layer, tensors: arrays.update(tensors))
        self.fleet.serve(replica)
        return replica, arrays

    def test_arrays_read_zeros_before_the_sidecar_may_use_the_memory_again(self):
        with self.fleet.publisher() as publisher:
            replica, arrays = self.adopting()
            publisher.publish(weights_of(1)).wait(timeout=DEADLINE_S)
            seen = []
            replica._raw = Raw(replica._raw, lambda: seen.append(any(np.asarray(array).any() for array in arrays.values())))
            replica.suspend()
            self.assertEqual(seen, [False])

    def test_a_refusal_after_the_arrays_were_given_back(self):
        refusals = ["not now"]

        def refuse():
            if refusals:
                raise wsync.EngineRefused(refusals.pop())

        with self.fleet.publisher() as publisher:
            replica, arrays = self.adopting()
            publisher.publish(weights_of(1)).wait(timeout=DEADLINE_S)
            replica._raw = Raw(replica._raw, refuse)
            self.assertRaisesRegex(wsync.EngineRefused, "not now; the arrays of replica 'r0' read zeros already", replica.suspend)
            self.assertFalse(any(np.asarray(array).any() for array in arrays.values()))
            replica.suspend()
            replica.resume()
            until(lambda: replica.status().active == wsync.Version(1, 1), "the version again")
            equal(self, arrays, weights_of(1))

    def test_a_load_that_begins_meanwhile(self):
        with self.fleet.publisher() as publisher:
            replica, arrays = self.adopting()
            publisher.publish(weights_of(1)).wait(timeout=DEADLINE_S)
            old, publishes = dict(arrays), []

            def begin():
                replica._raw = replica._raw._raw  # once
                publishes.append(publisher.publish(weights_of(2)))
                until(lambda: "is being suspended" in (replica.error or ""), "the load")

            replica._raw = Raw(replica._raw, begin)
            until(lambda: self.is_suspended(replica, publishes), "the end of the callback")
            self.assertFalse(any(np.asarray(array).any() for array in old.values()))
            replica.resume()
            until(lambda: replica.status().active == wsync.Version(1, 2), "the newest version")
            equal(self, arrays, weights_of(2))

    def is_suspended(self, replica, publishes):
        before = len(publishes)
        try:
            replica.suspend()
        except wsync.Busy as failure:
            # Another try may find a callback that has not returned yet, before it takes any arrays.
            if len(publishes) > before:
                self.assertIn("read zeros already", failure.sentence)
            return False
        return True


if __name__ == "__main__":
    unittest.main()

"""Engines that a sidecar does not take: what they are told, and that they attach when the reason is gone."""
import pickle
import unittest

import numpy as np
import wsync
from package_fleet import DEADLINE_S, NAMES, PackageFleet, empty_like, equal, float_of, until, weights_of

WANTED = {name: float_of(array) for name, array in weights_of(0).items()}  # F32, where the fleet publishes BF16

# An engine with the loop of the guide, which ends when its standard input does. A thread of its own tells how it fares.
ENGINE = """
import sys, threading, time
import wsync
from package_fleet import empty_like, weights_of

replica = wsync.Replica(sys.argv[1], "again", empty_like(weights_of(0)))
print("ready", flush=True)

def tell():
    has_told = False
    while not replica.status().attached:
        time.sleep(0.01)
        if not has_told and replica.status().refusals >= 3:
            has_told = True
            print("refused 3 times", flush=True)
    print("attached", flush=True)
    sys.stdin.read()
    replica.close()

threading.Thread(target=tell, daemon=True).start()
try:
    while True:
        replica.poll(0 if replica.serving else None)
except wsync.Closed:
    pass
"""


class Refusals(unittest.TestCase):
    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        self.socket = self.fleet.sidecar()[1]
        self.publisher = self.enterContext(self.fleet.publisher())
        self.served = self.fleet.serve(wsync.Replica(self.socket, "r0", empty_like(weights_of(0))))
        self.publisher.publish(weights_of(1)).wait(timeout=DEADLINE_S)

    def end_of_the_served_model(self):
        self.fleet.served.remove(self.served)
        self.served.stop()

    def refused(self, replica):
        with self.assertRaises(wsync.Refused) as caught:
            while True:  # it returns after each event, of which a connection is one
                replica.poll(None)
        self.assertEqual(replica.status().refused, caught.exception.sentence)
        return caught.exception

    def test_a_poll_without_a_limit_tells_of_a_refusal_once_and_it_heals(self):
        held = {name: array.copy() for name, array in WANTED.items()}
        replica = self.enterContext(wsync.Replica(self.socket, "r1", held))
        refusal = self.refused(replica)
        self.assertIn("replica 'r1' rank 0 does not fit the model that is served", refusal.sentence)
        self.assertEqual((refusal.code, refusal.tensor), (wsync.Code.REFUSED, NAMES[0]))
        self.assertEqual((refusal.expected, refusal.found), ("F32 [64, 32]", "BF16 [64, 32]"))
        again = pickle.loads(pickle.dumps(refusal))
        self.assertEqual((again.sentence, again.tensor, again.expected, again.found),
                         (refusal.sentence, refusal.tensor, refusal.expected, refusal.found))
        first = replica.status().refusals
        self.assertGreaterEqual(first, 1)
        # The link goes on trying. The same refusal is no news.
        until(lambda: replica.poll(0.02) or replica.status().refusals >= first + 2, "the next attempts")
        self.assertFalse(replica.status().attached)
        self.end_of_the_served_model()
        until(lambda: replica.poll(0.02) or replica.status().attached, "the attach")
        self.assertIsNone(replica.status().refused)
        self.fleet.serve(replica)
        weights = {name: float_of(array) for name, array in weights_of(2).items()}
        self.publisher.publish(weights).wait(timeout=DEADLINE_S)
        equal(self, held, weights)

    def test_another_reason_is_news(self):
        second = wsync.Replica(self.socket, "r0", empty_like(weights_of(0)))
        refusal = self.refused(second)
        self.assertIn("is attached already", refusal.sentence)
        self.assertEqual((refusal.tensor, refusal.expected, refusal.found), (None, None, None))
        self.end_of_the_served_model()
        until(lambda: second.poll(0.02) or second.status().attached, "the attach")
        third = self.enterContext(wsync.Replica(self.socket, "r0", empty_like(weights_of(0)), world_size=2))
        self.assertIn("is attached already", self.refused(third).sentence)
        second.close()
        other = self.enterContext(wsync.Replica(self.socket, "r0", empty_like(weights_of(0)), rank=1, world_size=3, leader=False))
        until(lambda: other.poll(0.02) or other.status().attached, "the attach of rank 1 of 3")
        self.assertIn("has 3 ranks, not 2", self.refused(third).sentence)

    def test_a_predecessor_that_ends_in_time_is_waited_for(self):
        predecessor = self.fleet.program(ENGINE, self.socket)
        self.fleet.ready(predecessor)
        self.fleet.ready(predecessor, "attached")
        successor = self.fleet.program(ENGINE, self.socket)
        self.fleet.ready(successor)
        self.fleet.ready(successor, "refused 3 times")  # which takes it about 2 s
        self.assertEqual(self.fleet.end(predecessor)[0], 0)
        self.fleet.ready(successor, "attached")
        status, _, said = self.fleet.end(successor)
        self.assertEqual(status, 0, said)
        self.assertNotIn("Traceback", said)

    def test_a_predecessor_that_does_not_end_is_named(self):
        predecessor = self.fleet.program(ENGINE, self.socket)
        self.fleet.ready(predecessor)
        self.fleet.ready(predecessor, "attached")
        successor = self.fleet.program(ENGINE, self.socket)
        self.fleet.ready(successor)
        self.fleet.ready(successor, "refused 3 times")
        status, _, said = self.fleet.end(successor)
        self.assertEqual(status, 1)
        self.assertIn("wsync.Refused: the sidecar refuses this engine: replica 'again' rank 0 is attached already, as process "
                      f"{predecessor.pid}", said)
        self.assertIsNone(predecessor.poll())

    def test_a_rank_that_serves_goes_on_and_tells_only_who_waits_without_a_limit(self):
        replica = self.enterContext(wsync.Replica(self.socket, "r1", dict(WANTED), serving=True))
        until(lambda: replica.poll(0.02) or replica.status().refusals >= 2, "two refusals")
        self.assertTrue(replica.serving)
        self.assertIn("does not fit", replica.status().refused)
        self.assertEqual(self.refused(replica).tensor, NAMES[0])

    def test_an_engine_of_a_part_of_the_model_stops_nobody(self):
        part = self.enterContext(wsync.Replica(self.socket, "part", {NAMES[0]: empty_like(weights_of(0))[NAMES[0]]},
                                               pause=lambda pause: part.paused(0)))
        part.start()
        until(lambda: part.status().refused, "the refusal of a part")
        for step in 2, 3:
            self.publisher.publish(weights_of(step)).wait(timeout=DEADLINE_S)
            self.assertIsNone(part.status().active)
        self.assertIn("does not fit the model that is served", part.status().refused)

    def test_memory_that_overlaps_is_refused_and_tied_tensors_of_different_values_are_not_served(self):
        memory = np.zeros(20, np.float32)
        with self.assertRaisesRegex(wsync.EngineRefused, r"tensors q and k overlap in memory \(bytes 24 to 32 of q are bytes 0 to 8 of "
                                    r"k\): each needs memory of its own"):
            wsync.Replica(self.socket, "r1", {"q": memory[0:8], "k": memory[6:14], "v": memory[14:20]})
        self.end_of_the_served_model()
        tied = self.enterContext(wsync.Replica(self.socket, "r1", {"q": memory[0:8], "k": memory[0:8]}, tied="every"))
        self.fleet.serve(tied)
        weights = {name: np.full(8, value, np.float32) for value, name in enumerate("qk", 1)}
        with self.assertRaises(wsync.Error) as caught:
            self.publisher.publish(weights).wait(timeout=DEADLINE_S)
        self.assertRegex(caught.exception.sentence, "tensors [qk] and [qk] have the same memory in this engine, but different values")
        self.assertIsNone(tied.status().active)
        self.assertFalse(tied.serving)
        weights["k"][:] = 1
        self.publisher.publish(weights, tied="every").wait(timeout=DEADLINE_S)
        self.assertEqual(memory[:8].tolist(), [1] * 8)

    def test_an_engine_without_tensors_is_refused_as_a_publish_without_tensors_is(self):
        for take in "pieces", "whole", "adopt", "borrow":
            with self.assertRaisesRegex(wsync.InvalidInput, "tensors is empty; expected a mapping"):
                wsync.Replica(self.socket, "none", {}, take=take, load_layer=print)

    def test_a_fleet_whose_engines_check_versions_changes_its_model(self):
        """Such an engine has not described its tensors: it waits until a version of its model is published."""
        class Engine(wsync.Replica):
            def __init__(self, socket, name, mine):
                self.mine, self.held = mine, {}
                super().__init__(socket, name, take="borrow")

            def on_check_version(self, version, tensors):
                if others := sorted(set(tensors) - set(self.mine)):
                    raise wsync.Refused(f"{others[0]} is not mine")

            def on_load_layer(self, version, layer, tensors):
                self.held.update({name: array.copy() for name, array in tensors.items()})
        self.end_of_the_served_model()
        models = [weights_of(seed, names=[f"{name}.{part}" for part in range(3)]) for seed, name in enumerate("abab", 10)]
        for number, weights in enumerate(models):
            engine = Engine(self.socket, f"engine{number}", list(weights))
            served = self.fleet.serve(engine)
            until(lambda: engine.error and "is not mine" in engine.error, "the check of the version of the model before")
            self.publisher.publish(weights).wait(timeout=DEADLINE_S)
            equal(self, engine.held, weights)
            self.assertIsNone(served.failure)
            self.fleet.served.remove(served)
            served.stop()

    def test_the_thread_of_start_goes_on(self):
        class Engine(wsync.Replica):
            def on_pause(self, pause):
                self.paused(0)
        replica = self.enterContext(Engine(self.socket, "r1", dict(WANTED)))
        replica.start()
        until(lambda: replica.status().refused, "the refusal")
        self.end_of_the_served_model()
        until(lambda: replica.status().attached, "the attach")
        self.assertIsNone(replica.status().refused)
        self.assertTrue(replica._thread.is_alive())


if __name__ == "__main__":
    unittest.main()

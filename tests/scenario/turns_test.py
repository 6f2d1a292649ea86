"""A publish with max_paused: replicas switch in turns, whoever hangs, is restarted, or takes the version back."""
import collections
import json
import sys
import unittest

from kill_fleet import KillCase

KillCase.wsync = sys.argv.pop()


def in_turns(count, *more):
    settings = [f"max_paused={count}", "arenas=4", "bucket_bytes=1MiB", *more]
    return [part for setting in settings for part in ("--set", setting)]


def switches(trace):
    """Of each replica, from when its pause was asked for until it had resumed, by the clock that the processes share."""
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"]
             if e["ph"] == "M" and e["name"] == "thread_name"}
    found = collections.defaultdict(list)
    for event in trace["traceEvents"]:
        lane = lanes.get((event["pid"], event.get("tid")), "")
        if event["ph"] == "X" and lane.startswith("switch of "):
            begin = round(event["ts"] * 1000)  # nanoseconds
            found[lane].append((begin, begin + round(event["dur"] * 1000)))
    return {lane: (min(begin for begin, _ in spans), max(end for _, end in spans)) for lane, spans in found.items()}


def at_once(spans):
    """The largest number of spans that overlap at one time."""
    changes = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    now = largest = 0
    for _, change in changes:
        now += change
        largest = max(largest, now)
    return largest


class Turns(KillCase):
    def two_sidecars(self, fleet, *settings):
        """Replicas a and b on s0, c on s1, which all serve the first version; the processes and that version."""
        sidecars = [fleet.sidecar(name) for name in ("s0", "s1")]
        engines = [fleet.engine(sidecar, replica, self.one) for sidecar, replica in (("s0", "a"), ("s0", "b"), ("s1", "c"))]
        trainer = fleet.trainer(*in_turns(1, "min_sidecars=2", "min_replicas=3", *settings))
        first = self.published(fleet, self.one)
        fleet.until_ready(first, "a", "b", "c")
        return sidecars, engines, trainer, first

    def sidecar_of(self, sidecars, engine):
        return sidecars[engine.label == "c"]

    def until_turns(self, fleet, **wanted):
        def are():
            found = fleet.replicas()
            return all(name in found and found[name]["turn"] == turn for name, turn in wanted.items())
        fleet.until(are, f"turns {wanted}")
        return fleet.replicas()

    def held_in_its_turn(self, fleet, engines):
        """A push of the second version, the engine that is in the middle of its load in the first turn, and those that wait."""
        for engine in engines:
            engine.hold_at("bucket", bucket=0)
        push = fleet.push(self.two)
        fleet.until(lambda: any(engine.held for engine in engines), "a turn")
        holder = next(engine for engine in engines if engine.held)
        others = [engine for engine in engines if engine is not holder]
        for engine in others:
            engine.go_on()
        self.until_turns(fleet, **{holder.label: "held"}, **{engine.label: "waiting" for engine in others})
        return push, holder, others

    def test_no_more_replicas_pause_than_allowed(self):
        for limit in (1, 2):
            with self.subTest(limit=limit), self.fleet() as fleet:
                for sidecar, count in (("s0", 3), ("s1", 2)):
                    fleet.sidecar(sidecar)
                    for n in range(count):
                        fleet.engine(sidecar, f"{sidecar}.{n}", self.one)
                fleet.trainer(*in_turns(limit, "min_sidecars=2", "min_replicas=5"))
                self.published(fleet, self.one)
                path = fleet.path("roll.json")
                code, answer = fleet.ask("push", self.two, "--trace", path)
                self.assertEqual(code, 0, answer)
                self.assertEqual([o["outcome"] for o in answer["result"]["replicas"]], ["committed"] * 5)
                with open(path, encoding="utf-8") as file:
                    spans = switches(json.load(file))
                self.assertEqual(len(spans), 5, spans)
                self.assertLessEqual(at_once(spans.values()), limit, spans)
                self.verified(fleet, answer["result"]["version"], 5)

    def test_those_that_wait_serve_and_say_so(self):
        with self.fleet() as fleet:
            sidecars, engines, trainer, first = self.two_sidecars(fleet)
            push, holder, others = self.held_in_its_turn(fleet, engines)
            found = fleet.replicas()
            for engine in others:
                report = found[engine.label]
                self.assertEqual((report["ready"], report["version"]), (True, first), report)
                self.assertIn("waiting for its turn", report["reason"])
                self.serves(engine, first)
            self.assertIn("2 replicas are waiting for their turn (max_paused: 1)", fleet.activity())
            holder.go_on()
            code, answer = push.result()
            self.assertEqual(code, 0, answer)
            self.verified(fleet, answer["result"]["version"], 3)
            self.assertEqual({report["turn"] for report in fleet.replicas().values()}, {"none"})
            self.leaves_nothing(fleet, *engines, *sidecars, trainer)

    def test_a_sidecar_that_hangs_in_its_turn_holds_up_nobody(self):
        with self.fleet() as fleet:
            sidecars, engines, trainer, _ = self.two_sidecars(fleet)
            push, holder, others = self.held_in_its_turn(fleet, engines)
            hanging = self.sidecar_of(sidecars, holder)
            second = fleet.ask("status")[1]["result"]["target"]
            hanging.freeze()
            for engine in others:
                if self.sidecar_of(sidecars, engine) is not hanging:
                    engine.expect("committed", version=second)
                    self.serves(engine, second)
            hanging.thaw()
            holder.go_on()
            fleet.until_ready(second, "a", "b", "c")
            push.result()  # served, or failed for the lost sidecar's sake: it depends on how fast it came back
            self.verified(fleet, second, 3)
            self.leaves_nothing(fleet, *engines, *sidecars, trainer)

    def test_a_trainer_that_is_restarted_goes_on_in_turns(self):
        with self.fleet() as fleet:
            sidecars, engines, trainer, first = self.two_sidecars(fleet)
            push, holder, others = self.held_in_its_turn(fleet, engines)
            trainer.kill()
            push.result()
            trainer = fleet.trainer(*in_turns(1, "min_sidecars=2", "min_replicas=3"))
            self.until_turns(fleet, **{holder.label: "held"}, **{engine.label: "waiting" for engine in others})
            for engine in others:
                self.serves(engine, first)
            holder.go_on()
            second = fleet.until_at_target("a", "b", "c")
            self.assertNotEqual(second, first)
            self.verified(fleet, second, 3)
            self.leaves_nothing(fleet, *engines, *sidecars, trainer)

    def test_a_sidecar_that_is_restarted_lets_its_engines_wait(self):
        with self.fleet() as fleet:
            sidecars, engines, trainer, first = self.two_sidecars(fleet)
            push, holder, others = self.held_in_its_turn(fleet, engines)
            killed = next(sidecar for sidecar in sidecars if sidecar is not self.sidecar_of(sidecars, holder))
            killed.kill()
            again = fleet.sidecar(killed.label)
            self.until_turns(fleet, **{holder.label: "held"}, **{engine.label: "waiting" for engine in others})
            for engine in others:
                self.serves(engine, first)
            holder.go_on()
            push.result()  # it may have counted the sidecar that was lost
            second = fleet.until_at_target("a", "b", "c")
            self.assertNotEqual(second, first)
            self.verified(fleet, second, 3)
            self.leaves_nothing(fleet, *engines, again, *(s for s in sidecars if s is not killed), trainer)

    def test_a_rollback_ends_the_turns(self):
        with self.fleet() as fleet:
            sidecars, engines, trainer, first = self.two_sidecars(fleet)
            push, holder, others = self.held_in_its_turn(fleet, engines)
            rollback = fleet.start("rollback", "--json", "--coordinator", fleet.address)
            code, answer = push.result()
            self.assertEqual((code, answer["result"]["code"]), (1, "partial"), answer)
            self.assertIn(f"a rollback to {first} has ended it", answer["result"]["reason"])
            fleet.until(lambda: all(fleet.of(name)[1]["target"] == first for name in ("s0", "s1")), "the rollback at each sidecar")
            holder.go_on()
            code, answer = rollback.result()
            self.assertEqual(code, 0, answer)
            self.assertEqual(answer["result"]["to"], first)
            self.verified(fleet, first, 3)
            for engine in others:
                self.assertNotIn("paused", [event["event"] for event in engine.events[engine.seen:]])
            self.leaves_nothing(fleet, *engines, *sidecars, trainer)


if __name__ == "__main__":
    unittest.main()

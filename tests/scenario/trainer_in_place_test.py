"""A trainer whose sidecars copy holds what changes, and changes its arena in place: memory, late sidecars, hangs, kills."""
import signal
import sys
import unittest

import in_place_fleet
from fleet import DEADLINE_S

WSYNC = sys.argv.pop()
IN_ARENA = "{} is in the arena of {}: "
BESIDE = "{} is in an arena beside that of {}"


class TrainerInPlace(in_place_fleet.InPlaceCase):
    wsync = WSYNC

    def changed_places(self, fleet, newer, older):
        fleet.trainer_says(IN_ARENA.format(newer, older))

    def comes_late(self, fleet, number, version):
        """A sidecar without any version gets this one from the trainer."""
        fleet.begin_sidecar(f"s{number}")
        fleet.begin_engine(f"a{number}")
        def has_come():
            copy = fleet.said_by(f"s{number}")["sidecars"][0]["last_copy"]
            return copy is not None and copy["version"] == version
        fleet.until(has_come, f"{version} in s{number}")

    def goes_on(self, fleet, push):
        """The engine that stood still does; the version of the push, which is served then."""
        fleet.engines["a1"].thaw()
        code, said = push.result()
        self.assertEqual(code, 0, said)
        return said["result"]["version"]


class Memory(TrainerInPlace):
    def grown(self, *settings):
        """Ten updates and a rollback; what the trainer holds, as shares of a model."""
        with self.fleet() as fleet:
            version = fleet.begin(trainer=settings)
            model = fleet.model_bytes()
            for _ in range(10):
                before, version = version, fleet.updated(10000)
                if not settings:
                    self.changed_places(fleet, version, before)
            held = fleet.trainer_arena_bytes() / model, fleet.mapped_bytes(fleet.coordinator) / model
            self.verified(fleet, version, "a")
            code, answer = fleet.ask("rollback")
            self.assertEqual((code, answer["result"]["to"]), (0, before), answer)
            if not settings:
                self.changed_places(fleet, before, version)
            self.verified(fleet, before, "a")
            held = *held, fleet.trainer_arena_bytes() / model
            self.ends(fleet)
            return held

    def test_ten_updates_and_a_rollback_need_little_more_than_a_model(self):
        for share in self.grown():
            self.assertLess(share, 1.1)
            self.assertGreaterEqual(share, 1)

    def test_it_is_two_models_or_more_if_that_is_switched_off(self):
        for share in self.grown("--set", "patch.in_place=off"):
            self.assertGreaterEqual(share, 2)

    def test_everything_changes(self):
        with self.fleet() as fleet:
            first = fleet.begin()
            full = fleet.pushed(fleet.full(2))["version"]
            self.assertEqual(fleet.said_by("s0")["sidecars"][0]["replicas"][0]["last_load"]["kind"], "full")
            self.verified(fleet, full, "a")
            self.assertNotIn(IN_ARENA.format(full, first), fleet.trainer_log())
            version = fleet.updated()
            self.changed_places(fleet, version, full)
            self.verified(fleet, version, "a")
            self.ends(fleet)

    def test_the_same_weights_again(self):
        with self.fleet() as fleet:
            first = fleet.begin()
            second = fleet.pushed(fleet.one)["version"]
            self.changed_places(fleet, second, first)
            self.verified(fleet, second, "a")
            version = fleet.updated()
            self.changed_places(fleet, version, second)
            self.verified(fleet, version, "a")
            self.ends(fleet)


class Receivers(TrainerInPlace):
    def test_one_that_comes_late_gets_the_version_that_is_served(self):
        with self.fleet() as fleet:
            version = fleet.begin()
            for number in (1, 2):
                before, version = version, fleet.updated()
                self.changed_places(fleet, version, before)
                # The trainer is the only one that it can ask.
                fleet.sidecars["s0"].freeze()
                self.comes_late(fleet, number, version)
                fleet.sidecars["s0"].thaw()
                self.verified(fleet, version, "a", *(f"a{n}" for n in range(1, number + 1)))
            before, version = version, fleet.updated()
            code, answer = fleet.ask("rollback")
            self.assertEqual(code, 0, answer)
            self.changed_places(fleet, before, version)
            self.comes_late(fleet, 3, before)
            self.verified(fleet, before, "a", "a1", "a2", "a3")
            self.ends(fleet)

    def test_one_without_the_base_gets_a_version_that_is_not_decided(self):
        """It joins while the version is held as its changes, and an engine stands still."""
        with self.fleet() as fleet:
            first = self.begin_two(fleet)
            push = self.held_before_the_decision(fleet)
            self.comes_late(fleet, 2, first)
            version = self.goes_on(fleet, push)
            self.changed_places(fleet, version, first)
            self.verified(fleet, version, "a", "a1", "a2")
            self.ends(fleet)

    def test_one_that_maps_and_does_not_lend_ends_it_and_its_end_begins_it_again(self):
        with self.fleet() as fleet:
            first = fleet.begin()
            fleet.sidecars["m"] = fleet.sidecar("m", "--set", "patch.in_place=off")
            fleet.engines["b"] = fleet.engine("m", "b", fleet.one)
            self.verified(fleet, first, "a", "b")
            second = fleet.updated()
            third = fleet.updated()
            self.verified(fleet, third, "a", "b")
            self.assertNotIn(IN_ARENA.format(second, first), fleet.trainer_log())
            self.assertNotIn(IN_ARENA.format(third, second), fleet.trainer_log())
            fleet.engines.pop("b").end()
            fleet.sidecars.pop("m").end()
            fleet.until(lambda: "b" not in fleet.replicas(), "that m is gone")
            fourth = fleet.updated()
            self.changed_places(fleet, fourth, third)
            self.verified(fleet, fourth, "a")
            self.ends(fleet)

    def test_one_that_maps_joins_while_the_snapshot_is_taken(self):
        """Or a little earlier or later: whenever it is, it gets the version."""
        with self.fleet() as fleet:
            fleet.begin()
            push = fleet.push(fleet.next(1000))
            fleet.sidecars["m"] = fleet.sidecar("m")
            fleet.engines["b"] = fleet.engine("m", "b", fleet.one)
            code, said = push.result()
            self.assertEqual(code, 0, said)
            self.verified(fleet, said["result"]["version"], "a", "b")
            self.ends(fleet)

    def test_one_that_maps_is_part_of_the_round_of_a_version_that_is_held_as_changes(self):
        with self.fleet() as fleet:
            self.begin_two(fleet)
            push = self.held_before_the_decision(fleet)
            fleet.sidecars["m"] = fleet.sidecar("m")
            fleet.engines["b"] = fleet.engine("m", "b", fleet.one)
            fleet.until(lambda: "1.2 is in an arena beside that of 1.1" in fleet.trainer_log(), "an arena for the version that is not decided")
            version = self.goes_on(fleet, push)
            self.verified(fleet, version, "a", "a1", "b")
            self.ends(fleet)

    def test_one_that_maps_the_arena_that_is_to_be_changed(self):
        """It loads the version that is served, and maps it, before the next one is decided."""
        with self.fleet() as fleet:
            first = self.begin_two(fleet)
            push = self.held_before_the_decision(fleet)
            fleet.sidecars["m"] = fleet.sidecar("m")
            fleet.engines["b"] = fleet.engine("m", "b", fleet.one)
            fleet.until(lambda: fleet.said_by("m")["sidecars"][0]["staged"], "that m has mapped the version that is served")
            version = self.goes_on(fleet, push)
            self.verified(fleet, version, "a", "a1", "b")
            # It may lend the arena in time.
            fleet.until(lambda: any(text.format(version, first) in fleet.trainer_log() for text in (BESIDE, IN_ARENA)),
                        f"{version} in an arena")
            self.verified(fleet, fleet.updated(), "a", "a1", "b")
            self.ends(fleet)


class Decisions(TrainerInPlace):
    def test_a_version_that_is_cancelled_changes_nothing(self):
        with self.fleet() as fleet:
            first = self.begin_two(fleet)
            push = self.held_before_the_decision(fleet)
            self.assertEqual(fleet.ask("cancel")[0], 0)
            self.assertNotEqual(push.result()[0], 0)
            fleet.engines["a1"].thaw()
            self.comes_late(fleet, 2, first)
            self.verified(fleet, first, "a", "a1", "a2")
            third = fleet.updated()
            self.changed_places(fleet, third, first)
            self.verified(fleet, third, "a", "a1", "a2")
            self.ends(fleet)

    def test_a_rollback_and_another_version(self):
        with self.fleet() as fleet:
            first = fleet.begin()
            second = fleet.updated()
            self.changed_places(fleet, second, first)
            self.assertEqual(fleet.ask("rollback")[0], 0)
            self.changed_places(fleet, first, second)
            third = fleet.updated()
            self.changed_places(fleet, third, first)
            self.assertEqual(fleet.ask("rollback")[0], 0)
            self.verified(fleet, first, "a")
            self.ends(fleet)

    def test_a_canary_gets_an_arena(self):
        with self.fleet() as fleet:
            first = fleet.begin(replicas=("a", "b"), trainer=("--set", "canary=a"))
            self.assertEqual(fleet.ask("promote")[0], 0)
            fleet.until_ready(first, "a", "b")
            second = fleet.updated()
            self.verify_each(fleet, {"a": second, "b": first})
            self.assertEqual(fleet.ask("promote")[0], 0)
            self.verified(fleet, second, "a", "b")
            self.assertNotIn("is in the arena of", fleet.trainer_log())
            self.ends(fleet)


    def test_a_rollback_while_replicas_switch_in_turns_and_the_next_version_waits(self):
        with self.fleet() as fleet:
            first = fleet.begin(sidecars=2, replicas=("a", "a1"), trainer=("--set", "max_paused=1"))
            for engine in fleet.engines.values():
                engine.freeze()
            second = fleet.push(fleet.next(1000))
            fleet.until(lambda: fleet.activity().startswith("switching"), "the decision")
            self.changed_places(fleet, "1.2", first)
            held = fleet.trainer_arena_bytes()
            third = fleet.push(fleet.next(1000))
            fleet.until(lambda: fleet.trainer_arena_bytes() > held, "that what changes to the third version is held")
            rollback = fleet.start("rollback", "--json", "--coordinator", fleet.address)
            self.assertNotEqual(second.result()[0], 0)
            for engine in fleet.engines.values():
                engine.thaw()
            rollback.result()
            code, said = third.result()
            self.assertEqual(code, 0, said)
            self.verified(fleet, said["result"]["version"], "a", "a1")
            self.ends(fleet)


class Faults(TrainerInPlace):
    def test_a_receiver_that_hangs_for_ever(self):
        """It stands still while it receives, so the trainer goes on reading for it."""
        with self.fleet() as fleet:
            version = fleet.begin(sidecars=2, replicas=("a", "a1"), trainer=("--set", "commit=quorum:1", "--set", "min_replicas=1", "--set", "min_sidecars=1"))
            fleet.sidecars["s1"].freeze()
            for _ in range(3):
                before, version = version, fleet.updated()
                fleet.until_ready(version, "a")
                fleet.trainer_says(f"{version} is in ")
            fleet.sidecars["s1"].thaw()
            self.verified(fleet, version, "a", "a1")
            self.ends(fleet)

    def test_the_trainer_is_killed_at_each_step(self):
        for point in "patch_compared:1", "patch_made:1", "copy_changed:3":
            with self.subTest(point), self.fleet() as fleet:
                fleet.begin_sidecar("s0")
                fleet.begin_engine("a")
                with fleet.armed(point):
                    fleet.begin_trainer("--set", "min_sidecars=1", "--set", "min_replicas=1")
                first = fleet.pushed(fleet.one)["version"]
                push = fleet.push(fleet.next(1000))
                self.assertEqual(fleet.coordinator.popen.wait(timeout=DEADLINE_S), -signal.SIGKILL)
                push.result()
                fleet.begin_trainer("--set", "min_sidecars=1", "--set", "min_replicas=1")
                fleet.until_joined("s0")
                served = fleet.until_at_target("a")
                self.verified(fleet, served, "a")
                self.assertEqual(served != first, point == "copy_changed:3", "the arena is changed after the decision")
                version = fleet.pushed(fleet.path("v2"))["version"]
                self.verified(fleet, version, "a")
                before, version = version, fleet.updated()
                self.changed_places(fleet, version, before)
                self.comes_late(fleet, 1, version)
                self.verified(fleet, version, "a", "a1")
                self.ends(fleet)


if __name__ == "__main__":
    unittest.main()

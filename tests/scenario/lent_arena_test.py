"""Sidecars that map the arena of their trainer lend it, and the trainer changes it in place: memory, hangs, kills."""
import re
import signal
import sys
import unittest

import in_place_fleet
from fleet import DEADLINE_S

WSYNC = sys.argv.pop()
IN_ARENA = "{} is in the arena of {}: "
BESIDE = "{} is in an arena beside that of {}"
LENT = "{} is complete: the arena of {} was changed in place"


def state_of(pid):
    """T: it is suspended."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0]


class LentArena(in_place_fleet.InPlaceCase):
    wsync = WSYNC

    def fleet(self):
        return in_place_fleet.InPlaceFleet(self.wsync, by=())

    def was_lent(self, fleet, newer, older, *names):
        """The trainer has changed the arena, and each sidecar has lent it."""
        fleet.trainer_says(IN_ARENA.format(newer, older))
        for name in names or fleet.sidecars:
            fleet.is_told(name, LENT.format(newer, older))

    def begin_lending(self, fleet, *more, **others):
        """The sidecars have told the trainer that they lend the arena of the version that they serve; that version."""
        first = fleet.begin(*more, **others)
        version = fleet.updated()
        before = None
        for _ in range(20):
            if IN_ARENA.format(version, before) in fleet.trainer_log():
                return version
            before, version = version, fleet.updated()
        self.fail(f"the arena of {first} is never changed")


class Memory(LentArena):
    def pss_of(self, *processes):
        """Of arenas and patches, each page once, as a share of it is counted in each process that maps it."""
        total = 0
        for process in processes:
            with open(f"/proc/{process.pid}/smaps", encoding="utf-8") as file:
                total += sum(int(size) << 10 for size in re.findall(r"/memfd:wsync.*\n(?:.*\n)*?Pss:\s+(\d+) kB", file.read()))
        return total

    def test_updates_and_a_rollback_need_little_more_than_one_model_in_all(self):
        with self.fleet() as fleet:
            version = self.begin_lending(fleet, sidecars=2, replicas=("a", "a1"))
            model = fleet.model_bytes()
            processes = fleet.coordinator, *fleet.sidecars.values(), *fleet.engines.values()
            for _ in range(5):
                before, version = version, fleet.updated(10000)
                self.was_lent(fleet, version, before)
                self.assertEqual([fleet.load_of("a")["kind"], fleet.load_of("a1", "s1")["kind"]], ["patch", "patch"])
            self.verified(fleet, version, "a", "a1")
            fleet.until(lambda: self.pss_of(*processes) < 1.25 * model, "that the arenas which are not needed are given back")
            self.assertGreaterEqual(self.pss_of(*processes), 0.95 * model)
            for held in fleet.trainer_arena_bytes(), fleet.arena_bytes("s0"), fleet.arena_bytes("s1"):
                self.assertLess(held / model, 1.1)
            code, answer = fleet.ask("rollback")
            self.assertEqual((code, answer["result"]["to"]), (0, before), answer)
            self.was_lent(fleet, before, version)
            self.verified(fleet, before, "a", "a1")
            self.assertLess(fleet.trainer_arena_bytes() / model, 1.1)
            third = fleet.updated()
            self.was_lent(fleet, third, before)
            self.verified(fleet, third, "a", "a1")
            self.ends(fleet)

    def test_a_free_arena_is_given_back_although_versions_come(self):
        with self.fleet() as fleet:
            self.begin_lending(fleet, trainer=("--set", "idle_release=2s"))
            model = fleet.model_bytes()
            fleet.pushed(fleet.full(2))  # in an arena of its own
            self.assertIsNone(fleet.said_by("s0")["sidecars"][0]["last_copy"], "it is mapped")
            self.assertGreater(fleet.trainer_arena_bytes() / model, 1.5)
            def is_given_back():
                fleet.updated()
                return fleet.trainer_arena_bytes() / model < 1.1
            fleet.until(is_given_back, "the end of the arena that nobody needs")
            self.ends(fleet)

    def test_everything_changes(self):
        with self.fleet() as fleet:
            before = self.begin_lending(fleet)
            full = fleet.pushed(fleet.full(2))["version"]
            self.verified(fleet, full, "a")
            self.assertNotIn(IN_ARENA.format(full, before), fleet.trainer_log())
            for _ in range(2):
                before, version = full, fleet.updated()
                self.verified(fleet, version, "a")
                full = version
            self.was_lent(fleet, version, before)
            self.ends(fleet)


class Others(LentArena):
    def test_one_that_does_not_lend(self):
        with self.fleet() as fleet:
            fleet.begin_sidecar("s0")
            fleet.begin_sidecar("s1", "--set", "patch.in_place=off")
            fleet.begin(0, ("a", "a1"), trainer=("--set", "min_sidecars=2"))
            for _ in range(3):
                version = fleet.updated()
            self.verified(fleet, version, "a", "a1")
            self.assertNotIn("is in the arena of", fleet.trainer_log())
            self.ends(fleet)

    def test_an_engine_that_serves_from_the_arena_ends_it_and_its_end_begins_it_again(self):
        with self.fleet() as fleet:
            version = self.begin_lending(fleet)
            fleet.begin_sidecar("s1")
            fleet.begin_engine("a1", "--adopt")
            fleet.until_ready(version, "a", "a1")
            for _ in range(3):
                before, version = version, fleet.updated()
                self.verified(fleet, version, "a", "a1")
            self.assertNotIn(LENT.format(version, before), fleet.log_of("s0"))
            fleet.engines.pop("a1").end()
            fleet.sidecars.pop("s1").end()
            fleet.until(lambda: "a1" not in fleet.replicas(), "that s1 is gone")
            for _ in range(3):
                before, version = version, fleet.updated()
                self.verified(fleet, version, "a")
            self.was_lent(fleet, version, before)
            self.ends(fleet)

    def test_engines_that_load_whole_layers(self):
        with self.fleet() as fleet:
            version = self.begin_lending(fleet, replicas=("a", "b"), engine=("--whole",))
            before, version = version, fleet.updated()
            self.was_lent(fleet, version, before)
            self.verified(fleet, version, "a", "b")
            self.ends(fleet)

    def test_one_that_copies_and_one_that_lends(self):
        with self.fleet() as fleet:
            fleet.begin_sidecar("s0")
            fleet.begin_sidecar("s1", *in_place_fleet.BY_TCP)
            version = self.begin_lending(fleet, 0, ("a", "a1"), trainer=("--set", "min_sidecars=2"))
            before, version = version, fleet.updated()
            self.was_lent(fleet, version, before, "s0")
            self.came_as_changes(fleet, "s1", version, before)
            self.verified(fleet, version, "a", "a1")
            self.ends(fleet)

    def test_one_that_comes_late_before_and_after_the_decision(self):
        with self.fleet() as fleet:
            version = self.begin_lending(fleet)
            fleet.begin_sidecar("s1")
            fleet.begin_engine("a1")
            self.verified(fleet, version, "a", "a1")
            fleet.engines["a1"].freeze()
            push = fleet.push(fleet.next(1000))
            fleet.begin_sidecar("s2")
            fleet.begin_engine("a2")
            fleet.engines["a1"].thaw()
            code, said = push.result()
            self.assertEqual(code, 0, said)
            self.verified(fleet, said["result"]["version"], "a", "a1", "a2")
            for _ in range(3):
                before, version = version, fleet.updated()
            self.was_lent(fleet, version, before)
            self.verified(fleet, version, "a", "a1", "a2")
            self.ends(fleet)

    def test_a_cancelled_version(self):
        with self.fleet() as fleet:
            before = self.begin_lending(fleet, sidecars=2, replicas=("a", "a1"))
            fleet.sidecars["s1"].freeze()
            push = fleet.push(fleet.next(1000))
            fleet.until(lambda: len(fleet.said_by("s0")["sidecars"][0]["staged"]) > 2, "that s0 has staged it")
            self.assertEqual(fleet.ask("cancel")[0], 0)
            self.assertNotEqual(push.result()[0], 0)
            fleet.sidecars["s1"].thaw()
            fleet.until_joined("s0", "s1")
            version = fleet.updated()
            self.verified(fleet, version, "a", "a1")
            self.was_lent(fleet, version, before)
            self.ends(fleet)


class Faults(LentArena):
    def test_a_sidecar_that_hangs_for_ever_keeps_its_arena_and_the_others_go_on(self):
        with self.fleet() as fleet:
            version = self.begin_lending(fleet, sidecars=2, replicas=("a", "a1"),
                                         trainer=("--set", "commit=quorum:1", "--set", "min_replicas=1", "--set", "min_sidecars=1"))
            fleet.sidecars["s1"].freeze()
            for _ in range(3):
                before, version = version, fleet.updated()
                fleet.until_ready(version, "a")
            fleet.trainer_says(IN_ARENA.format(version, before))
            fleet.sidecars["s1"].thaw()
            self.verified(fleet, version, "a", "a1")
            for _ in range(3):
                before, version = version, fleet.updated()
                self.verified(fleet, version, "a", "a1")
            self.was_lent(fleet, version, before)
            self.ends(fleet)

    def test_a_sidecar_is_killed_with_the_arena_lent(self):
        with self.fleet() as fleet:
            with fleet.armed("arena_lent:1"):
                fleet.begin_sidecar("s0")
            fleet.begin_sidecar("s1")
            fleet.begin(0, ("a", "a1"), trainer=("--set", "commit=quorum:1", "--set", "min_replicas=1", "--set", "min_sidecars=1"))
            while fleet.sidecars["s0"].popen.poll() is None:
                fleet.push(fleet.next(1000)).result()
            self.assertEqual(fleet.sidecars["s0"].popen.wait(timeout=DEADLINE_S), -signal.SIGKILL)
            fleet.begin_sidecar("s0")
            version = fleet.until_at_target("a", "a1")
            self.verified(fleet, version, "a", "a1")
            for _ in range(3):
                before, version = version, fleet.updated()
                self.verified(fleet, version, "a", "a1")
            self.was_lent(fleet, version, before)
            self.ends(fleet)

    def killed_trainer(self, point):
        """The trainer kills itself there; what the sidecar has written to its log until its replica was at the target again."""
        with self.fleet() as fleet:
            fleet.begin_sidecar("s0")
            fleet.begin_engine("a")
            with fleet.armed(point):
                fleet.begin_trainer("--set", "min_sidecars=1", "--set", "min_replicas=1")
            version = fleet.pushed(fleet.one)["version"]
            while fleet.coordinator.popen.poll() is None:
                code, said = fleet.push(fleet.next(1000)).result()
                if code == 0:
                    version = said["result"]["version"]
            self.assertEqual(fleet.coordinator.popen.wait(timeout=DEADLINE_S), -signal.SIGKILL)
            fleet.begin_trainer("--set", "min_sidecars=1", "--set", "min_replicas=1")
            fleet.until_joined("s0")
            served = fleet.until_at_target("a")
            self.verified(fleet, served, "a")
            log = fleet.log_of("s0")
            for _ in range(4):
                before, version = version, fleet.updated()
                self.verified(fleet, version, "a")
            self.was_lent(fleet, version, before)
            self.ends(fleet)
            return log

    def test_the_trainer_is_killed_while_it_compares(self):
        for hits in 1, 2, 3:
            with self.subTest(hits=hits):
                self.killed_trainer(f"patch_compared:{hits}")

    def test_the_trainer_is_killed_while_it_writes_the_arena(self):
        for hits in 1, 3, 16:
            with self.subTest(hits=hits):
                self.assertRegex(self.killed_trainer(f"copy_changed:{hits}"), "the arena of .*, which was to become that of .*, has neither: ")

    def test_the_trainer_stands_still_while_it_writes_the_arena_and_another_one_takes_over(self):
        """It holds the lock for ever, so nobody can read the arena. The fleet does not wait for it."""
        with self.fleet() as fleet:
            fleet.begin_sidecar("s0")
            fleet.begin_engine("a")
            alone = "--set", "min_sidecars=1", "--set", "min_replicas=1"
            with fleet.armed("copy_changed:3:stop"):
                fleet.begin_trainer(*alone)
            old = fleet.coordinator
            fleet.halted = True
            fleet.pushed(fleet.one)
            pushes = []
            def stands_still():
                if not pushes or pushes[-1].poll() is not None:
                    pushes.append(fleet.push(fleet.next(1000)))
                return state_of(old.pid) == "T"
            fleet.until(stands_still, "a trainer that stands still")
            fleet.coordinator = fleet.trainer("--set", "bucket_bytes=1MiB", *alone, "--take-over", label="newer")
            fleet.until_joined("s0")
            full, found = fleet.full(77), []
            def is_pushed():  # not while the sidecar begins anew, because it has no version any more
                code, said = fleet.push(full).result()
                found[:] = [said["result"]["version"]] if code == 0 else []
                return found
            fleet.until(is_pushed, "a version of the other trainer")
            version = found[0]
            self.verified(fleet, version, "a")
            self.assertIn("the trainer stands still while it changes the arena of", fleet.log_of("s0"))
            for _ in range(3):
                before, version = version, fleet.updated()
                self.verified(fleet, version, "a")
            self.was_lent(fleet, version, before)
            old.popen.kill()
            old.popen.wait()
            self.ends(fleet)

    def test_the_trainer_is_killed_when_it_has_written_the_arena(self):
        self.assertIn("was changed in place", self.killed_trainer("versions_exchanged:1"))


if __name__ == "__main__":
    unittest.main()

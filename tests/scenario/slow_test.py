"""A sidecar that needs longer for a version than the trainer needs to publish the next ones (commit: each)."""
import sys
import threading
import time
import unittest

from kill_fleet import KillCase

KillCase.wsync = sys.argv.pop()

# The processes are slow, not lost.
PATIENT = "heartbeat.deadline=120s"


class SlowProcess:
    """Lets a process run only for a small part of the time, until it is frozen for good or thawed."""

    RUNS_S, STANDS_S = 0.003, 0.1

    def __init__(self, process):
        self.process = process
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._alternate)
        self.thread.start()

    def _alternate(self):
        while not self.over.is_set():
            self.process.freeze()
            self.over.wait(self.STANDS_S)
            self.process.thaw()
            time.sleep(self.RUNS_S)

    def end(self):
        self.over.set()
        self.thread.join()


class Slow(KillCase):
    def fast_and_slow(self, fleet):
        """Replica a on a fast sidecar and c on one that copies over TCP, which both serve the first version."""
        sidecars = [fleet.sidecar("s0", "--set", PATIENT), fleet.sidecar("s1", "--set", "transport=tcp", "--set", PATIENT)]
        engines = [fleet.engine("s0", "a", self.one), fleet.engine("s1", "c", self.one)]
        settings = ("min_sidecars=2", "arenas=4", "bucket_bytes=1MiB", "commit=each", "deadlines.announce=120s", "deadlines.stage=600s",
                    PATIENT)
        trainer = fleet.trainer(*(part for setting in settings for part in ("--set", setting)))
        first = self.published(fleet, self.one)
        fleet.until_ready(first, "a", "c")
        return sidecars, engines, trainer, first

    def until_serves(self, fleet, replica, version):
        fleet.until(lambda: fleet.replicas()[replica]["version"] == version, f"{replica} that serves {version}")

    def held_while_it_stages(self, fleet, slow):
        """A push of the second version that only the fast sidecar has; the slow one stands still in the middle of it."""
        part = SlowProcess(slow)
        push = fleet.push(self.two)
        try:
            fleet.until(lambda: fleet.activity().startswith("switching"), "a version that is decided")
        finally:
            part.end()
            slow.freeze()
        second = fleet.ask("status")[1]["result"]["target"]
        report = {s["name"]: s for s in fleet.ask("status")[1]["result"]["sidecars"]}["s1"]
        self.assertNotIn(second, report["staged"], "it is still staging")
        self.until_serves(fleet, "a", second)
        return push, second

    def test_it_finishes_its_version_and_then_takes_the_newest(self):
        with self.fleet() as fleet:
            sidecars, engines, trainer, _ = self.fast_and_slow(fleet)
            push, second = self.held_while_it_stages(fleet, sidecars[1])
            engines[1].skip()
            pushes, answers = [push], []
            for path in (self.one, self.two, self.one):
                pushes.append(fleet.push(path))
                answers.append(pushes[-2].result())
            answers.append(pushes[-1].result())
            for code, answer in answers:
                self.assertEqual((code, answer["result"]["code"]), (1, "partial"), answer)
            # On a busy machine the last command may reach the coordinator before the one that was started before it.
            newest = max((answer["result"] for _, answer in answers), key=lambda result: int(result["version"].split(".")[1]))
            self.assertIn("went on without sidecar 's1', which is still staging", newest["reason"])
            newest = newest["version"]
            self.until_serves(fleet, "a", newest)
            sidecars[1].thaw()
            engines[1].expect("committed", version=second)
            engines[1].expect("committed", version=newest)
            fleet.until_ready(newest, "a", "c")
            self.verified(fleet, newest, 2)
            code, answer = fleet.ask("push", self.two)
            self.assertEqual(code, 0, answer)
            self.leaves_nothing(fleet, *engines, *sidecars, trainer)

    def test_a_sidecar_that_is_killed_meanwhile_takes_the_newest(self):
        with self.fleet() as fleet:
            sidecars, engines, trainer, _ = self.fast_and_slow(fleet)
            push, _ = self.held_while_it_stages(fleet, sidecars[1])
            self.published_without(fleet, push)
            sidecars[1].kill()
            sidecars[1] = fleet.sidecar("s1", "--set", "transport=tcp", "--set", PATIENT)
            newest = fleet.until_at_target("a", "c")
            self.verified(fleet, newest, 2)
            self.leaves_nothing(fleet, *engines, *sidecars, trainer)

    def published_without(self, fleet, push):
        """One more version, which the slow sidecar is left out of."""
        another = fleet.push(self.one)
        for each in (push, another):
            code, answer = each.result()
            self.assertEqual((code, answer["result"]["code"]), (1, "partial"), answer)

    def test_a_trainer_that_is_restarted_meanwhile_brings_it_to_the_newest(self):
        with self.fleet() as fleet:
            sidecars, engines, trainer, _ = self.fast_and_slow(fleet)
            push, _ = self.held_while_it_stages(fleet, sidecars[1])
            self.published_without(fleet, push)
            trainer.kill()
            sidecars[1].thaw()
            trainer = fleet.trainer("--set", "min_sidecars=2", "--set", "arenas=4", "--set", PATIENT)
            fleet.until_joined("s0", "s1")
            newest = self.published(fleet, self.two)
            fleet.until_ready(newest, "a", "c")
            self.verified(fleet, newest, 2)
            self.leaves_nothing(fleet, *engines, *sidecars, trainer)


if __name__ == "__main__":
    unittest.main()

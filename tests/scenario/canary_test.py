"""A publish with a canary: one replica switches first, and the others wait until the version is promoted or taken back."""
import json
import os
import subprocess
import sys
import unittest

from kill_fleet import KillCase
from pages import get

KillCase.wsync = sys.argv.pop()


def with_canary(name, *more):
    settings = [f"canary={name}", "arenas=4", "bucket_bytes=1MiB", *more]
    return [part for setting in settings for part in ("--set", setting)]


class Canary(KillCase):
    def two_sidecars(self, fleet, *settings, first=True, least=3):
        """Replicas a and b on s0, c on s1, which all serve the first version; the processes and that version."""
        sidecars = [fleet.sidecar(name) for name in ("s0", "s1")]
        engines = {replica: fleet.engine(sidecar, replica, self.one)
                   for sidecar, replica in (("s0", "a"), ("s0", "b"), ("s1", "c"))}
        trainer = fleet.trainer(*with_canary("a", "min_sidecars=2", f"min_replicas={least}", *settings))
        version = None
        if first:
            version = self.published(fleet, self.one)
            code, answer = self.promoted(fleet)
            self.assertEqual(code, 0, answer)
            fleet.until_ready(version, "a", "b", "c")
        return sidecars, engines, trainer, version

    def metrics(self, fleet):
        return get(os.path.join(fleet.run_dir, "control.http"), "/metrics")[1]

    def promoted(self, fleet, *more):
        return fleet.ask("promote", *more)

    def on_the_canary(self, fleet, path, before):
        """Publishes a version, which only the canary gets."""
        code, answer = fleet.ask("push", path)
        self.assertEqual(code, 0, answer)
        result = answer["result"]
        self.assertEqual((result["ok"], result["canary"]), (True, "a"))
        self.assertEqual([(r["replica"], r["outcome"]) for r in result["replicas"]], [("a", "committed")])
        self.stays_on_the_canary(fleet, result["version"], before)
        return result["version"]

    def stays_on_the_canary(self, fleet, version, before):
        fleet.until(lambda: f"{version} is only on the canary 'a', and 2 other replicas wait" in fleet.activity(), "the canary")
        # A sidecar that has come back stages the version first.
        fleet.until(lambda: all(fleet.replicas()[name]["turn"] == "waiting" for name in ("b", "c")), "two that wait")
        found = fleet.replicas()
        self.assertEqual({name: report["version"] for name, report in found.items()}, {"a": version, "b": before, "c": before})
        self.assertEqual({report["ready"] for report in found.values()}, {True}, found)
        self.assertIn("waiting for its turn", found["b"]["reason"])

    def test_the_others_wait_until_it_is_promoted(self):
        with self.fleet() as fleet:
            sidecars, engines, trainer, first = self.two_sidecars(fleet)
            second = self.on_the_canary(fleet, self.two, first)
            for name, engine in engines.items():
                self.serves(engine, second if name == "a" else first)
            self.assertIn("wsync_canary_waiting_replicas 2", self.metrics(fleet))
            code, answer = self.promoted(fleet)
            self.assertEqual(code, 0, answer)
            self.assertEqual(answer["result"]["version"], second)
            self.assertEqual({r["replica"]: r["outcome"] for r in answer["result"]["replicas"]},
                             {name: "committed" for name in "abc"})
            self.verified(fleet, second, 3)
            self.assertIn("wsync_canary_waiting_replicas 0", self.metrics(fleet))
            code, answer = self.promoted(fleet)
            self.assertEqual((code, answer["result"]["ok"]), (1, False))
            self.assertIn("the target of every replica already", answer["result"]["reason"])
            self.leaves_nothing(fleet, *engines.values(), *sidecars, trainer)

    def test_a_rollback_pauses_only_the_canary(self):
        with self.fleet() as fleet:
            sidecars, engines, trainer, first = self.two_sidecars(fleet)
            second = self.on_the_canary(fleet, self.two, first)
            for engine in engines.values():
                engine.skip()
            code, answer = fleet.ask("rollback")
            self.assertEqual(code, 0, answer)
            self.assertEqual((answer["result"]["from"], answer["result"]["to"]), (second, first))
            self.verified(fleet, first, 3)
            for name in ("b", "c"):
                said = [event["event"] for event in engines[name].events[engines[name].seen:]]
                self.assertNotIn("paused", said)
            self.leaves_nothing(fleet, *engines.values(), *sidecars, trainer)

    def test_a_rollback_without_a_coordinator_concerns_every_replica(self):
        with self.fleet() as fleet:
            sidecars, engines, trainer, first = self.two_sidecars(fleet)
            second = self.on_the_canary(fleet, self.two, first)
            self.assertEqual(trainer.end()[0], 0)
            done = subprocess.run([self.wsync, "rollback", "--coordinator", fleet.address, "--json"], text=True, capture_output=True,
                                  env=dict(fleet.environment, WSYNC_CANARY="a"), check=False)
            self.assertEqual(done.returncode, 0, done.stdout)
            result = json.loads(done.stdout)["result"]
            self.assertEqual((result["from"], result["to"]), (second, first))
            for engine in engines.values():
                self.serves(engine, first)
            self.leaves_nothing(fleet, *engines.values(), *sidecars)

    def test_the_others_follow_when_its_time_is_over(self):
        with self.fleet() as fleet:
            sidecars, engines, trainer, _ = self.two_sidecars(fleet, "canary_time=1s", first=False)
            version = self.published(fleet, self.two)
            fleet.until_ready(version, "a", "b", "c")
            self.verified(fleet, version, 3)
            self.leaves_nothing(fleet, *engines.values(), *sidecars, trainer)

    def test_the_next_publish_waits(self):
        with self.fleet() as fleet:
            sidecars, engines, trainer, first = self.two_sidecars(fleet)
            second = self.on_the_canary(fleet, self.two, first)
            push = fleet.push(self.one)
            fleet.until(lambda: fleet.ask("status")[1]["result"]["update"] is not None, "a publish that waits")
            self.stays_on_the_canary(fleet, second, first)
            fleet.until(lambda: ", and then 1.3 is published" in fleet.activity(), "that the publish is told")
            code, answer = self.promoted(fleet)
            self.assertEqual(code, 0, answer)
            code, answer = push.result()
            self.assertEqual(code, 0, answer)
            self.stays_on_the_canary(fleet, answer["result"]["version"], second)
            self.leaves_nothing(fleet, *engines.values(), *sidecars, trainer)

    def test_a_restart_of_each_side_promotes_nothing(self):
        with self.fleet() as fleet:
            sidecars, engines, trainer, first = self.two_sidecars(fleet)
            second = self.on_the_canary(fleet, self.two, first)
            sidecars[1].kill()
            sidecars[1] = fleet.sidecar("s1")
            self.stays_on_the_canary(fleet, second, first)
            trainer.kill()
            trainer = fleet.trainer(*with_canary("a", "min_sidecars=2", "min_replicas=3"))
            fleet.until_joined("s0", "s1")
            self.stays_on_the_canary(fleet, second, first)
            for name, engine in engines.items():
                self.serves(engine, second if name == "a" else first)
            code, answer = self.promoted(fleet)
            self.assertEqual(code, 0, answer)
            self.verified(fleet, second, 3)
            self.leaves_nothing(fleet, *engines.values(), *sidecars, trainer)

    def test_a_canary_that_is_killed_ends_the_hold(self):
        with self.fleet() as fleet:
            sidecars, engines, trainer, first = self.two_sidecars(fleet, least=2)
            second = self.on_the_canary(fleet, self.two, first)
            engines["a"].kill()
            fleet.until(lambda: "canary" not in fleet.activity(), "a coordinator that holds nothing")
            code, answer = self.promoted(fleet)
            self.assertEqual(code, 1, answer)
            self.assertIn(f"the canary 'a' does not serve {second}", answer["result"]["reason"])
            code, answer = fleet.ask("push", self.one)
            self.assertEqual(code, 1, answer)
            self.assertIn("the canary 'a' has 0 of 1 ranks", answer["result"]["reason"])
            code, answer = self.promoted(fleet, "--force")
            self.assertEqual(code, 0, answer)
            fleet.until_ready(second, "b", "c")
            rest = [engine for name, engine in engines.items() if name != "a"]
            self.leaves_nothing(fleet, *rest, *sidecars, trainer)

    def test_a_canary_that_nobody_has(self):
        with self.fleet() as fleet:
            sidecar = fleet.sidecar("s0")
            engine = fleet.engine("s0", "b", self.one)
            trainer = fleet.trainer(*with_canary("a"))
            code, answer = fleet.ask("push", self.one)
            self.assertEqual((code, answer["result"]["code"]), (1, "refused"), answer)
            self.assertIn("the canary 'a' is not attached", answer["result"]["reason"])
            self.assertIn("(attached: b)", answer["result"]["reason"])
            self.leaves_nothing(fleet, engine, sidecar, trainer)

    def test_bad_settings(self):
        with self.fleet() as fleet:
            def refused(arguments, words, **environment):
                done = subprocess.run([self.wsync, *arguments, "--json"], env=dict(fleet.environment, **environment), text=True,
                                      capture_output=True, check=False)
                self.assertEqual(done.returncode, 2, done.stdout)
                self.assertIn(words, json.loads(done.stdout)["error"]["message"])
            refused(["trainer", "--set", "canary=a/b"], "expected the name of a replica")
            refused(["trainer", "--set", "canary_time=5s"], "without `canary`")
            refused(["push", self.one, "--coordinator", fleet.address], "could not promote the version", WSYNC_CANARY="a")


if __name__ == "__main__":
    unittest.main()

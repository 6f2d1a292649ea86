"""A coordinator that is a process of its own: it outlives the trainers that publish to it, and they outlive it."""
import json
import os
import re
import signal
import subprocess
import sys
import unittest

from coordinator_fleet import CoordinatorFleet
from fleet import DEADLINE_S, Fleet
from fleet_case import FleetCase
from pages import get

WSYNC = sys.argv.pop()


class Case(FleetCase):
    def served(self, fleet, weights, version, *replicas):
        self.assertEqual(self.push(fleet, weights), version)
        fleet.until_ready(version, *(replicas or ("a", "b")))
        code, answer = fleet.ask("verify")
        self.assertEqual(code, 0, answer)

    def refused(self, fleet, path, *options):
        code, answer = fleet.ask("push", path, *options)
        self.assertNotEqual(code, 0, answer)
        return answer["error"]["message"]

    def is_killed(self, process):
        process.kill()
        process.wait()

    def fails_in_the_round(self, fleet, slow, killed):
        """A push of 1.2, for which one sidecar stands still, when this process is killed."""
        fleet.until_attached()
        self.served(fleet, fleet.weights[0], "1.1", "a", "b", "c")
        fleet.halt(slow.pid)
        push = fleet.pushing(fleet.weights[1])
        fleet.until(lambda: "1.2" in fleet.activity(), "the round of 1.2")
        self.is_killed(killed)
        said = push.communicate(timeout=DEADLINE_S)[0]
        self.assertNotEqual(push.returncode, 0, said)

    def ends_well(self, *processes):
        for process in processes:
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(DEADLINE_S), 0, Fleet.log_text(process))


class Trainers(Case):
    def test_one_is_killed_and_another_one_goes_on(self):
        with CoordinatorFleet(WSYNC) as fleet:
            coordinator = fleet.coordinate()
            engines = fleet.begin()
            self.assertIn("no trainer is connected", self.refused(fleet, fleet.weights[0], "--shared-path"))
            first = fleet.trainer()
            fleet.until_attached()
            self.served(fleet, fleet.weights[0], "1.1")
            self.served(fleet, fleet.weights[1], "1.2")
            self.is_killed(first)
            fleet.until_gone()
            self.assertTrue(any("the trainer (process" in text for text in fleet.incidents()), fleet.incidents())
            self.assertTrue(all(replica["ready"] for replica in fleet.replicas().values()))
            self.assertIn("no trainer is connected", self.refused(fleet, fleet.weights[2], "--shared-path"))
            # Nobody is needed to go back.
            code, answer = fleet.ask("rollback")
            self.assertEqual((code, answer["result"]["to"]), (0, "1.1"), answer)
            fleet.until_ready("1.1", "a", "b")
            second = fleet.trainer(name="another")
            fleet.until_attached()
            self.served(fleet, fleet.weights[2], "1.3")
            self.ends_well(second)
            fleet.until_gone()
            self.stopped_whole(fleet, *engines)
            self.ends_well(coordinator)

    def test_its_own_pages(self):
        with CoordinatorFleet(WSYNC) as fleet:
            coordinator = fleet.coordinate()
            fleet.begin()
            trainer = fleet.trainer()
            fleet.until_attached()
            pages = os.path.join(fleet.path("trainer"), "trainer.http")

            def value(name):
                return float(re.search(rf"^{name}(?:{{.*}})? (\S+)$", get(pages, "/metrics")[1], re.MULTILINE).group(1))
            self.served(fleet, fleet.weights[0], "1.1")
            self.assertEqual(get(pages, "/healthz")[0], 200)
            self.assertEqual(get(pages, "/readyz")[0], 200)
            self.assertIn('role="trainer"', get(pages, "/metrics")[1])
            self.assertEqual((value("wsync_trainer_connected"), value("wsync_target_version_step")), (1, 1))
            self.assertGreater(value("wsync_arena_bytes"), 0)
            self.assertGreater(value("wsync_wire_bytes_total"), 0)
            self.assertEqual(value('wsync_updates_total{result="committed"}'), 1)
            self.assertEqual(get(pages, "/")[0], 404, "the page of the fleet is the coordinator's")
            self.is_killed(coordinator)
            fleet.until(lambda: value("wsync_trainer_connected") == 0, "that the loss is seen")
            status, why = get(pages, "/readyz")
            self.assertEqual(status, 503)
            self.assertIn(f"the coordinator at {fleet.address} does not take publishes of this trainer", why)
            fleet.coordinate()
            fleet.until(lambda: get(pages, "/readyz")[0] == 200, "the next coordinator")
            self.ends_well(trainer)
            self.assertFalse(os.path.exists(pages))

    def test_what_it_did_is_in_the_trace_of_the_fleet(self):
        with CoordinatorFleet(WSYNC) as fleet:
            fleet.coordinate()
            fleet.begin()
            trainer = fleet.trainer()
            fleet.until_attached()
            self.served(fleet, fleet.weights[0], "1.1")

            def trace():
                path = os.path.join(fleet.run_dir, "trace.json")
                code, answer = fleet.ask("trace", "get", "--output", path)
                self.assertEqual(code, 0, answer)
                with open(path) as file:
                    return json.load(file)

            def names(found):
                return sorted(each["name"] for each in found["otherData"]["processes"])

            found = trace()
            self.assertEqual([name for name in names(found) if not name.startswith("sidecar")], ["coordinator", "trainer"])
            self.assertEqual(found["otherData"]["notes"], [])
            process, = (each for each in found["otherData"]["processes"] if each["name"] == "trainer")
            told = {event["name"] for event in found["traceEvents"] if event["ph"] == "X" and event["pid"] == process["pid"]}
            self.assertIn("snapshot of 1.1", told)
            fleet.halt(trainer.pid)  # it does not answer, which is said, and the others do
            found = trace()
            self.assertTrue(any("trainer" in note for note in found["otherData"]["notes"]), found["otherData"]["notes"])
            self.is_killed(trainer)
            fleet.until_gone()
            self.assertNotIn("trainer", names(trace()))

    def test_one_that_publishes_at_its_start_comes_first(self):
        with CoordinatorFleet(WSYNC) as fleet:
            trainer = fleet.trainer("--checkpoint", fleet.weights[0])
            coordinator = fleet.coordinate()
            engines = fleet.begin()
            fleet.until_ready("1.1", "a", "b")
            self.ends_well(trainer)
            self.stopped_whole(fleet, *engines)
            self.ends_well(coordinator)

    def test_a_second_one_is_refused_and_takes_over_from_one_that_hangs(self):
        with CoordinatorFleet(WSYNC) as fleet:
            fleet.coordinate()
            engines = fleet.begin()
            first = fleet.trainer()
            fleet.until_attached()
            self.served(fleet, fleet.weights[0], "1.1")
            second = fleet.trainer(name="second")
            fleet.until(lambda: f"process {first.pid} on" in fleet.log_text(second), "that the second one is refused")
            self.assertIn("publishes to this fleet already: stop it, or start the other one with --take-over", fleet.log_text(second))
            self.ends_well(second)
            fleet.halt(first.pid)
            third = fleet.trainer("--take-over", name="third")
            fleet.until(lambda: "has this trainer" in fleet.log_text(third), "that the third one is taken")
            self.served(fleet, fleet.weights[1], "1.2")
            # The first one wakes up, and has no effect.
            first.send_signal(signal.SIGCONT)
            fleet.until(lambda: "publishes to this fleet already" in fleet.log_text(first) or "is lost" in fleet.log_text(first),
                        "that the first one knows")
            self.served(fleet, fleet.weights[2], "1.3")
            self.ends_well(first, third)
            self.stopped_whole(fleet, *engines)

    def test_one_that_is_killed_before_every_sidecar_has_its_version(self):
        with CoordinatorFleet(WSYNC) as fleet:
            fleet.coordinate()
            engines = fleet.begin()
            slow, socket = fleet.sidecar("slow", "--set", "transport=tcp")
            engines.append(fleet.engine(socket, "c", fleet.weights[0]))
            first = fleet.trainer()
            self.fails_in_the_round(fleet, slow, first)
            fleet.until_gone()
            slow.send_signal(signal.SIGCONT)
            fleet.until_ready("1.1", "a", "b", "c")
            fleet.trainer(name="another")
            fleet.until_attached()
            self.served(fleet, fleet.weights[2], "1.3", "a", "b", "c")
            self.stopped_whole(fleet, *engines)

    def test_one_that_is_killed_after_the_decision(self):
        """Its version reaches every replica without it."""
        with CoordinatorFleet(WSYNC) as fleet:
            fleet.coordinate()
            engines = fleet.begin()
            first = fleet.trainer()
            fleet.until_attached()
            self.served(fleet, fleet.weights[0], "1.1")
            fleet.halt(engines[1].pid)
            push = fleet.pushing(fleet.weights[1])
            fleet.until(lambda: fleet.replicas().get("a", {}).get("version") == "1.2", "1.2 on the first replica")
            self.is_killed(first)
            engines[1].send_signal(signal.SIGCONT)
            fleet.until_ready("1.2", "a", "b")
            push.communicate(timeout=DEADLINE_S)
            fleet.until_gone()
            code, answer = fleet.ask("verify")
            self.assertEqual(code, 0, answer)
            self.stopped_whole(fleet, *engines)


class Withdrawn(Case):
    def test_a_trainer_that_was_away_hears_that_its_version_was_taken_back(self):
        """It keeps its publish until it hears how that ended. The coordinator that knew it has ended before."""
        with CoordinatorFleet(WSYNC) as fleet:
            first = fleet.coordinate()
            _, maps = fleet.sidecar("maps")
            engine = fleet.engine(maps, "a", fleet.weights[0])
            self.served(fleet, fleet.weights[0], "1.1", "a")
            fleet.halt(engine.pid)  # the round goes on after its decision
            trainer = fleet.trainer("--checkpoint", fleet.weights[1])

            def target():
                code, answer = fleet.ask("status")
                return answer["result"]["target"] if code == 0 else ""
            fleet.until(lambda: target() == "1.2", "the decision")
            fleet.halt(trainer.pid)
            self.is_killed(first)
            fleet.coordinate()
            engine.send_signal(signal.SIGCONT)
            fleet.until_ready("1.2", "a")
            code, answer = fleet.ask("rollback", "--to", "1.1")
            self.assertEqual((code, answer["result"]["to"]), (0, "1.1"), answer)
            fleet.until_ready("1.1", "a")
            trainer.send_signal(signal.SIGCONT)
            told = "1.2 was decided, and taken back by a rollback"
            lost = "the coordinator does not know it"
            fleet.until(lambda: told in fleet.log_text(trainer) or lost in fleet.log_text(trainer), "that the trainer hears of it")
            self.assertNotIn(lost, fleet.log_text(trainer), "what was taken back is called lost")
            self.assertEqual(target(), "1.1")
            self.served(fleet, fleet.weights[2], "2.3", "a")


class PushesWithoutATrainer(Case):
    """A push to a coordinator that has no trainer is its trainer for this version."""

    def left_nothing(self, fleet):
        self.assertEqual([name for name in os.listdir(fleet.run_dir) if name.startswith("push-")], [])

    def test_one_after_the_other_and_then_a_trainer(self):
        with CoordinatorFleet(WSYNC) as fleet:
            coordinator = fleet.coordinate()
            engines = fleet.begin()
            self.served(fleet, fleet.weights[0], "1.1")
            self.served(fleet, fleet.weights[1], "1.2")  # the trainer of 1.1 has just left
            self.assertIn("no trainer is connected", fleet.activity())
            text = subprocess.run([WSYNC, "status", "--coordinator", fleet.address], capture_output=True, text=True, timeout=DEADLINE_S).stdout
            self.assertNotIn("NO TRANSPORT", text)
            code, answer = fleet.ask("rollback")
            self.assertEqual((code, answer["result"]["to"]), (0, "1.1"), answer)
            trainer = fleet.trainer()
            fleet.until_attached()
            self.served(fleet, fleet.weights[2], "1.3")
            self.is_killed(trainer)
            fleet.until_gone()
            self.served(fleet, fleet.weights[0], "1.4")
            self.left_nothing(fleet)
            self.stopped_whole(fleet, *engines)
            self.ends_well(coordinator)

    def test_its_trace_has_both_sides(self):
        with CoordinatorFleet(WSYNC) as fleet:
            fleet.coordinate()
            fleet.begin()
            path = os.path.join(fleet.run_dir, "trace.json")
            code, answer = fleet.ask("push", fleet.weights[0], "--trace", path)
            self.assertEqual(code, 0, answer)
            with open(path, encoding="utf-8") as file:
                told = {event["name"] for event in json.load(file)["traceEvents"] if event["ph"] == "X"}
            self.assertTrue({"snapshot of 1.1", "announce 1.1", "load of 1.1"} <= told, told)

    def test_many_at_once(self):
        with CoordinatorFleet(WSYNC) as fleet:
            coordinator = fleet.coordinate()
            engines = fleet.begin()
            pushes = [fleet.pushing(fleet.weights[number % 3]) for number in range(6)]
            served = []
            for push in pushes:
                said, _ = push.communicate(timeout=DEADLINE_S)
                answer = json.loads(said)
                if push.returncode == 0:
                    served.append(answer["result"]["version"])
                else:  # its version gave way to that of a later one
                    self.assertRegex(str(answer), "replaces it before its round", "a push has failed beside others")
            self.assertGreater(len(served), 0)
            self.assertEqual(len(set(served)), len(served))
            newest = max(served, key=lambda version: int(version.split(".")[1]))
            fleet.until_ready(newest, "a", "b")
            self.assertEqual(fleet.ask("verify")[0], 0)
            self.stopped_whole(fleet, *engines)
            self.ends_well(coordinator)

    def test_one_that_is_killed_stopped_or_interrupted_in_its_round(self):
        with CoordinatorFleet(WSYNC) as fleet:
            fleet.coordinate()
            (copies, place) = fleet.sidecar("copies", "--set", "transport=tcp")
            fleet.engine(place, "a", fleet.weights[0])
            self.served(fleet, fleet.weights[0], "1.1", "a")
            for version, number in (("1.2", signal.SIGKILL), ("1.3", signal.SIGINT)):
                fleet.halt(copies.pid)
                push = fleet.pushing(fleet.weights[1])
                fleet.until(lambda version=version: version in fleet.activity(), f"the round of {version}")
                push.send_signal(number)
                said = push.communicate(timeout=DEADLINE_S)[0]
                self.assertEqual(push.returncode, -9 if number == signal.SIGKILL else 130, said)
                fleet.until_gone()
                copies.send_signal(signal.SIGCONT)
                fleet.until(lambda: fleet.replicas().get("a", {}).get("ready"), "that the sidecar is back")
                self.assertEqual(fleet.replicas()["a"]["version"], "1.1")
            self.served(fleet, fleet.weights[2], "1.4", "a")
            self.left_nothing(fleet)

    def test_before_any_sidecar_has_joined(self):
        with CoordinatorFleet(WSYNC) as fleet:
            fleet.coordinate()
            why = self.refused(fleet, fleet.weights[0])
            self.assertIn(f"the coordinator at {fleet.address} could not take this push within 10 s: 0 of at least 1 sidecars have joined", why)
            self.left_nothing(fleet)
            engines = fleet.begin()
            self.served(fleet, fleet.weights[0], "1.1")
            self.stopped_whole(fleet, *engines)

    def test_what_cannot_be_read_changes_nothing(self):
        with CoordinatorFleet(WSYNC) as fleet:
            fleet.coordinate()
            fleet.begin()
            empty = fleet.path("empty")
            os.makedirs(empty)
            self.assertIn(empty, self.refused(fleet, empty))
            self.assertIn("no trainer is connected", fleet.activity())
            self.served(fleet, fleet.weights[0], "1.1")


class Coordinators(Case):
    def test_one_is_killed_and_started_again_under_a_trainer(self):
        with CoordinatorFleet(WSYNC) as fleet:
            first = fleet.coordinate()
            engines = fleet.begin()
            trainer = fleet.trainer()
            fleet.until_attached()
            self.served(fleet, fleet.weights[0], "1.1")
            self.is_killed(first)
            fleet.until(lambda: "is lost" in fleet.log_text(trainer), "that the trainer knows")
            fleet.coordinate()
            fleet.until_attached()
            fleet.until_ready("1.1", "a", "b")
            self.served(fleet, fleet.weights[1], "2.2")
            self.ends_well(trainer)
            self.stopped_whole(fleet, *engines)

    def test_one_stands_still_for_a_while(self):
        with CoordinatorFleet(WSYNC) as fleet:
            coordinator = fleet.coordinate()
            engines = fleet.begin()
            trainer = fleet.trainer()
            fleet.until_attached()
            self.served(fleet, fleet.weights[0], "1.1")
            fleet.halt(coordinator.pid)
            fleet.until(lambda: "is lost" in fleet.log_text(trainer), "that the trainer knows")
            coordinator.send_signal(signal.SIGCONT)
            fleet.until(lambda: fleet.log_text(trainer).count("has this trainer") == 2, "that the trainer is there again")
            self.served(fleet, fleet.weights[1], "1.2")
            self.stopped_whole(fleet, *engines)

    def test_one_is_killed_while_a_version_is_staged(self):
        with CoordinatorFleet(WSYNC) as fleet:
            first = fleet.coordinate()
            engines = fleet.begin()
            slow, socket = fleet.sidecar("slow", "--set", "transport=tcp")
            engines.append(fleet.engine(socket, "c", fleet.weights[0]))
            trainer = fleet.trainer()
            self.fails_in_the_round(fleet, slow, first)
            slow.send_signal(signal.SIGCONT)
            fleet.coordinate()
            fleet.until_attached()
            fleet.until_ready("1.1", "a", "b", "c")
            fleet.until(lambda: "does not know it" in fleet.log_text(trainer), "that its publish has failed")
            code, answer = fleet.ask("push", fleet.weights[2])
            self.assertEqual(code, 0, answer)
            fleet.until_ready(answer["result"]["version"], "a", "b", "c")
            self.stopped_whole(fleet, *engines)


class StandBy(Case):
    """Of one host: the decisions are in a file, and whoever has its lock leads."""

    def stand_by(self, fleet, *settings):
        process = fleet.start("coordinator", "--stand-by", *settings)
        fleet.until(lambda: "stands by" in fleet.log_text(process) or "leads fleet" in fleet.log_text(process), "that it stands by or leads")
        return process

    def test_one_takes_the_lead_when_the_other_is_killed(self):
        with CoordinatorFleet(WSYNC) as fleet:
            first = self.stand_by(fleet)
            self.assertIn("leads fleet 'default' now", fleet.log_text(first))
            second = self.stand_by(fleet)
            self.assertRegex(fleet.log_text(second), "stands by: .*held by process")
            engines = fleet.begin()
            trainer = fleet.trainer()
            fleet.until_attached()
            self.served(fleet, fleet.weights[0], "1.1")
            self.is_killed(first)
            fleet.until(lambda: "leads fleet" in fleet.log_text(second), "that the other one leads")
            fleet.until_attached()
            self.served(fleet, fleet.weights[1], "2.2")
            self.ends_well(trainer)
            self.stopped_whole(fleet, *engines)
            self.ends_well(second)

    def test_one_with_settings_that_cannot_work_says_so_at_once(self):
        with CoordinatorFleet(WSYNC) as fleet:
            self.stand_by(fleet)
            for words, said in ((("--set", "keys=/nonexistent"), "/nonexistent"), (("--set", "take_over=true"), "takes nothing from one that lives"),
                                (("--take-over",), "--stand-by")):
                other = fleet.start("coordinator", "--stand-by", *words)
                self.assertNotEqual(other.wait(DEADLINE_S), 0)
                self.assertIn(said, fleet.log_text(other))

    def test_one_ends_while_it_stands_by(self):
        with CoordinatorFleet(WSYNC) as fleet:
            first = self.stand_by(fleet)
            second = self.stand_by(fleet)
            self.ends_well(second)
            self.assertIn("the fleet has not noticed it", fleet.log_text(second))
            self.assertIsNone(first.poll())


class Keys(Case):
    def test_a_publisher_needs_the_key_of_one(self):
        with CoordinatorFleet(WSYNC) as fleet:
            keys = fleet.path("keys")
            for words in (("init", keys), ("add", "publisher", "trainer", "--keys", keys), ("add", "sidecar", "s0", "--keys", keys)):
                subprocess.run([WSYNC, "keys", *words], env=fleet.environment, check=True, stdout=subprocess.DEVNULL)
            fleet.coordinate("--set", f"keys={keys}")
            own = os.path.join(keys, "issued", "publisher.trainer.key")
            self.assertTrue(os.path.exists(own), os.listdir(keys))
            wrong = os.path.join(keys, "issued", "sidecar.s0.key")
            refused = fleet.trainer("--set", f"publisher_key={wrong}", name="refused")
            self.assertNotEqual(refused.wait(DEADLINE_S), 0)
            self.assertIn("expected the key of a publisher or an operator, found that of sidecar s0", fleet.log_text(refused))
            trainer = fleet.trainer("--set", f"publisher_key={own}")
            fleet.until(lambda: "has this trainer" in fleet.log_text(trainer), "the trainer at the coordinator")
            self.ends_well(trainer)


class Embedded(Case):
    def test_a_trainer_takes_no_other_trainer(self):
        with CoordinatorFleet(WSYNC) as fleet:
            own = fleet.start("trainer")
            other = fleet.trainer()
            fleet.until(lambda: "refuses this trainer" in fleet.log_text(other), "that it is refused")
            self.assertIn("this coordinator is a part of a trainer", fleet.log_text(other))
            self.ends_well(other, own)


if __name__ == "__main__":
    unittest.main()

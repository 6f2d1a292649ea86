"""Ranks of one trainer on two hosts and sidecars with engines on a third: every host sends its own part of a version and no other."""
import json
import os
import pathlib
import shutil
import signal
import sys
import unittest

from hosts import why_no_hosts
from key_fleet import BEATS, KeyFleet

from fleet import short
from trainer_process import COMMITTED, FAILED, TrainerProcess
from training import TINY, settings

TRAINER_RANK = sys.argv.pop()
WSYNC = sys.argv.pop()
SIZE = "64MiB"
MODEL = 64 << 20
KEPT = BEATS[1::2]


class Rank(TrainerProcess):
    deadline_ms = 120_000

    def __init__(self, fleet, host, rank, world_size, *settings):
        command = fleet.entered(host, TRAINER_RANK, str(rank), str(world_size), fleet.one, "rows", *KEPT, *settings)
        super().__init__(fleet, command, fleet.environment_of(host))


class PartsFleet(KeyFleet):
    """Rank 0 on trainer0, rank 1 on trainer1."""

    def __init__(self, size=SIZE):
        super().__init__(WSYNC)
        self.local("keys", "add", "publisher", "trainer1", "--keys", self.keys)
        self.one = self.checkpoint("one", 1, size=size)

    def lead(self, world_size=2, *settings):
        return Rank(self, "trainer0", 0, world_size, f"keys={self.keys}", "listen=tcp://10.0.0.1:7000",
                    "data_address=tcp://10.0.0.1:7001", *settings)

    def follow(self, rank=1, world_size=2, *settings, key="trainer1", host="trainer1"):
        keys = [f"publisher_key={self.keys}/issued/publisher.{key}.key"] if key else []
        return Rank(self, host, rank, world_size, "leader=tcp://trainer0:7000", *keys, "data_address=tcp://0.0.0.0:0",
                    f"advertise={host}", *settings)

    def with_engine(self):
        _, place = self.engines("s0")
        self.replica(place, "r0", self.one)
        return self


class PartsOfManyHosts(unittest.TestCase):
    def published(self, step, *ranks):
        for rank in ranks:
            rank.tell("publish", step)
        for rank in ranks:
            event = rank.event("published")
            self.assertEqual(event["code"], 0, event)
        return [rank.wait() for rank in ranks]

    def served(self, fleet, step, *ranks):
        ends = self.published(step, *ranks)
        for end in ends:
            self.assertEqual((end["code"], end["state"]), (0, COMMITTED), end)
        code, answer = fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        self.assertEqual({rank["version"] for rank in answer["result"]["ranks"]}, {ends[0]["version"]}, answer)
        return ends[0]

    def test_each_host_sends_its_own_part_once_and_encrypted(self):
        with PartsFleet() as fleet:
            packets = fleet.sniff()
            lead, other = fleet.lead(), fleet.follow()
            _, place = fleet.engines("s0")
            fleet.replica(place, "r0", fleet.one)
            # The second sidecar is on the same host, and takes everything from the first one.
            _, second = fleet.engines("s1")
            fleet.replica(second, "r1", fleet.one)
            fleet.joined("s0", "s1")
            first = self.served(fleet, 1, lead, other)
            before = {host: fleet.sent(host) for host in ("trainer0", "trainer1")}
            for rank in (lead, other):
                rank.tell("change", 2)
            self.served(fleet, 2, lead, other)
            sent = {host: fleet.sent(host) - before[host] for host in before}
            # Headers, acknowledgements and heartbeats included. Every third tensor is that of rank 0 as a whole.
            self.assertLess(sum(sent.values()), 1.1 * MODEL, sent)
            self.assertGreater(sent["trainer1"], 0.25 * MODEL, sent)
            self.assertLess(sent["trainer0"], 0.75 * MODEL, sent)
            pieces = [pathlib.Path(file).read_bytes()[1 << 20:(1 << 20) + 48] for file in pathlib.Path(fleet.one).glob("*.safetensors")]
            seen = pathlib.Path(packets).read_bytes()
            self.assertGreater(len(seen), MODEL)
            self.assertFalse(any(piece in seen for piece in pieces), "weights could be read on the cable")
            code, answer = fleet.ask("push", fleet.one)
            self.assertEqual((code, answer["result"]["content_digest"]), (0, first["digest"]), answer)

    def test_a_host_that_vanishes_while_its_part_travels(self):
        with PartsFleet().with_engine() as fleet:
            lead, other = fleet.lead(), fleet.follow()
            fleet.joined("s0")
            served = self.served(fleet, 1, lead, other)
            fleet.limit(100, "trainer1")
            for rank in (lead, other):
                rank.tell("publish", 2)
            for rank in (lead, other):
                self.assertEqual(rank.event("published")["code"], 0)
            fleet.until(lambda: fleet.sidecars()["s0"].get("staged_bytes", 0) > 0.6 * MODEL, "the part of the other host")
            fleet.cut("trainer1")
            end = lead.wait()
            self.assertEqual(end["state"], FAILED, end)
            self.assertIn("part 2 of 2 from tcp://trainer1:", end["reason"])
            self.assertEqual(fleet.replicas()["r0"]["version"], served["version"])
            # The host is back, and so is its rank, which has told its trainer that the step has failed.
            fleet.join("trainer1")
            self.assertEqual(other.wait()["state"], FAILED)
            fleet.says(lead.process, "rank 1 of 2 has connected")
            self.served(fleet, 3, lead, other)

    def test_a_late_sidecar_when_the_host_of_a_rank_is_lost(self):
        with PartsFleet().with_engine() as fleet:
            lead, other = fleet.lead(), fleet.follow()
            fleet.joined("s0")
            served = self.served(fleet, 1, lead, other)
            fleet.cut("trainer1")
            other.process.send_signal(signal.SIGKILL)
            _, place = fleet.engines("s1")
            fleet.replica(place, "r1", fleet.one)
            fleet.until_ready(served["version"], "r0", "r1")
            self.verified(fleet, served["version"])

    def verified(self, fleet, version):
        code, answer = fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        self.assertEqual({rank["version"] for rank in answer["result"]["ranks"]}, {version}, answer)

    def test_a_rank_with_the_key_of_somebody_else(self):
        with PartsFleet().with_engine() as fleet:
            lead = fleet.lead()
            fleet.local("keys", "add", "reader", "eve", "--keys", fleet.keys)
            # A reader may not say that it is a rank. Its program says so at once.
            eve = TrainerProcess(
                fleet, fleet.entered("trainer1", TRAINER_RANK, "1", "2", fleet.one, "rows", "leader=tcp://trainer0:7000",
                                     f"publisher_key={fleet.keys}/issued/reader.eve.key"),
                fleet.environment_of("trainer1"), ready="failed")
            self.assertIn("expected the key of a publisher", eve.first["error"])
            # A key that was removed is not admitted any more, and the publish of its rank says so.
            old = shutil.copy(f"{fleet.keys}/issued/publisher.trainer1.key", fleet.path("old.key"))
            fleet.local("keys", "remove", "publisher", "trainer1", "--keys", fleet.keys)
            lead.process.send_signal(signal.SIGHUP)
            other = fleet.follow(1, 2, f"deadlines.gather={short(2000)}", f"publisher_key={old}", key=None)
            other.tell("publish", 1)
            self.assertEqual(other.event("published")["code"], 0)
            end = other.wait()
            self.assertEqual(end["state"], FAILED, end)
            self.assertIn("could not be reported to rank 0 at tcp://trainer0:7000", end["error"])

    def test_a_training_run_over_two_hosts_publishes_each_step(self):
        with PartsFleet() as fleet:
            values = TINY | {"model.hidden": 128, "model.expert_hidden": 128, "steps": 4}
            first, meeting = fleet.path("first"), fleet.path("meeting")
            self.assertEqual(fleet.run_on("trainer0", WSYNC, "train", "--json", *settings(values), "--export", first), 0)
            os.makedirs(meeting)
            _, place = fleet.engines("s0")
            fleet.replica(place, "r0", first)
            both = values | {"ranks.rendezvous": meeting}
            lead = {"ranks.address": "10.0.0.1", "publish.keys": fleet.keys, "publish.listen": "tcp://10.0.0.1:7000",
                    "publish.data_address": "tcp://10.0.0.1:7001"}
            other = {"ranks.address": "10.0.0.3", "publish.leader": "tcp://10.0.0.1:7000", "publish.data_address": "tcp://10.0.0.3:0",
                     "publish.publisher_key": f"{fleet.keys}/issued/publisher.trainer1.key"}
            runs = [fleet.on("trainer0", "train", "--json", *settings(both | lead), "--rank", "0"),
                    fleet.on("trainer1", "train", "--json", *settings(both | other), "--rank", "1")]
            ended = [json.loads(run.stdout.read().splitlines()[-1]) for run in runs]
            self.assertEqual([run.wait() for run in runs], [0, 0], [fleet.text_of(run)[-2000:] for run in runs])
            last = ended[0]["result"]["publishes"][-1]
            self.assertEqual((last["state"], last["step"], last["replicas"]), ("committed", 4, 1), ended[0])
            self.assertIn("a part of version", fleet.text_of(runs[1]))

    def test_a_rank_that_hangs_is_named_and_engines_go_on(self):
        with PartsFleet().with_engine() as fleet:
            lead, other = fleet.lead(2, f"deadlines.gather={short(2500)}"), fleet.follow()
            fleet.joined("s0")
            served = self.served(fleet, 1, lead, other)
            fleet.halt(other.process.pid)
            lead.tell("publish", 2)
            late = lead.event("published")
            self.assertNotEqual(late["code"], 0, late)
            self.assertIn("rank 1", late["error"])
            self.assertEqual(fleet.replicas()["r0"]["version"], served["version"])
            other.process.send_signal(signal.SIGCONT)
            fleet.until(lambda: fleet.text_of(lead.process).count("rank 1 of 2 has connected") >= 2, "the rank to come back")
            self.served(fleet, 3, lead, other)


if __name__ == "__main__":
    why = why_no_hosts()
    if why:
        print(f"no hosts for the tests: {why}")
        sys.exit(0)
    unittest.main()

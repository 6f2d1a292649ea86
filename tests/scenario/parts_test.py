"""Ranks of a trainer that are connected as if they were on another host (`leader`): each serves its own part of a version."""
import os
import signal
import socket
import sys
import unittest

from fleet import Fleet, short
from trainer_process import COMMITTED, FAILED, TrainerProcess

TRAINER_RANK = sys.argv.pop()
WSYNC = sys.argv.pop()

MODEL = 64 << 20


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Rank(TrainerProcess):
    def __init__(self, fleet, rank, world_size, *more, cut="rows", ready="started"):
        super().__init__(fleet, [TRAINER_RANK, str(rank), str(world_size), fleet.one, *([cut] if cut else []), *more], ready=ready)


class PartsFleet(Fleet):
    def __init__(self, size="64MiB"):
        super().__init__(WSYNC)
        self.size = size
        self.control = f"tcp://127.0.0.1:{free_port()}"
        self.one = self.checkpoint("one", 1, size=size)

    def with_engine(self):
        _, engines = self.sidecar("s0", "--set", f"coordinator={self.control}")
        self.a = self.engine(engines, "a", self.one)
        return self

    def lead(self, world_size, *more):
        return Rank(self, 0, world_size, f"listen={self.control}", *more)

    def remote(self, rank, world_size, *more, cut="rows", leader=None, ready="started"):
        return Rank(self, rank, world_size, f"leader={leader or self.control}", *more, cut=cut, ready=ready)

    def ask(self, *arguments, address=None):
        return super().ask(*arguments, address=address or self.control)

    def held_by(self, process):
        """Memory of the arenas of versions that rank 0 holds, in bytes."""
        held = {}
        for fd in os.listdir(f"/proc/{process.pid}/fd"):
            path = f"/proc/{process.pid}/fd/{fd}"
            try:
                if "memfd:wsync-snapshot" in os.readlink(path):
                    stat = os.stat(path)
                    held[stat.st_ino] = stat.st_blocks * 512
            except OSError:
                pass  # closed meanwhile
        return sum(held.values())


class Parts(unittest.TestCase):
    def publish(self, step, *ranks, command="publish"):
        for rank in ranks:
            rank.tell(command, step)
        for rank in ranks:
            published = rank.event("published")
            self.assertEqual(published["code"], 0, published)
        return [rank.wait() for rank in ranks]

    def served(self, fleet, step, *ranks, command="publish"):
        """Publishes a step, which has to be served in the end."""
        ends = self.publish(step, *ranks, command=command)
        for end in ends:
            self.assertEqual((end["code"], end["state"]), (0, COMMITTED), end)
        self.assertEqual(len({end["digest"] for end in ends}), 1)
        code, answer = fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        self.assertEqual({r["version"] for r in answer["result"]["ranks"]}, {ends[0]["version"]})
        return ends[0]

    def test_ranks_here_and_there_publish_one_model(self):
        with PartsFleet().with_engine() as fleet:
            ranks = [fleet.lead(4), Rank(fleet, 1, 4), fleet.remote(2, 4), fleet.remote(3, 4)]
            first = self.served(fleet, 1, *ranks)
            for step in range(2, 7):  # more than there are arenas
                for rank in ranks:
                    rank.tell("change", step)
                last = self.served(fleet, step, *ranks)
            self.assertNotEqual(last["digest"], first["digest"])
            code, answer = fleet.ask("status")
            self.assertEqual(answer["result"]["sidecars"][0]["transport"], "tcp", answer)
            # Rank 0 has memory for its own part and that of rank 1 alone: half of the model, in three arenas at most, and every
            # third tensor, which it has as a whole.
            self.assertLess(fleet.held_by(ranks[0].process), 3 * 0.75 * MODEL)
            # The same bytes as the checkpoint of which they have shares, but for the first ones that were changed.
            code, answer = fleet.ask("push", fleet.one)
            self.assertEqual(code, 0, answer)
            self.assertEqual(answer["result"]["content_digest"], first["digest"])

    def test_ranks_that_write_their_parts_in_place(self):
        with PartsFleet().with_engine() as fleet:
            ranks = [fleet.lead(3), fleet.remote(1, 3), fleet.remote(2, 3)]
            copied = self.served(fleet, 1, *ranks)
            for step in (2, 3, 4, 5):
                self.assertEqual(self.served(fleet, step, *ranks, command="draft")["digest"], copied["digest"])

    def test_a_late_sidecar_when_a_rank_is_gone(self):
        with PartsFleet().with_engine() as fleet:
            ranks = [fleet.lead(2), fleet.remote(1, 2)]
            served = self.served(fleet, 1, *ranks)
            ranks[1].kill()
            _, late = fleet.sidecar("s1", "--set", f"coordinator={fleet.control}")
            fleet.engine(late, "b", fleet.one)
            fleet.until_ready(served["version"], "a", "b")
            code, answer = fleet.ask("verify")
            self.assertEqual((code, len(answer["result"]["ranks"])), (0, 2), answer)

    def test_a_rank_that_is_killed_and_comes_back(self):
        with PartsFleet().with_engine() as fleet:
            lead, other = fleet.lead(2), fleet.remote(1, 2)
            served = self.served(fleet, 1, lead, other)
            other.kill()
            other = fleet.remote(1, 2)
            again = self.served(fleet, 2, lead, other)
            self.assertEqual(again["digest"], served["digest"])

    def test_a_rank_that_is_killed_before_its_report(self):
        with PartsFleet().with_engine() as fleet:
            lead, other = fleet.lead(2, f"heartbeat.deadline={short(1500)}"), fleet.remote(1, 2)
            served = self.served(fleet, 1, lead, other)
            lead.tell("publish", 2)
            other.kill()
            lost = lead.event("published")
            self.assertNotEqual(lost["code"], 0, lost)
            self.assertIn("rank 1", lost["error"])
            self.assertEqual(fleet.replicas()["a"]["version"], served["version"])
            other = fleet.remote(1, 2)
            self.served(fleet, 2, lead, other)  # the step was never a version: its name is free

    def test_a_rank_that_is_killed_while_its_part_travels(self):
        with PartsFleet().with_engine() as fleet:
            lead, other = fleet.lead(2), fleet.remote(1, 2)
            self.served(fleet, 1, lead, other)
            sidecar = fleet.processes[0]
            fleet.halt(sidecar.pid)  # the transfer waits
            for rank in (lead, other):
                rank.tell("publish", 2)
            for rank in (lead, other):
                self.assertEqual(rank.event("published")["code"], 0)
            other.kill()
            os.kill(sidecar.pid, signal.SIGCONT)
            end = lead.wait()
            self.assertEqual(end["state"], FAILED, end)
            self.assertIn("part 2 of 2", end["reason"])
            self.assertEqual(fleet.replicas()["a"]["version"], "1.1")
            other = fleet.remote(1, 2)
            self.served(fleet, 3, lead, other)

    def test_rank_0_is_killed_and_started_again(self):
        with PartsFleet().with_engine() as fleet:
            lead, other = fleet.lead(2), fleet.remote(1, 2, f"heartbeat.deadline={short(1500)}")
            self.served(fleet, 1, lead, other)
            lead.kill()
            lead = fleet.lead(2)
            again = self.served(fleet, 5, lead, other)
            self.assertEqual(again["version"], "2.5")

    def test_tensors_that_are_cut_along_any_dimension(self):
        """Columns are not one range of bytes, so they go to rank 0."""
        with PartsFleet().with_engine() as fleet:
            ranks = [Rank(fleet, 0, 2, f"listen={fleet.control}", cut=None), fleet.remote(1, 2, cut=None)]
            first = self.served(fleet, 1, *ranks)
            self.assertIn("a part of version 1.1 is served", fleet.log_text(ranks[1].process))
            code, answer = fleet.ask("push", fleet.one)
            self.assertEqual((code, answer["result"]["content_digest"]), (0, first["digest"]), answer)

    def test_a_version_with_parts_is_never_written_to_a_directory(self):
        """Rank 0 has holes where the other rank has bytes."""
        with PartsFleet().with_engine() as fleet:
            folder = fleet.path("folder")
            ranks = [fleet.lead(2, f"directory.publish={folder}"), fleet.remote(1, 2)]
            self.served(fleet, 1, *ranks)
            ranks[1].tell("change", 2)
            self.served(fleet, 2, *ranks)
            code, answer = fleet.ask("rollback")
            self.assertEqual(code, 0, answer)
            fleet.until_ready("1.1", "a")
            said = "the ranks of its trainer are on several hosts"
            fleet.until(lambda: sum(said in i["text"] for i in fleet.ask("status")[1]["result"]["incidents"]) >= 3, "three incidents")
            self.assertEqual([name for name in os.listdir(folder) if name.startswith("weight_v")], [])

    def test_as_few_arenas_as_there_may_be(self):
        with PartsFleet().with_engine() as fleet:
            few = ("arenas=3", "transport=tcp", "patch.in_place=off")
            ranks = [fleet.lead(2, *few), fleet.remote(1, 2, *few)]
            for step in range(1, 7):
                ranks[1].tell("rewrite", step)
                self.served(fleet, step, *ranks)

    def test_publishes_go_on_while_a_round_is_slow(self):
        """The newest one replaces those that wait, and no rank runs out of arenas."""
        with PartsFleet().with_engine() as fleet:
            ranks = [fleet.lead(2), fleet.remote(1, 2)]
            self.served(fleet, 1, *ranks)
            sidecar = fleet.processes[0]
            fleet.halt(sidecar.pid)
            for step in range(2, 8):
                for rank in ranks:
                    rank.tell("publish", step)
                for rank in ranks:
                    published = rank.event("published")
                    self.assertEqual(published["code"], 0, published)
            os.kill(sidecar.pid, signal.SIGCONT)
            ends = [rank.wait() for rank in ranks]
            self.assertEqual({(end["state"], end["version"]) for end in ends}, {(COMMITTED, "1.7")}, ends)
            fleet.until_ready("1.7", "a")
            self.assertEqual(fleet.ask("verify")[0], 0)

    def test_rank_0_has_no_leader(self):
        with PartsFleet() as fleet:
            refused = Rank(fleet, 0, 2, f"leader={fleet.control}", ready="failed")
            self.assertIn("leader: expected 'auto' for rank 0", refused.first["error"])

    def test_a_rank_whose_leader_is_no_rank_0(self):
        with PartsFleet().with_engine() as fleet:
            alone = Rank(fleet, 0, 1, f"listen={fleet.control}")
            other = fleet.remote(1, 2, f"deadlines.gather={short(1500)}")
            other.tell("publish", 1)
            self.assertEqual(other.event("published")["code"], 0)
            end = other.wait()
            self.assertEqual(end["state"], FAILED, end)
            self.assertIn("`leader` must be the address at which rank 0 listens", end["error"])
            self.assertEqual(alone.process.poll(), None)

    def test_a_rank_without_a_transport_that_leads_to_other_processes(self):
        with PartsFleet() as fleet:
            refused = fleet.remote(1, 2, "transport=memfd", ready="failed")
            self.assertIn("transport: memfd leads to no other host", refused.first["error"])


if __name__ == "__main__":
    unittest.main()

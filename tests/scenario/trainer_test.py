"""Trainers over the C API as real processes: the C example, and ranks that have halves of a model."""
import os
import signal
import socket
import subprocess
import sys
import unittest

from fleet import Fleet, short
from trainer_process import COMMITTED, FAILED, TrainerProcess

EXAMPLE_ENGINE = sys.argv.pop()
EXAMPLE_TRAINER = sys.argv.pop()
REPLACED_RANK = sys.argv.pop()
TRAINER_RANK = sys.argv.pop()
WSYNC = sys.argv.pop()

SNAPSHOTTED = 1
REFUSED, DEADLINE, PEER_LOST, FENCED, PARTIAL = 3, 5, 6, 7, 13
TENSOR = "model.layers.0.mlp.experts.0.gate_proj.weight"  # one that trainer_rank cuts


class Rank(TrainerProcess):
    def __init__(self, fleet, rank, world_size, checkpoint, *more, incarnation=0):
        program = [REPLACED_RANK, str(incarnation)] if incarnation else [TRAINER_RANK]
        super().__init__(fleet, [*program, str(rank), str(world_size), checkpoint, "log.level=warning", *more])

    def until_fenced(self):
        def fenced():
            self.tell("check")
            return self.event("checked")["code"] == FENCED
        self.fleet.until(fenced, "the word that another process has its place")


class TrainerFleet(Fleet):
    def with_engine(self):
        self.one = self.checkpoint("one", 1)
        _, engines = self.sidecar("s0")
        self.a = self.engine(engines, "a", self.one)
        return self


class Examples(unittest.TestCase):
    def test_the_c_examples_of_both_sides_meet(self):
        with TrainerFleet(WSYNC) as fleet:
            _, engines = fleet.sidecar("s0")
            engine = subprocess.Popen([EXAMPLE_ENGINE, engines, "r0", "model.w", "512", "256", "1000"],
                                      env=fleet.environment, text=True, stdout=subprocess.PIPE)
            fleet.processes.append(engine)
            trainer = subprocess.run([EXAMPLE_TRAINER, "model.w", "512", "256", "2"], env=fleet.environment,
                                     text=True, capture_output=True, timeout=60)
            self.assertEqual(trainer.returncode, 0, trainer.stderr)
            lines = trainer.stdout.splitlines()
            self.assertEqual(len(lines), 2, trainer.stdout)
            self.assertIn("1 replicas serve version 1.1", lines[0])
            self.assertIn("1 replicas serve version 1.2", lines[1])
            self.assertNotEqual(lines[0].split()[-1], lines[1].split()[-1])
            code, answer = fleet.ask("verify", address=f"ipc://{fleet.run_dir}/s0.control")
            self.assertEqual(code, 0, answer)
            self.assertEqual([r["version"] for r in answer["result"]["ranks"]], ["1.2"])
            self.assertEqual([r["bytes"] for r in answer["result"]["ranks"]], [512 * 256 * 2])


class Ranks(unittest.TestCase):
    def both(self, fleet, step, *ranks):
        """Publishes a step from every rank; it has to be served in the end."""
        for rank in ranks:
            rank.publish(step)
        for rank in ranks:
            self.assertEqual(rank.published()["code"], 0)
        ends = [rank.wait() for rank in ranks]
        for end in ends:
            self.assertEqual((end["code"], end["state"]), (0, COMMITTED), end)
            self.assertEqual(end["version"].split(".")[1], str(step))
        self.assertEqual(len({end["digest"] for end in ends}), 1)
        code, answer = fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        self.assertEqual({r["version"] for r in answer["result"]["ranks"]}, {ends[0]["version"]})
        return ends[0]

    def served(self, fleet):
        return fleet.replicas()["a"]["version"]

    def draft(self, rank, step, command="draft"):
        rank.tell(command, step)
        published = rank.published()
        self.assertEqual(published["code"], 0, published)
        end = rank.wait()
        self.assertEqual((end["code"], end["state"]), (0, COMMITTED), end)
        return end

    def test_versions_that_are_written_in_place(self):
        with TrainerFleet(WSYNC).with_engine() as fleet:
            rank = Rank(fleet, 0, 1, fleet.one)
            copied = self.both(fleet, 1, rank)
            self.assertEqual(self.draft(rank, 2)["digest"], copied["digest"])
            rank.tell("change", 3)
            written = self.draft(rank, 3)
            self.assertNotEqual(written["digest"], copied["digest"])
            # Without a description: the first version describes the tensors, the next ones have arenas.
            self.assertEqual(self.draft(rank, 4, "first_draft")["digest"], written["digest"])
            rank.tell("change", 5)
            last = self.draft(rank, 5)
            self.assertNotEqual(last["digest"], written["digest"])
            code, answer = fleet.ask("verify")
            self.assertEqual(code, 0, answer)
            self.assertEqual({r["version"] for r in answer["result"]["ranks"]}, {last["version"]})
            self.assertEqual(rank.end(), 0)

    def test_several_ranks_write_their_parts_in_place(self):
        with TrainerFleet(WSYNC).with_engine() as fleet:
            ranks = [Rank(fleet, r, 3, fleet.one) for r in range(3)]
            copied = self.both(fleet, 1, *ranks)
            for step in (2, 3, 4, 5, 6):
                for rank in ranks:
                    rank.tell("draft", step)
                for rank in ranks:
                    published = rank.published()
                    self.assertEqual(published["code"], 0, published)
                ends = [rank.wait() for rank in ranks]
                self.assertEqual({end["digest"] for end in ends}, {copied["digest"]}, ends)
            # Some ranks copy and some write in place.
            ranks[0].publish(7)
            ranks[1].tell("draft", 7)
            ranks[2].publish(7)
            self.assertEqual([rank.published()["code"] for rank in ranks], [0, 0, 0])
            self.assertEqual({rank.wait()["digest"] for rank in ranks}, {copied["digest"]})
            self.assertEqual(fleet.ask("verify")[0], 0)
            self.assertEqual([rank.end() for rank in ranks], [0, 0, 0])

    def test_a_stray_write_ends_its_trainer_and_reaches_no_engine(self):
        with TrainerFleet(WSYNC).with_engine() as fleet:
            rank = Rank(fleet, 0, 1, fleet.one)
            written = self.draft(rank, 1)
            rank.tell("stray")
            self.assertEqual(rank.process.wait(timeout=60), -signal.SIGSEGV)
            code, answer = fleet.ask("verify", address=f"ipc://{fleet.run_dir}/s0.control")
            self.assertEqual(code, 0, answer)
            self.assertEqual({r["version"] for r in answer["result"]["ranks"]}, {written["version"]})
            # Its successor publishes as if nothing had been.
            again = Rank(fleet, 0, 1, fleet.one, "take_over=true")
            self.assertEqual(self.draft(again, 1)["digest"], written["digest"])
            self.assertEqual(again.end(), 0)

    def test_two_ranks_publish_one_model(self):
        with TrainerFleet(WSYNC).with_engine() as fleet:
            two = fleet.checkpoint("two", 2)
            ranks = [Rank(fleet, r, 2, fleet.one) for r in (0, 1)]
            first = self.both(fleet, 5, *ranks)
            self.both(fleet, 6, *ranks)
            # The same bytes as the checkpoint that the halves were cut from.
            code, answer = fleet.ask("push", fleet.one)
            self.assertEqual(code, 0, answer)
            self.assertEqual(answer["result"]["content_digest"], first["digest"])
            code, answer = fleet.ask("push", two)
            self.assertNotEqual(answer["result"]["content_digest"], first["digest"])
            ranks[0].tell("roll_back")
            self.assertEqual(ranks[0].event("rolled_back")["code"], 0)
            ranks[1].tell("roll_back")
            self.assertIn("only rank 0 can", ranks[1].event("rolled_back")["error"])
            self.assertEqual([rank.end() for rank in ranks], [0, 0])

    def test_a_decided_version_that_an_engine_does_not_serve_in_time_is_partial(self):
        with TrainerFleet(WSYNC).with_engine() as fleet:
            ranks = [Rank(fleet, r, 2, fleet.one, f"deadlines.pause={short(500)}") for r in (0, 1)]
            self.both(fleet, 1, *ranks)
            fleet.halt(fleet.a.pid)
            for rank in ranks:
                rank.publish(2)
            for rank in ranks:
                self.assertEqual(rank.published()["code"], 0)
                end = rank.wait()
                self.assertEqual((end["code"], end["state"]), (PARTIAL, FAILED), end)
                self.assertIn("1.2 stays the target, and the sidecars go on trying: `wsync status`", end["error"])
            os.kill(fleet.a.pid, signal.SIGCONT)
            fleet.until_ready("1.2", "a")
            self.assertEqual([rank.end() for rank in ranks], [0, 0])

    def test_shards_that_make_no_model_are_refused_with_rank_and_tensor(self):
        with TrainerFleet(WSYNC).with_engine() as fleet:
            lead = Rank(fleet, 0, 2, fleet.one)
            other = Rank(fleet, 1, 2, fleet.one)
            served = self.both(fleet, 1, lead, other)["version"]
            for step, (fault, sentence) in enumerate(
                    {"shape": "describes it as", "gap": "no rank gives", "overlap": "overlaps",
                     "fail": "its read callback failed with 7"}.items(), start=2):
                with self.subTest(fault):
                    other.end()
                    other = Rank(fleet, 1, 2, fleet.one, f"fault:{fault}:{TENSOR}")
                    for rank in (lead, other):
                        rank.publish(step)
                    ends = [rank.published() for rank in (lead, other)]
                    if fault != "fail":  # this rank had its snapshot; it learns the end later
                        self.assertEqual(ends[1]["code"], 0, ends[1])
                        ends[1] = other.wait()
                    for end in ends:
                        self.assertNotEqual(end["code"], 0)
                        self.assertIn(TENSOR, end["error"])
                        self.assertIn(sentence, end["error"])
                    self.assertIn("rank 1", ends[0]["error"])
                    self.assertEqual(self.served(fleet), served)
            other.end()
            other = Rank(fleet, 1, 2, fleet.one)
            self.both(fleet, 9, lead, other)

    def test_another_step_or_a_missing_rank_is_named(self):
        with TrainerFleet(WSYNC).with_engine() as fleet:
            lead = Rank(fleet, 0, 2, fleet.one, f"deadlines.gather={short(2000)}")
            lead.publish(3)
            alone = lead.published()
            self.assertEqual(alone["code"], DEADLINE, alone)
            self.assertIn("rank 1 is not connected", alone["error"])
            other = Rank(fleet, 1, 2, fleet.one)
            other.publish(8)
            self.assertEqual(other.published()["code"], 0)
            lead.publish(7)
            ahead = lead.published()
            self.assertEqual(ahead["code"], REFUSED, ahead)
            self.assertIn("rank 1 has snapshotted step 8, rank 0 publishes step 7", ahead["error"])
            # The other rank's step comes into being when rank 0 arrives there.
            lead.publish(8)
            self.assertEqual(lead.published()["code"], 0)
            self.assertEqual(other.wait()["state"], COMMITTED)
            other.publish(9)
            self.assertEqual(other.published()["code"], 0)
            lead.publish(10)
            self.assertEqual(lead.published()["code"], DEADLINE)
            behind = other.wait()
            self.assertIn("rank 0 publishes step 10", behind["error"])
            self.both(fleet, 11, lead, other)

    def test_a_rank_killed_while_it_snapshots(self):
        with TrainerFleet(WSYNC).with_engine() as fleet:
            lead = Rank(fleet, 0, 2, fleet.one)
            other = Rank(fleet, 1, 2, fleet.one)
            served = self.both(fleet, 1, lead, other)["version"]
            other.end()
            other = Rank(fleet, 1, 2, fleet.one, f"fault:hang:{TENSOR}")
            for rank in (lead, other):
                rank.publish(2)
            other.event("hanging")
            other.kill()
            lost = lead.published()
            self.assertEqual(lost["code"], PEER_LOST, lost)
            self.assertIn(f"rank 1 (process {other.process.pid}) disconnected", lost["error"])
            self.assertEqual(self.served(fleet), served)
            other = Rank(fleet, 1, 2, fleet.one)
            self.both(fleet, 2, lead, other)  # the step was never a version: its name is free

    def test_a_rank_stopped_while_it_snapshots_is_waited_for_until_the_deadline(self):
        with TrainerFleet(WSYNC).with_engine() as fleet:
            lead = Rank(fleet, 0, 2, fleet.one, f"deadlines.gather={short(2000)}")
            other = Rank(fleet, 1, 2, fleet.one)
            served = self.both(fleet, 1, lead, other)["version"]
            fleet.halt(other.process.pid)
            for rank in (lead, other):
                rank.publish(2)
            late = lead.published()
            self.assertEqual(late["code"], DEADLINE, late)
            self.assertIn("has not snapshotted step 2", late["error"])
            other.process.send_signal(signal.SIGCONT)
            # The refusal may come before the publish has returned, which then tells it itself.
            taken = other.published()
            self.assertIn(taken["code"], (0, REFUSED), taken)
            end = other.wait() if taken["code"] == 0 else taken
            self.assertIn("rank 0 has finished step 2", end["error"])
            self.assertEqual(self.served(fleet), served)
            self.both(fleet, 3, lead, other)

    def test_rank_0_killed_and_started_again(self):
        with TrainerFleet(WSYNC).with_engine() as fleet:
            lead = Rank(fleet, 0, 2, fleet.one)
            other = Rank(fleet, 1, 2, fleet.one, f"deadlines.gather={short(5000)}")
            self.both(fleet, 1, lead, other)
            other.publish(2)
            self.assertEqual(other.published()["code"], 0)
            lead.kill()
            orphan = other.wait()
            # On a busy host rank 0 may be gone before rank 1 has told it of the snapshot, which then waits for the next rank 0.
            if orphan["code"] == DEADLINE:
                self.assertIn("could not be reported to rank 0", orphan["error"])
            else:
                self.assertEqual(orphan["code"], PEER_LOST, orphan)
                self.assertIn("rank 0 disconnected", orphan["error"])
            lead = Rank(fleet, 0, 2, fleet.one)
            again = self.both(fleet, 3, lead, other)
            self.assertEqual(again["version"], "2.3")

    def test_what_a_killed_rank_has_reported_is_published(self):
        with TrainerFleet(WSYNC).with_engine() as fleet:
            lead = Rank(fleet, 0, 2, fleet.one)
            other = Rank(fleet, 1, 2, fleet.one)
            first = self.both(fleet, 1, lead, other)
            for step in (2, 3):  # the second snapshot begins when the first has been reported
                other.publish(step)
                self.assertEqual(other.published()["code"], 0)
            other.kill()
            lead.publish(2)
            self.assertEqual(lead.published()["code"], 0)
            alone = lead.wait()
            self.assertEqual((alone["code"], alone["version"], alone["digest"]), (0, "1.2", first["digest"]), alone)
            # Rank 0 has step 3 already, or not: its next process says it once more.
            other = Rank(fleet, 1, 2, fleet.one, incarnation=1)
            self.both(fleet, 3, lead, other)
            # What it says is another model, while the first one's step waits.
            for step in (4, 5):
                other.publish(step)
                self.assertEqual(other.published()["code"], 0)
            other.kill()
            other = Rank(fleet, 1, 2, fleet.checkpoint("two", 2), incarnation=2)
            other.publish(4)
            taken = other.published()
            refused = other.wait() if taken["code"] == 0 else taken
            lead.publish(4)
            for end in (refused, lead.published()):
                self.assertEqual(end["code"], REFUSED, end)
                self.assertIn("rank 1: two contents of step 4", end["error"])
            self.assertEqual(self.served(fleet), "1.3")
            other.end()
            other = Rank(fleet, 1, 2, fleet.one, incarnation=3)
            self.both(fleet, 6, lead, other)

    def test_a_replaced_rank_is_told_what_a_held_snapshot_waits_for(self):
        with TrainerFleet(WSYNC) as fleet:  # without a sidecar
            one = fleet.checkpoint("one", 1)
            lead = Rank(fleet, 0, 2, one)
            other = Rank(fleet, 1, 2, one)
            for rank in (lead, other):
                rank.publish(1)
            for rank in (lead, other):
                self.assertEqual(rank.published()["code"], 0)

            def told(rank):
                rank.tell("wait", COMMITTED, 1)
                return "of at least 1 sidecars have joined" in rank.event("waited")["error"]
            fleet.until(lambda: told(lead) and told(other), "what the snapshot waits for")
            other.kill()
            other = Rank(fleet, 1, 2, one, incarnation=1)
            other.publish(1)
            self.assertEqual(other.published()["code"], 0)
            fleet.until(lambda: told(other), "the same, in the process that has replaced rank 1")
            _, engines = fleet.sidecar("s0")
            fleet.engine(engines, "a", one)
            ends = [rank.wait() for rank in (lead, other)]
            self.assertEqual([(end["code"], end["version"]) for end in ends], [(0, "1.1")] * 2, ends)

    def test_a_step_that_was_lost_is_published_once_more(self):
        with TrainerFleet(WSYNC).with_engine() as fleet:
            lead = Rank(fleet, 0, 3, fleet.one)
            stays = Rank(fleet, 2, 3, fleet.one)
            other = Rank(fleet, 1, 3, fleet.one)
            first = self.both(fleet, 1, lead, other, stays)
            other.end()
            other = Rank(fleet, 1, 3, fleet.one, f"fault:hang:{TENSOR}")
            for rank in (stays, lead, other):
                rank.publish(2)
            self.assertEqual(stays.published()["code"], 0)
            other.event("hanging")
            other.kill()
            for end in (lead.published(), stays.wait()):
                self.assertEqual(end["code"], PEER_LOST, end)
                self.assertIn(f"rank 1 (process {other.process.pid}) disconnected", end["error"])
            self.assertEqual(self.served(fleet), "1.1")
            # The others come first: what they say waits for rank 0.
            other = Rank(fleet, 1, 3, fleet.one, incarnation=1)
            for rank in (stays, other, lead):
                rank.publish(2)
                self.assertEqual(rank.published()["code"], 0)
            for rank in (stays, other, lead):
                end = rank.wait()
                self.assertEqual((end["code"], end["version"], end["digest"]), (0, "1.2", first["digest"]), end)
            self.both(fleet, 3, lead, other, stays)

    def test_a_stopped_rank_that_was_replaced(self):
        with TrainerFleet(WSYNC).with_engine() as fleet:
            lead = Rank(fleet, 0, 2, fleet.one)
            zombie = Rank(fleet, 1, 2, fleet.checkpoint("two", 2))
            mixed = self.both(fleet, 1, lead, zombie)
            fleet.halt(zombie.process.pid)
            zombie.publish(2)
            other = Rank(fleet, 1, 2, fleet.one, incarnation=1)
            second = self.both(fleet, 2, lead, other)
            self.assertNotEqual(second["digest"], mixed["digest"])
            zombie.process.send_signal(signal.SIGCONT)
            taken = zombie.published()
            end = zombie.wait() if taken["code"] == 0 else taken
            self.assertEqual(end["code"], FENCED, end)
            self.assertIn(f"process {other.process.pid} (incarnation 1) is that rank now", end["error"])
            zombie.until_fenced()
            zombie.publish(3)
            self.assertEqual(zombie.published()["code"], FENCED)
            third = self.both(fleet, 3, lead, other)
            self.assertEqual(third["digest"], second["digest"])
            self.assertEqual(zombie.end(), 0)

    def test_a_stopped_rank_0_that_was_replaced(self):
        with TrainerFleet(WSYNC).with_engine() as fleet:
            zombie = Rank(fleet, 0, 2, fleet.one)
            other = Rank(fleet, 1, 2, fleet.one)
            first = self.both(fleet, 1, zombie, other)
            other.publish(2)
            self.assertEqual(other.published()["code"], 0)
            fleet.halt(zombie.process.pid)
            lead = Rank(fleet, 0, 2, fleet.one, "take_over=true", incarnation=1)
            orphan = other.wait()
            self.assertEqual(orphan["code"], PEER_LOST, orphan)
            self.assertIn("another process is rank 0 now", orphan["error"])
            again = self.both(fleet, 2, lead, other)
            self.assertEqual((again["version"], again["digest"]), ("2.2", first["digest"]))
            zombie.process.send_signal(signal.SIGCONT)
            zombie.until_fenced()
            zombie.publish(3)
            self.assertEqual(zombie.published()["code"], FENCED)
            self.assertEqual(self.served(fleet), "2.2")
            self.both(fleet, 3, lead, other)
            self.assertEqual(zombie.end(), 0)

    def test_a_second_process_of_a_rank_and_garbage_change_nothing(self):
        with TrainerFleet(WSYNC).with_engine() as fleet:
            lead = Rank(fleet, 0, 2, fleet.one)
            other = Rank(fleet, 1, 2, fleet.one)
            self.both(fleet, 1, lead, other)
            twin = Rank(fleet, 1, 2, fleet.one, f"deadlines.gather={short(2000)}")
            twin.publish(2)
            twin.published()
            refused = twin.wait()
            self.assertEqual(refused["state"], FAILED, refused)
            self.assertIn(f"process {other.process.pid} is rank 1 already", refused["error"])
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(os.path.join(fleet.run_dir, "trainer-ranks.sock"))
                peer.sendall(b"\xff" * 4096)
                peer.settimeout(60)
                try:
                    while peer.recv(4096):
                        pass
                except ConnectionResetError:
                    pass
            self.both(fleet, 2, lead, other)


if __name__ == "__main__":
    unittest.main()

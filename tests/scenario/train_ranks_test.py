"""Ranks that end, stand still or never come, and runs that are asked to stop: no process of a run outlives it, and each
says which rank it was."""
import json
import os
import platform
import random
import signal
import sys
import unittest

from fleet import short
from training import TINY, TINY_DATA, TrainingFleet, digests, what_ranks_compute

WSYNC = sys.argv.pop()

RANKS = 4
# Four ranks that exchange everything there is to exchange. No clock ends a run that has these settings: it takes no end by
# itself, and no silence is long enough.
ENDLESS = TINY | {"model.layers": 4, "parallel.pp": 2, "parallel.dp": 2, "parallel.ep": 2, "schedule.overlap": True,
                  "schedule.offload": True, "steps": 1_000_000, "deadline": "1h", "heartbeat.deadline": "1h"}
# The loss of a rank is the end of the run.
ALL_OR_NOTHING = ENDLESS | {"recovery.enabled": False}


class Stop(unittest.TestCase):
    def saved(self, fleet, run, directory):
        """Ends as a run that was asked to; the step it saved."""
        code, answer, log = run.result()
        self.assertEqual(code, 130, log)
        result = answer["result"]
        self.assertTrue(result["stopped"])
        self.assertFalse(answer["ok"])
        step = result["steps"][-1]["step"]
        state = f"{directory}/step_{step}"
        self.assertEqual(result["saved"], [{"event": "saved", "step": step, "directory": state}])
        self.assertEqual(os.listdir(directory), [f"step_{step}"])
        fleet.until_none_is_left()
        return step

    def test_at_any_time(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            for steps in (None, 0, 1, 9):  # None: as soon as there are ranks, before they can have said anything
                with self.subTest(signal=number, steps=steps), TrainingFleet(WSYNC) as fleet:
                    directory = fleet.path("saved")
                    run = fleet.training(ENDLESS | {"save.directory": directory})
                    run.ranks(RANKS)
                    if steps is not None:
                        run.until_step(steps)
                    run.send(number)
                    step = self.saved(fleet, run, directory)
                    result = fleet.trained(
                        TINY_DATA | {"parallel.pp": 4, "parallel.vpp": 1, "parallel.dp": 2, "steps": 1_000_000}
                        | {"steps": step + 1, "optimizer.warmup_steps": 0}, "--resume", f"{directory}/step_{step}")
                    self.assertEqual(result["run"]["first_step"], step + 1)

    def test_what_is_said_names_the_way_on(self):
        for save in (True, False):
            with self.subTest(save=save), TrainingFleet(WSYNC) as fleet:
                directory = fleet.path("saved")
                more = {"save.directory": directory} if save else {"trace_file": fleet.path("trace")}
                run = fleet.training(ENDLESS | more, as_text=True)
                run.until_step(2)
                run.send(signal.SIGINT)
                code, out, log = run.text_result()
                self.assertEqual(code, 130, log)
                sentence = log.splitlines()[-1]
                if save:
                    step = os.listdir(directory)[0]
                    self.assertRegex(sentence, rf"stopped on request after {step.replace('_', ' ')} of 1000000; continue "
                                               rf"with --resume {directory}/{step}$")
                    self.assertIn(f"saved {directory}/{step}", out)
                else:
                    self.assertRegex(sentence, r"stopped on request after step \d+ of 1000000; nothing is saved without "
                                               r"save.directory$")
                    with open(fleet.path("trace.json"), encoding="utf-8") as file:
                        json.load(file)

    def test_a_second_interrupt_ends_all_at_once(self):
        with TrainingFleet(WSYNC) as fleet:
            run = fleet.training(ENDLESS | {"save.directory": fleet.path("saved")})
            ranks = run.ranks(RANKS)
            run.until_step(1)
            fleet.halt(ranks[2])  # so that the step that runs never ends
            run.send(signal.SIGINT)
            run.until(lambda: "a second interrupt" in run.log(), "the answer to the first one")
            run.send(signal.SIGINT)
            code, _, log = run.result()
            self.assertEqual(code, 130, log)
            fleet.until_none_is_left()
            self.assertEqual(os.listdir(fleet.path("saved")), [])

    def test_one_rank_that_is_asked_ends_the_run_in_order(self):
        for rank in range(RANKS):
            with self.subTest(rank=rank), TrainingFleet(WSYNC) as fleet:
                directory = fleet.path("saved")
                run = fleet.training(ENDLESS | {"save.directory": directory})
                ranks = run.ranks(RANKS)
                run.until_step(1)
                os.kill(ranks[rank], signal.SIGTERM)
                self.saved(fleet, run, directory)

    def test_one_process(self):
        with TrainingFleet(WSYNC) as fleet:
            directory = fleet.path("saved")
            run = fleet.training(ENDLESS | {"save.directory": directory}, "--sequential")
            run.until_step(2)
            run.send(signal.SIGTERM)
            self.saved(fleet, run, directory)


class Loss(unittest.TestCase):
    def lost(self, fleet, run, rank, pid, why, others_tell=True):
        code, answer, log = run.result()
        self.assertEqual(code, 3, log)
        self.assertEqual(answer["error"]["code"], "peer_lost")
        self.assertIn(f"rank {rank} (pid {pid}) {why}", answer["error"]["message"])
        if others_tell:
            for other in set(range(RANKS)) - {rank}:
                stops = [line for line in log.splitlines() if f"trainer rank {other}: stops: " in line]
                self.assertEqual(len(stops), 1, log)
                self.assertRegex(stops[0], rf"stops: .*\brank {rank}\b")
        fleet.until_none_is_left()

    def test_each_rank_killed(self):
        seed = random.randrange(2**32)
        rng = random.Random(seed)
        for rank in range(RANKS):
            steps = rng.randrange(1, 30)
            with self.subTest(rank=rank, steps=steps, seed=seed), TrainingFleet(WSYNC) as fleet:
                run = fleet.training(ALL_OR_NOTHING | {"save.directory": fleet.path("saved"), "save.every": 3})
                pid = run.ranks(RANKS)[rank]
                run.until_step(steps)
                os.kill(pid, signal.SIGKILL)
                self.lost(fleet, run, rank, pid, "was killed by signal 9")
                # What was saved is whole.
                saved = os.listdir(fleet.path("saved"))
                whole = {name for name in saved if name.startswith("step_") and name[5:].isdigit()}
                for name in whole:
                    self.assertEqual(len(digests(fleet.path(f"saved/{name}"))), 3)
                if whole:
                    newest = max(whole, key=lambda name: int(name[5:]))
                    fleet.trained(TINY_DATA | {"parallel.dp": 2, "steps": int(newest[5:]) + 1}, "--resume",
                                  fleet.path(f"saved/{newest}"))

    def test_a_rank_killed_before_it_trains(self):
        for rank in range(RANKS):
            with self.subTest(rank=rank), TrainingFleet(WSYNC) as fleet:
                run = fleet.training(ALL_OR_NOTHING | {"save.directory": fleet.path("saved")})
                pid = run.ranks(RANKS)[rank]
                os.kill(pid, signal.SIGKILL)
                self.lost(fleet, run, rank, pid, "was killed by signal 9", others_tell=False)

    def test_each_rank_stopped(self):
        for rank in range(RANKS):
            with self.subTest(rank=rank), TrainingFleet(WSYNC) as fleet:
                run = fleet.training(ALL_OR_NOTHING | {"save.directory": fleet.path("saved"), "heartbeat.deadline": short(2000),
                                                       "heartbeat.interval": "50ms"})
                pid = run.ranks(RANKS)[rank]
                run.until_step(rank + 1)
                fleet.halt(pid)
                self.lost(fleet, run, rank, pid, "has sent no heartbeat for")

    def test_the_launcher_killed(self):
        with TrainingFleet(WSYNC) as fleet:
            run = fleet.training(ENDLESS | {"save.directory": fleet.path("saved")})
            run.ranks(RANKS)
            run.until_step(3)
            run.send(signal.SIGKILL)
            fleet.until_none_is_left()


class OneByOne(unittest.TestCase):
    """Ranks that are started one by one meet over TCP."""

    def ranks(self, fleet, values, *which, **of_rank):
        """Starts these ranks; `of_rank` are settings of one of them, as rank_<n>."""
        meeting = fleet.path("meeting")
        os.makedirs(meeting, exist_ok=True)
        return {rank: fleet.training(values | {"ranks.rendezvous": meeting} | of_rank.get(f"rank_{rank}", {}), "--rank",
                                     str(rank)) for rank in which}

    def test_same_bytes_as_one_process(self):
        for dp, ep in ((1, 1), (2, 2)):
            with self.subTest(dp=dp, ep=ep), TrainingFleet(WSYNC) as fleet:
                values = TINY | {"parallel.dp": dp, "parallel.ep": ep, "schedule.overlap": ep > 1, "steps": 3}
                reference = fleet.trained(values | {"save.directory": fleet.path("reference")}, "--sequential")
                ranks = self.ranks(fleet, values | {"save.directory": fleet.path("saved")}, *range(2 * dp))
                for rank, process in ranks.items():
                    code, answer, log = process.result()
                    self.assertEqual(code, 0, (rank, log))
                    if rank == 0:
                        self.assertEqual(what_ranks_compute(answer["result"]), what_ranks_compute(reference))
                self.assertEqual(digests(fleet.path("saved")), digests(fleet.path("reference")))

    def test_different_configurations_are_refused_by_all(self):
        with TrainingFleet(WSYNC) as fleet:
            ranks = self.ranks(fleet, TINY | {"steps": 3}, 0, 1, rank_1={"optimizer.learning_rate": 0.001})
            for process in ranks.values():
                code, answer, log = process.result()
                self.assertEqual(code, 1, log)
                self.assertIn("rank 1 and rank 0 were given different configurations", answer["error"]["message"])

    def test_other_functions_of_the_c_library_are_refused_by_all(self):
        # glibc has other code for exp, sin, cos and pow where there is fused multiply-add; a setting of its own hides that.
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            if " fma " not in file.read() or platform.libc_ver()[0] != "glibc":
                self.skipTest("glibc has one code for this processor")
        with TrainingFleet(WSYNC) as fleet:
            ranks = self.ranks(fleet, TINY | {"steps": 3}, 0)
            fleet.environment["GLIBC_TUNABLES"] = "glibc.cpu.hwcaps=-FMA,-AVX2"
            ranks |= self.ranks(fleet, TINY | {"steps": 3}, 1)
            for process in ranks.values():
                code, answer, log = process.result()
                self.assertEqual(code, 1, log)
                self.assertRegex(answer["error"]["message"], r"rank 1 computes with .*functions \w{16}, rank 0 with .*functions "
                                                             r"\w{16}; their exp, log, sin, cos and pow would not agree")

    def test_a_rank_killed(self):
        for victim in range(RANKS):
            with self.subTest(victim=victim), TrainingFleet(WSYNC) as fleet:
                ranks = self.ranks(fleet, ENDLESS, *range(RANKS))
                ranks[0].until_step(victim + 1)
                ranks[victim].send(signal.SIGKILL)
                ranks[victim].wait()
                for rank in set(ranks) - {victim}:
                    code, answer, log = ranks[rank].result()
                    self.assertEqual(code, 3, log)
                    self.assertRegex(answer["error"]["message"], rf"\brank {victim}\b")

    def test_a_rank_that_does_not_come(self):
        for missing in (0, 1):
            with self.subTest(missing=missing), TrainingFleet(WSYNC) as fleet:
                ranks = self.ranks(fleet, TINY | {"deadline": short(2000)}, 1 - missing)
                code, answer, log = ranks[1 - missing].result()
                self.assertEqual(code, 3, log)
                self.assertEqual(answer["error"]["code"], "deadline")
                self.assertRegex(answer["error"]["message"], rf"\brank {missing}\b")

    def test_an_interrupt_of_one_ends_all_in_order(self):
        for rank in range(2):
            with self.subTest(rank=rank), TrainingFleet(WSYNC) as fleet:
                directory = fleet.path("saved")
                ranks = self.ranks(fleet, TINY | {"steps": 1_000_000, "save.directory": directory}, 0, 1)
                ranks[0].until_step(2)
                ranks[rank].send(signal.SIGINT)
                ended = {other: process.result() for other, process in ranks.items()}
                self.assertEqual(ended[0][0], 130, ended[0][2])
                self.assertEqual(ended[0][1]["result"]["saved"][-1]["step"], ended[0][1]["result"]["steps"][-1]["step"])
                self.assertEqual(ended[1][0], 0, ended[1][2])


if __name__ == "__main__":
    unittest.main()

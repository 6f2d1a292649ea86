"""Ranks that are lost while they train: others take their places, at most one step is lost, and the run comes to the bytes of a run
in which nobody was lost."""
import functools
import os
import random
import signal
import subprocess
import sys
import unittest

from fleet import short
from training import TINY, TrainingFleet, digests

WSYNC = sys.argv.pop()

RANKS = 4  # of pipeline rank 0: 0 and 1, which have the same weights; of pipeline rank 1: 2 and 3
# No clock ends an exchange, and no silence is long enough.
PATIENT = TINY | {"model.layers": 4, "parallel.pp": 2, "parallel.dp": 2, "deadline": "1h", "heartbeat.deadline": "1h"}
STEPS = 6
SHORT = PATIENT | {"steps": STEPS}
# The learning rate does not depend on how many steps there are: what this comes to in a number of steps, a shorter run does too.
ENDLESS = PATIENT | {"steps": 1_000_000, "optimizer.learning_rate": 0.002, "optimizer.final_learning_rate": 0.002}
# Experts of which each rank alone has its part.
ALONE = {"one replica": {"parallel.dp": 1}, "shared experts": {"parallel.ep": 2}}
FORWARDS = 8  # of a rank in a step: two chunks, four micro-batches
# Where a rank can be made to kill itself, its phases there (of several micro-batches one may go backward before another goes forward),
# and whether the step is ended by those that are left.
POINTS = {"forward": (("forward", "backward"), False), "backward": (("backward",), False),
          "before_barrier": (("backward",), False), "after_barrier": (("update",), True), "optimizer": (("update",), True),
          "after_commit": (("forward",), True)}
IMPATIENT = {"heartbeat.deadline": short(2000), "heartbeat.interval": "50ms"}


def numbers(step):
    return step["loss"], step["gradient_norm"], step["learning_rate"]


@functools.cache
def computed_alone(items):
    """What a run in one process computes in each step, and the digests of the state that it ends with."""
    values = dict(items)
    with TrainingFleet(WSYNC) as fleet:
        saved = fleet.path("saved")
        result = fleet.trained(values | {"save.directory": saved}, "--sequential")
        return {step["step"]: numbers(step) for step in result["steps"]}, digests(f"{saved}/step_{values['steps']}")


class RecoveryCase(unittest.TestCase):
    def is_undisturbed(self, result, values, directory):
        """Every step came to what it comes to without a loss, and so did the state after the last one."""
        last = result["steps"][-1]["step"]
        steps, state = computed_alone(tuple((values | {"steps": last}).items()))
        self.assertEqual({step["step"] for step in result["steps"]}, set(steps))
        for step in result["steps"]:
            self.assertEqual(numbers(step), steps[step["step"]], step)
        self.assertEqual(digests(f"{directory}/step_{last}"), state)

    def stopped(self, fleet, run, values):
        """Ends a run in order that is asked to; what it says of itself."""
        run.send(signal.SIGINT)
        return self.has_stopped(fleet, run, values)

    def has_stopped(self, fleet, run, values):
        code, answer, log = run.result()
        self.assertEqual(code, 130, log)
        self.assertTrue(answer["result"]["stopped"])
        self.is_undisturbed(answer["result"], values, fleet.path("saved"))
        fleet.until_none_is_left()
        return answer["result"], log

    def ended(self, fleet, run, values):
        code, answer, log = run.result()
        self.assertEqual(code, 0, log)
        self.is_undisturbed(answer["result"], values, fleet.path("saved"))
        fleet.until_none_is_left()
        return answer["result"], log

    def failed(self, fleet, run, *words):
        """Ends for the loss of ranks, with a sentence that has these words."""
        code, answer, log = run.result()
        self.assertEqual(code, 3, log)
        self.assertEqual(answer["error"]["code"], "peer_lost")
        for word in words:
            self.assertIn(word, answer["error"]["message"])
        fleet.until_none_is_left()


class FailPoints(RecoveryCase):
    def lost_at(self, rank, point, step):
        hits = FORWARDS * (step - 1) + 2 * rank + 1 if point == "forward" else step
        with TrainingFleet(WSYNC) as fleet:
            run = fleet.training(SHORT | {"save.directory": fleet.path("saved")}, fail_point=f"{rank}:{point}:{hits}")
            processes = run.processes_until_its_end()
            result, log = self.ended(fleet, run, SHORT)
            phases, ends = POINTS[point]
            loss, = result["losses"]
            self.assertIn(loss.pop("phase"), phases)
            self.assertEqual(loss, {"event": "lost", "rank": rank, "pid": processes[rank][0], "why": "was killed by signal 9",
                                    "step": step + 1 if point == "after_commit" else step})
            recovery, = result["recoveries"]
            self.assertEqual((recovery["step"], recovery["replaced"]), (step + 1 if ends else step, [rank]), log)
            # In the first step the one that has the same weights may not have had them yet.
            if recovery["from"] != "start" or step > 1 or ends:
                self.assertEqual(recovery["from"], "peers", log)
                self.assertGreater(recovery["bytes"], 0)
            # Nobody else was started anew.
            self.assertEqual({one: len(pids) for one, pids in processes.items()},
                             {one: 2 if one == rank else 1 for one in range(RANKS)})

    def test_each_rank_at_each_point(self):
        for rank, step in enumerate((1, 3, 5, STEPS)):
            for point in POINTS:
                with self.subTest(rank=rank, point=point, step=step):
                    self.lost_at(rank, point, step)

    def test_when_no_step_is_left(self):
        for rank, point in ((0, "end"), (3, "end"), (0, "last_barrier"), (1, "last_barrier")):
            with self.subTest(rank=rank, point=point), TrainingFleet(WSYNC) as fleet:
                values = SHORT | {"save.directory": fleet.path("saved"), "trace_file": fleet.path("trace")}
                run = fleet.training(values, fail_point=f"{rank}:{point}:1")
                result, log = self.ended(fleet, run, SHORT)
                self.assertEqual([loss["rank"] for loss in result["losses"]], [rank])
                # Once, whoever told it.
                self.assertEqual([one["step"] for one in result["saved"]], [STEPS])
                self.assertTrue(os.path.exists(fleet.path("trace.json")) or "nothing is drawn" in log, log)

    def test_after_a_stop_that_is_shared(self):
        for rank in (0, 2):
            with self.subTest(rank=rank), TrainingFleet(WSYNC) as fleet:
                # A step that save.every does not save.
                more = {"save.directory": fleet.path("saved"), "save.every": 1_000_000}
                run = fleet.training(ENDLESS | more, fail_point=f"{rank}:end:1")
                run.until_step(2)
                result, log = self.stopped(fleet, run, ENDLESS)
                self.assertEqual([loss["rank"] for loss in result["losses"]], [rank], log)
                self.assertEqual(len(result["saved"]), 1)

    def test_where_nobody_has_what_was_lost(self):
        for label, more in ALONE.items():
            values = SHORT | more
            with self.subTest(label, checkpoint=True), TrainingFleet(WSYNC) as fleet:
                run = fleet.training(values | {"save.directory": fleet.path("saved"), "save.every": 2},
                                     fail_point="1:backward:6")
                result, log = self.ended(fleet, run, values)
                recovery, = result["recoveries"]
                self.assertEqual((recovery["from"], recovery["step"]), ("checkpoint", 5))
                said = [line for line in log.splitlines() if fleet.path("saved/step_4") in line and "saved /" not in line]
                self.assertEqual(len(said), 1, log)
            with self.subTest(label, checkpoint=False), TrainingFleet(WSYNC) as fleet:
                run = fleet.training(values | {"save.directory": fleet.path("saved")}, fail_point="1:backward:3")
                self.failed(fleet, run, "rank 1", "save.every")
                self.assertEqual(os.listdir(fleet.path("saved")), [])
            with self.subTest(label, steps=0), TrainingFleet(WSYNC) as fleet:
                run = fleet.training(values | {"save.directory": fleet.path("saved")}, fail_point="1:before_barrier:1")
                result, _ = self.ended(fleet, run, values)
                recovery, = result["recoveries"]
                self.assertEqual((recovery["from"], recovery["step"]), ("start", 1))

    def test_a_run_that_goes_on_from_a_state_falls_back_to_it(self):
        with TrainingFleet(WSYNC) as fleet:
            values = SHORT | ALONE["one replica"]
            data = {key: value for key, value in values.items() if not key.startswith("model.")}
            fleet.trained(values | {"save.directory": fleet.path("saved"), "save.every": 4})
            begin = fleet.path("begin")
            os.rename(fleet.path("saved/step_4"), begin)
            before = digests(fleet.path(f"saved/step_{STEPS}"))
            run = fleet.training(data | {"save.directory": fleet.path("again")}, "--resume", begin,
                                 fail_point="0:backward:1")
            code, answer, log = run.result()
            self.assertEqual(code, 0, log)
            recovery, = answer["result"]["recoveries"]
            self.assertEqual((recovery["from"], recovery["step"]), ("start", 5))
            self.assertEqual(digests(fleet.path(f"again/step_{STEPS}")), before)

    def test_what_is_no_fail_point_is_refused(self):
        with TrainingFleet(WSYNC) as fleet:
            for given in ("::", "1", "1:forward", "1:sideways:1", "x:forward:1", "1:forward:0", "4:forward:1", "1:forward:1:1"):
                with self.subTest(given):
                    code, answer, log = fleet.training(SHORT, fail_point=given).result()
                    self.assertEqual(code, 2, log)
                    self.assertIn("WSYNC_FAIL_POINT", answer["error"]["message"])


class Signals(RecoveryCase):
    """Losses at whatever point they find a rank."""

    def begun(self, fleet, more=None):
        return fleet.training(ENDLESS | {"save.directory": fleet.path("saved")} | (more or {}))

    def test_kills_at_random_times(self):
        seed = random.randrange(2**32)
        print(f"seed {seed}", file=sys.stderr)
        rng = random.Random(seed)
        with self.subTest(seed=seed), TrainingFleet(WSYNC) as fleet:
            # A kill may find another one not recovered from.
            run = self.begun(fleet, {"save.every": 10, "recovery.attempts": 20})
            run.until_step(2)
            for _ in range(6):
                rank = rng.randrange(RANKS)
                pid = run.processes_of_ranks()[rank][-1]
                try:
                    run.wait(timeout=rng.uniform(0, 0.05))
                except subprocess.TimeoutExpired:
                    pass
                os.kill(pid, signal.SIGKILL)
                run.replacement(rank, pid)
                run.until_step(run.last_step() + rng.randrange(1, 9))
            result, log = self.stopped(fleet, run, ENDLESS)
            self.assertEqual(len(result["losses"]), 6, log)
            for recovery in result["recoveries"]:
                self.assertIn(recovery["from"], ("peers", "checkpoint"))

    def test_killed_before_it_trains(self):
        for rank in range(RANKS):
            with self.subTest(rank=rank), TrainingFleet(WSYNC) as fleet:
                run = fleet.training(SHORT | {"save.directory": fleet.path("saved")})
                os.kill(run.ranks(RANKS)[rank], signal.SIGKILL)
                result, _ = self.ended(fleet, run, SHORT)
                loss, = result["losses"]
                self.assertEqual(loss["rank"], rank)
                self.assertEqual(result["recoveries"][-1]["step"], 1)

    def both_holders_killed(self, fleet, more):
        run = self.begun(fleet, more)
        pids = run.ranks(RANKS)[2:]
        run.until_step(7)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                os.kill(pid, number)
        return run, pids

    def test_both_holders_of_a_part_killed(self):
        with self.subTest(checkpoint=True), TrainingFleet(WSYNC) as fleet:
            run, pids = self.both_holders_killed(fleet, {"save.every": 3})
            run.replacement(2, *pids)
            run.replacement(3, *pids)
            run.until_step(run.last_step() + 3)
            result, log = self.stopped(fleet, run, ENDLESS)
            self.assertEqual({loss["rank"] for loss in result["losses"]}, {2, 3})
            recovery = result["recoveries"][-1]
            self.assertEqual((recovery["from"], recovery["step"] % 3), ("checkpoint", 1), log)
            # Nothing unfinished is left. What was saved when the ranks were lost may not have been told.
            states = set(os.listdir(fleet.path("saved")))
            self.assertEqual({state.rstrip("0123456789") for state in states}, {"step_"})
            self.assertLessEqual({f"step_{one['step']}" for one in result["saved"]}, states)
        with self.subTest(checkpoint=False), TrainingFleet(WSYNC) as fleet:
            run, _ = self.both_holders_killed(fleet, {})
            self.failed(fleet, run, "ranks 2 and 3, the only holders of", "save.every")

    def test_a_saved_state_that_is_damaged(self):
        with TrainingFleet(WSYNC) as fleet:
            values = ENDLESS | ALONE["one replica"]
            run = fleet.training(values | {"save.directory": fleet.path("saved"), "save.every": 3})
            pids = run.ranks(2)
            run.until_step(7)
            for pid in pids:
                fleet.halt(pid)
            newest = max(int(name[5:]) for name in os.listdir(fleet.path("saved")) if name.startswith("step_"))
            os.truncate(fleet.path(f"saved/step_{newest}/optimizer/state.safetensors"), 1000)
            os.kill(pids[1], signal.SIGKILL)
            os.kill(pids[0], signal.SIGCONT)
            run.replacement(1, *pids)
            run.until_step(run.last_step() + 4)
            result, log = self.stopped(fleet, run, values)
            recovery, = result["recoveries"]
            self.assertEqual(recovery["from"], "checkpoint", log)
            if recovery["step"] != newest + 4:  # else rank 0 was about to write the next one, which is whole
                self.assertEqual(recovery["step"], newest - 2, log)
                self.assertIn(f"it is now {fleet.path('saved')}/step_{newest}.unreadable", log)

    def test_ranks_that_are_silent(self):
        with TrainingFleet(WSYNC) as fleet:
            run = self.begun(fleet, IMPATIENT)
            pids = run.ranks(RANKS)
            run.until_step(3)
            # Of different pipeline ranks: each has another that has all it had.
            for rank in (1, 2):
                fleet.halt(pids[rank])
            for rank in (1, 2):
                run.replacement(rank, *pids)
            run.until_step(run.last_step() + 3)
            self.assertFalse(any(os.path.exists(f"/proc/{pids[rank]}") for rank in (1, 2)))
            result, log = self.stopped(fleet, run, ENDLESS)
            self.assertEqual({(loss["rank"], loss["pid"]) for loss in result["losses"]}, {(1, pids[1]), (2, pids[2])})
            for loss in result["losses"]:
                self.assertIn("has sent no heartbeat for", loss["why"])
            self.assertEqual({recovery["from"] for recovery in result["recoveries"]}, {"peers"}, log)

    def test_what_is_silent_and_kept_is_cut_off(self):
        for wakes, sleeps in ((0, 3), (2, 1)):
            with self.subTest(wakes=wakes, sleeps=sleeps), TrainingFleet(WSYNC) as fleet:
                run = self.begun(fleet, IMPATIENT | {"recovery.keep_silent": True})
                pids = run.ranks(RANKS)
                run.until_step(3)
                for rank in (wakes, sleeps):
                    fleet.halt(pids[rank])
                for rank in (wakes, sleeps):
                    run.replacement(rank, pids[rank])
                run.until_step(run.last_step() + 3)
                os.kill(pids[wakes], signal.SIGCONT)
                run.until(lambda: pids[wakes] not in fleet.left(), "the end of the one that was replaced")
                told = [line for line in run.log().splitlines() if f"trainer rank {wakes}: stops: " in line]
                self.assertEqual(len(told), 1, run.log())
                self.assertIn("another process has replaced it", told[0])
                run.until_step(run.last_step() + 3)
                # The other one does not outlive the run.
                with open(f"/proc/{pids[sleeps]}/stat", encoding="ascii") as stat:
                    self.assertEqual(stat.read().rpartition(")")[2].split()[0], "T")
                result, _ = self.stopped(fleet, run, ENDLESS)
                self.assertEqual({(loss["rank"], loss["pid"]) for loss in result["losses"]},
                                 {(rank, pids[rank]) for rank in (wakes, sleeps)})
                self.assertEqual({recovery["from"] for recovery in result["recoveries"]}, {"peers"})

    def test_a_rank_that_is_lost_again_and_again(self):
        with TrainingFleet(WSYNC) as fleet:
            run = self.begun(fleet, {"recovery.attempts": 2, "save.every": 1})
            killed = [run.ranks(RANKS)[1]]
            run.until_step(2)
            os.kill(killed[0], signal.SIGKILL)
            while run.poll() is None:
                for pid in run.processes_of_ranks().get(1, []):
                    if pid not in killed:
                        killed.append(pid)
                        os.kill(pid, signal.SIGKILL)
            self.assertGreaterEqual(len(killed), 3)
            self.failed(fleet, run, f"rank 1 (pid {killed[-1]}) was killed by signal 9", "recovery.attempts")


class Interrupts(RecoveryCase):
    def test_while_ranks_recover(self):
        for rank in (0, 2):
            with self.subTest(rank=rank), TrainingFleet(WSYNC) as fleet:
                run = fleet.training(ENDLESS | {"save.directory": fleet.path("saved")})
                pid = run.ranks(RANKS)[rank]
                run.until_step(2)
                os.kill(pid, signal.SIGKILL)
                again = run.replacement(rank, pid)
                fleet.halt(again)  # so that nobody has recovered
                run.send(signal.SIGINT)
                run.until(lambda: "a second interrupt" in run.log(), "the answer to the first one")
                os.kill(again, signal.SIGCONT)
                self.has_stopped(fleet, run, ENDLESS)

    def test_rank_0_lost_after_it_was_told(self):
        with TrainingFleet(WSYNC) as fleet:
            run = fleet.training(ENDLESS | {"save.directory": fleet.path("saved")})
            pids = run.ranks(RANKS)
            run.until_step(2)
            fleet.halt(pids[2])  # so that the step that runs does not end
            run.send(signal.SIGINT)
            run.until(lambda: "a second interrupt" in run.log(), "the answer to the first one")
            os.kill(pids[0], signal.SIGKILL)
            run.replacement(0, pids[0])
            os.kill(pids[2], signal.SIGCONT)
            self.has_stopped(fleet, run, ENDLESS)

    def test_a_second_one_ends_all_at_once(self):
        with TrainingFleet(WSYNC) as fleet:
            run = fleet.training(ENDLESS | {"save.directory": fleet.path("saved")})
            pid = run.ranks(RANKS)[3]
            run.until_step(2)
            os.kill(pid, signal.SIGKILL)
            fleet.halt(run.replacement(3, pid))
            run.send(signal.SIGINT)
            run.until(lambda: "a second interrupt" in run.log(), "the answer to the first one")
            run.send(signal.SIGINT)
            code, _, log = run.result()
            self.assertEqual(code, 130, log)
            fleet.until_none_is_left()

    def test_the_launcher_killed(self):
        with TrainingFleet(WSYNC) as fleet:
            run = fleet.training(ENDLESS | {"save.directory": fleet.path("saved")})
            pid = run.ranks(RANKS)[1]
            run.until_step(2)
            os.kill(pid, signal.SIGKILL)
            fleet.halt(run.replacement(1, pid))
            run.send(signal.SIGKILL)
            fleet.until_none_is_left()


if __name__ == "__main__":
    unittest.main()

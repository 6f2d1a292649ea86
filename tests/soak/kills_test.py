"""wsync_soak kills: ranks of a training run are killed at random times, and it goes on with the same weights. No time is compared
with anything: the machine may be busy."""
import math
import sys
import unittest

from soak import DEADLINE_S, SoakCase, interrupt_leaves_nothing

SoakCase.wsync, SoakCase.soak = sys.argv[-2:]
del sys.argv[-2:]


class Kills(SoakCase):
    run_name = "kills"
    KILLS = 6

    def recover(self, *more, ranks, kills=KILLS):
        result = self.result_of("--kills", str(kills), *more)
        self.assertEqual((result["kills"], len(result["each"]), len(result["by_rank"])), (kills, kills, ranks))
        for kill in result["each"]:
            self.assertTrue(0 < kill["lost_ms"] < kill["recovered_ms"] < kill["resumed_ms"], kill)
            self.assertEqual(kill["from"], "peers")
            self.assertIn(kill["resumed_step"], (kill["step"], kill["step"] + 1))
            self.assertGreater(kill["bytes"], 0)
        self.assertEqual(sum(result["by_rank"]), kills)
        self.assertEqual(sum(phase["kills"] for phase in result["by_phase"].values()), kills)
        self.assertEqual(sum(result["by_steps_run_again"].values()), kills)
        self.assertEqual(result["by_source"], {"peers": kills})
        # Every step of the run was told and is equal to the other run's; so are config.json and both files of tensors.
        self.assertGreater(result["steps"], kills)
        self.assertEqual(result["told_steps"],
                         {"compared": result["steps"] + result["steps_told_again"], "diverged": 0, "told": []})
        self.assertEqual(result["saved_files"], {"compared": 3, "diverged": 0, "told": []})
        for figure in (result["step_ms"]["median"], result["restart_ms"]["median"], result["resumed_by_restart"], result["resumed_by_step"]):
            self.assertTrue(0 < figure < math.inf, result)
        return result

    def test_kills_at_random_times(self):
        result = self.recover(ranks=4)
        self.assertEqual((result["pp"], result["vpp"], result["dp"], result["ep"]), (2, 2, 2, 1))

    def test_one_stage(self):
        self.recover("--pp", "1", "--seed", "2", "--between", "2", ranks=2, kills=2)

    def test_an_interrupt_leaves_nothing_behind(self):
        # The run, the launcher, four ranks
        interrupt_leaves_nothing(self, self.command("--kills", "10000"), self.directory, 6, DEADLINE_S)

    def test_bad_arguments(self):
        for bad in (["--kills", "0"], ["--kills", "many"], ["--between", "0"], ["--dp", "1"], ["--pp", "0"], ["--ep", "2"],
                    ["--pp", "9", "--dp", "8"], ["--dp", "4", "--ep", "3"], ["--directory", "/nowhere"], ["--steps", "9"]):
            self.refuses(*bad)


if __name__ == "__main__":
    unittest.main()

"""A real GRPOTrainer with a real vLLM server: the model that answers is the model that is trained."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

from vllm_fleet import START_S, Server, VllmFleet

import models

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = {"follow": 150, "drop": 25}


class Trl(unittest.TestCase):
    def trained(self, updates):
        """Rewards, and the difference between the log-probabilities of trainer and engine, of each step."""
        with tempfile.TemporaryDirectory() as work, VllmFleet() as fleet:
            model = models.save(os.path.join(work, "model"), models.mixture, 1)
            _, engines = fleet.sidecar("s0")
            server = Server(fleet, model, "--logprobs-mode", "processed_logprobs", engines=engines, replica="r0",
                            VLLM_SERVER_DEV_MODE="1").until_serving()
            done = subprocess.run(
                [sys.executable, os.path.join(HERE, "trl_train.py"), model, f"http://127.0.0.1:{server.port}", fleet.run_dir,
                 fleet.path("state"), str(STEPS[updates]), updates], env=dict(fleet.environment, VLLM_PLUGINS=""), stdout=subprocess.PIPE,
                text=True, timeout=2 * START_S, check=True)
            result = json.loads(done.stdout.splitlines()[-1])
            print(f"\n{updates}: reward {result['rewards'][0]:.2f} to {result['rewards'][-1]:.2f}, difference of log-probabilities "
                  f"{max(result['differences']):.3f} at most, {result['updates']} updates, paused {result['paused_ms']} ms",
                  file=sys.stderr)
            return result

    def test_the_reward_rises_and_the_engine_computes_with_the_trainers_weights(self):
        result = self.trained("follow")
        self.assertLess(result["rewards"][0], 0.4)
        self.assertGreater(max(result["rewards"][-5:]), 0.9)
        self.assertLess(max(result["differences"]), 0.1)
        self.assertGreaterEqual(result["updates"], max(25, len(result["rewards"])))

    def test_the_control_that_drops_the_updates_fails_both(self):
        result = self.trained("drop")
        self.assertLess(max(result["rewards"][-5:]), 0.9)
        self.assertGreater(max(result["differences"]), 0.1)


if __name__ == "__main__":
    unittest.main()

"""Training runs that publish their steps to a fleet on this machine, for scenario tests."""
import os
import unittest

from serving import ServingFleet


class PublishingFleet(ServingFleet):
    def publishing(self, values, *arguments, **more):
        """A run that publishes to this fleet."""
        return self.training({"publish.run_dir": self.run_dir, "publish.state_dir": self.path("state")} | values,
                             *arguments, **more)

    def with_engines(self, values, *replicas):
        """A sidecar, and engines that begin with the weights that the run begins with."""
        first = self.path("first")
        if not os.path.exists(first):
            self.trained(values, "--export", first)
        _, socket = self.sidecar("s0")
        return [self.engine(socket, replica, first) for replica in replicas]


class PublishCase(unittest.TestCase):
    def ended(self, run, code=0):
        found, answer, log = run.result()
        self.assertEqual(found, code, log)
        return answer["result"]

    def is_what_was_trained(self, fleet, last, values, state):
        """The engines have the version `last`, and its bytes are the saved state's in bf16."""
        address = f"ipc://{fleet.run_dir}/s0.control"
        code, answer = fleet.ask("verify", address=address)
        self.assertEqual(code, 0, answer)
        self.assertEqual({rank["version"] for rank in answer["result"]["ranks"]}, {last["version"]})
        end = fleet.path("end")
        model = {key: value for key, value in values.items() if not key.startswith("model.")}
        fleet.trained(model | {"steps": last["step"] + 1}, "--resume", state, "--export", end)
        fleet.start("trainer")  # another coordinator: the run's own has gone with it
        fleet.until(lambda: fleet.ask("status")[0] == 0, "the next coordinator")
        code, answer = fleet.ask("push", end)
        self.assertEqual(code, 0, answer)
        self.assertEqual(answer["result"]["content_digest"], last["content_digest"])
        self.assertEqual(answer["result"]["bytes"], last["bytes"])

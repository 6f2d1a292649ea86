"""Ranks that are lost while their weights are published: engines answer all the time, versions only grow, and what is served in the
end is what a run without a loss serves."""
import concurrent.futures
import os
import signal
import sys
import unittest

from fleet import short
from publishing import PublishCase, PublishingFleet
from serving import MODEL
from training import digests

WSYNC = sys.argv.pop()

RANKS = 4
VALUES = MODEL | {"model.layers": 4, "parallel.pp": 2, "parallel.dp": 2, "heartbeat.interval": "50ms",
                  "publish.pause_mode": "keep", "publish.heartbeat.interval": "50ms", "publish.heartbeat.deadline": short(1000)}
# The learning rate does not depend on how many steps there are.
ENDLESS = {"steps": 1_000_000, "optimizer.learning_rate": 0.002, "optimizer.final_learning_rate": 0.002}


def order(version):
    """Epoch and step."""
    return tuple(int(part) for part in version.split("."))


class Clients:
    """Ask an engine without a break; what it answers."""

    def __init__(self, server):
        self.server = server
        self.asks = True
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        self.running = [self.pool.submit(self.ask, name) for name in "xy"]

    def ask(self, name):
        answers = []
        while self.asks:
            answers.append(self.server.complete(name, 20))  # anything but an answer is an error
        return answers

    def end(self):
        """Of each client, its answers."""
        self.asks = False
        answers = [running.result() for running in self.running]
        self.pool.shutdown()
        return answers


class RecoveryPublish(PublishCase):
    def served(self, run, beyond=0):
        """Waits for a step that is served, after others that are from now on."""
        told = run.log().count("is served as")
        run.until(lambda: run.log().count("is served as") > told + beyond, "a step that is served")

    def begun(self, fleet, more, fail_point=None):
        model = fleet.path("initial")
        fleet.trained(VALUES | {"steps": 1}, "--export", model)
        _, socket = fleet.sidecar("s0")
        replicas = [fleet.serving(model, "--sidecar", socket, "--replica", name) for name in "ab"]
        run = fleet.publishing(VALUES | ENDLESS | more | {"save.directory": fleet.path("saved"), "publish.min_replicas": 2},
                               fail_point=fail_point)
        pids = run.ranks(RANKS)
        for _, server in replicas:
            fleet.ready(server)
        clients = [Clients(server) for _, server in replicas]
        self.served(run)
        return run, pids, replicas, clients

    def ended_well(self, fleet, run, replicas, clients, epoch):
        """What engines have answered, and what they serve in the end."""
        answers = [answer for client in clients for answer in client.end()]
        run.send(signal.SIGINT)
        result = self.ended(run, 130)
        for of_client in answers:
            self.assertGreater(len(of_client), 0)
            versions = [order(span["version"]) for answer in of_client for span in answer["weight_versions"]]
            self.assertEqual(versions, sorted(versions))
        committed = [order(one["version"]) for one in result["publishes"] if one["state"] == "committed"]
        self.assertEqual(committed, sorted(set(committed)))
        last = result["publishes"][-1]
        self.assertEqual((last["state"], order(last["version"])), ("committed", (epoch, last["step"])), last)
        self.assertEqual(last["step"], result["steps"][-1]["step"])
        for _, server in replicas:
            self.assertEqual(server.ask("GET", "/weight_info")[1]["version"], last["version"])
        alone = {key: value for key, value in (VALUES | ENDLESS | {"steps": last["step"]}).items()
                 if not key.startswith("publish.")}
        fleet.trained(alone | {"save.directory": fleet.path("alone")}, "--sequential")
        state = fleet.path(f"alone/step_{last['step']}")
        self.assertEqual(digests(fleet.path(f"saved/step_{last['step']}")), digests(state))
        self.is_what_was_trained(fleet, last, alone, state)
        fleet.ends_untorn(*(engine for engine, _ in replicas))
        return result

    def test_a_rank_killed(self):
        # The coordinator; one that publishes nothing; one that has a half of the model and has not given it for the step that it ended.
        for rank, point, epoch in ((0, "optimizer", 2), (1, "backward", 1), (2, "after_commit", 1)):
            with self.subTest(rank=rank, point=point), PublishingFleet(WSYNC) as fleet:
                run, pids, replicas, clients = self.begun(fleet, {}, f"{rank}:{point}:60")
                run.replacement(rank, pids[rank])
                self.served(run, beyond=2)
                result = self.ended_well(fleet, run, replicas, clients, epoch)
                recovery, = result["recoveries"]
                self.assertEqual((recovery["replaced"], recovery["from"]), ([rank], "peers"))

    def test_one_that_wakes_up_again_is_cut_off(self):
        for rank, epoch in ((0, 2), (2, 1)):
            with self.subTest(rank=rank), PublishingFleet(WSYNC) as fleet:
                run, pids, replicas, clients = self.begun(fleet, {"recovery.keep_silent": True, "heartbeat.deadline": short(2000)})
                fleet.halt(pids[rank])
                run.replacement(rank, pids[rank])
                self.served(run, beyond=2)
                os.kill(pids[rank], signal.SIGCONT)
                run.until(lambda: pids[rank] not in fleet.left(), "the end of the one that was replaced")
                self.served(run, beyond=2)
                result = self.ended_well(fleet, run, replicas, clients, epoch)
                self.assertEqual(result["recoveries"][-1]["replaced"], [rank])


if __name__ == "__main__":
    unittest.main()

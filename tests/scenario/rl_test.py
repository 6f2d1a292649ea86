"""Reinforcement learning as real processes: engines answer, ranks train on the answers, and each step's weights answer next."""
import os
import signal
import sys
import unittest

from fleet import short
from demos import DemoCase, texts_of
from serving import Server, ServingFleet

WSYNC = DemoCase.wsync = sys.argv.pop()
# A step of 16 answers, two to each problem.
SMALL = {"model.hidden": 16, "model.heads": 4, "model.key_value_heads": 2, "model.head_dim": 8, "model.experts": 4,
         "model.expert_hidden": 16, "data.sequence": 20, "data.micro_batch": 4, "rollout.answers": 2,
         "rollout.warm_start_steps": 3, "steps": 8}


def counts(result, steps, first):
    """Of a run whose answers were all there: its steps with answers."""
    rollouts = result["rollouts"]
    assert [r["step"] for r in rollouts] == list(range(first, first + steps)), rollouts
    return rollouts


class Demo(DemoCase):
    def test_a_policy_trains_on_its_own_answers(self):
        result = self.run_demo("--rl", "--steps", "12", "--warm-start", "6")
        rollouts = counts(result["training"], 12, 7)
        self.assertEqual({r["staleness_most"] for r in rollouts}, {0})
        # Engine and trainer compute the same, token by token.
        self.assertEqual({r["mismatch_tokens"] > 0 for r in rollouts}, {True})
        self.assertLess(max(r["mismatch_most"] for r in rollouts), 1e-3)
        self.assertEqual(max(abs(r["mismatch_most"] - r["drift_most"]) for r in rollouts), 0)
        self.assertEqual(result["torn"], 0)
        publishes = result["training"]["publishes"]
        self.assertEqual([p["step"] for p in publishes], list(range(6, 19)))
        self.assertEqual({p["state"] for p in publishes}, {"committed"})
        self.assertGreater(result["verified_bytes"], 0)
        texts = texts_of(result["picture"])
        self.assertTrue(any("reward" in text for text in texts), texts)

    def test_engines_that_keep_their_weights_drift_away(self):
        result = self.run_demo("--rl", "--steps", "12", "--warm-start", "6", "--no-sync")
        rollouts = counts(result["training"], 12, 7)
        self.assertEqual([r["staleness_most"] for r in rollouts], list(range(12)))
        self.assertLess(rollouts[0]["drift_most"], 1e-3)
        self.assertGreater(rollouts[-1]["drift_most"], 10 * rollouts[0]["drift_most"])
        self.assertGreater(rollouts[-1]["drift_mean"], rollouts[1]["drift_mean"])
        self.assertEqual([p["step"] for p in result["training"]["publishes"]], [6])

    def test_answers_go_on_beside_training_within_bounds(self):
        result = self.run_demo("--rl", "--steps", "20", "--warm-start", "6", "--max-staleness", "2")
        rollouts = counts(result["training"], 20, 7)
        self.assertLessEqual(max(r["staleness_most"] for r in rollouts), 2)
        self.assertGreater(max(r["staleness_most"] for r in rollouts), 0)
        self.assertLess(max(r["mismatch_most"] for r in rollouts), 1e-3)
        self.assertEqual(result["torn"], 0)

    def test_an_interrupt_ends_it_in_order(self):
        code, err = self.interrupt("step    1:", [signal.SIGINT], "--rl", "--steps", "400", "--warm-start", "6")
        self.assertEqual(code, 130, err)


class Loop(unittest.TestCase):
    """By hand: `wsync trainer` with engines that somebody else has started."""

    def begun(self, fleet, replicas=("a", "b")):
        """Engines, their servers, and the settings of a run on them."""
        model = fleet.path("initial")
        fleet.trained({key: value for key, value in SMALL.items() if not key.startswith("rollout.")}, "--export", model)
        _, socket = fleet.sidecar("s0")
        engines = [fleet.serving(model, "--sidecar", socket, "--replica", name) for name in replicas]
        run = SMALL | {"rollout.engines": ",".join(server.address.geturl() for _, server in engines),
                       "publish.run_dir": fleet.run_dir, "publish.state_dir": fleet.path("state"),
                       "publish.min_replicas": len(replicas), "publish.pause_mode": "keep"}
        return engines, run, (model, socket)

    def test_a_replica_lost_in_the_middle_catches_up(self):
        with ServingFleet(WSYNC) as fleet:
            engines, values, (model, socket) = self.begun(fleet)
            run = fleet.training(values | {"steps": 1_000_000, "rollout.deadline": short(5000), "publish.min_replicas": 1})
            run.until_step(8)
            engines[1][0].kill()
            run.until_step(run.last_step() + 5)
            port = engines[1][1].address.port
            again = fleet.start("engine", "--json", "--model", model, "--port", str(port), "--stats-ms", "0",
                                "--sidecar", socket, "--replica", "b")
            fleet.event(again, "listening")
            server = Server(f"http://127.0.0.1:{port}")
            run.until(lambda: server.ask("GET", "/stats")[1]["generated_tokens"] > 0, "answers of the one that came back")
            run.send(signal.SIGINT)
            code, answer, log = run.result()
            self.assertEqual(code, 130, log)
            result = answer["result"]
            self.assertGreater(sum(r["failed_questions"] for r in result["rollouts"]), 0)
            counts(result, len(result["rollouts"]), 4)
            last = result["publishes"][-1]
            self.assertEqual((last["step"], last["state"]), (result["steps"][-1]["step"], "committed"))
            fleet.until(lambda: server.ask("GET", "/weight_info")[1].get("version") == last["version"], last["version"])
            fleet.ends_untorn(engines[0][0], again)

    def test_a_rank_lost_in_the_middle(self):
        # With answers of engines in its hands that are asked for again, and with all it has to publish.
        for rank, point in ((0, "forward:41"), (1, "backward:6"), (0, "optimizer:7"), (2, "after_commit:7")):
            with self.subTest(rank=rank, point=point), ServingFleet(WSYNC) as fleet:
                engines, values, _ = self.begun(fleet)
                result = fleet.trained(values | {"parallel.dp": 2, "steps": 10}, fail_point=f"{rank}:{point}")
                recovery, = result["recoveries"]
                self.assertEqual((recovery["replaced"], recovery["from"]), ([rank], "peers"))
                self.assertEqual({r["step"] for r in result["rollouts"]}, set(range(4, 11)))
                # What engines answered with is what the trainer has: nobody went on with other weights.
                self.assertLess(max(r["mismatch_most"] for r in result["rollouts"]), 1e-3)
                self.assertEqual(result["publishes"][-1]["step"], 10)
                fleet.ends_untorn(*(engine for engine, _ in engines))

    def test_an_engine_that_stands_still_is_passed_by_until_it_comes_back(self):
        with ServingFleet(WSYNC) as fleet:
            # Weights of its own: nobody publishes, so nobody waits for the one that stands still.
            model = fleet.path("initial")
            fleet.trained({key: value for key, value in SMALL.items() if not key.startswith("rollout.")}, "--export", model)
            engines = [fleet.serving(model, "--replica", name) for name in "ab"]
            run = fleet.training(SMALL | {
                "rollout.engines": ",".join(server.address.geturl() for _, server in engines), "rollout.deadline": "300ms",
                "steps": 1_000_000})
            run.until_step(6)
            silent, server = engines[1]
            fleet.halt(silent.pid)
            try:
                run.until_step(run.last_step() + 4)
            finally:
                silent.send_signal(signal.SIGCONT)
            answered = server.ask("GET", "/stats")[1]["generated_tokens"]
            run.until(lambda: server.ask("GET", "/stats")[1]["generated_tokens"] > answered, "answers of the one that came back")
            run.send(signal.SIGINT)
            code, answer, log = run.result()
            self.assertEqual(code, 130, log)
            rollouts = answer["result"]["rollouts"]
            counts(answer["result"], len(rollouts), 4)
            self.assertGreater(sum(r["failed_questions"] for r in rollouts), 0)
            fleet.ends_untorn(*(engine for engine, _ in engines))

    def test_no_answer_ends_the_run_with_the_reason(self):
        with ServingFleet(WSYNC) as fleet:
            code, answer, log = fleet.train(SMALL | {"rollout.engines": "http://127.0.0.1:1", "rollout.wait_limit": "1s"})
            self.assertEqual(code, 3, answer)
            self.assertIn("step 4", answer["error"]["message"])
            self.assertIn("127.0.0.1:1", answer["error"]["message"])

    def test_what_does_not_go_together_is_refused(self):
        for values, words in (({"rollout.engines": "somewhere"}, ["somewhere", "http://"]),
                              ({"rollout.engines": "http://a:1", "data.sequence": 8}, ["data.sequence", "found 8"]),
                              ({"rollout.engines": "http://a:1", "rollout.answers": 5}, ["rollout.answers", "16", "found 5"]),
                              ({"rollout.engines": "http://a:1", "rollout.digits": 33}, ["rollout.digits"]),
                              ({"rollout.engines": "http://a:1", "model.vocabulary": 300}, ["model.vocabulary", "300", "256"]),
                              ({}, ["rollout.engines"])):
            with self.subTest(values), ServingFleet(WSYNC) as fleet:
                code, answer, _ = fleet.train(SMALL | values)
                self.assertEqual(code, 2, answer)
                for word in words:
                    self.assertIn(word, answer["error"]["message"])

    def test_a_run_that_is_stopped_goes_on(self):
        with ServingFleet(WSYNC) as fleet:
            _, values, _ = self.begun(fleet)
            values |= {"rollout.kl": 0.01}
            saved = fleet.path("saved")
            run = fleet.training(values | {"steps": 100000, "save.directory": saved})
            run.until_step(6)
            run.send(signal.SIGINT)
            code, answer, log = run.result()
            self.assertEqual(code, 130, log)
            at = answer["result"]["steps"][-1]["step"]
            self.assertEqual(os.listdir(saved), [f"step_{at}"])
            result = fleet.trained(values | {"steps": at + 4}, "--resume", f"{saved}/step_{at}")
            self.assertEqual([r["step"] for r in result["rollouts"]], list(range(at + 1, at + 5)))
            self.assertEqual(result["publishes"][0]["step"], at)


if __name__ == "__main__":
    unittest.main()

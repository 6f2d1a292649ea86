"""Engines that generate, as real processes: over HTTP, alone and in a replica of two ranks, while a trainer publishes."""
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import unittest

from fleet import DEADLINE_S
from serving import MODEL, Server, ServingFleet

WSYNC = sys.argv.pop()

PROMPTS = ["the ", "a", "weights of the trainer are ", "\x00\x01 "]


class Alone(unittest.TestCase):
    def test_a_checkpoint_is_served(self):
        with ServingFleet(WSYNC) as fleet:
            engine, server = fleet.serving(fleet.exported())
            fleet.ready(server)
            self.assertEqual(server.ask("GET", "/health")[0], 200)
            for prompt in PROMPTS:
                with self.subTest(prompt):
                    choice = server.complete(prompt)
                    self.assertEqual(len(choice["token_ids"]), 24)
                    self.assertEqual(choice["finish_reason"], "length")
                    self.assertEqual(choice["weight_versions"], [{"start": 0, "end": 24, "version": "0.0"}])
                    self.assertTrue(all(value <= 0 for value in choice["logprobs"]["token_logprobs"]))
                    self.assertEqual(server.complete(prompt)["token_ids"], choice["token_ids"])
                    pieces = list(server.stream(prompt, 24))
                    self.assertEqual([token for piece in pieces for token in piece["token_ids"]], choice["token_ids"])
                    self.assertEqual("".join(piece["text"] for piece in pieces), choice["text"])
                    # The first tokens as a part of the prompt: what is computed in one piece is what came one by one.
                    longer = [*prompt.encode(), *choice["token_ids"][:12]]
                    self.assertEqual(server.complete(longer, 12)["token_ids"], choice["token_ids"][12:])
            fleet.ends_untorn(engine)

    def test_requests_beside_each_other_get_what_each_gets_alone(self):
        with ServingFleet(WSYNC) as fleet:
            # Little memory, and few tokens a step: sequences are put back, and prompts come in pieces.
            engine, server = fleet.serving(fleet.exported(), "--cache", "96KiB", "--max-step-tokens", "24",
                                           "--max-sequences", "8")
            fleet.ready(server)
            asked = [(f"{number} and {'many ' * (number % 9)}", number % 40 + 1) for number in range(32)]
            alone = [server.complete(*one)["token_ids"] for one in asked]
            with concurrent.futures.ThreadPoolExecutor(32) as clients:
                together = list(clients.map(lambda one: server.complete(*one)["token_ids"], asked))
            self.assertEqual(together, alone)
            fleet.ends_untorn(engine)

    def test_sampling_follows_its_seed(self):
        with ServingFleet(WSYNC) as fleet:
            engine, server = fleet.serving(fleet.exported())
            fleet.ready(server)
            sampled = [server.complete("x", 40, temperature=1, seed=seed)["token_ids"] for seed in (1, 1, 2)]
            self.assertEqual(sampled[0], sampled[1])
            self.assertNotEqual(sampled[0], sampled[2])
            _, answer = server.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 40, "n": 4})
            self.assertEqual(len({choice["text"] for choice in answer["choices"]}), 4)
            fleet.ends_untorn(engine)

    def test_what_a_client_pauses_goes_on(self):
        with ServingFleet(WSYNC) as fleet:
            engine, server = fleet.serving(fleet.exported())
            fleet.ready(server)
            undisturbed = server.complete("go", 2000)["token_ids"]
            for clear in ("false", "true"):
                with self.subTest(clear_cache=clear), concurrent.futures.ThreadPoolExecutor(1) as client:
                    stream = server.stream("go", 2000)
                    tokens = list(next(stream)["token_ids"])
                    self.assertEqual(server.ask("POST", f"/pause?mode=keep&clear_cache={clear}"), (200, {"status": "paused"}))
                    self.assertEqual(server.ask("GET", "/ready")[0], 503)
                    waiting = client.submit(server.complete, "later", 3)
                    fleet.until(lambda: server.ask("GET", "/stats")[1]["waiting"] == 1, "the request that waits")
                    self.assertFalse(waiting.done())
                    self.assertEqual(server.ask("POST", "/resume")[0], 200)
                    for piece in stream:
                        tokens += piece["token_ids"]
                    self.assertEqual(tokens, undisturbed)
                    self.assertEqual(len(waiting.result()["token_ids"]), 3)
            fleet.ends_untorn(engine)

    def test_an_abort_ends_what_runs_and_what_waits(self):
        with ServingFleet(WSYNC) as fleet:
            engine, server = fleet.serving(fleet.exported(), "--max-sequences", "1")
            fleet.ready(server)
            with concurrent.futures.ThreadPoolExecutor(2) as clients:
                running = server.stream("go", 2000)
                next(running)
                waiting = clients.submit(server.complete, "never", 3)
                fleet.until(lambda: server.ask("GET", "/stats")[1]["waiting"] == 1, "the request that waits")
                self.assertEqual(server.ask("POST", "/pause?mode=abort")[0], 200)
                self.assertEqual([piece["finish_reason"] for piece in running][-1], "abort")
                self.assertEqual(waiting.result()["finish_reason"], "abort")
            self.assertEqual(server.ask("POST", "/resume")[0], 200)
            self.assertEqual(server.complete("again", 3)["finish_reason"], "length")
            fleet.ends_untorn(engine)

    def test_a_wait_ends_at_its_deadline_or_when_all_is_done(self):
        with ServingFleet(WSYNC) as fleet:
            engine, server = fleet.serving(fleet.exported())
            fleet.ready(server)
            with concurrent.futures.ThreadPoolExecutor(1) as client:
                running = server.stream("go", 2000)
                next(running)
                status, answer = server.ask("POST", "/pause?mode=wait&timeout_s=0.01")
                self.assertEqual(status, 504, answer)
                self.assertIn("1 request", json.dumps(answer))
                self.assertEqual(server.ask("GET", "/is_paused")[1], {"is_paused": False})
                # Pauses that wait beside each other, and one that a resume overtakes.
                with concurrent.futures.ThreadPoolExecutor(3) as others:
                    waits = [others.submit(server.ask, "POST", f"/pause?mode=wait&timeout_s={seconds}")
                             for seconds in (0.05, 0.1, 60)]
                    self.assertEqual([wait.result()[0] for wait in waits[:2]], [504, 504])
                    self.assertEqual(server.ask("POST", "/resume")[0], 200)
                    self.assertEqual(waits[2].result()[0], 503)
                pause = client.submit(server.ask, "POST", "/pause?mode=wait")
                self.assertEqual([piece["finish_reason"] for piece in running][-1], "length")
                self.assertEqual(pause.result(), (200, {"status": "paused"}))
            self.assertEqual(server.ask("GET", "/is_paused")[1], {"is_paused": True})
            self.assertEqual(server.ask("POST", "/resume")[0], 200)
            fleet.ends_untorn(engine)

    def test_its_end_ends_every_request(self):
        with ServingFleet(WSYNC) as fleet:
            engine, server = fleet.serving(fleet.exported())
            fleet.ready(server)
            running = server.stream("go", 2000)
            next(running)
            engine.send_signal(signal.SIGTERM)
            self.assertEqual([piece["finish_reason"] for piece in running][-1], "abort")
            self.assertEqual(engine.wait(timeout=DEADLINE_S), 0)


class Ranks(unittest.TestCase):
    def test_two_give_the_tokens_of_one(self):
        with ServingFleet(WSYNC) as fleet:
            model = fleet.exported()
            one, server = fleet.serving(model)
            fleet.ready(server)
            expected = [server.complete(prompt, 60) for prompt in PROMPTS]
            ranks, replica = fleet.pair(model, "--run-dir", fleet.directory)
            fleet.ready(replica)
            for prompt, choice in zip(PROMPTS, expected):
                found = replica.complete(prompt, 60)
                self.assertEqual(found["token_ids"], choice["token_ids"])
                for a, b in zip(found["logprobs"]["token_logprobs"], choice["logprobs"]["token_logprobs"]):
                    self.assertAlmostEqual(a, b, delta=1e-4)
            fleet.ends_untorn(one, *ranks)

    def test_a_replica_is_not_ready_before_every_rank_is_there(self):
        with ServingFleet(WSYNC) as fleet:
            model = fleet.exported()
            options = ["--run-dir", fleet.directory, "--world-size", "2"]
            leader = fleet.rank(model, *options)
            server = Server(fleet.event(leader, "listening")["url"])
            status, answer = server.ask("GET", "/ready")
            self.assertEqual(status, 503)
            self.assertIn("2 ranks", answer["reason"])
            follower = fleet.rank(model, *options, "--rank", "1")
            fleet.ready(server)
            self.assertEqual(len(server.complete("x", 3)["token_ids"]), 3)
            fleet.ends_untorn(leader, follower)

    def test_a_rank_that_dies_is_replaced_and_requests_go_on(self):
        with ServingFleet(WSYNC) as fleet:
            model = fleet.exported()
            ranks, server = fleet.pair(model, "--run-dir", fleet.directory)
            fleet.ready(server)
            undisturbed = server.complete("go", 1500)["token_ids"]
            for _ in range(3):
                stream = server.stream("go", 1500)
                tokens = list(next(stream)["token_ids"])
                ranks[1].kill()
                fleet.until(lambda: server.ask("GET", "/ready")[0] == 503, "the loss")
                ranks[1] = fleet.rank(model, "--run-dir", fleet.directory, "--rank", "1", "--world-size", "2")
                for piece in stream:
                    tokens += piece["token_ids"]
                self.assertEqual(tokens, undisturbed)
            fleet.ends_untorn(*ranks)


class Published(unittest.TestCase):
    """A trainer publishes while requests run."""

    def run_under_load(self, mode, *more, ranks=1):
        with ServingFleet(WSYNC) as fleet:
            model = fleet.exported()
            _, socket = fleet.sidecar("s0")
            options = ["--sidecar", socket, "--replica", "a", *more]
            if ranks == 1:
                engine, server = fleet.serving(model, *options)
                engines = [engine]
            else:
                engines, server = fleet.pair(model, *options)
            status, answer = server.ask("GET", "/ready")
            self.assertEqual((status, answer["ready"]), (503, False))
            self.assertEqual(server.ask("GET", "/health")[0], 200)
            with concurrent.futures.ThreadPoolExecutor(4) as clients:
                early = clients.submit(server.complete, "early", 5)
                run = fleet.training(MODEL | {"steps": 40, "publish.run_dir": fleet.run_dir, "publish.pause_mode": mode,
                                              "publish.state_dir": fleet.path("state")})
                fleet.ready(server)
                self.assertNotEqual(early.result()["weight_versions"][0]["version"], "0.0")
                choices = []
                while run.poll() is None:
                    choices += clients.map(lambda number: server.complete(f"{number}", 300), range(4))
                code, answer, log = run.result()
            self.assertEqual(code, 0, log)
            last = answer["result"]["publishes"][-1]["version"]
            fleet.until(lambda: server.ask("GET", "/weight_info")[1]["version"] == last, last)
            for choice in choices:
                spans = choice["weight_versions"]
                ends = [0] + [span["end"] for span in spans]
                self.assertEqual([span["start"] for span in spans], ends[:-1])
                self.assertEqual(ends[-1], len(choice["token_ids"]))
                order = [tuple(int(part) for part in span["version"].split(".")) for span in spans]
                self.assertEqual(order, sorted(set(order)))
            fleet.ends_untorn(*engines)
            return choices

    def carried_over(self, *more, ranks=1):
        """A request that a switch meets goes on as one that begins there."""
        with ServingFleet(WSYNC) as fleet:
            one, two = fleet.learned(1), fleet.learned(2)
            _, socket = fleet.sidecar("s0")
            options = ["--sidecar", socket, "--replica", "a", *more]
            engines, server = fleet.pair(one, *options) if ranks == 2 else fleet.serving(one, *options)
            fleet.start("trainer", "--set", "pause_mode=keep")
            fleet.until(lambda: fleet.ask("status")[0] == 0, "the coordinator")
            self.assertEqual(fleet.ask("push", one)[0], 0)
            fleet.ready(server)
            prompt = [*b"a text that is longer than one block"]
            with concurrent.futures.ThreadPoolExecutor(1) as client:
                running = client.submit(server.complete, prompt, 1900)
                fleet.until(lambda: server.ask("GET", "/stats")[1]["generated_tokens"] > 20, "its first tokens")
                self.assertEqual(fleet.ask("push", two)[0], 0)
                choice = running.result()
            spans = choice["weight_versions"]
            self.assertEqual(len(spans), 2, "the switch did not meet the request")
            begin = spans[1]["start"]
            if "keep" in more:  # kept blocks would answer for the old weights again
                self.assertEqual(server.ask("POST", "/reset_prefix_cache"), (200, {"success": True}))
            again = server.complete(prompt + choice["token_ids"][:begin], 1900 - begin)
            self.assertEqual(len(again["weight_versions"]), 1)
            fleet.ends_untorn(*(engines if ranks == 2 else [engines]))
            # Tokens and log-probabilities from the switch on: as they were, and as they are from the new weights alone.
            found = zip(choice["token_ids"][begin:], choice["logprobs"]["token_logprobs"][begin:])
            return list(found), list(zip(again["token_ids"], again["logprobs"]["token_logprobs"]))

    def same(self, found, expected):
        return found[0] == expected[0] and abs(found[1] - expected[1]) < 1e-4

    def test_flushed_keys_and_values_are_those_of_the_new_weights(self):
        for options in {}, {"ranks": 2}:
            with self.subTest(options):
                self.assertTrue(all(map(self.same, *self.carried_over(**options))))

    def test_flushed_by_an_engine_that_maps_versions(self):
        self.assertTrue(all(map(self.same, *self.carried_over("--adopt"))))

    def test_kept_keys_and_values_are_those_of_the_old_weights(self):
        found, expected = self.carried_over("--cache-policy", "keep")
        self.assertFalse(all(map(self.same, found, expected)))

    def test_keep_goes_on_with_the_new_weights(self):
        choices = self.run_under_load("keep")
        self.assertEqual({choice["finish_reason"] for choice in choices}, {"length"})
        self.assertTrue(any(len(choice["weight_versions"]) > 1 for choice in choices), "no switch met a request")

    def test_keep_with_stale_keys_and_values(self):
        choices = self.run_under_load("keep", "--cache-policy", "keep")
        self.assertEqual({choice["finish_reason"] for choice in choices}, {"length"})

    def test_keep_in_a_replica_of_two_ranks(self):
        choices = self.run_under_load("keep", ranks=2)
        self.assertEqual({choice["finish_reason"] for choice in choices}, {"length"})
        self.assertTrue(any(len(choice["weight_versions"]) > 1 for choice in choices), "no switch met a request")

    def test_wait_never_mixes_versions(self):
        choices = self.run_under_load("wait")
        self.assertEqual({choice["finish_reason"] for choice in choices}, {"length"})
        self.assertEqual({len(choice["weight_versions"]) for choice in choices}, {1})

    def test_abort_ends_requests(self):
        choices = self.run_under_load("abort")
        self.assertLessEqual({choice["finish_reason"] for choice in choices}, {"length", "abort"})
        self.assertIn("abort", {choice["finish_reason"] for choice in choices})
        self.assertLessEqual({len(choice["weight_versions"]) for choice in choices}, {0, 1})


class Refused(unittest.TestCase):
    def refused(self, fleet, *arguments):
        done = subprocess.run([WSYNC, "engine", *arguments], env=fleet.environment, text=True,
                              capture_output=True, timeout=DEADLINE_S)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        return done.returncode, done.stderr

    def test_arguments(self):
        with ServingFleet(WSYNC) as fleet:
            model = fleet.exported()
            empty = fleet.checkpoint("no_config", 1)
            os.unlink(os.path.join(empty, "config.json"))
            masters = fleet.path("masters")
            fleet.trained(MODEL | {"steps": 1, "save.directory": masters})
            for arguments, words in {
                    (): ["--model", "--checkpoint"],
                    ("--model", model, "--checkpoint", model): ["--model", "--checkpoint"],
                    ("--model", fleet.path("nowhere")): ["nowhere"],
                    ("--model", empty): ["config.json"],
                    ("--model", f"{masters}/step_1"): ["F32", "BF16"],
                    ("--model", model, "--weights", "none"): ["sidecar", "weights"],
                    ("--model", model, "--world-size", "2"): ["run directory"],
                    ("--model", model, "--world-size", "3", "--run-dir", fleet.directory): ["3", "heads"],
                    ("--model", model, "--cache", "1KiB"): ["keys and values", "block"],
                    ("--model", model, "--cache", "much"): ["--cache", "much"],
                    ("--model", model, "--host", "256.0.0.1"): ["256.0.0.1"]}.items():
                with self.subTest(arguments):
                    _, said = self.refused(fleet, *arguments)
                    for word in words:
                        self.assertIn(word, said)

    def test_a_port_that_is_taken(self):
        with ServingFleet(WSYNC) as fleet:
            model = fleet.exported()
            _, server = fleet.serving(model)
            code, said = self.refused(fleet, "--model", model, "--port", str(server.address.port))
            self.assertEqual(code, 3)
            self.assertIn(str(server.address.port), said)


if __name__ == "__main__":
    unittest.main()

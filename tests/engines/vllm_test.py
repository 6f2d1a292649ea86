"""wsync in real vLLM servers on the CPU."""
import functools
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
import unittest

import numpy
import wsync
from safetensors.torch import load_file
from vllm_fleet import HEARTBEAT, Requests, Server, VllmFleet
from wsync.vllm import layout

import models
import vllm_steps

PROMPTS = [[(7 * i + 3 * j + 11) % 250 for j in range(6 + i)] for i in range(6)]
# A token may differ from the best one of another implementation by rounding, but not by more, in float32.
ROUNDING = 1e-2
COUNT = 400  # tokens of a request
VERSIONS = int(os.environ.get("WSYNC_TEST_VERSIONS", "170"))
MIN_STEPS = 1000  # that all ranks compute while versions alternate
WORK = tempfile.TemporaryDirectory(prefix="wsync-models-")


def directory(name):
    return os.path.join(WORK.name, name)


def setUpModule():
    for half, seed in ("a", 1), ("b", 2):
        models.save(directory(half), models.mixture, seed, half, models.torch.float32)
        models.save(directory(f"bf16_{half}"), models.mixture, seed, half)
        models.save(directory(f"dense_{half}"), models.dense, seed)
    # Too large for the cache of the processor, so that a load takes its time.
    models.save(directory("large_a"), lambda: models.mixture(8, 512, 32, 256), 1, "a")
    models.save(directory("large_b"), lambda: models.mixture(8, 512, 32, 256), 2, "b")


def tearDownModule():
    WORK.cleanup()


def half_of(token):
    return next(half for half, tokens in models.HALVES.items() if token in tokens)


def publisher_of(fleet, **settings):
    """A trainer in this process; running requests are kept."""
    where = {"run_dir": fleet.run_dir, "state_dir": fleet.path("state"), "pause_mode": "keep"}
    return wsync.Publisher(settings=where | HEARTBEAT | settings)


TAKEN = "copy in publish", "staging", "pause", "load", "stood still", "from publish to committed"
MEASURED = 9  # versions


def took(publisher, server, states):
    """The medians of `TAKEN` in milliseconds, of `MEASURED` versions that alternate."""
    found = []
    for number in range(MEASURED):
        begin = time.monotonic()
        publish = publisher.publish(states["ba"[number % 2]])  # returns when the weights may change again
        copied = (time.monotonic() - begin) * 1e3
        status = publish.wait("committed")
        whole = (time.monotonic() - begin) * 1e3
        # The server answers when the switch is over, a little after the fleet knows of it.
        last = {}
        while not (last.get("version") == str(status.version) and last["whole_ms"]):
            last = server.state()["switches"][-1]
        found.append((copied, status.staged_s * 1e3, last["pause_ms"], last["load_ms"], last["whole_ms"], whole))
    return [statistics.median(values) for values in zip(*found)]


@functools.cache
def fresh_tokens(name):
    """The tokens of a server that was started with a checkpoint, and no sidecar."""
    with VllmFleet() as fleet:
        server = Server(fleet, directory(name), attached=False).until_serving()
        return [server.generate(prompt, 32)[0] for prompt in PROMPTS]


class Vllm(unittest.TestCase):
    """`a` and `b` are the checkpoints; a server is started with `a`."""

    def judged(self, prompt, tokens, halves):
        """Asserts that each token is the one that the model of its half computes, given all tokens before it."""
        for half in set(halves):
            margins = models_judges(half).margins(prompt, tokens)
            for position, (own, margin) in enumerate(zip(halves, margins)):
                if own == half:
                    self.assertLess(margin, ROUNDING, f"token {position} of {len(tokens)} is not that of version {half}: {halves}")

    def test_tokens_are_those_of_a_fresh_server(self):
        """Also measures what a version of 2 MiB and one of 300 MiB takes."""
        rows = []
        for shape, name in ("dense_", None), ("bf16_", "2 MiB"), ("large_", "300 MiB"):
            with self.subTest(shape), VllmFleet() as fleet:
                _, engines = fleet.sidecar("s0")
                expected = fresh_tokens(f"{shape}b")
                server = Server(fleet, directory(f"{shape}a"), engines=engines, replica="r0").until_serving()
                old = [server.generate(prompt, 32)[0] for prompt in PROMPTS]
                self.assertNotEqual(old, expected)
                states = {half: load_file(os.path.join(directory(f"{shape}{half}"), "model.safetensors")) for half in "ab"}
                with publisher_of(fleet) as publisher:
                    version = str(publisher.publish(states["b"]).wait("committed").version)
                    found = [server.generate(prompt, 32) for prompt in PROMPTS]
                    self.assertEqual([tokens for tokens, _, _ in found], expected)
                    self.assertEqual({spans for _, _, spans in ((t, f, tuple(s)) for t, f, s in found)}, {((version, 0, 32),)})
                    state = server.state()
                    self.assertEqual((state["version"], state["attached"], state["state"]), (version, True, "serving"))
                    publisher.publish(states["a"]).wait("committed")
                    self.assertEqual([server.generate(prompt, 32)[0] for prompt in PROMPTS], old)
                    if name is None:
                        continue
                    rows.append((f"{name}, no request", took(publisher, server, states)))
                    self.under_load(server, lambda _: rows.append((f"{name}, 4 requests", took(publisher, server, states))))
        print(f"\nmedians of {MEASURED} versions, ms: " + ", ".join(TAKEN), file=sys.stderr)
        for name, medians in rows:
            print(f"{name}: " + ", ".join(f"{median:.0f}" for median in medians), file=sys.stderr)

    def test_workarounds_are_needed(self):
        """If this fails, vLLM has mended what `wsync.vllm.workarounds` does: take that function out."""
        for shape, function in ("bf16_", "before_reload"), ("dense_", "after_reload"):
            with self.subTest(function), VllmFleet() as fleet:
                _, engines = fleet.sidecar("s0")
                fleet.start("trainer")
                server = Server(fleet, directory(f"{shape}a"), engines=engines, replica="r0", VLLM_PLUGINS="wsync,wsync_bare",
                                PYTHONPATH=vllm_steps.install(fleet, "wsync_bare", WITHOUT.format(function=function))).until_serving()
                version = fleet.pushed(directory(f"{shape}b"))
                found = [server.generate(prompt, 32) for prompt in PROMPTS]
                self.assertEqual({spans[-1][0] for _, _, spans in found}, {version})
                self.assertNotEqual([tokens for tokens, _, _ in found], fresh_tokens(f"{shape}b"))

    def spans_agree(self, tokens, spans):
        """The half of each token, which must be one half for each span of versions. Returns the halves."""
        halves = [half_of(token) for token in tokens]
        self.assertEqual([begin for _, begin, _ in spans] + [len(tokens)], [0] + [end for _, _, end in spans], spans)
        for version, begin, end in spans:
            self.assertEqual(len(set(halves[begin:end])), 1, f"two versions computed the tokens {begin} to {end} of {version}")
        return halves

    def test_a_thousand_steps_and_no_mixed_one(self):
        """Requests run all the time on two ranks while versions alternate. Each token is that of one version, and no request is
        lost."""
        with VllmFleet() as fleet:
            _, engines = fleet.sidecar("s0")
            steps = vllm_steps.plugin(fleet)
            server = Server(fleet, directory("a"), "-tp", "2", "--dtype", "float32", engines=engines, replica="r0",
                            VLLM_CPU_OMP_THREADS_BIND="0|1", **steps).until_serving()
            states = {half: load_file(os.path.join(directory(half), "model.safetensors")) for half in "ab"}
            with publisher_of(fleet) as publisher:
                fleet.until(lambda: fleet.replicas().get("r0", {}).get("ranks_attached") == 3, "the two ranks and the controller")

                def alternate(results):
                    for step in itertools.count(1):
                        # Four requests compute their tokens in the same steps.
                        if step > VERSIONS and len(results) * COUNT // 4 >= MIN_STEPS:
                            return
                        publisher.publish(states["ba"[step % 2 - 1]], step=step).wait("committed")

                results = self.under_load(server, alternate)
            points, lengths = 0, {}
            for prompt, (tokens, ended, spans) in results:
                self.assertEqual((len(tokens), ended), (COUNT, "length"))
                halves = self.spans_agree(tokens, spans)
                self.judged(prompt, tokens, halves)
                points += sum(one != two for one, two in zip(halves, halves[1:]))
                for version, first, last in spans[1:-1]:  # that were served from their first to their last step
                    lengths.setdefault(version, set()).add(last - first)
            print(f"\n{len(results)} requests, at least {VERSIONS} versions, {points} switches inside of requests", file=sys.stderr)
            self.assertGreaterEqual(points, 3 * VERSIONS)
            # All requests switched at the same steps: each computed as many tokens with a version as every other.
            self.assertEqual({version: found for version, found in lengths.items() if len(found) > 1}, {})
            self.assertGreater(len(lengths), VERSIONS // 2)
            # The ranks tell the same of their steps. Versions whose steps nobody needed are no switch here.
            count, switches = vllm_steps.compare(steps[vllm_steps.DIRECTORY], 2)
            print(f"{count} steps, each of one version on both ranks; {switches} switches between two steps", file=sys.stderr)
            self.assertGreaterEqual(count, MIN_STEPS)
            self.assertGreater(switches, VERSIONS // 2)
            paused = sorted(s["whole_ms"] for s in server.state()["switches"])
            print(f"stood still: median {paused[len(paused) // 2]:.1f} ms", file=sys.stderr)

    def under_load(self, server, act):
        """Runs `act(results)` while four requests run at any time. Returns the prompt and the result of each request."""
        results, failures, over = [], [], threading.Event()

        def load(prompt):
            try:
                while not over.is_set():
                    results.append((prompt, server.generate(prompt, COUNT)))
            except Exception as failure:  # a thread's exception would be lost
                failures.append(failure)

        server.generate(PROMPTS[0], 4)  # the first step takes seconds
        threads = [threading.Thread(target=load, args=(prompt,)) for prompt in PROMPTS[:4]]
        for thread in threads:
            thread.start()
        try:
            act(results)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        self.assertEqual(failures, [])
        return results

    def test_an_adapter_that_is_not_atomic_is_caught(self):
        with VllmFleet() as fleet:
            _, engines = fleet.sidecar("s0")
            fleet.start("trainer")
            steps = vllm_steps.plugin(fleet, vllm_steps.install(fleet, "wsync_planted", PLANTED))
            server = Server(fleet, directory("a"), "--dtype", "float32", engines=engines, replica="r0", **steps).until_serving()
            server.generate(PROMPTS[0], 4)
            vllm_steps.compare(steps[vllm_steps.DIRECTORY], 1)
            fleet.pushed(directory("b"))
            tokens, _, spans = server.generate(PROMPTS[0], 32)
            with self.assertRaises(AssertionError):
                self.judged(PROMPTS[0], tokens, self.spans_agree(tokens, spans))
            with self.assertRaisesRegex(AssertionError, "parameters of two versions"):
                vllm_steps.compare(steps[vllm_steps.DIRECTORY], 1)

    def test_the_check_of_the_steps_finds_each_fault(self):
        old, new = ({"version": version, "old": old, "of": 3} for version, old in (("1.1", 3), ("1.2", 0)))
        good = {"step": 2, "requests": {"x": 1}, "begin": new, "end": new}
        first = good | {"step": 1, "begin": old, "end": old}
        with tempfile.TemporaryDirectory() as found:
            for fault, reason in ((None, None),
                                  ({"requests": {"y": 1}}, "these are not the same step"),
                                  ({"begin": old, "end": old}, "two versions in one step"),  # of two ranks
                                  ({"begin": old}, "two versions in one step"),  # of one rank
                                  ({"end": new | {"old": 1}}, "parameters of two versions"),
                                  ({"begin": new | {"old": 3}, "end": new | {"old": 3}}, "other parameters on another rank")):
                for rank, last in enumerate((good, good | (fault or {}))):
                    with open(os.path.join(found, f"rank{rank}"), "w", encoding="utf-8") as out:
                        out.write(json.dumps(first) + "\n" + json.dumps(last) + "\n")
                if fault is None:
                    self.assertEqual(vllm_steps.compare(found, 2), (2, 1))
                else:
                    with self.assertRaisesRegex(AssertionError, reason):
                        vllm_steps.compare(found, 2)

    def loads_in_the_end(self, plugin, reason, *more, **environment):
        """The second load fails as the plugin has it, and the sidecar tries again: the push succeeds."""
        with VllmFleet() as fleet:
            _, engines = fleet.sidecar("s0")
            fleet.start("trainer")
            server = Server(fleet, directory("a"), *more, "--dtype", "float32", engines=engines, replica="r0",
                            PYTHONPATH=vllm_steps.install(fleet, "wsync_planted", plugin), VLLM_PLUGINS="wsync,wsync_planted",
                            **environment).until_serving()
            fleet.pushed(directory("a"))
            version = fleet.pushed(directory("b"))
            self.assertIn(f"r0 rank 0: the engine's load failed: RuntimeError: {reason}", server.log())
            tokens, _, spans = server.generate(PROMPTS[0], 32)
            self.assertEqual((set(map(half_of, tokens)), spans), ({"b"}, [(version, 0, 32)]))
            self.judged(PROMPTS[0], tokens, ["b"] * 32)

    def test_a_load_that_fails_is_tried_again(self):
        self.loads_in_the_end(FAILS_ONCE, "no memory for layer 1")

    def test_a_load_that_fails_on_one_of_two_ranks(self):
        """The other rank still loads when the fleet gives the load up."""
        self.loads_in_the_end(FAILS_ON_ONE_RANK, "no memory", "-tp", "2", VLLM_CPU_OMP_THREADS_BIND="0|1")

    def test_vllms_own_api_for_trainers(self):
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.base import ModuleSource

        import wsync.vllm
        wsync.vllm.register_trainer()
        from wsync.vllm.trainer import InitInfo
        with VllmFleet() as fleet:
            _, engines = fleet.sidecar("s0")
            server = Server(fleet, directory("bf16_a"), engines=engines, replica="r0").until_serving()
            source = ModuleSource(models.loaded(directory("bf16_b")))
            settings = {"run_dir": fleet.run_dir, "state_dir": fleet.path("state"), "pause_mode": "keep"} | HEARTBEAT
            trainer = WeightTransferTrainerFactory.trainer_init(InitInfo(rank=0, settings=settings), client=None, source=source)
            for _ in range(2):
                status = trainer.send_weights()
                tokens, _, spans = server.generate(PROMPTS[0], 16)
                self.assertEqual((set(map(half_of, tokens)), spans), ({"b"}, [(str(status.version), 0, 16)]))
            trainer.shutdown()

    def test_what_becomes_of_running_requests(self):
        for mode, ends in ("abort", {"abort", "length"}), ("wait", {"length"}), ("keep", {"length"}):
            with self.subTest(mode), VllmFleet() as fleet:
                _, engines = fleet.sidecar("s0")
                fleet.start("trainer", "--set", f"pause_mode={mode}", "--set", "deadlines.pause=60s")
                server = Server(fleet, directory("a"), "--dtype", "float32", engines=engines, replica="r0").until_serving()
                versions = []
                results = self.under_load(server, lambda _: versions.append(fleet.pushed(directory("b"))))
                halves = []
                for prompt, (tokens, ended, spans) in results:
                    halves.append(self.spans_agree(tokens, spans))
                    self.judged(prompt, tokens, halves[-1])
                self.assertEqual({ended for _, (_, ended, _) in results}, ends)
                # Only requests that are kept go on with other weights.
                self.assertEqual(any(len(set(found)) > 1 for found in halves), mode == "keep")
                after = server.generate(PROMPTS[5], 16)
                self.assertEqual((self.spans_agree(after[0], after[2]), after[2]), (["b"] * 16, [(versions[0], 0, 16)]))

    def test_a_cancel_while_the_server_pauses(self):
        """With `wait`, a long request holds up a switch that is decided. It cannot be cancelled any more: the operator is told what
        to do instead, the request ends with the old weights, and the push goes on."""
        with VllmFleet() as fleet:
            _, engines = fleet.sidecar("s0")
            fleet.start("trainer", "--set", "pause_mode=wait", "--set", "deadlines.pause=600s", "--set", "deadlines.publish=600s")
            server = Server(fleet, directory("a"), "--dtype", "float32", "--max-model-len", "1024", engines=engines,
                            replica="r0").until_serving()
            server.generate(PROMPTS[0], 4)
            prompts = PROMPTS[:4] * 4
            long = Requests(server, prompts, 1000)
            push = fleet.start("push", directory("b"), "--json", "--coordinator", fleet.address)
            fleet.until(lambda: server.state()["switches"], "the pause")
            code, answer = fleet.ask("cancel")
            self.assertEqual(code, 1, answer)
            self.assertRegex(answer["result"]["reason"], "^1.1 has been decided and its switch continues: .* `wsync rollback`")
            for prompt, (tokens, ended, spans) in zip(prompts, long.done()):
                self.assertEqual((ended, spans), ("length", [("default", 0, 1000)]))
                self.judged(prompt, tokens, ["a"] * 1000)
            result = json.loads(push.communicate()[0])["result"]
            self.assertEqual((push.returncode, result["version"], result["replicas"][0]["outcome"]), (0, "1.1", "committed"))
            tokens, _, spans = server.generate(PROMPTS[0], 16)
            self.assertEqual((set(map(half_of, tokens)), spans), ({"b"}, [("1.1", 0, 16)]))

    def test_caches_is_what_becomes_of_cached_prefixes(self):
        """The trainer's `caches` comes before WSYNC_ENGINE_CACHE, which is not set."""
        prompt = [(7 * i + 11) % 250 for i in range(300)]
        with VllmFleet() as fleet:
            _, engines = fleet.sidecar("s0")
            server = Server(fleet, directory("a"), "--dtype", "float32", "--block-size", "32", engines=engines,
                            replica="r0").until_serving()
            states = {half: load_file(os.path.join(directory(half), "model.safetensors")) for half in "ab"}
            half = "a"
            for caches in "keep", "clear", "engine":
                with self.subTest(caches), publisher_of(fleet, caches=caches, pause_mode="abort") as publisher:
                    server.generate(prompt, 4)
                    before = server.metric("vllm:prefix_cache_hits_total")
                    server.generate(prompt, 4)
                    cached = server.metric("vllm:prefix_cache_hits_total") - before
                    self.assertGreaterEqual(cached, 256)
                    half = "b" if half == "a" else "a"
                    version = str(publisher.publish(states[half]).wait("committed").version)
                    before = server.metric("vllm:prefix_cache_hits_total")
                    tokens, _, spans = server.generate(prompt, 32)
                    cached = server.metric("vllm:prefix_cache_hits_total") - before
                    self.assertEqual((set(map(half_of, tokens)), spans), ({half}, [(version, 0, 32)]))
                    margin = max(models_judges(half).margins(prompt, tokens))
                    print(f"{caches}: {cached:.0f} of {len(prompt)} tokens of the prompt from the cache; at most {margin:.3f} "
                          "below the best logit", file=sys.stderr)
                    if caches == "keep":
                        self.assertGreaterEqual(cached, 256)
                        self.assertGreater(margin, ROUNDING)  # it attends to keys and values of the old version
                    else:
                        self.assertEqual(cached, 0)
                        self.assertLess(margin, ROUNDING)

    def test_a_worker_that_is_killed_while_a_version_is_staged(self):
        """One of two ranks dies while its server waits for requests to end, in the middle of a switch. vLLM ends the server, its
        clients get an error, the push names the replica, and the other replica has switched."""
        with VllmFleet() as fleet:
            _, engines = fleet.sidecar("s0")
            fleet.start("trainer", "--set", "pause_mode=wait", "--set", "deadlines.pause=20s")
            one = [directory("a"), "--dtype", "float32", "--max-model-len", "1024"]
            servers = [Server(fleet, *one, "-tp", "2", engines=engines, replica="r0", VLLM_CPU_OMP_THREADS_BIND="0|1"),
                       Server(fleet, *one, engines=engines, replica="r1")]
            for server in servers:
                server.until_serving()
            first = fleet.pushed(directory("b"))
            for server in servers:
                self.assertEqual(server.generate(PROMPTS[0], 4)[2], [(first, 0, 4)])
            long = Requests(servers[0], PROMPTS[:4] * 4, 1000)
            fleet.until(lambda: servers[0].metric("vllm:num_requests_running"), "the requests")
            push = fleet.start("push", directory("a"), "--json", "--coordinator", fleet.address)
            fleet.until(lambda: len(servers[0].state()["switches"]) == 2, "the pause of r0")
            os.kill(servers[0].worker(1), signal.SIGKILL)
            with self.assertRaisesRegex(AssertionError, "500, .*EngineCore encountered an issue"):
                long.done()
            self.assertEqual((len(long.failures), long.results), (16, [None] * 16))  # no client got a part as if it were whole
            servers[0].process.wait()
            result = json.loads(push.communicate()[0])["result"]
            version = result["version"]
            self.assertEqual((push.returncode, result["code"]), (1, "partial"), result)
            self.assertRegex(result["reason"], f"^replica 'r0': every rank was lost while pausing; {version} stays the target, and "
                             "the sidecars go")
            outcomes = {found["replica"]: found["outcome"] for found in result["replicas"]}
            self.assertEqual(outcomes, {"r0": "failed", "r1": "committed"})
            tokens, _, spans = servers[1].generate(PROMPTS[0], 16)
            self.assertEqual((set(map(half_of, tokens)), spans), ({"a"}, [(version, 0, 16)]))
            self.judged(PROMPTS[0], tokens, ["a"] * 16)

    def test_a_pause_that_outlives_its_deadline(self):
        """Requests that must end first take longer than the fleet waits. The push is told so, and the fleet goes on trying until
        the requests have ended; no token has a version that nobody was told of."""
        with VllmFleet() as fleet:
            _, engines = fleet.sidecar("s0")
            fleet.start("trainer", "--set", "pause_mode=wait", "--set", "deadlines.pause=100ms")
            server = Server(fleet, directory("a"), "--dtype", "float32", engines=engines, replica="r0").until_serving()
            told = []
            results = self.under_load(server, lambda _: told.append(fleet.ask("push", directory("b"))))
            code, answer = told[0]
            # Either the requests happened to end within 100 ms, or the replica was asked again, which ends them.
            self.assertIn(code, (0, 1), answer)
            self.assertRegex(answer["result"]["reason"], "^$|did not pause within 100 ms, and is asked again until it does")
            for prompt, (tokens, _, spans) in results:
                self.judged(prompt, tokens, self.spans_agree(tokens, spans))
            fleet.until_ready(answer["result"]["version"], "r0")
            tokens, _, spans = server.generate(PROMPTS[0], 8)
            self.assertEqual((set(map(half_of, tokens)), spans), ({"b"}, [(answer["result"]["version"], 0, 8)]))

    def test_two_replicas_and_restarts(self):
        with VllmFleet() as fleet:
            sidecar, engines = fleet.sidecar("s0")
            fleet.start("trainer", "--set", "pause_mode=keep")
            servers = [Server(fleet, directory("bf16_a"), engines=engines, replica=name) for name in ("r0", "r1")]
            for server in servers:
                server.until_serving()
            first = fleet.pushed(directory("bf16_b"))
            expected = servers[0].generate(PROMPTS[0], 24)
            self.assertEqual(set(map(half_of, expected[0])), {"b"})
            self.assertEqual(servers[1].generate(PROMPTS[0], 24), expected)
            # The sidecar is killed while requests run, and comes back.
            requests = Requests(servers[0], PROMPTS[:2], 300)
            sidecar.send_signal(signal.SIGKILL)
            sidecar.wait()
            fleet.sidecar("s0")
            for _, ended, spans in requests.done():
                self.assertEqual((ended, spans), ("length", [(first, 0, 300)]))
            fleet.until_ready(first, "r0", "r1")
            second = fleet.pushed(directory("bf16_a"))
            self.assertEqual([server.state()["version"] for server in servers], [second, second])
            # A server that is restarted is given the version of the fleet, not that of its directory.
            third = fleet.pushed(directory("bf16_b"))
            servers[1].kill()
            again = Server(fleet, directory("bf16_a"), engines=engines, replica="r1").until_serving()
            tokens, _, spans = again.generate(PROMPTS[0], 24)  # its first request
            self.assertIn(f"the port is opened when version {third} of the fleet is served", again.log())
            self.assertEqual((tokens, spans), (expected[0], [(third, 0, 24)]))

    def test_what_does_not_fit_is_refused_before_anything_moves(self):
        def refused(fleet, checkpoint):
            code, answer = fleet.ask("push", checkpoint)
            self.assertEqual((code, answer["result"]["code"]), (1, "refused"), answer)
            return answer["result"]["reason"]

        with VllmFleet() as fleet:
            _, engines = fleet.sidecar("s0")
            fleet.start("trainer")
            server = Server(fleet, directory("bf16_a"), engines=engines, replica="r0").until_serving()
            before = server.generate(PROMPTS[0], 8)[0]
            self.assertRegex(refused(fleet, directory("large_b")), r"replica 'r0' rank 0 refuses \S+: .*the model has the shape \[")
            renamed = models.rename(directory("bf16_b"), fleet.path("renamed"), lambda name: name.replace("self_attn", "attention"))
            self.assertRegex(refused(fleet, renamed), "layers.0.self_attn.k_norm.weight: the model has it, the version does not; "
                                                      "nearest: model.layers.0.attention.k_norm.weight; and 17 more")
            lacking = models.rename(directory("bf16_b"), fleet.path("lacking"), lambda name: None if "experts.3" in name else name)
            self.assertIn("the model has it, the version does not", refused(fleet, lacking))
            headless = models.rename(directory("bf16_b"), fleet.path("headless"), lambda name: None if "lm_head" in name else name)
            self.assertIn("lm_head.weight: the model has it, the version does not", refused(fleet, headless))
            self.assertEqual(server.state()["switches"], [])
            self.assertEqual(server.generate(PROMPTS[0], 8)[0], before)
            # A trainer that keeps its weights in float32 is no mistake.
            fleet.pushed(directory("b"))
            self.assertEqual(set(map(half_of, server.generate(PROMPTS[0], 8)[0])), {"b"})


class Ties(unittest.TestCase):
    """A model whose head is its embedding."""

    def test_a_head_with_other_bytes_is_refused(self):
        embedding, other = (wsync.as_dtype(numpy.full((8, 4), bits, numpy.uint16), "BF16") for bits in (0x7FC0, 0x3F80))
        names = {"model.embed_tokens.weight": layout.Tensor("BF16", (8, 4)), "model.norm.weight": layout.Tensor("BF16", (4,))}
        tied = layout.Layout(names, True)
        version = {"model.embed_tokens.weight": embedding}
        tied.check_tied(version)
        tied.check_tied(version | {"lm_head.weight": embedding.copy()})  # of elements that are not a number, too
        with self.assertRaisesRegex(wsync.Refused, "lm_head.weight has other bytes than the embedding"):
            tied.check_tied(version | {"lm_head.weight": other})
        layout.Layout(names | {"lm_head.weight": names["model.embed_tokens.weight"]}, False).check_tied(version | {"lm_head.weight": other})


JUDGES = {}


def models_judges(half):
    if half not in JUDGES:
        JUDGES[half] = models.Judge(directory(half))
    return JUDGES[half]


PLANTED = """
def register():
    from wsync.vllm.worker import WsyncWeightTransferEngine as Engine
    whole = Engine._load
    def half(self, load):
        # Two tensors of layer 1 stay as they were: a step computes with two versions.
        load.tensors = [(name, array) for name, array in load.tensors if ".layers.1.input_layernorm" not in name
                        and ".layers.1.post_attention" not in name]
        whole(self, load)
    Engine._load = half
"""

WITHOUT = """
def register():
    from wsync.vllm import workarounds
    workarounds.{function} = lambda model, device: None
"""

FAILS_ONCE = """
def register():
    from wsync.vllm.worker import WsyncWeightTransferEngine as Engine
    whole = Engine._load
    loads = []
    def fails_once(self, load):
        loads.append(load.version)
        if len(loads) != 2:
            return whole(self, load)
        # The first half of the layers is there.
        some = load.tensors[:len(load.tensors) // 2]
        def half():
            yield from some
            raise RuntimeError("no memory for layer 1")
        load.tensors = half()
        whole(self, load)
    Engine._load = fails_once
"""


FAILS_ON_ONE_RANK = """
import time

def register():
    from wsync.vllm.worker import WsyncWeightTransferEngine as Engine
    whole = Engine._load
    loads = []
    def fails_once(self, load):
        loads.append(load.version)
        if len(loads) == 2 and self.parallel_config.rank == 0:
            raise RuntimeError("no memory")
        whole(self, load)
        if len(loads) == 2:
            time.sleep(3)  # long after the other rank has failed
    Engine._load = fails_once
"""


if __name__ == "__main__":
    unittest.main()

"""A model of transformers that generates while versions come."""
import os
import signal
import sys
import tempfile
import threading
import unittest
import warnings
from unittest import mock

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from vllm_fleet import VllmFleet

import models
import wsync
import wsync.torch
import wsync.transformers
from wsync._forward_gate import ForwardGate

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from package_fleet import DEADLINE_S, PackageFleet, until  # noqa: E402

PROMPT = [72, 101, 108, 108, 111]
WORK = tempfile.TemporaryDirectory(prefix="wsync-models-")


def directory(name):
    return os.path.join(WORK.name, name)


def setUpModule():
    for half, seed in ("a", 1), ("b", 2):
        models.save(directory(half), models.mixture, seed, half, torch.float32)
        models.save(directory(f"moe_{half}"), models.mixture, seed, half)
        models.save(directory(f"dense_{half}"), models.dense, seed)
    models.save(directory("other"), lambda: models.mixture(2), 3)


def tearDownModule():
    WORK.cleanup()


def loaded(name):
    return AutoModelForCausalLM.from_pretrained(directory(name), dtype=torch.float32 if len(name) == 1 else torch.bfloat16).eval()


@torch.no_grad()
def greedy(model, count, tokens=()):
    tokens = list(tokens)
    for _ in range(count):
        tokens.append(int(model(torch.tensor([PROMPT + tokens])).logits[0, -1].argmax()))
    return tokens


class Transformers(unittest.TestCase):
    def test_tokens_are_those_of_a_fresh_model(self):
        for shape in "", "dense_":
            with self.subTest(shape), VllmFleet() as fleet:
                _, engines = fleet.sidecar("s0")
                fleet.start("trainer")
                model = loaded(f"{shape}a")
                follower = wsync.transformers.attach(model, engines, "r0")
                fleet.until(lambda: fleet.replicas().get("r0", {}).get("ready"), "the replica")
                before = greedy(model, 16)
                version = fleet.pushed(directory(f"{shape}b"))
                self.assertEqual(greedy(model, 16), greedy(loaded(f"{shape}b"), 16))
                self.assertEqual(str(follower.version), version)
                # The names of the model in memory: the experts of a layer in one tensor.
                publish = {name: tensor.clone() for name, tensor in loaded(f"{shape}a").named_parameters()}
                fleet.stop(fleet.processes[1])
                settings = {"run_dir": fleet.run_dir, "state_dir": fleet.path("state")}
                with wsync.Publisher(settings=settings) as publisher:
                    status = publisher.publish(publish).wait("committed")
                    print(f"\n{shape}: stood still for {status.paused_s * 1e3:.1f} ms, {status.bytes} bytes", file=sys.stderr)
                self.assertEqual(greedy(model, 16), before)
                follower.close()

    def test_one_sidecar_serves_one_model_after_another(self):
        """The follower of the next model declines what the sidecar has of the last one, and waits for its own."""
        with PackageFleet() as fleet, fleet.publisher() as publisher:
            _, engines = fleet.sidecar()
            for number, shape in enumerate(("", "dense_", "")):
                model = loaded(f"{shape}a")
                follower = wsync.transformers.attach(model, engines, f"r{number}")
                until(lambda: number == 0 or follower.replica.error, "the check of the version of the last model")
                self.assertIsNone(follower.version)
                status = publisher.publish(loaded(f"{shape}b").state_dict()).wait("committed", DEADLINE_S)
                self.assertEqual(follower.version, status.version)
                self.assertEqual(greedy(model, 8), greedy(loaded(f"{shape}b"), 8))
                follower.close()

    def test_every_forward_pass_has_one_version(self):
        with VllmFleet() as fleet:
            _, engines = fleet.sidecar("s0")
            model = loaded("a")
            follower = wsync.transformers.attach(model, engines, "r0")
            states = {half: dict(loaded(half).state_dict()) for half in "ab"}
            settings = {"run_dir": fleet.run_dir, "state_dir": fleet.path("state")}
            tokens, publishes = [], []
            with wsync.Publisher(settings=settings) as publisher:
                while len(publishes) < 20:
                    publishes.append(publisher.publish(states["ba"[len(publishes) % 2]]))
                    while publishes[-1].status().state < wsync.PublishState.COMMITTED and len(tokens) < 900:
                        tokens = greedy(model, 1, tokens)
                    publishes[-1].wait("committed")
            halves = [next(half for half, of in models.HALVES.items() if token in of) for token in tokens]
            self.assertGreaterEqual(sum(one != two for one, two in zip(halves, halves[1:])), 10)
            for half in "ab":
                margins = models.Judge(directory(half)).margins(PROMPT, tokens)
                self.assertLess(max(margin for margin, own in zip(margins, halves) if own == half), 1e-2)
            follower.close()

    def test_its_version_is_only_what_the_model_has(self):
        with VllmFleet() as fleet:
            _, engines = fleet.sidecar("s0")
            model = loaded("a")
            follower = wsync.transformers.attach(model, engines, "r0")
            states = {half: dict(loaded(half).state_dict()) for half in "ab"}
            with wsync.Publisher(settings={"run_dir": fleet.run_dir, "state_dir": fleet.path("state")}) as publisher:
                first = publisher.publish(states["b"]).wait("committed")
                self.assertEqual(follower.version, first.version)
                seen = []

                def fail(array):
                    seen.append(follower.version)
                    raise ValueError("half-way")
                with mock.patch("wsync.transformers.as_tensor", fail):
                    second = publisher.publish(states["a"])
                    fleet.until(lambda: "half-way" in (follower.replica.error or ""), "the failure")
                    self.assertEqual((seen[0], follower.version), (None, None))
                fleet.until(lambda: follower.version == second.status().version, "the newest version")
                self.assertEqual(greedy(model, 16), greedy(loaded("a"), 16))
                follower.replica.suspend()
                self.assertIsNone(follower.version)
                follower.replica.resume()
                fleet.until(lambda: follower.version == second.status().version, "the version again")
            follower.close()

    def test_what_does_not_fit_is_refused(self):
        with VllmFleet() as fleet:
            _, engines = fleet.sidecar("s0")
            fleet.start("trainer")
            model = loaded("a")
            follower = wsync.transformers.attach(model, engines, "r0")
            fleet.until(lambda: fleet.replicas().get("r0", {}).get("ready"), "the replica")
            before = greedy(model, 8)
            for name, reason in ("other", "model.layers.2.*: the model has it, the version does not"), \
                                ("dense_b", "mlp.*: the version has it, the model does not"):
                code, answer = fleet.ask("push", directory(name))
                self.assertEqual((code, answer["result"]["code"]), (1, "refused"), answer)
                self.assertRegex(answer["result"]["reason"], reason)
            self.assertEqual((greedy(model, 8), follower.version), (before, None))
            follower.close()


class Recording(unittest.TestCase):
    def test_a_plan_of_transformers_own_loader(self):
        """The names of checkpoints, whose experts transformers stacks, and those of the model in memory."""
        for shape, kind in ("moe", transformers.Qwen3MoeForCausalLM), ("dense", transformers.Qwen3ForCausalLM):
            config = transformers.AutoConfig.from_pretrained(directory(f"{shape}_a"))
            checkpoint = load_file(os.path.join(directory(f"{shape}_a"), "model.safetensors"))
            for names in "checkpoint", "memory":
                with self.subTest(shape=shape, names=names), VllmFleet() as fleet:
                    _, engines = fleet.sidecar("s0")
                    if names == "checkpoint":
                        made = []

                        def load(items):
                            made.append(kind.from_pretrained(None, config=config, state_dict=dict(items), dtype=torch.bfloat16))
                            return made[-1]
                        plan = wsync.torch.record(None, load, checkpoint)
                        model = made[0].eval()
                        self.assertEqual(greedy(model, 16), greedy(loaded(f"{shape}_a"), 16))
                    else:
                        model = loaded(f"{shape}_a")
                        plan = wsync.torch.record(model, lambda items: model.load_state_dict(dict(items), strict=False),
                                                  dict(model.named_parameters()))
                    self.assertEqual((plan.loaded, plan.unused), ({}, []))
                    self.assertEqual(len(plan.pieces), len(checkpoint) if names == "checkpoint" else
                                     len(list(model.parameters())))
                    replica = plan.attach(engines, "r0", serving=True)
                    with wsync.Publisher(settings={"run_dir": fleet.run_dir, "state_dir": fleet.path("state")}) as publisher:
                        for half in "ba":
                            other = loaded(f"{shape}_{half}")
                            publish = publisher.publish(load_file(os.path.join(directory(f"{shape}_{half}"), "model.safetensors"))
                                                        if names == "checkpoint" else dict(other.named_parameters()))
                            while publish.status().state < wsync.PublishState.COMMITTED:
                                replica.poll(0.02)
                            status = publish.wait("committed")
                            self.assertEqual(greedy(model, 16), greedy(other, 16))
                        self.assertEqual((replica.version, replica.loaded_by_python), (status.version, 0))
                    print(f"\n{shape}, names of the {names}: {len(plan.pieces)} of {len(plan.pieces)} tensors in place, "
                          f"stood still {status.paused_s * 1e3:.2f} ms", file=sys.stderr)
                    replica.close()



class Pair(torch.nn.Module):
    """Its passes return both of its weights, which are equal in each version. `between` runs in the middle of a pass."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(torch.zeros(4), requires_grad=False) for _ in range(2))
        self.between = lambda: None

    def forward(self, *_):
        first = float(self.a[0])
        self.between()
        return first, float(self.b[0])


def interrupt():
    signal.raise_signal(signal.SIGINT)


def stands_in(thread, *functions):
    """Whether the thread is in one of these functions of the gate."""
    frame = sys._current_frames().get(thread.ident)
    while frame is not None:
        if frame.f_code.co_name in functions and "wsync" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


class Work:
    """A call on a thread of its own."""

    def __init__(self, use):
        self.results = []
        self.thread = threading.Thread(target=lambda: self.results.append(use()), daemon=True)
        self.thread.start()

    def result(self):
        self.thread.join(DEADLINE_S)
        assert self.results, "the thread has not returned"
        return self.results[0]


class Switches(unittest.TestCase):
    """Passes that do not end as usual, while a trainer publishes."""

    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        _, engines = self.fleet.sidecar()
        self.model = Pair()
        self.model.register_forward_pre_hook(self.check)
        self.follower = wsync.transformers.attach(self.model, engines, "r0")
        self.addCleanup(self.follower.close)
        self.publisher = self.enterContext(self.fleet.publisher())

    def check(self, _, arguments):
        if arguments:
            raise ValueError("a hook refuses this pass")

    def published(self, value):
        return self.publisher.publish({name: torch.full((4,), float(value)) for name in "ab"})

    def committed(self, value):
        self.published(value).wait("committed", DEADLINE_S)

    def test_a_pass_that_another_hook_refuses_during_a_load(self):
        self.committed(1)
        inside, go = threading.Event(), threading.Event()
        self.addCleanup(go.set)
        as_tensor, arrays = wsync.transformers.as_tensor, []

        def hold(array):
            arrays.append(array)
            if len(arrays) == 2:
                inside.set()
                go.wait(DEADLINE_S)
            return as_tensor(array)
        with mock.patch("wsync.transformers.as_tensor", hold):
            publish = self.published(2)
            self.assertTrue(inside.wait(DEADLINE_S))
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self.assertRaisesRegex(ValueError, "a hook refuses", self.model, 1)
            work = Work(self.model)
            until(lambda: work.results or stands_in(work.thread, "_before"), "the pass, or that it is held up")
            self.assertRaises(KeyboardInterrupt, self.interrupted_while_held_up)
            go.set()
            publish.wait("committed", DEADLINE_S)
        self.assertEqual((work.result(), self.model()), ((2, 2), (2, 2)))
        self.assertRaisesRegex(ValueError, "a hook refuses", self.model, 1)
        self.committed(3)
        self.assertEqual(self.model(), (3, 3))

    def interrupted_while_held_up(self):
        main = threading.current_thread()

        def send():
            until(lambda: stands_in(main, "_before"), "the pass that is held up")
            signal.pthread_kill(main.ident, signal.SIGINT)
        work = Work(send)
        try:
            self.model()
        finally:
            work.thread.join()

    def test_ctrl_c_in_a_pass(self):
        self.committed(1)
        for value in 2, 3:
            self.model.between = interrupt
            self.assertRaises(KeyboardInterrupt, self.model)
            self.model.between = lambda: None
            if value == 2:
                self.assertEqual(Work(self.model).result(), (1, 1))  # on another thread
            self.committed(value)
            self.assertEqual(self.model(), (value, value))

    def test_a_pass_goes_on_after_its_model_was_closed(self):
        self.model.between = self.follower.close
        self.assertEqual(self.model(), (0, 0))
        self.model.between = lambda: None
        self.assertEqual(Work(self.model).result(), (0, 0))


class Gate(unittest.TestCase):
    def setUp(self):
        self.model, self.gate = Pair(), ForwardGate()
        self.gate.watch(self.model)

    def pauses(self):
        self.gate.pause()
        return "paused"

    def test_an_interrupted_pass_inside_of_another_one(self):
        seen = []

        def nested():
            self.model.between = interrupt
            self.assertRaises(KeyboardInterrupt, self.model)
            seen.append(Work(self.pauses))
            until(lambda: seen[0].results or stands_in(seen[0].thread, "pause"), "the pause, or that it is held up")
            self.model.between = lambda: None
            self.assertEqual(self.model(), (0, 0))  # not held up by a pause that waits for the outer one
            self.assertEqual(seen[0].results, [])
            return (0, 0)
        self.model.between = nested
        self.assertEqual(self.model(), (0, 0))
        self.assertEqual(seen[0].result(), "paused")
        self.gate.resume()
        self.assertEqual((self.model(), self.gate.passes), ((0, 0), 4))

    def test_a_thread_that_ends_in_a_pass(self):
        self.model.between = sys.exit
        thread = threading.Thread(target=self.model, daemon=True)
        thread.start()
        thread.join(DEADLINE_S)
        self.assertEqual(Work(self.pauses).result(), "paused")

    def test_no_pass_of_many_threads_sees_a_switch(self):
        ends = [None, ValueError, KeyboardInterrupt, SystemExit]
        local, stop, mixed = threading.local(), threading.Event(), []

        def between():
            local.depth += 1
            end = ends[local.count % len(ends)]
            if local.count % 3 == 0 and local.depth == 1:
                run()
            if end is not None:
                raise end

        def run():
            try:
                first, second = self.model()
                if first != second:
                    mixed.append((first, second))
            except (ValueError, KeyboardInterrupt, SystemExit):
                pass

        def serve():
            local.count = 0
            while not stop.is_set():
                local.count, local.depth = local.count + 1, 0
                run()
            return local.count
        self.model.between = between
        works = [Work(serve) for _ in range(3)]
        self.addCleanup(stop.set)
        for value in range(1, 101):
            self.gate.pause()
            self.model.a.fill_(value)
            self.model.b.fill_(value)
            passes = self.gate.passes
            self.gate.resume()
            until(lambda: self.gate.passes > passes, "a pass")
        stop.set()
        self.assertGreater(min(work.result() for work in works), 0)
        self.assertEqual(mixed, [])

    def test_what_computes_after_its_call_is_refused(self):
        class Later(Pair):
            def forward(self):
                yield self.a
        with self.assertRaisesRegex(wsync.InvalidInput, "forward of Later is a generator or a coroutine"):
            wsync.transformers.attach(Later(), "/nowhere", "r0")

    def test_a_compiled_model(self):
        compiled, pauses = torch.compile(self.model, backend="eager"), []

        def between():
            pauses.append(Work(self.pauses))
            until(lambda: pauses[-1].results or stands_in(pauses[-1].thread, "pause"), "the pause, or that it is held up")
            self.assertEqual(pauses[-1].results, [])
        for _ in range(3):
            self.model.between = between
            self.assertEqual(compiled(), (0, 0))
            self.assertEqual(pauses[-1].result(), "paused")
            self.model.between = lambda: None
            work = Work(compiled)
            until(lambda: work.results or stands_in(work.thread, "_before"), "the pass, or that it is held up")
            self.assertEqual(work.results, [])
            self.gate.resume()
            self.assertEqual(work.result(), (0, 0))


if __name__ == "__main__":
    unittest.main()

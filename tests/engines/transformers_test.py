"""A model of transformers that generates while versions come."""
import os
import sys
import tempfile
import unittest
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


if __name__ == "__main__":
    unittest.main()

"""wsync.verl with verl's own base class and registry, a real sidecar and a real publisher; the actor and the rollout are two
processes, called as verl's manager calls them."""
import asyncio
import inspect
import json
import os
import sys
import unittest

import numpy as np
import torch
from verl.checkpoint_engine.base import (CheckpointEngine, CheckpointEngineManager, CheckpointEngineRegistry,
                                         CheckpointEngineWorker, ColocatedCheckpointEngine)
from verl.utils.import_utils import import_external_libs
from verl.workers.config import CheckpointEngineConfig

import wsync

TESTS = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(TESTS, "..", "python"))
from package_fleet import DEADLINE_S, PackageFleet, until  # noqa: E402

SHAPE = (64, 32)


def weights_of(step):
    generator = torch.Generator().manual_seed(step)
    for layer in range(4):
        yield f"model.layers.{layer}.weight", torch.randn(SHAPE, generator=generator)
    yield "model.positions", torch.arange(8)


ACTOR = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
from verl_test import engine_of, weights_of
engine = engine_of(is_master=True, settings=json.loads(sys.argv[2]))
print("ready", flush=True)
for line in sys.stdin:
    step = int(line)
    try:
        engine.prepare()
        engine.init_process_group(rank=0)
        print(json.dumps(asyncio.run(engine.send_weights(weights_of(step), global_steps=step))), flush=True)
        engine.finalize()
    except Exception as failure:
        print(json.dumps({"error": str(failure)}), flush=True)
"""


def engine_of(**keywords):
    """As verl makes it: the module is imported by its name, and the registry is asked."""
    config = CheckpointEngineConfig(backend="wsync", custom_backend_module="wsync.verl", engine_kwargs={"wsync": keywords})
    import_external_libs(config.custom_backend_module or None)
    return CheckpointEngineRegistry.new(config.backend, bucket_size=config.update_weights_bucket_megabytes << 20,
                                        **config.engine_kwargs["wsync"])


class Verl(unittest.TestCase):
    def test_it_is_what_verl_expects(self):
        kind = type(engine_of())
        self.assertIs(CheckpointEngineRegistry.get("wsync"), kind)
        self.assertTrue(issubclass(kind, CheckpointEngine))
        self.assertEqual(kind.__abstractmethods__, frozenset())
        self.assertEqual(kind.wire_format, "named_tensors")
        for name in "prepare", "build_topology", "finalize", "send_weights", "receive_weights":
            ours, theirs = (inspect.signature(getattr(of, name)).parameters for of in (kind, CheckpointEngine))
            self.assertEqual(list(ours), list(theirs), name)
        self.assertTrue(inspect.iscoroutinefunction(kind.send_weights))
        self.assertTrue(inspect.isasyncgenfunction(kind.receive_weights))
        self.assertEqual(list(inspect.signature(ColocatedCheckpointEngine.__init__).parameters)[1:3], ["bucket_size", "is_master"])
        # The calls of the manager and of the worker, in the words of their source.
        manager, worker = inspect.getsource(CheckpointEngineManager), inspect.getsource(CheckpointEngineWorker)
        for call in ('["prepare"] * actor_wg.world_size', '["init_process_group"] * actor_wg.world_size',
                     "isinstance(result, dict)", "actor_wg.update_weights(global_steps=global_steps, mode=self.backend)"):
            self.assertIn(call, manager)
        self.assertIn("self.checkpoint_engine.receive_weights(global_steps=global_steps)", worker)
        self.assertIn("backend, bucket_size=bucket_size, **engine_kwargs", worker)

    def test_the_topology_has_the_lengths_that_verl_asserts(self):
        actors, rollouts = CheckpointEngineRegistry.get("wsync").build_topology(4, 2, [{}] * 6)
        self.assertEqual({len(values) for values in actors.values()}, {4})
        self.assertEqual({len(values) for values in rollouts.values()}, {2})
        for rank in actors["rank"] + rollouts["rank"]:
            engine_of().init_process_group(rank=rank)

    def test_other_ranks_take_part_in_gathering(self):
        seen = []
        engine = engine_of(is_master=False)
        engine.prepare()

        def weights():
            for name, tensor in weights_of(1):
                seen.append(name)
                yield name, tensor
        self.assertEqual(asyncio.run(engine.send_weights(weights())), {})
        self.assertEqual(seen, [name for name, _ in weights_of(1)])

    def test_a_failure_is_told_after_all_tensors_were_gathered(self):
        with PackageFleet() as fleet:
            engine = engine_of(is_master=True, settings=fleet.settings)
            engine.prepare()
            seen = []

            def weights():
                for name, tensor in weights_of(1):
                    seen.append(name)
                    yield name, tensor.to(torch.complex128) if name == "model.layers.1.weight" else tensor
            with self.assertRaises(wsync.Error) as caught:
                asyncio.run(engine.send_weights(weights(), global_steps=0))
            self.assertIn("model.layers.1.weight", caught.exception.sentence)
            self.assertEqual(len(seen), 5)
            engine._publisher.close()

    def test_a_version_that_cannot_begin_is_told_after_all_tensors_were_gathered(self):
        with PackageFleet() as fleet:
            engine = engine_of(is_master=True, settings=fleet.settings)
            seen = []

            def weights():
                for name, tensor in weights_of(1):
                    seen.append(name)
                    yield name, tensor
            with self.assertRaisesRegex(wsync.InvalidInput, "prepare"):
                asyncio.run(engine.send_weights(weights(), global_steps=0))
            self.assertEqual(len(seen), 5)
            engine.prepare()
            begun = engine._publisher.version(1)  # a publisher has one at a time
            with self.assertRaisesRegex(wsync.InvalidInput, "a version is open"):
                asyncio.run(engine.send_weights(weights(), global_steps=1))
            self.assertEqual(len(seen), 10)
            begun.abandon()
            engine._publisher.close()

    def start(self):
        self.fleet = self.enterContext(PackageFleet())
        _, self.socket = self.fleet.sidecar("host")
        self.actor = self.fleet.program(ACTOR, TESTS, json.dumps(self.fleet.settings))
        self.fleet.ready(self.actor)

    def send(self, step):
        self.actor.stdin.write(f"{step}\n")
        self.actor.stdin.flush()

    def test_the_actor_publishes_what_an_engine_loads(self):
        """With a replica that borrows, in the place of a reader."""
        self.start()
        held = {}
        self.fleet.serve(wsync.Replica(self.socket, "r0", take="borrow", serving=True,
                                       load_layer=lambda version, layer, tensors: held.update(
                                           {name: np.array(array, copy=True) for name, array in tensors.items()})))
        for step in 0, 1, 5:
            self.send(step)
            answer = json.loads(self.actor.stdout.readline())
            self.assertEqual(sorted(answer), ["wsync/snapshot_s", "wsync/staged_s"], answer)
            expected = {name: tensor.to(torch.bfloat16).view(torch.int16).numpy().tobytes() if tensor.is_floating_point()
                        else tensor.numpy().tobytes() for name, tensor in weights_of(step)}
            until(lambda: {name: array.tobytes() for name, array in dict(held).items()} == expected, f"step {step} in the replica")

    def test_the_rollout_yields_what_the_actor_has_sent(self):
        self.start()
        engine = engine_of(socket=self.socket, timeout=DEADLINE_S)
        self.assertEqual(engine.prepare(), {})

        async def received(step):
            found = {}
            async for name, tensor in engine.receive_weights(global_steps=step):
                found[name] = tensor.clone()
            return found

        for step in 0, 1, 5:
            self.send(step)  # both ends run at the same time
            found = asyncio.run(received(step))
            self.assertNotIn("error", json.loads(self.actor.stdout.readline()))
            engine.finalize()
            for name, tensor in weights_of(step):
                expected = tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
                self.assertTrue(torch.equal(found.pop(name), expected), name)
            self.assertEqual(found, {})


if __name__ == "__main__":
    unittest.main()

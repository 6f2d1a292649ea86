"""Engines with their weights in the memory of a GPU: objects with __cuda_array_interface__, on the emulated driver
(tests/emulated_cuda), whose path is the last argument. It is no GPU: gpu_test.py uses one."""
import os
import re
import sys
import types
import unittest

import numpy as np
import wsync
from gpu_memory import Driver, GpuArray, with_emulated_driver
from package_fleet import DEADLINE_S, NAMES, PackageFleet, interrupt, until, weights_of

SHAPE = (64, 32)
CUDA = ("--set", "devices.kind=cuda", "--set", "devices.buffer_bytes=2MiB", "--set")

# An engine in a process of its own, on the GPU that its second argument names. It says when it is there, and each version that it
# has committed.
ENGINE = """
import signal
import sys
import wsync
from gpu_memory import Driver, GpuArray, with_emulated_driver
from package_fleet import NAMES

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts the test with & lets it ignore the signal
driver = Driver()
held = {name: GpuArray(driver, int(sys.argv[2]), (64, 32)) for name in NAMES}

class Engine(wsync.Replica):
    def on_commit(self, version):
        print(version, flush=True)

try:
    with Engine(sys.argv[1], "r0", held) as engine:
        print("ready", flush=True)
        while True:
            engine.poll(0.02 if engine.serving else None)
            engine.step += 1
            if sys.argv[3:] and engine.serving:
                held[NAMES[0]].free()  # the mistake of an engine
                sys.argv.pop()
                print("freed", flush=True)
except KeyboardInterrupt:
    pass
finally:
    for one in held.values():
        one.free()
    driver.close()
"""


class OnTheEmulatedDriver(unittest.TestCase):
    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        self.driver = Driver()
        self.addCleanup(self.driver.close)

    def arrays(self, gpu=0, names=NAMES, shape=SHAPE, **options):
        made = {name: GpuArray(self.driver, gpu, shape, **options) for name in names}
        for one in made.values():
            self.addCleanup(one.free)
        return made

    def holds(self, held, published):
        for name in published:
            self.assertEqual(held[name].read(), np.asarray(published[name]).tobytes(), name)

    def verified(self, version):
        code, answer = self.fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        self.assertEqual([rank["version"] for rank in answer["result"]["ranks"]], [version])
        self.assertGreater(answer["result"]["ranks"][0]["bytes"], 0)


class Following(OnTheEmulatedDriver):
    def setUp(self):
        super().setUp()
        self.sidecar, self.socket = self.fleet.sidecar("host", *CUDA, "devices.gpus=0")
        self.publisher = self.enterContext(self.fleet.publisher(arenas=4))

    def committed(self, seed):
        return self.publisher.publish(weights_of(seed)).wait(timeout=DEADLINE_S)

    def test_versions_are_switched_verified_and_rolled_back(self):
        held, layers = self.arrays(), []
        replica = wsync.Replica(self.socket, "r0", held, load_layer=lambda version, layer, tensors: layers.append(tensors))
        self.assertEqual(replica.gpu, 0)
        self.fleet.serve(replica)
        self.committed(1)
        self.holds(held, weights_of(1))
        self.verified("1.1")
        self.assertIs(layers[0][NAMES[0]], held[NAMES[0]])  # what was given
        self.committed(2)
        self.holds(held, weights_of(2))
        self.verified("1.2")
        self.publisher.roll_back(timeout=DEADLINE_S)
        self.holds(held, weights_of(1))
        self.committed(3)
        self.holds(held, weights_of(3))

    def test_from_the_gpu_of_a_trainer(self):
        own, held = self.arrays(1), self.arrays(0)
        self.fleet.serve(wsync.Replica(self.socket, "r0", held))
        for seed in (1, 2):
            weights = weights_of(seed)
            for name, array in weights.items():
                own[name].fill(array)
            self.publisher.publish(own).wait(timeout=DEADLINE_S)
            self.holds(held, weights)
        self.verified("1.2")

    def test_a_bit_that_changes_is_found(self):
        held = self.arrays()
        self.fleet.serve(wsync.Replica(self.socket, "r0", held))
        self.committed(1)
        stream = self.driver.context(0)
        self.driver.call("cuMemsetD8Async", held[NAMES[1]].pointer, 7, 1, stream)
        self.driver.call("cuStreamSynchronize", stream)
        code, answer = self.fleet.ask("verify")
        self.assertEqual(code, 1, answer)
        self.assertEqual([found["tensor"] for found in answer["result"]["ranks"][0]["mismatches"]], [NAMES[1]])

    def test_the_sidecar_is_killed_and_comes_back(self):
        held = self.arrays()
        replica = wsync.Replica(self.socket, "r0", held)
        self.fleet.serve(replica)
        self.committed(1)
        self.sidecar.kill()
        self.sidecar.wait()
        until(lambda: not replica.status().attached, "the loss of the sidecar")
        self.holds(held, weights_of(1))
        self.fleet.sidecar("host", *CUDA, "devices.gpus=0")
        until(lambda: replica.status().attached, "the sidecar")
        self.committed(2)
        self.holds(held, weights_of(2))
        self.verified("1.2")

    def test_the_engine_is_killed_and_comes_back(self):
        engine = self.fleet.program(ENGINE, self.socket, 0)
        self.fleet.ready(engine)
        self.committed(1)
        self.fleet.ready(engine, "1.1")
        engine.kill()
        engine.wait()
        again = self.fleet.program(ENGINE, self.socket, 0)
        self.fleet.ready(again)
        self.fleet.ready(again, "1.1")
        self.committed(2)
        self.fleet.ready(again, "1.2")
        self.verified("1.2")
        interrupt(again)
        code, _, said = self.fleet.end(again)
        self.assertEqual(code, 0, said)

    def test_memory_that_an_engine_frees_while_it_is_attached(self):
        engine = self.fleet.program(ENGINE, self.socket, 0, "frees")
        self.fleet.ready(engine)
        self.committed(1)
        self.fleet.ready(engine, "1.1")
        self.fleet.ready(engine, "freed")
        with self.assertRaises(wsync.Partial) as caught:
            self.committed(2)
        # It is looked for before anything is written there.
        self.assertRegex(caught.exception.sentence, r"the destination of tensor \S+: GPU 0 .* cannot be borrowed")
        engine.kill()
        engine.wait()
        again = self.fleet.program(ENGINE, self.socket, 0)
        self.fleet.ready(again)
        self.fleet.ready(again, "1.2")
        self.verified("1.2")

    def test_parts_of_two_ranks(self):
        whole = weights_of(1)
        held = [self.arrays(shape=(32, 32)) for _ in range(2)]
        first, other = ({name: wsync.Shard(part, SHAPE, [(0, rank * 32, 32)]) for name, part in held[rank].items()}
                        for rank in range(2))
        _, socket = self.fleet.sidecar("two", *CUDA, "devices.gpus=0,0")
        leader = wsync.Replica(socket, "r1", first, world_size=2)
        follower = wsync.Replica(socket, "r1", other, world_size=2, rank=1, leader=False, device=1, gpu=0)
        pause, resume = leader.on_pause, leader.on_resume
        leader.on_pause = lambda asked: (pause(asked), follower.paused(leader.step))
        leader.on_resume = lambda: (resume(), follower.running(leader.step))
        self.fleet.serve(leader)
        self.fleet.serve(follower)
        self.publisher.publish(whole).wait(timeout=DEADLINE_S)
        until(lambda: leader.serving, "the first version")
        for rank, part in enumerate(held):
            self.holds(part, {name: whole[name][rank * 32:rank * 32 + 32] for name in NAMES})

    def test_suspended_memory_is_loaded_again(self):
        held = self.arrays()
        replica = wsync.Replica(self.socket, "r0", held)
        self.fleet.serve(replica)
        self.committed(1)
        replica.suspend()
        stream = self.driver.context(0)
        for one in held.values():
            self.driver.call("cuMemsetD8Async", one.pointer, 0, one.bytes, stream)
        self.driver.call("cuStreamSynchronize", stream)
        replica.resume()
        until(lambda: replica.serving, "the version after the suspension")
        self.holds(held, weights_of(1))

    def test_suspended_memory_comes_back_elsewhere(self):
        held = self.arrays()
        replica = wsync.Replica(self.socket, "r0", held)
        self.fleet.serve(replica)
        self.committed(1)
        replica.suspend()
        before = {name: one.pointer.value for name, one in held.items()}
        for name, one in held.items():
            one.free()
            one.pointer.value = before[name]  # as if it were there
        self.assertRaisesRegex(wsync.Error, "the destination of tensor .* cannot be borrowed", replica.resume)
        for one in held.values():
            one.pointer.value = 0
        self.assertRaisesRegex(wsync.InvalidInput, "has other memory than before", replica.resume)
        elsewhere = self.arrays()
        self.assertNotEqual({one.pointer.value for one in elsewhere.values()}, set(before.values()))
        with self.assertRaisesRegex(wsync.InvalidInput, "writes into no tensor other"):
            replica.resume({"other": elsewhere[NAMES[0]]})
        with self.assertRaisesRegex(wsync.InvalidInput, "as before"):
            replica.resume({NAMES[0]: self.arrays(shape=(3, 3))[NAMES[0]]})
        replica.resume(elsewhere)
        until(lambda: replica.serving, "the version after the suspension")
        self.holds(elsewhere, weights_of(1))

    def test_the_work_of_torch_has_ended_when_a_pause_is_reported(self):
        """torch is not in this environment: what takes its place says when it was asked to wait."""
        waited = []
        replica = wsync.Replica(self.socket, "r0", self.arrays())
        cuda = types.SimpleNamespace(is_initialized=lambda: True,
                                     synchronize=lambda gpu: waited.append((gpu, replica.status().state, replica.serving)))
        self.fleet.serve(replica)
        self.committed(1)
        until(lambda: replica.serving, "the first version")
        sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
        self.addCleanup(sys.modules.pop, "torch")
        self.committed(2)
        self.assertEqual(waited, [(0, wsync.RankState.SERVING, False)])

    def test_a_library_that_is_not_there(self):
        self.fleet.environment["WSYNC_CUDA_LIBRARY"] = "/nowhere/libwsync_cuda.so"
        code, _, said = self.fleet.end(self.fleet.program(ENGINE, self.socket, 0))
        self.assertEqual(code, 1)
        self.assertIn("/nowhere/libwsync_cuda.so", said)
        self.assertIn("EngineRefused: ", said)


class Refusing(OnTheEmulatedDriver):
    def refused(self, kind, tensors, *words, **options):
        with self.assertRaises(kind) as caught:
            wsync.Replica("/nowhere/host.engines", "r0", tensors, **options)
        for word in words:
            self.assertIn(word, caught.exception.sentence)
        return caught.exception

    def test_memory_in_two_places(self):
        on_0, on_1 = self.arrays(0, ["a", "b"]), self.arrays(1, ["b"])
        host = wsync.as_dtype(np.zeros(SHAPE, np.uint16), "BF16")
        found = self.refused(wsync.InvalidInput, {"a": on_0["a"], "b": on_1["b"]}, "tensor b is on GPU 1", "the others are on GPU 0",
                             "attach a rank for each GPU")
        self.assertEqual(found.tensor, "b")
        self.refused(wsync.InvalidInput, {"a": on_0["a"], "c": host}, "tensor c is in the memory of the host",
                     "the others are on GPU 0")
        self.refused(wsync.InvalidInput, {"c": host, "b": on_0["b"]}, "tensor b is on GPU 0", "c is in the memory of the host")
        self.refused(wsync.InvalidInput, {"c": host}, "tensor c is in the memory of the host", gpu=0)
        self.refused(wsync.InvalidInput, {"b": on_1["b"]}, "tensor b is on GPU 1", gpu=0)

    def test_memory_that_is_not_there(self):
        freed = self.arrays(0, ["a", "b"])
        stale = GpuArray(self.driver, 0, SHAPE)
        address = stale.pointer.value
        stale.free()
        stale.pointer.value = address
        self.refused(wsync.EngineRefused, {"a": freed["a"], "b": stale}, "tensor b: GPU 0", "not known to the driver")
        stale.pointer.value = 0
        # An object that does not say which GPU it is on: the driver knows.
        silent = self.arrays(1, ["a"], says_gpu=False)
        self.refused(wsync.EngineRefused, silent, "a", "GPU")
        replica = wsync.Replica("/nowhere/host.engines", "r0", silent, gpu=1)
        self.assertEqual(replica.gpu, 1)
        replica.close()
        self.refused(wsync.EngineRefused, self.arrays(0, ["a"], says_gpu=False), "GPU 7", gpu=7)
        self.refused(wsync.InvalidInput, silent, "gpu is -1", gpu=-1)

    def test_what_nothing_can_be_written_to(self):
        strided = self.arrays(0, ["a"], strides=(128, 2))
        self.refused(wsync.InvalidInput, strided, "tensor a: ", "strides (128, 2)")
        read_only = self.arrays(0, ["a"], data=(1 << 20, True))
        self.refused(wsync.InvalidInput, read_only, "tensor a must be writable")
        self.refused(wsync.InvalidInput, self.arrays(0, ["a"], dtype="complex128", dtype_name=None), "tensor a: ", "<c16")
        part = self.arrays(0, ["a"])["a"]
        self.refused(wsync.InvalidInput, {"a": wsync.Shard(part, (64, 64), [(1, 0, 16)])}, "the part has the shape [64, 32]",
                     "have [64, 16]")

    def test_casts_and_other_ways_of_taking(self):
        floats = self.arrays(0, ["a"], dtype="float32", dtype_name=None)
        wsync.Replica("/nowhere/host.engines", "r0", floats, casts={"a": "BF16"}).close()
        self.refused(wsync.EngineRefused, floats, "a", "only F32, F16 and BF16", casts={"a": "I32"})
        self.refused(wsync.InvalidInput, {"a": wsync.Spec("BF16", SHAPE)}, "gpu is for", take="borrow", gpu=0,
                     load_layer=lambda *_: None)


class Serving(OnTheEmulatedDriver):
    def refused(self, socket, gpu, sentence):
        engine = self.fleet.program(ENGINE, socket, gpu)
        self.fleet.ready(engine)
        code, _, said = self.fleet.end(engine)
        self.assertEqual(code, 1, said)
        self.assertRegex(said, f"wsync.Refused: the sidecar refuses this engine: .*{re.escape(sentence)}")

    def test_a_device_on_another_gpu(self):
        self.refused(self.fleet.sidecar("host", *CUDA, "devices.gpus=0")[1], 1, "but device 0 of this sidecar is GPU-")

    def test_a_sidecar_without_gpus(self):
        self.refused(self.fleet.sidecar()[1], 0, "set devices.kind: cuda for the sidecar")

    def test_an_engine_that_copies_itself_may_describe_its_weights_by_them(self):
        """With "borrow" only dtype and shape are used, so a sidecar without GPUs will do."""
        _, socket = self.fleet.sidecar()
        loaded = {}
        held = self.arrays()
        replica = wsync.Replica(socket, "r0", held, take="borrow",
                                load_layer=lambda version, layer, tensors: loaded.update(
                                    {name: array.tobytes() for name, array in tensors.items()}))
        self.assertIsNone(replica.gpu)
        self.fleet.serve(replica)
        with self.fleet.publisher() as publisher:
            publisher.publish(weights_of(1)).wait(timeout=DEADLINE_S)
        self.assertEqual(loaded, {name: np.asarray(array).tobytes() for name, array in weights_of(1).items()})


def main():
    if "WSYNC_EMULATED_CUDA_REPORT" not in os.environ:
        with_emulated_driver(sys.argv.pop())
    unittest.main()


if __name__ == "__main__":
    main()

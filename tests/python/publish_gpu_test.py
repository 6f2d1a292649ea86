"""Publishing weights in the memory of a GPU: objects with __cuda_array_interface__, on the emulated driver (tests/emulated_cuda),
whose path is the last argument; with the argument "gpu" instead, on the GPU of this machine, and tensors of torch too if it has
torch with CUDA."""
import ctypes
import json
import os
import sys
import unittest

import numpy as np
import wsync
from gpu_memory import Driver, GpuArray, with_emulated_driver
from package_fleet import DEADLINE_S, NAMES, PackageFleet, bf16, empty_like, equal, weights_of

EMULATED = sys.argv[-1] != "gpu"


class Weights(GpuArray):
    """An array of a GPU, with a stream that writes it. `slow`: the copies are still under way when `write` returns."""

    def write(self, array, slow=False):
        self.pinned = getattr(self, "pinned", None) or self.driver.pinned(self.gpu, self.bytes)
        stream = self.driver.context(self.gpu)
        ctypes.memmove(self.pinned, np.ascontiguousarray(array).ctypes.data, self.bytes)
        for _ in range(20 if slow else 1):
            self.driver.call("cuMemcpyHtoDAsync_v2", self.pointer, self.pinned, ctypes.c_size_t(self.bytes), stream)
        if slow:
            self.interface = {"stream": stream.value}
        else:
            self.driver.call("cuStreamSynchronize", stream)


class PinningDriver(Driver):
    def __init__(self):
        super().__init__()
        self.held = []

    def pinned(self, gpu, size):
        memory = ctypes.c_void_p()
        self.context(gpu)
        self.call("cuMemAllocHost_v2", ctypes.byref(memory), ctypes.c_size_t(size))
        self.held.append((gpu, memory))
        return memory

    def close(self):
        for gpu, memory in self.held:
            self.context(gpu)
            self.call("cuMemFreeHost", memory)
        self.held = []
        super().close()


class Publishing(unittest.TestCase):
    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        self.driver = PinningDriver()
        self.addCleanup(self.driver.close)

    def on_gpu(self, weights, gpu=0, **options):
        made = {}
        for name, array in weights.items():
            array = np.asanyarray(array)
            dtype_name = getattr(array, "dtype_name", None)
            one = Weights(self.driver, gpu, array.shape, array.dtype.name, dtype_name, **options)
            self.addCleanup(one.free)
            one.write(array)
            made[name] = one
        return made

    def fleet_of(self, held):
        _, socket = self.fleet.sidecar()
        self.fleet.serve(wsync.Replica(socket, "r0", held))
        return self.enterContext(self.fleet.publisher())

    def test_versions_arrive_byte_for_byte(self):
        held = empty_like(weights_of(0))
        publisher = self.fleet_of(held)
        on_gpu = self.on_gpu(weights_of(0))
        for step in (1, 2, 7):
            for name, array in weights_of(step).items():
                on_gpu[name].write(array)
            publish = publisher.publish(on_gpu, step=step)
            for name, array in weights_of(99).items():
                on_gpu[name].write(array)  # they may change as soon as publish() has returned
            publish.wait("committed", DEADLINE_S)
            equal(self, held, weights_of(step))

    def test_weights_of_the_gpu_and_of_the_host_are_one_version(self):
        weights = weights_of(3, shape=(700, 1025))
        held = empty_like(weights)
        publisher = self.fleet_of(held)
        mixed = dict(weights, **self.on_gpu({NAMES[1]: weights[NAMES[1]]}))
        publisher.publish(mixed).wait(timeout=DEADLINE_S)
        equal(self, held, weights)

    def test_f32_masters_are_rounded_to_bf16(self):
        values = np.random.default_rng(3).standard_normal((2000, 1030), np.float32)
        held = {"a": wsync.as_dtype(np.zeros(values.shape, np.uint16), "BF16"), "count": np.zeros(2, np.int64)}
        publisher = self.fleet_of(held)
        on_gpu = self.on_gpu({"a": values, "count": np.array([5, 6])})
        publisher.publish(on_gpu, dtype="BF16").wait(timeout=DEADLINE_S)
        equal(self, held, {"a": bf16(values), "count": np.array([5, 6])})
        with publisher.version() as version:
            version.put("count", np.array([7, 8]))
            version.put("a", on_gpu["a"])
        version.publish.wait(timeout=DEADLINE_S)
        equal(self, held, {"a": bf16(values), "count": np.array([7, 8])})

    def test_shards_along_both_dimensions(self):
        whole = weights_of(5, shape=(60, 50), names=["rows", "columns"])
        held = empty_like(whole)
        publisher = self.fleet_of(held)
        publisher.describe({name: wsync.Spec("BF16", (60, 50)) for name in whole})

        def part(array):
            return self.on_gpu({"": wsync.as_dtype(np.ascontiguousarray(array), "BF16")})[""]
        with publisher.version() as version:
            version.put("rows", part(whole["rows"][:20]), shape=(60, 50), ranges=[(0, 0, 20)])
            version.put("rows", wsync.Shard(part(whole["rows"][20:]), (60, 50), [wsync.Range(0, 20, 40)]))
            version.put("columns", part(whole["columns"][:, :30]), shape=(60, 50), ranges=[(1, 0, 30)])
            version.put("columns", part(whole["columns"][:, 30:]), shape=(60, 50), ranges=[(1, 30, 20)])
        version.publish.wait(timeout=DEADLINE_S)
        equal(self, held, whole)

    def test_two_ranks_publish_their_shards(self):
        whole = weights_of(8)
        held = empty_like(whole)
        _, socket = self.fleet.sidecar()
        self.fleet.serve(wsync.Replica(socket, "r0", held))
        other = self.fleet.program(RANK, json.dumps(self.fleet.settings))

        def mine(array):
            return wsync.Shard(self.on_gpu({"": wsync.as_dtype(np.ascontiguousarray(array[:, :20]), "BF16")})[""], array.shape,
                               [wsync.Range(1, 0, 20)])
        shards = {name: mine(array) for name, array in whole.items()}
        with wsync.Publisher(settings=self.fleet.settings, world_size=2) as publisher:
            publisher.publish(shards, step=1).wait(timeout=DEADLINE_S)
            code, _, said = self.fleet.end(other)
        self.assertEqual(code, 0, said)
        equal(self, held, whole)

    def test_the_stream_that_writes_the_weights_is_waited_for(self):
        weights = weights_of(0, shape=(1000, 1000))
        held = empty_like(weights)
        publisher = self.fleet_of(held)
        on_gpu = self.on_gpu(weights)
        for step in (1, 2, 3):
            weights = weights_of(step, shape=(1000, 1000))
            for name, array in weights.items():
                on_gpu[name].write(array, slow=True)
            publisher.publish(on_gpu, step=step).wait(timeout=DEADLINE_S)
            equal(self, held, weights)

    def test_tied_weights_are_published_once(self):
        weights = weights_of(6)
        held = empty_like({NAMES[0]: weights[NAMES[0]]})
        publisher = self.fleet_of(held)
        one = self.on_gpu({NAMES[0]: weights[NAMES[0]]})[NAMES[0]]
        publisher.publish({NAMES[0]: one, "head": one}).wait(timeout=DEADLINE_S)
        equal(self, held, {NAMES[0]: weights[NAMES[0]]})

    # ---- what is refused ----

    def refused(self, publisher, weights, sentence, kind=wsync.InvalidInput):
        with self.assertRaises(kind) as caught:
            publisher.publish(weights)
        self.assertIn(sentence, str(caught.exception))
        self.assertEqual(caught.exception.tensor, NAMES[0])

    def test_what_is_not_memory_of_the_gpu_is_refused_and_the_next_publish_succeeds(self):
        weights = {NAMES[0]: weights_of(1)[NAMES[0]]}
        held = empty_like(weights)
        publisher = self.fleet_of(held)
        on_gpu = self.on_gpu(weights)
        good = on_gpu[NAMES[0]].interface

        def with_interface(**interface):
            on_gpu[NAMES[0]].interface = interface
            return on_gpu
        publisher.publish(on_gpu).wait(timeout=DEADLINE_S)
        host = np.zeros((64, 32), np.uint16)
        self.refused(publisher, with_interface(data=(host.ctypes.data, False)), "cannot be borrowed")
        self.refused(publisher, with_interface(strides=(2, 128)), "which is not contiguous in row-major order")
        self.refused(publisher, with_interface(mask=host), "has a mask")
        self.refused(publisher, with_interface(stream=0), "names the stream 0")
        on_gpu[NAMES[0]].dtype_name = "F32"
        self.refused(publisher, with_interface(), "elements of type '<u2' have 2 bytes, those of F32 4")
        on_gpu[NAMES[0]].dtype_name = "BF16"
        on_gpu[NAMES[0]].__dlpack_device__ = lambda: (2, 99)
        self.refused(publisher, with_interface(), "GPU 99 does not exist", wsync.Refused)
        on_gpu[NAMES[0]].__dlpack_device__ = lambda: (2, 0)
        publisher.publish(with_interface(**good)).wait(timeout=DEADLINE_S)
        on_gpu[NAMES[0]].write(weights_of(2)[NAMES[0]])
        publisher.publish(on_gpu).wait(timeout=DEADLINE_S)
        equal(self, held, {NAMES[0]: weights_of(2)[NAMES[0]]})

    @unittest.skipUnless(EMULATED, "not for a real GPU: it may have another allocation there")
    def test_memory_that_was_freed_is_refused(self):
        weights = {NAMES[0]: weights_of(1)[NAMES[0]]}
        held = empty_like(weights)
        publisher = self.fleet_of(held)
        on_gpu = self.on_gpu(weights)
        pointer = on_gpu[NAMES[0]].pointer.value
        publisher.publish(on_gpu).wait(timeout=DEADLINE_S)
        on_gpu[NAMES[0]].free()
        on_gpu[NAMES[0]].interface = {"data": (pointer, False)}
        self.refused(publisher, on_gpu, "cannot be borrowed")
        equal(self, held, weights)

    @unittest.skipUnless(EMULATED, "two GPUs are needed")
    def test_gpus_that_objects_name_or_do_not_name(self):
        weights = weights_of(4)
        held = empty_like(weights)
        _, socket = self.fleet.sidecar()
        self.fleet.serve(wsync.Replica(socket, "r0", held))
        of_both = {**self.on_gpu({NAMES[0]: weights[NAMES[0]]}, gpu=0),
                   **self.on_gpu({NAMES[1]: weights[NAMES[1]]}, gpu=1),
                   **self.on_gpu({NAMES[2]: weights[NAMES[2]]}, gpu=1, says_gpu=False)}
        with self.fleet.publisher() as publisher:
            with self.assertRaises(wsync.InvalidInput) as caught:
                publisher.publish(of_both)
            self.assertIn("is on GPU 1", str(caught.exception))
            self.assertEqual(caught.exception.tensor, NAMES[2])
        with wsync.Publisher(settings=self.fleet.settings, gpu=1) as publisher:
            publisher.publish(of_both, step=5).wait(timeout=DEADLINE_S)
        equal(self, held, weights)

    def test_a_forked_child_is_refused(self):
        held = empty_like(weights_of(0))
        publisher = self.fleet_of(held)
        on_gpu = self.on_gpu(weights_of(1))
        publisher.publish(on_gpu).wait(timeout=DEADLINE_S)
        child = os.fork()
        if child == 0:
            try:
                publisher.publish(on_gpu)
                os._exit(1)
            except wsync.InvalidInput as failure:
                os._exit(0 if "forked" in str(failure) else 2)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        for name, array in weights_of(2).items():
            on_gpu[name].write(array)
        publisher.publish(on_gpu).wait(timeout=DEADLINE_S)
        equal(self, held, weights_of(2))


# Rank 1, which has the other columns of each tensor.
RANK = """
import json
import sys

import numpy as np
import wsync
from package_fleet import weights_of
from publish_gpu_test import PinningDriver, Weights

driver = PinningDriver()
shards, held = {}, []
for name, array in weights_of(8).items():
    held.append(Weights(driver, 0, (64, 12)))
    held[-1].write(np.ascontiguousarray(array[:, 20:]))
    shards[name] = wsync.Shard(held[-1], (64, 32), [wsync.Range(1, 20, 12)])
with wsync.Publisher(settings=json.loads(sys.argv[1]), rank=1, world_size=2) as publisher:
    publisher.publish(shards, step=1).wait(timeout=60)
for one in held:
    one.free()
driver.close()
"""

# A trainer in a process of its own, which publishes the steps of its arguments. It says when a publish has ended, and when one has
# submitted copies.
TRAINER = """
import ctypes
import json
import sys
import threading
import time

import wsync
from package_fleet import NAMES, weights_of
from publish_gpu_test import SHAPE, PinningDriver, Weights

driver = PinningDriver()
on_gpu = {name: Weights(driver, 0, SHAPE) for name in NAMES}
count = driver.library.emulated_cuda_count
count.restype = ctypes.c_uint64

def say_that_it_copies(before):
    while count(b"cuMemcpyDtoHAsync_v2") == before:
        time.sleep(0.001)
    print("copies", flush=True)

with wsync.Publisher(settings=json.loads(sys.argv[1])) as publisher:
    for step in map(int, sys.argv[2:]):
        for name, array in weights_of(step, shape=SHAPE).items():
            on_gpu[name].write(array)
        threading.Thread(target=say_that_it_copies, args=(count(b"cuMemcpyDtoHAsync_v2"),), daemon=True).start()
        try:
            publisher.publish(on_gpu, step=step).wait(timeout=60)
            print("published", step, flush=True)
        except wsync.Error as failure:
            print(type(failure).__name__, failure, flush=True)
for one in on_gpu.values():
    one.free()
driver.close()
"""
SHAPE = (4000, 1000)


@unittest.skipUnless(EMULATED, "not for a real GPU, which cannot be made to fail or to wait")
class Failing(unittest.TestCase):
    """What becomes of the fleet when the GPU of a trainer fails, or its process ends, in the middle of a copy."""

    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        self.held = empty_like(weights_of(0, shape=SHAPE))
        _, self.socket = self.fleet.sidecar()
        self.replica = wsync.Replica(self.socket, "r0", self.held)
        self.fleet.serve(self.replica)

    def trainer(self, *steps, **environment):
        self.fleet.environment.update(environment)
        return self.fleet.program(TRAINER, json.dumps(self.fleet.settings), *steps)

    def says(self, trainer, *lines):
        for line in lines:
            self.fleet.ready(trainer, line)

    # Copies 1 to 3 write the three arrays, 4 to 11 are those of the first publish, and 12 to 14 write again.
    def test_a_fault_fails_the_publish_and_the_fleet_keeps_its_version(self):
        trainer = self.trainer(1, 2, 3, WSYNC_EMULATED_CUDA_FAULTS="copy:17:CUDA_ERROR_ILLEGAL_ADDRESS",
                               WSYNC_EMULATED_CUDA_REPORT="")
        self.says(trainer, "copies", "published 1", "copies")
        said = trainer.stdout.readline()
        self.assertTrue(said.startswith("IoFailure") and "D2H stream" in said and "CUDA_ERROR_ILLEGAL_ADDRESS" in said, said)
        trainer.kill()
        equal(self, self.held, weights_of(1, shape=SHAPE))
        self.assertEqual(self.replica.status().active, wsync.Version(1, 1))

    def test_a_trainer_that_is_killed_in_the_middle_of_a_copy(self):
        trainer = self.trainer(1, 2, WSYNC_EMULATED_CUDA_FAULTS="copy:17:hang")
        self.says(trainer, "copies", "published 1", "copies")
        trainer.kill()
        trainer.wait()
        equal(self, self.held, weights_of(1, shape=SHAPE))
        again = self.trainer(3, WSYNC_EMULATED_CUDA_FAULTS="")
        self.says(again, "copies", "published 3")
        code, _, said = self.fleet.end(again)
        self.assertEqual(code, 0, said)
        equal(self, self.held, weights_of(3, shape=SHAPE))


@unittest.skipIf(EMULATED, "tensors of torch on CUDA need a real GPU")
class Torch(unittest.TestCase):
    def setUp(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        if not torch.cuda.is_available():
            self.skipTest("torch has no GPU")
        self.torch = torch
        self.fleet = self.enterContext(PackageFleet())

    def published(self, weights, publish):
        held = {name: wsync.as_dtype(np.zeros(tuple(tensor.shape), np.uint16), "BF16") for name, tensor in weights.items()}
        _, socket = self.fleet.sidecar()
        self.fleet.serve(wsync.Replica(socket, "r0", held))
        with self.fleet.publisher() as publisher:
            publish(publisher)
        return held

    def equal(self, held, weights):
        for name, tensor in weights.items():
            expected = tensor.detach().to(self.torch.bfloat16).cpu().contiguous().view(self.torch.uint16).numpy()
            np.testing.assert_array_equal(np.asarray(held[name]), expected, name)

    def test_tensors_arrive_from_the_gpu(self):
        torch = self.torch
        model = torch.nn.Sequential(torch.nn.Linear(300, 500), torch.nn.Linear(500, 7)).cuda()
        weights = model.state_dict() | {"transposed": torch.randn(300, 400, device="cuda").T}
        weights = {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}
        weights["view"] = weights["transposed"][3:90, ::2]
        self.equal(self.published(weights, lambda publisher: publisher.publish(weights).wait(timeout=DEADLINE_S)), weights)

    def test_f32_masters_are_rounded_to_bf16(self):
        weights = {"a": self.torch.randn(3000, 2000, device="cuda")}
        held = self.published(weights, lambda publisher: publisher.publish(weights, dtype="BF16").wait(timeout=DEADLINE_S))
        self.equal(held, weights)

    def test_the_current_stream_is_waited_for(self):
        torch = self.torch
        weights = {"a": torch.zeros(4000, 4000, device="cuda", dtype=torch.bfloat16)}

        def publish(publisher):
            for step in (1, 2, 3):
                with torch.cuda.stream(torch.cuda.Stream()):
                    torch.cuda._sleep(200_000_000)  # about 0.1 s
                    weights["a"].fill_(step)
                    publisher.publish(weights, step=step).wait(timeout=DEADLINE_S)
        self.equal(self.published(weights, publish), {"a": torch.full((4000, 4000), 3.0)})

    def test_shards_of_a_model_are_its_own_memory(self):
        import wsync.torch
        model = self.torch.nn.Linear(30, 50).cuda()
        given = wsync.torch.shards(model, rank=0)
        self.assertEqual(given["weight"].data_ptr(), model.weight.data_ptr())


def why_no_gpu():
    """Why tests of a real GPU cannot run here; empty if they can."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"the NVIDIA driver is not installed: {error}"
    count = ctypes.c_int()
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return "" if code == 0 and count.value > 0 else f"the driver shows none ({code})"


def main():
    if not EMULATED:
        sys.argv.pop()
        if why := why_no_gpu():
            print(f"no GPU for the tests: {why}")
            return
    elif "WSYNC_EMULATED_CUDA_REPORT" not in os.environ:
        with_emulated_driver(sys.argv.pop(), WSYNC_EMULATED_CUDA_DELAY_US="2000")
    unittest.main()


if __name__ == "__main__":
    main()

"""wsync.checkpoint_engine against checkpoint-engine's own worker code: real processes, the memory of the host in the place of CUDA
IPC."""
import glob
import hashlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import unittest

import numpy as np

import wsync

TESTS = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(TESTS, "..", "python"))
from package_fleet import DEADLINE_S, PackageFleet, bf16, slowness, until  # noqa: E402

BUCKET = 40 << 10


def weights_of(seed, layers=6, wide=()):
    """BF16 and F32 tensors, a scalar and an empty one; those of layers in `wide` are larger than a bucket."""
    random = np.random.default_rng(seed)
    weights = {}
    for layer in range(layers):
        columns = 512 if layer in wide else 64
        weights[f"model.layers.{layer}.q.weight"] = bf16(random.standard_normal((96, columns), np.float32))
        weights[f"model.layers.{layer}.k.weight"] = bf16(random.standard_normal((33, columns), np.float32))
        weights[f"model.layers.{layer}.norm.weight"] = random.standard_normal(columns + 1, np.float32)
    weights["model.scale"] = np.float32(seed).reshape(())
    weights["model.empty"] = np.zeros((0, 4), np.float32)
    return weights


def digests(weights):
    words = {"BF16": "torch.bfloat16", "F32": "torch.float32"}
    return {name: [words[getattr(array, "dtype_name", "F32")], list(array.shape),
                   hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()] for name, array in weights.items()}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class CheckpointEngine(unittest.TestCase):
    kind = served = "vllm"  # `served`: what checkpoint_engine_server.py is started as

    def start(self, workers=1, timeout=DEADLINE_S, bucket=BUCKET, clears_cache=True, **settings):
        self.fleet = self.enterContext(PackageFleet())
        self.fleet.environment |= {"PYTHONPATH": f"{self.fleet.environment['PYTHONPATH']}:{TESTS}",
                                   "WSYNC_TEST_BUFFERS": self.fleet.directory}
        self.port, self.workers = free_port(), workers
        self.engine = self.start_engine()
        _, self.socket = self.fleet.sidecar("host")
        self.options = {"socket": self.socket, "replica": "r0", "kind": self.kind, "url": f"http://127.0.0.1:{self.port}",
                        "workers": workers, "bucket": bucket, "timeout": timeout, "clears_cache": clears_cache}
        self.adapter = self.start_adapter()
        self.publisher = self.enterContext(self.fleet.publisher(**settings))
        self.attached()

    def start_engine(self):
        engine = self.fleet.start(sys.executable, os.path.join(TESTS, "checkpoint_engine_server.py"), str(self.port), self.served,
                                  str(self.workers), self.fleet.directory)
        until(lambda: self.state_or_none() or engine.poll() is not None, "the engine")
        return engine

    def start_adapter(self):
        adapter = self.fleet.start(sys.executable, os.path.join(TESTS, "checkpoint_engine_adapter.py"), json.dumps(self.options))
        self.fleet.ready(adapter)
        return adapter

    def replica(self):
        code, answer = self.fleet.ask("status")
        found = [replica for sidecar in answer["result"]["sidecars"] for replica in sidecar["replicas"]] if code == 0 else []
        return next((replica for replica in found if replica["replica"] == "r0"), {})

    def attached(self):
        until(lambda: self.replica().get("ready"), "the replica")

    def ready(self, version):
        until(lambda: (lambda r: r.get("ready") and r.get("version") == version)(self.replica()), f"{version} in the replica")

    def state(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            connection.request("GET", "/state")
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def state_or_none(self):
        try:
            return self.state()
        except OSError:
            return None

    def go(self):
        open(self.fleet.path("go"), "w", encoding="utf-8").close()

    def fault(self, what):
        path = self.fleet.path("fault")
        if what:
            with open(path, "w", encoding="utf-8") as file:
                file.write(what)
        elif os.path.exists(path):
            os.remove(path)

    def commit(self, step, weights):
        status = self.publisher.publish(weights, step=step).wait("committed", DEADLINE_S)
        self.holds(weights, str(status.version))
        return status

    def holds(self, weights, version):
        state = self.state()
        for held in state["held"]:
            self.assertEqual({name: held.get(name) for name in weights}, digests(weights))
        self.assertEqual((state["label"], state["paused"], state["updates_while_running"]), (version, False, 0))

    def refused(self, step, weights):
        """The sentence of a publish that fails."""
        with self.assertRaises(wsync.Error) as caught:
            self.publisher.publish(weights, step=step).wait("committed", 5 * DEADLINE_S)  # the sidecar tries several times
        return caught.exception.sentence

    def paths(self):
        return [call[0] for call in self.state()["calls"]]


class Vllm(CheckpointEngine):
    def test_many_lists(self):
        for workers in 1, 2:
            with self.subTest(workers):
                self.served = "vllm-real" if workers == 1 else "vllm"
                self.start(workers)
                self.commit(1, weights_of(1))
                self.commit(2, weights_of(2))
                for orders in self.state()["orders"]:
                    self.assertGreater(len(orders), 2)
                    layers = [name.split(".")[2] for names in orders for name in names if "layers" in name]
                    self.assertEqual(layers, sorted(layers))
                    for layer in set(layers):  # each in one list
                        self.assertEqual(sum(any(f"layers.{layer}." in name for name in names) for names in orders), 1)
                self.assertEqual(self.paths()[:4], ["/pause?mode=abort&clear_cache=true", "/collective_rpc",
                                                    "/update_weight_version", "/resume"])

    def test_a_tensor_that_is_larger_than_a_half(self):
        self.start()
        self.commit(1, weights_of(1, wide=(3,)))
        self.adapter.terminate()
        code, out, said = self.fleet.end(self.adapter)
        self.assertEqual(code, 0, said)
        self.assertIn(f"buffer of {2 * 96 * 512 * 2} bytes", out)

    def test_one_list_and_pause_modes(self):
        self.start(bucket=1 << 20, clears_cache=False, pause_mode="keep")
        self.commit(1, weights_of(1))
        self.assertEqual([len(orders) for orders in self.state()["orders"]], [1])
        self.assertEqual(self.paths()[0], "/pause?mode=keep&clear_cache=false")

    def test_a_load_that_raises(self):
        self.start(workers=2)
        self.commit(1, weights_of(1))
        bad = weights_of(2) | {"model.layers.4.poison": np.ones(3, np.float32)}
        self.assertRegex(self.refused(2, bad), r"the worker of GPU-0 could not load list \d+ of \d+ \(model\.\S+ and \d+ more\): "
                                               r"ValueError: model\.layers\.4\.poison does not fit: the model has another shape")
        self.ready("1.1")  # loaded once more, because a part of it was overwritten
        self.holds(weights_of(1), "1.1")
        self.commit(3, weights_of(3))

    def test_what_follows_a_load_raises(self):
        self.start()
        self.commit(1, weights_of(1))
        self.fault("post_hook")
        self.assertIn("was answered with 500: RuntimeError: no kernel for this layout", self.refused(2, weights_of(2)))
        self.assertTrue(self.state()["paused"])
        self.fault("")
        until(lambda: self.replica().get("ready"), "a version that is complete")
        self.commit(3, weights_of(3))

    def test_an_update_call_that_fails(self):
        self.start()
        self.commit(1, weights_of(1))
        self.fault("http")
        sentence = self.refused(2, weights_of(2))
        self.assertIn("/collective_rpc was answered with 400: this server has no such method", sentence)
        self.fault("")
        self.ready("1.2")
        self.holds(weights_of(2), "1.2")

    def test_a_worker_that_hangs(self):
        self.start(timeout=3 * slowness())
        self.commit(1, weights_of(1))
        self.fault("hang")
        self.assertRegex(self.refused(2, weights_of(2)), r"the worker of GPU-0 was told to load list 2 of \d+ \(model\.\S+ and \d+ "
                                                         r"more\), and has not answered for \d+ s")
        self.fault("")
        self.go()
        self.ready("1.2")
        self.holds(weights_of(2), "1.2")

    def test_a_worker_that_is_killed_and_comes_back(self):
        self.start(workers=2)
        self.commit(1, weights_of(1))
        self.fault("kill")
        self.commit(2, weights_of(2))  # tried again
        self.assertIn("/collective_rpc was answered with 500: worker 0 has died", self.fleet.said(self.adapter))

    def test_an_engine_that_is_killed_and_comes_back(self):
        self.start()
        self.commit(1, weights_of(1))
        for number in range(2):
            if number:  # in the middle of a load
                self.fault("hang")
                self.publisher.publish(weights_of(2), step=2)
                until(lambda: os.path.exists(self.fleet.path("hangs")), "the load")
            self.engine.kill()
            self.engine.wait()
            self.fault("")
            until(lambda: not self.replica().get("ready"), "the loss of the replica")
            self.engine = self.start_engine()
            self.ready(f"1.{1 + number}")
            self.holds(weights_of(1 + number), f"1.{1 + number}")
        self.assertIn("the engine has ended or was restarted", self.fleet.said(self.adapter))

    def test_an_engine_that_was_restarted_unseen(self):
        self.start()
        self.commit(1, weights_of(1))
        os.kill(self.adapter.pid, signal.SIGSTOP)
        self.engine.kill()
        self.engine.wait()
        self.engine = self.start_engine()
        os.kill(self.adapter.pid, signal.SIGCONT)
        until(lambda: self.state()["label"] == "1.1", "the version of the fleet")
        self.ready("1.1")
        self.holds(weights_of(1), "1.1")

    def test_an_adapter_that_is_killed_and_comes_back(self):
        self.start()
        self.commit(1, weights_of(1))
        self.fault("hang")
        self.publisher.publish(weights_of(2), step=2)
        until(lambda: os.path.exists(self.fleet.path("hangs")), "the load")
        second = self.fleet.start(sys.executable, os.path.join(TESTS, "checkpoint_engine_adapter.py"), json.dumps(self.options))
        code, _, said = self.fleet.end(second)
        self.assertIn("another process serves the replica 'r0'", said)
        self.adapter.kill()
        self.adapter.wait()
        self.fault("")
        self.go()
        self.adapter = self.start_adapter()
        self.ready("1.2")
        self.holds(weights_of(2), "1.2")
        self.assertIn("1 workers have left an update", self.fleet.said(self.adapter))
        self.adapter.terminate()
        code, _, said = self.fleet.end(self.adapter)
        self.assertEqual(code, 0, said)
        self.assertEqual(glob.glob(os.path.join(self.fleet.run_dir, "ce-*", "*")), [])

    def test_what_is_missing_is_said(self):
        command = ["import runpy, sys",
                   "sys.argv = ['x', '--socket', '/x/y', '--replica', 'r0', '--engine-url', 'http://localhost:1']",
                   "runpy.run_module('wsync.checkpoint_engine', run_name='__main__', alter_sys=True)"]
        done = subprocess.run([sys.executable, "-c", "; ".join(command)], text=True, capture_output=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 1)
        self.assertIn("this process sees 0 GPUs", done.stderr)
        command.insert(1, "sys.modules['zmq'] = None")
        done = subprocess.run([sys.executable, "-c", "; ".join(command)], text=True, capture_output=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 1)
        self.assertIn("needs the package 'zmq': pip install 'wsync[checkpoint-engine]'", done.stderr)


class Sglang(CheckpointEngine):
    kind = served = "sglang"

    def test_versions_and_pause_modes(self):
        for mode, clears_cache, expected in ("abort", True, "abort"), ("keep", True, "retract"), ("keep", False, "in_place"):
            with self.subTest(expected):
                self.start(workers=2, clears_cache=clears_cache, pause_mode=mode)
                self.commit(1, weights_of(1))
                self.commit(2, weights_of(2))
                update = {"flush_cache": expected != "in_place", "weight_version": "1.2"}
                self.assertEqual(self.state()["calls"][-3:], [["/pause_generation", {"mode": expected}],
                                                              ["/update_weights_from_ipc", update], ["/continue_generation", {}]])

    def test_a_mode_that_it_does_not_have(self):
        self.start(**{"pause_mode": "wait", "deadlines.pause": f"{round(slowness() * 500)}ms"})
        self.publisher.publish(weights_of(1), step=1)
        self.ready("1.1")  # paused with the sidecar's fallback
        self.holds(weights_of(1), "1.1")
        self.assertEqual(self.state()["calls"][0], ["/pause_generation", {"mode": "abort"}])
        self.assertIn("SGLang cannot pause after its running requests", self.fleet.said(self.adapter))

    def test_a_load_that_raises(self):
        self.start()
        self.commit(1, weights_of(1))
        bad = weights_of(2) | {"model.poison": np.ones(3, np.float32)}
        self.assertIn("ValueError: model.poison does not fit", self.refused(2, bad))
        self.ready("1.1")
        self.holds(weights_of(1), "1.1")


if __name__ == "__main__":
    unittest.main()

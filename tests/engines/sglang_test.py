"""wsync.sglang with sglang's own classes in two processes on the CPU. sglang_rank.py says what is real and what is not."""
import contextlib
import json
import os
import signal
import subprocess
import sys
import types
import unittest
from unittest import mock

import numpy as np
import torch
from safetensors.numpy import save_file

import wsync
import wsync.sglang

TESTS = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(TESTS, "..", "python"))
from package_fleet import DEADLINE_S, PackageFleet, until  # noqa: E402

RANKS = 2
template = None  # the process that forks schedulers


def setUpModule():
    global template
    template = subprocess.Popen([sys.executable, os.path.join(TESTS, "sglang_rank.py")], text=True, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert template.stdout.readline() == "ready\n", "sglang cannot be imported"


def tearDownModule():
    template.stdin.close()
    template.wait()
    template.stdout.close()


def weights_of(seed):
    random = np.random.default_rng(seed)
    return {f"model.layers.{layer}.{name}.weight": random.standard_normal((16, 8), np.float32)
            for layer in range(3) for name in "ab"}


class Sglang(unittest.TestCase):
    def start(self, mode, **environment):
        self.fleet = self.enterContext(PackageFleet())
        _, socket = self.fleet.sidecar("host")
        model = self.fleet.path("model")
        os.mkdir(model)
        save_file(weights_of(0), os.path.join(model, "model.safetensors"))
        open(self.fleet.path("requests"), "w", encoding="utf-8").close()
        environment = {"SGLANG_PLUGINS": "wsync", "WSYNC_ENGINE_SOCKET": socket, "WSYNC_ENGINE_REPLICA": "r0"} | environment
        self.addCleanup(self.stop, self.fleet.directory)
        for rank in range(RANKS):
            template.stdin.write(json.dumps([[rank, RANKS, self.fleet.directory, model], environment]) + "\n")
            template.stdin.flush()
        self.until(self.has_started, "the ranks")
        self.publisher = self.enterContext(self.fleet.publisher(**{"pause_mode": mode, "deadlines.pause": "10m"}))

    def said(self, rank):
        path = self.fleet.path(f"rank{rank}.log")
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8") as file:
            return file.read()

    def stop(self, directory):
        for rank in range(RANKS):
            with open(os.path.join(directory, f"pid{rank}"), encoding="utf-8") as file:
                pid = int(file.read())
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                print(self.said(rank)[-4000:], file=sys.stderr)

    def replica(self):
        code, answer = self.fleet.ask("status")
        found = [replica for sidecar in answer["result"]["sidecars"] for replica in sidecar["replicas"]] if code == 0 else []
        return found[0] if found else {}

    def until(self, holds, what):
        def checked():
            for rank in range(RANKS):
                self.assertNotRegex(self.said(rank), r"ERROR:root:rank \d(?s:.*)")  # that has ended
            return holds()
        until(checked, what)

    def has_started(self):
        return all(os.path.exists(self.fleet.path(f"steps.{rank}")) for rank in range(RANKS))

    def request(self, name, tokens):
        with open(self.fleet.path("requests"), "a", encoding="utf-8") as file:
            file.write(f"{name} {tokens}\n")

    def log(self, rank=0, kind=None):
        with open(self.fleet.path(f"steps.{rank}"), encoding="utf-8") as file:
            found = [json.loads(line) for line in file if line.endswith("\n")]
        return [entry for entry in found if kind in (None, entry[0])]

    def steps(self):
        return self.log(0, "step")

    def ended(self):
        return {name: how for _, name, how in self.log(0, "end")}

    def finish(self):
        """Both ranks did the same: every step with the same version, the same requests and the same end."""
        self.until(lambda: len(self.log(0)) == len(self.log(1)), "the slower rank")
        self.assertEqual(self.log(0), self.log(1))

    def test_keep(self):
        self.start("keep")
        self.request("long", 1 << 30)
        self.until(self.steps, "a step")
        for number in range(1, 6):
            status = self.publisher.publish(weights_of(number), step=number).wait("committed", DEADLINE_S)
            seen = len(self.steps())
            self.until(lambda: len(self.steps()) > seen + 3, "steps")
            self.assertEqual(self.log(0, "version")[-1], ["version", str(status.version)])
        tokens = [token for _, _, token, _ in self.steps()]
        self.assertEqual(sum(one != two for one, two in zip(tokens, tokens[1:])), 5)
        self.assertEqual([entry[1] for entry in self.log(0, "retract")], [["long"]] * 5)
        for rank in range(RANKS):
            self.assertEqual(self.log(rank, "step")[:len(tokens)], self.log(0, "step")[:len(self.log(rank, "step"))][:len(tokens)])

    def test_keep_in_place(self):
        self.start("keep", WSYNC_ENGINE_CACHE="keep")
        self.request("long", 1 << 30)
        self.until(self.steps, "a step")
        self.publisher.publish(weights_of(1), step=1).wait("committed", DEADLINE_S)
        seen = len(self.steps())
        self.until(lambda: len(self.steps()) > seen + 3, "steps")
        self.assertEqual(self.log(0, "retract"), [])

    def test_abort(self):
        self.start("abort")
        self.request("long", 1 << 30)
        self.until(self.steps, "a step")
        self.publisher.publish(weights_of(1), step=1).wait("committed", DEADLINE_S)
        self.request("short", 5)
        self.until(lambda: "short" in self.ended(), "the short request")
        self.assertEqual(self.ended(), {"long": "abort", "short": "length"})
        self.finish()

    def test_wait_holds_new_requests_back(self):
        self.start("wait")
        self.request("first", 6000)
        self.until(self.steps, "a step")
        publish = self.publisher.publish(weights_of(1), step=1)
        self.until(lambda: "new requests wait until 1 running ones have ended" in self.said(0), "the begin of the pause")
        self.assertEqual(self.ended(), {})
        self.request("second", 5)
        publish.wait("committed", DEADLINE_S)
        self.until(lambda: len(self.ended()) == 2, "both requests")
        versions = {}
        for _, _, token, requests in self.steps():
            for name in requests:
                versions.setdefault(name, set()).add(token)
        self.assertEqual((versions["first"], len(versions["second"])), ({"own"}, 1))
        self.assertNotEqual(versions["second"], {"own"})
        self.assertEqual(self.ended(), {"first": "length", "second": "length"})
        self.finish()

    def test_a_load_that_fails_on_one_rank(self):
        self.start("keep")
        self.publisher.publish(weights_of(1), step=1).wait("committed", DEADLINE_S)
        bad = weights_of(2)
        bad["model.layers.1.b.weight"][0, 0] = 666
        with self.assertRaises(wsync.Error) as caught:
            self.publisher.publish(bad, step=2).wait("committed", DEADLINE_S)
        self.assertIn("rank 1: the engine's load failed: ValueError: model.layers.1.b.weight has a bad number",
                      caught.exception.sentence)
        self.until(lambda: self.replica().get("ready") and self.replica()["version"] == "1.1", "the old version")
        self.publisher.publish(weights_of(3), step=3).wait("committed", DEADLINE_S)
        self.request("short", 5)
        self.until(lambda: "short" in self.ended(), "the request")
        self.finish()

    def test_what_does_not_fit_is_refused(self):
        self.start("keep")
        with self.assertRaises(wsync.Refused) as caught:
            self.publisher.publish(weights_of(1) | {"extra": np.ones(3, np.float32)}, step=1).wait("committed", DEADLINE_S)
        self.assertIn("extra", caught.exception.sentence)

    def test_off_unless_it_is_named(self):
        self.start("keep", SGLANG_PLUGINS="")
        self.request("short", 5)
        self.until(lambda: "short" in self.ended(), "the request")
        self.assertEqual(self.replica(), {})


class Loader(unittest.TestCase):
    """The custom weight loader, with a stand-in for the reader of versions."""

    def test_it_loads_the_step_that_it_is_told(self):
        opened, held = [], {}

        class Reader:
            def __init__(self, socket):
                self.socket = socket

            @contextlib.contextmanager
            def open(self, step, timeout):
                opened.append((self.socket, step))
                yield types.SimpleNamespace(tensors=weights_of(step))

            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

        model = torch.nn.Linear(2, 2)
        model.load_weights = held.update
        with mock.patch.object(wsync, "Reader", Reader, create=True), mock.patch.dict(os.environ, WSYNC_ENGINE_SOCKET="/x.engines"):
            wsync.sglang.load(model, [("wsync.step", torch.tensor([7]))])
            with self.assertRaisesRegex(wsync.InvalidInput, "needs the tensor 'wsync.step'"):
                wsync.sglang.load(model, [("w", torch.zeros(2))])
        self.assertEqual(opened, [("/x.engines", 7)])
        self.assertEqual({name: tensor.numpy().tobytes() for name, tensor in held.items()},
                         {name: array.tobytes() for name, array in weights_of(7).items()})


if __name__ == "__main__":
    unittest.main()

"""Runs what the guides show: every block between fences, against a real fleet.

A comment before the fence says what becomes of a block:

    <!-- test: NAME -->                   test_NAME below runs it; blocks of one name are one test
    <!-- shown, not run: REASON -->       it cannot be run here, and why
    <!-- part of: PATH -->                its lines are in that file of the tree, which is built and run by other tests

A block with none of them fails, and so does a test that no block names. The text is run as it stands, except for /run/wsync and
/var/lib/wsync, which become directories of the test, and words in capitals, which the guides say are yours.

What an environment lacks (torch, transformers, peft, xllamacpp, vllm) is skipped there. WSYNC_GUIDES_ALL=1 makes that a failure:
tests/engines/run.sh sets it, where everything is installed.
"""
import asyncio
import importlib
import importlib.util
import json
import os
import queue
import re
import signal
import struct
import subprocess
import sys
import threading
import time
import types
import unittest
import unittest.mock

import numpy as np
import wsync
from package_fleet import DEADLINE_S, PackageFleet, Served, bf16, equal, float_of, until
from wsync._native import EXECUTABLE

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
GUIDES = ("deploy/guides/your_engine.md", "deploy/guides/your_trainer.md", "deploy/guides/vllm.md", "deploy/guides/trl.md",
          "deploy/python/README.md")
FENCE = re.compile(r"(?:^<!-- (?P<mark>[^\n]*) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
ALL = os.environ.get("WSYNC_GUIDES_ALL") == "1"
ENGINES = os.path.join(ROOT, "tests", "engines")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


class Block:
    def __init__(self, guide, match):
        self.where = f"{guide}:{read(guide)[:match.start()].count(chr(10)) + 1}"
        self.language, self.text = match["language"], match["text"]
        self.kind, _, self.what = (match["mark"] or "").partition(": ")


BLOCKS = [Block(guide, match) for guide in GUIDES for match in FENCE.finditer(read(guide))]


def needs(*modules):
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    assert not (ALL and missing), f"WSYNC_GUIDES_ALL=1, but {missing} cannot be imported"
    return unittest.skipIf(missing, f"this environment has no {', '.join(missing)}")


class Done(Exception):
    """Ends the endless loop of an engine."""


class GuideCase(unittest.TestCase):
    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        self.processes = []  # that run in the background
        # The blocks name their sidecar, whose socket is then looked for there.
        self.enterContext(unittest.mock.patch.dict(os.environ, WSYNC_RUN_DIR=self.fleet.run_dir))
        name = self._testMethodName.removeprefix("test_")
        self.blocks = [block for block in BLOCKS if (block.kind, block.what) == ("test", name)]
        self.assertTrue(self.blocks, f"no guide has a block of the test {name}")

    def text(self, index=0):
        return self.blocks[index].text.replace("/run/wsync", self.fleet.run_dir).replace("/var/lib/wsync", self.fleet.path("state"))

    def sidecar_of(self, text):
        """Starts the sidecar that the text names."""
        return self.fleet.sidecar(re.search(r'"(host\w*)"', text)[1])[1]

    def run_python(self, names, index=0, ends=()):
        """Runs a block of Python with these names; returns all names after it."""
        names = {"wsync": wsync, "np": np, **names}
        try:
            exec(compile(self.text(index), self.blocks[index].where, "exec"), names)
        except ends:
            pass
        return names

    def run_commands(self, index=0, **replaced):
        """Runs a block of commands, one line after the other; those that end in & until the test ends."""
        printed = []
        environment = dict(self.fleet.environment, PATH=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
        text = self.text(index).replace("\\\n", " ")
        for word, value in replaced.items():
            text = re.sub(rf"\b{word}\b", value, text)
        for line in filter(None, (re.sub(r"\s+#.*", "", line).strip() for line in text.splitlines())):
            if line.endswith("&"):
                log = open(self.fleet.path(f"command{len(self.processes)}.log"), "w", encoding="utf-8")
                process = subprocess.Popen(["bash", "-c", line[:-1]], env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                           stderr=log, process_group=0)
                log.close()
                self.addCleanup(self.end, process)
                self.processes.append(process)
                self.until_up(line, process)
            else:
                done = subprocess.run(["bash", "-c", line], env=environment, text=True, capture_output=True,
                                      timeout=10 * DEADLINE_S)
                self.assertEqual(done.returncode, 0, f"{line}\n{done.stdout}{done.stderr}")
                printed.append(done.stdout)
        return printed

    def until_up(self, line, process):
        run_dir = (re.search(r"run_dir=(\S+)", line) or [0, self.fleet.run_dir])[1]
        name = (re.search(r"name[= ](\S+)", line) or [0, "host"])[1]
        if "sidecar" in line:
            path = os.path.join(run_dir, f"{name}.engines")
        elif "wsync trainer" in line:
            path = os.path.join(run_dir, "control")
        else:
            return
        until(lambda: os.path.exists(path) or process.poll() is not None, line)
        self.assertIsNone(process.poll(), f"{line} has ended")

    def end(self, process):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()

    def steps_until(self, arrived):
        """run_one_step for a loop that ends when `arrived` holds."""
        def run_one_step(weights):
            if arrived():
                raise Done
        return run_one_step

    def engine(self):
        """An engine that takes what comes. Its tensors, of the last version that was loaded."""
        socket = self.fleet.sidecar("host0")[1]
        held = {}

        def load_layer(version, layer, tensors):
            held.update({name: wsync.as_dtype(np.array(array), array.dtype_name) for name, array in tensors.items()})
        self.fleet.serve(wsync.Replica(socket, "r0", take="borrow", load_layer=load_layer))
        return held

    def run_with_publisher(self, names, index=0):
        """Runs a block that makes a publisher, whose settings are those of this test besides."""
        made = wsync.Publisher

        def publisher(settings=None, **options):
            found = made(settings=self.fleet.settings | (settings or {}), **options)
            self.addCleanup(found.close)
            return found
        with unittest.mock.patch.object(wsync, "Publisher", publisher):
            return self.run_python(names, index)

    def checkpoint(self, tensors, name="checkpoint"):
        """A directory with one file of safetensors."""
        directory = self.fleet.path(name)
        os.makedirs(directory, exist_ok=True)
        header, data = {}, b""
        for name, array in tensors.items():
            header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [len(data), len(data) + array.nbytes]}
            data += array.tobytes()
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(directory, "model.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + data)
        return directory

    def published(self, weights, **options):
        """Publishes on a thread; returns a function that waits for its commit."""
        publisher = self.enterContext(self.fleet.publisher())
        publish = publisher.publish(weights, **options)
        return lambda: publish.wait("committed", DEADLINE_S)


class Coverage(unittest.TestCase):
    def test_each_block_is_run_or_says_why_not(self):
        tests = {name.removeprefix("test_") for case in (Engine, Trainer, Package, Frameworks) for name in dir(case)
                 if name.startswith("test_")}
        for block in BLOCKS:
            with self.subTest(block.where):
                self.assertIn(block.kind, ("test", "shown, not run", "part of"), "a comment before the fence must say what becomes "
                              "of the block")
                if block.kind == "test":
                    self.assertIn(block.what, tests)
                elif block.kind == "part of":
                    self.assertIn(block.text, read(block.what))
                else:
                    self.assertGreater(len(block.what.split()), 4, "a reason is a sentence")
        fences = sum(len(re.findall(r"^\s*(```|~~~)", read(guide), re.MULTILINE)) for guide in GUIDES)
        self.assertEqual(fences, 2 * len(BLOCKS), "a fence was not understood")


def numbers(shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Engine(GuideCase):
    """deploy/guides/your_engine.md"""

    def test_engine_whole(self):
        self.sidecar_of(self.text())
        trained = {"a": numbers((4, 8)), "b": numbers(5)}
        weights = {name: np.zeros_like(array) for name, array in trained.items()}
        committed = self.published(trained)
        names = self.run_python({"weights": weights, "run_one_step": self.steps_until(lambda: weights["b"].any())}, ends=Done)
        self.assertEqual(committed().replicas, 1)
        equal(self, weights, trained)
        names["replica"].close()

    def test_engine_fused(self):
        self.sidecar_of(self.text())
        names = self.run_python({"q_rows": 8, "kv_rows": 4, "hidden": 6, "experts": 3, "ffn": 5})
        self.fleet.serve(names["replica"])
        trained = {name: numbers(array.shape, index) for index, (name, array) in enumerate(names["weights"].items())}
        self.published(trained)()
        equal(self, {"qkv": names["qkv"]}, {"qkv": np.concatenate([trained[f"layers.0.{x}_proj.weight"] for x in "qkv"])})
        for expert in range(3):
            both = np.concatenate([trained[f"layers.0.experts.{expert}.{x}_proj.weight"] for x in ("gate", "up")])
            np.testing.assert_array_equal(names["stack"][expert], both)

    @needs("torch")
    def test_engine_record(self):
        import torch
        importlib.import_module("wsync.torch")

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.fused = torch.nn.Parameter(torch.zeros(8, 4), requires_grad=False)
                self.norm = torch.nn.Parameter(torch.zeros(4), requires_grad=False)

            def load_weights(self, weights):
                for name, tensor in weights:
                    if name == "norm":
                        self.norm.copy_(tensor - 1)
                    else:
                        self.fused.narrow(0, 0 if name == "gate" else 4, 4).copy_(tensor)
        checkpoint = {"gate": torch.randn(4, 4), "up": torch.randn(4, 4), "norm": torch.randn(4)}
        self.sidecar_of(self.text())
        for index, block in enumerate(self.blocks):  # of the guide, and of the README
            with self.subTest(block.where):
                model = Model()
                names = self.run_python({"model": model, "checkpoint": checkpoint}, index)
                self.fleet.serve(names["replica"])
                trained = {name: torch.randn(tensor.shape) for name, tensor in checkpoint.items()}
                with self.fleet.publisher() as publisher:
                    publisher.publish(trained).wait(timeout=DEADLINE_S)
                self.assertTrue(torch.equal(model.fused, torch.cat([trained["gate"], trained["up"]])))
                self.assertTrue(torch.equal(model.norm, trained["norm"] - 1))
                self.assertEqual((set(names["plan"].pieces), set(names["plan"].loaded)), ({"gate", "up"}, {"norm"}))
                self.fleet.served.pop().stop()

    def test_engine_ranks(self):
        """Two processes, whose leader tells each step."""
        self.sidecar_of(self.text())
        program = """
import socket, sys
import numpy as np
import wsync
rank, path, code = int(sys.argv[1]), sys.argv[2], sys.argv[3]
rows, columns = 4, 6
own = np.zeros((rows, columns // 2), np.float32)
seen, steps = [], []
link = socket.socket(socket.AF_UNIX)
if rank == 0:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    print("ready", flush=True)
    link, _ = listener.accept()
else:
    link.connect(path)

def tell_all_ranks(go):
    # g: run a step; s: stand still; e: run the last one
    if rank == 0:
        word = b"e" if go and len(seen) == 3 and len(steps) > steps_at_end[0] + 5 else b"g" if go else b"s"
        link.sendall(word)
        assert link.recv(1) == b"."
    else:
        word = link.recv(1)
        link.sendall(b".")
    told.append(word)
    return word != b"s"

told = []
steps_at_end = [10**9]
def finished():
    return bool(told) and told[-1] == b"e"

def run_one_step(weights):
    values = np.unique(weights)
    assert len(values) == 1, "a step saw two versions"
    if values[0] and (not seen or seen[-1] != values[0]):
        seen.append(float(values[0]))
        if len(seen) == 3:
            steps_at_end[0] = len(steps)
    steps.append(float(values[0]))

exec(compile(open(code).read(), code, "exec"))
print(rank, replica.step, seen, flush=True)
print(",".join(map(str, steps)), flush=True)
"""
        code = self.fleet.path("block.py")
        with open(code, "w", encoding="utf-8") as file:
            file.write(self.text())
        meet = self.fleet.path("meet")
        leader = self.fleet.program(program, 0, meet, code)
        self.fleet.ready(leader)
        follower = self.fleet.program(program, 1, meet, code)
        publisher = self.enterContext(self.fleet.publisher())
        for step in (1, 2, 3):
            weights = {"down_proj.weight": np.full((4, 6), step, np.float32)}
            publish = publisher.publish(weights)
            until(lambda: publish.status().state >= wsync.PublishState.COMMITTED or leader.poll() is not None or
                  follower.poll() is not None, "the switch")
            publish.wait("committed", 1)
        said = []
        for process in (leader, follower):
            exit_code, out, log = self.fleet.end(process)
            self.assertEqual(exit_code, 0, log)
            said.append(out.splitlines())
        self.assertEqual(said[0][0].split(maxsplit=2)[2], "[1.0, 2.0, 3.0]")
        versions = [lines[-1].split(",") for lines in said]
        self.assertEqual(versions[0], versions[1])  # of each step, one version on both ranks

    def test_engine_casts(self):
        self.sidecar_of(self.text())
        weights = {"model.norm.weight": np.zeros(6, np.float32), "b": np.zeros(5, np.float32)}
        names = self.run_python({"weights": weights})
        self.fleet.serve(names["replica"])
        trained = {"model.norm.weight": bf16(numbers(6)), "b": numbers(5)}
        self.published(trained)()
        equal(self, weights, {"model.norm.weight": float_of(trained["model.norm.weight"]), "b": trained["b"]})

    def test_engine_cast(self):
        self.sidecar_of(self.text())
        weights = {"a": np.zeros((4, 8), np.float32), "b": np.zeros(5, np.float32)}
        names = self.run_python({"weights": weights})
        self.fleet.serve(names["replica"])
        trained = {name: bf16(numbers(array.shape)) for name, array in weights.items()}
        publisher = self.enterContext(self.fleet.publisher())
        publisher.publish(trained).wait(timeout=DEADLINE_S)
        equal(self, weights, {name: float_of(array) for name, array in trained.items()})
        with self.assertRaises(wsync.Error) as caught:
            publisher.publish(trained | {"c": numbers(3)}).wait(timeout=DEADLINE_S)
        self.assertIn("c in F32: this engine has a, b, and takes BF16", caught.exception.sentence)

    def test_engine_asyncio(self):
        self.sidecar_of(self.text())
        trained = {"a": numbers((4, 8))}
        weights = {"a": np.zeros((4, 8), np.float32)}
        committed = self.published(trained)

        async def serve():
            names = self.run_python({"weights": weights, "asyncio": asyncio})
            replica = names["replica"]
            while not (replica.serving and weights["a"].any()):
                await asyncio.sleep(0.01)
            asyncio.get_running_loop().remove_reader(replica.fileno())
            return replica
        replica = asyncio.run(asyncio.wait_for(serve(), DEADLINE_S))
        self.fleet.serve(replica)
        committed()
        equal(self, weights, trained)

    def test_engine_commands(self):
        trained = {"a": numbers((4, 8)), "b": numbers(5)}
        weights = {name: np.zeros_like(array) for name, array in trained.items()}
        attached = []
        original = self.until_up

        def attach_after_the_sidecar(line, process):
            original(line, process)
            if "sidecar" in line:
                self.fleet.serve(wsync.Replica(os.path.join(self.fleet.run_dir, "host0.engines"), "r0", weights))
                attached.append(True)
            if "trainer" in line:
                until(lambda: "r0" in str(self.fleet.ask("status")[1]), "the replica")
        self.until_up = attach_after_the_sidecar
        pushed, status, verified = self.run_commands(CHECKPOINT=self.checkpoint(trained))
        equal(self, weights, trained)
        self.assertTrue(attached)
        self.assertIn("r0", status)
        self.assertIn("r0", verified)

    def test_engine_lora(self):
        self.sidecar_of(self.text())
        names = self.run_python({})
        self.fleet.serve(names["replica"])
        trained = {name: numbers(array.shape) for name, array in names["lora"].items()}
        self.published(trained)()
        equal(self, names["lora"], trained)

    def test_engine_draft(self):
        self.sidecar_of(self.text())
        weights, draft = {"a": np.zeros(4, np.float32)}, {"a": np.zeros(3, np.float32)}
        names = self.run_python({"weights": weights, "draft": draft})
        commits = []
        names["replica"].on_commit = lambda version: commits.append((weights["a"][0], draft["a"][0]))
        self.fleet.serve(names["replica"])
        publisher = self.enterContext(self.fleet.publisher())
        for step in (1, 2):
            publisher.publish({"a": np.full(4, step, np.float32), "draft.a": np.full(3, step, np.float32)}).wait(timeout=DEADLINE_S)
        self.assertEqual(commits, [(1, 1), (2, 2)])

    def test_engine_fleets(self):
        for variable in ("WSYNC_RUN_DIR", "WSYNC_STATE_DIR"):
            self.fleet.environment.pop(variable)
        self.run_commands()
        held = {}
        for fleet in ("policy", "reward"):
            held[fleet] = {fleet: np.zeros(4, np.float32)}
            self.fleet.serve(wsync.Replica(os.path.join(self.fleet.run_dir, fleet, "host0.engines"), "r0", held[fleet]))
        for value, fleet in enumerate(("policy", "reward"), 1):
            settings = {"fleet": fleet, "run_dir": os.path.join(self.fleet.run_dir, fleet), "log.level": "warning",
                        "state_dir": self.fleet.path(f"trainer_{fleet}")}
            with wsync.Publisher(settings=settings) as publisher:
                publisher.publish({fleet: np.full(4, value, np.float32)}).wait(timeout=DEADLINE_S)
        self.assertEqual((held["policy"]["policy"][0], held["reward"]["reward"][0]), (1, 2))
        # Two models in one fleet, as the guide says.
        _, socket = self.fleet.sidecar("both", "--set", f"run_dir={self.fleet.run_dir}", "--set",
                                       f"state_dir={self.fleet.path('state_of_both')}")
        for model in ("policy", "reward"):
            self.fleet.serve(wsync.Replica(socket, model, {model: np.zeros(4, np.float32)}))
        with self.fleet.publisher() as publisher, self.assertRaises(wsync.Refused) as caught:
            publisher.publish({"policy": np.ones(4, np.float32)}).wait(timeout=DEADLINE_S)
        self.assertIn("reward", caught.exception.sentence)


class Trainer(GuideCase):
    """deploy/guides/your_trainer.md"""

    def test_trainer_state_dict(self):
        held = self.engine()
        state = {"a": np.zeros((4, 8), np.float32)}

        def train_one_step(model):
            state["a"] += numbers((4, 8))
        model = types.SimpleNamespace(state_dict=lambda: state)
        names = self.run_with_publisher({"model": model, "train_one_step": train_one_step, "steps": 3})
        self.assertEqual(str(names["publish"].status().version), "1.3")
        equal(self, held, {"a": bf16(state["a"])})

    def test_trainer_failures(self):
        socket = self.fleet.sidecar("host0")[1]
        held = {"a": np.zeros(4, np.float32)}
        self.fleet.serve(wsync.Replica(socket, "r0", held))
        publisher = self.enterContext(self.fleet.publisher())
        for value in (1, 2):
            publisher.publish({"a": np.full(4, value, np.float32)}).wait(timeout=DEADLINE_S)
        said = []
        self.run_python({"publisher": publisher, "weights": {"b": held["a"]}, "print": lambda *words: said.append(words)})
        self.assertIn("b", str(said[0][0]))  # refused, with the name
        self.assertEqual(held["a"][0], 1)  # rolled back

    def test_trainer_gather(self):
        held = self.engine()
        publisher = self.enterContext(self.fleet.publisher())
        trained = {"a": numbers((4, 8)), "b": numbers(5)}

        def gather(model):
            for name in reversed(trained):
                yield name, trained[name].copy()
        self.run_python({"publisher": publisher, "gather": gather, "model": None, "step": 7})
        equal(self, held, {name: bf16(array) for name, array in trained.items()})

    @needs("torch")
    def test_trainer_fsdp(self):
        held = self.engine()
        program = """
import sys
rank, directory, run_dir, code = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo", init_method=f"file://{directory}/meet", rank=rank, world_size=2)
torch.manual_seed(1)
model = torch.nn.Linear(6, 5)
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
steps = 3

def train_one_step(model):
    model(torch.ones(1, 6)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
exec(compile(open(code).read(), code, "exec"))
whole = {name: tensor.full_tensor().detach().to(torch.bfloat16) for name, tensor in model.state_dict().items()}
if rank == 0:
    torch.save(whole, f"{directory}/whole.pt")
publisher.close()
dist.destroy_process_group()
"""
        code = self.fleet.path("block.py")
        with open(code, "w", encoding="utf-8") as file:
            file.write(self.text())
        self.fleet.environment["GLOO_SOCKET_IFNAME"] = "lo"
        ranks = [self.fleet.program(program, rank, self.fleet.directory, self.fleet.run_dir, code) for rank in (0, 1)]
        for process in ranks:
            exit_code, _, log = self.fleet.end(process)
            self.assertEqual(exit_code, 0, log)
        import torch
        for name, tensor in torch.load(self.fleet.path("whole.pt")).items():
            np.testing.assert_array_equal(held[name], tensor.view(torch.uint16).numpy(), name)

    @needs("torch", "transformers", "peft")
    def test_trainer_peft(self):
        import peft
        import torch
        importlib.import_module("wsync.torch")
        held = self.engine()
        publisher = self.enterContext(self.fleet.publisher())
        model = peft.get_peft_model(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)),
                                    peft.LoraConfig(r=2, target_modules=["0"], init_lora_weights=False))
        self.run_python({"publisher": publisher, "peft_model": model})
        until(lambda: "1.bias" in held, "the version")
        for name, tensor in model.merge_and_unload().state_dict().items():
            np.testing.assert_array_equal(held[name], tensor.numpy(), name)

    def test_trainer_patch(self):
        names = {f"layers.{layer}.weight": numbers((64, 32)) for layer in range(3)}
        older = self.checkpoint(names, "older")
        names["layers.1.weight"][5, 7] += 1
        newer = self.checkpoint(names, "newer")
        patch, copy = self.fleet.path("step.patch"), self.fleet.path("copy")
        made, inspected, applied = self.run_commands(CHECKPOINT=older, NEWER=newer, PATCH=patch, COPY=copy)
        self.assertIn("1 element in 1 block of 1 of 3 tensors", made)
        self.assertIn("1 element in 1 block of 1 of 3 tensors", inspected)
        self.assertIn("3 tensors, 1 of them changed", applied)
        with open(os.path.join(newer, "model.safetensors"), "rb") as one, open(os.path.join(copy, "model.safetensors"), "rb") as other:
            size = sum(array.nbytes for array in names.values())
            self.assertEqual(one.read()[-size:], other.read()[-size:])
        # What is damaged or truncated ends with the exit code that the page says.
        with open(patch, "rb") as file:
            data = file.read()
        for spoilt in data[:-1], data[:-1] + bytes([data[-1] ^ 1]):
            with open(patch, "wb") as file:
                file.write(spoilt)
            done = subprocess.run([EXECUTABLE, "patch", "apply", older, patch, "-o", copy + "2"], text=True, capture_output=True,
                                  timeout=DEADLINE_S)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertFalse(os.path.exists(copy + "2"))

    def test_trainer_fp8(self):
        held = self.engine()
        publisher = self.enterContext(self.fleet.publisher())
        weight = numbers((256, 128))
        names = self.run_python({"publisher": publisher, "weight": weight, "norm": numbers(4)})
        names["version"].publish.wait(timeout=DEADLINE_S)
        self.assertEqual({name: (array.dtype_name, array.shape) for name, array in held.items()},
                         {"layers.0.up_proj.weight": ("F8_E4M3", (256, 128)), "layers.0.norm.weight": ("BF16", (4,)),
                          "layers.0.up_proj.weight_scale_inv": ("F32", (2, 1))})


class Package(GuideCase):
    """deploy/python/README.md"""

    def test_package_trainer(self):
        held = self.engine()
        with open(self.fleet.path("trainer.yaml"), "w", encoding="utf-8") as file:
            file.write(f"run_dir: {self.fleet.run_dir}\nstate_dir: {self.fleet.path('state')}\nlog: {{level: warning}}\n")
        state = {"a": numbers((4, 8))}
        before = os.getcwd()
        os.chdir(self.fleet.directory)
        try:
            names = self.run_python({"model": types.SimpleNamespace(state_dict=lambda: state),
                                     "gather": lambda model: state.items()})
        finally:
            os.chdir(before)
        self.addCleanup(names["publisher"].close)
        self.assertEqual(str(names["version"].publish.wait("committed", DEADLINE_S).version), "1.121")
        equal(self, held, {"a": bf16(state["a"])})

    def test_package_engine(self):
        self.sidecar_of(self.text())
        trained = {"a": numbers((4, 8))}
        weights = {"a": np.zeros((4, 8), np.float32)}
        committed = self.published(trained)
        names = self.run_python({"weights": weights, "run_one_step": self.steps_until(lambda: weights["a"].any())}, ends=Done)
        committed()
        names["replica"].close()

    def test_package_casts(self):
        self.sidecar_of(self.text())
        names = self.run_python({"shapes": {"a": (4, 8), "b": (5,)}})
        self.fleet.serve(names["replica"])
        trained = {name: bf16(numbers(array.shape)) for name, array in names["norms"].items()}
        self.published(trained)()
        equal(self, names["norms"], {name: float_of(array) for name, array in trained.items()})

    def test_package_reader(self):
        held, read = self.engine(), []

        def evaluate(version, tensors):
            read.append((version, {name: np.array(array) for name, array in tensors.items()}))
            raise Done
        trained = {"a": numbers((4, 8))}
        published = self.published(trained)
        version = published().version
        with self.assertRaises(Done):
            exec(self.text(), {"wsync": wsync, "evaluate": evaluate})
        self.assertEqual(read[0][0], version)
        equal(self, read[0][1], trained)
        equal(self, held, trained)

    def test_package_any_layout(self):
        self.sidecar_of(self.text())
        engine = self.run_python({})["engine"]
        work, held = queue.Queue(), {}

        def load_weights(version, tensors):
            held.update({name: np.array(array) for name, array in tensors.items()})
            engine.loaded(version)
        engine.worker = types.SimpleNamespace(submit=lambda *task: work.put(task))
        engine.model = types.SimpleNamespace(load_weights=load_weights, check_names=lambda tensors: self.assertIn("a", tensors))

        def worker():
            while (task := work.get()) is not None:
                task[0](*task[1:])
        thread = threading.Thread(target=worker)
        thread.start()
        try:
            self.fleet.serve(engine)
            trained = {"a": numbers((4, 8))}
            self.published(trained)()
            equal(self, held, trained)
        finally:
            work.put(None)
            thread.join()

    @needs("torch", "transformers", "xllamacpp", "gguf")
    def test_package_adapters(self):
        sys.path.insert(0, ENGINES)
        import llama
        import models
        importlib.import_module("wsync.llama_cpp")
        importlib.import_module("wsync.transformers")
        self.sidecar_of(self.text())
        files = [models.save(self.fleet.path(f"model{seed}"), models.dense, seed) for seed in (1, 2)]
        loaded = llama.Model(llama.write(files[0], self.fleet.path("model.gguf")))
        model = models.loaded(files[0])
        # One replica each: the two lines of the block have the same name for theirs.
        lines = [line for line in self.text().splitlines() if "=" in line]
        self.blocks[0].text = "\n".join([lines[0], lines[1].replace('"r0"', '"r1"')])
        names = self.run_python({"model": model, "llama_model": loaded.address})
        self.fleet.served.append(Served(names["link"]))
        publisher = self.enterContext(self.fleet.publisher())
        publisher.publish(models.loaded(files[1]).state_dict()).wait(timeout=DEADLINE_S)
        self.assertEqual(str(names["follower"].version), "1.1")
        self.fleet.served.pop().stop()
        self.assertEqual(str(names["link"].version), "1.1")
        names["follower"].close()
        expected = llama.Model(llama.write(files[1], self.fleet.path("model2.gguf")))
        self.assertEqual(llama.greedy(loaded, [5, 6], 8), llama.greedy(expected, [5, 6], 8))


class Frameworks(GuideCase):
    """deploy/guides/vllm.md"""

    @needs("vllm", "transformers")
    def test_vllm_in_five_minutes(self):
        sys.path.insert(0, ENGINES)
        import models
        from vllm_fleet import SMALL, START_S, free_port
        importlib.import_module("wsync.torch")
        os.environ["HF_HUB_OFFLINE"] = self.fleet.environment["HF_HUB_OFFLINE"] = "1"
        self.fleet.environment["VLLM_NO_USAGE_STATS"] = "1"
        first, second = (models.save(self.fleet.path(f"model{seed}"), models.mixture, seed) for seed in (1, 2))
        port = free_port()
        options = " ".join([*SMALL, "--port", str(port)]).replace("--served-model-name m", f"--served-model-name {first}")
        self.blocks[0].text = self.blocks[0].text.replace("vllm serve MODEL", f"vllm serve {first} {options}").rstrip() + " &"

        def answer(command):
            done = subprocess.run(["bash", "-c", command.replace("localhost:8000", f"localhost:{port}")], text=True,
                                  capture_output=True, timeout=START_S)
            return json.loads(done.stdout) if done.returncode == 0 and done.stdout else None
        self.run_commands(0)
        end = time.monotonic() + START_S
        while answer("curl -s localhost:8000/wsync") is None:
            said = read(self.fleet.path("command1.log"))
            self.assertIsNone(self.processes[-1].poll(), said[-4000:])
            self.assertLess(time.monotonic(), end, said[-4000:])
            time.sleep(0.5)  # the processors are for the server
        self.run_commands(1, CHECKPOINT=second)
        self.assertEqual(answer("curl -s localhost:8000/wsync")["version"], "1.1")
        self.end(self.processes.pop())  # the trainer: the next one is in this process
        names = self.run_with_publisher({"model": models.loaded(first), "step": 7}, 2)
        status = names["publisher"].publish(models.loaded(second).state_dict()).wait("committed", DEADLINE_S)
        choice = answer(self.text(3).replace("MODEL", first))["choices"][0]
        self.assertEqual([span["version"] for span in choice["weight_versions"]], [str(status.version)])


if __name__ == "__main__":
    unittest.main()

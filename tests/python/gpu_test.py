"""Trainer and engines of torch on a GPU, with the service of the wheel: what a second process computes after each switch is equal
to what the trainer computes, bit for bit.

Usage: gpu_test.py [--device cuda|cpu] [--publish auto|gpu|host] [--large-mib N] [-v] [TEST...]
    --device      cpu: to try this file on a machine without a GPU
    --publish     gpu: tensors are published where they are; host: copies in the memory of the host; auto: gpu, if the package takes
                  that (default)
    --large-mib   the size of the large model (default: 2048)
"""
import argparse
import importlib.util
import json
import os
import sys
import time
import unittest

try:
    import numpy as np
    import torch
    NOT_THERE = None
except ImportError as failure:
    NOT_THERE = failure

HERE = os.path.dirname(os.path.abspath(__file__))
OPTIONS = argparse.Namespace()
MIB = 1 << 20


def missing():
    """Why nothing can be tested here, or None."""
    if NOT_THERE is not None:
        return f"{NOT_THERE} in {sys.executable}, and NumPy and torch are needed"
    if OPTIONS.device != "cpu" and not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU"
    return None


class OnAGpu(unittest.TestCase):
    def begin(self, **settings):
        from package_fleet import PackageFleet
        self.fleet = self.enterContext(PackageFleet())
        self.publisher = self.enterContext(self.fleet.publisher(arenas=4, **settings))

    def sidecar(self, *settings):
        devices = ("--set", "devices.kind=cuda", "--set", "devices.gpus=0") if OPTIONS.device != "cpu" else ()
        return self.fleet.sidecar("host", *devices, *settings)[1]

    def engine(self, what, socket, *arguments):
        engine = self.fleet.start(sys.executable, "-B", os.path.join(HERE, "gpu_engine.py"), what, socket, OPTIONS.device,
                                  self.fleet.directory, *map(str, arguments))
        self.fleet.ready(engine)
        return engine

    def reported(self, engine, version):
        """What the engine says of a version: its result, and that no step before has seen two versions."""
        line = engine.stdout.readline()
        self.assertTrue(line, self.fleet.said(engine))
        said = json.loads(line)
        self.assertEqual(said["version"], str(version))
        self.assertEqual(said["torn"], 0, f"{said['torn']} of {said['steps']} steps before {version} have seen two versions")
        return np.load(said["result"]), said["steps"]

    def committed(self, tensors):
        import wsync
        from package_fleet import DEADLINE_S
        begin = time.monotonic()
        where = OPTIONS.publish
        if where != "host":
            try:
                publish = self.publisher.publish(tensors)
            except wsync.InvalidInput as failure:
                if where == "gpu" or "memory of the host" not in failure.sentence:
                    raise
                where = "host"
        if where == "host":
            publish = self.publisher.publish({name: tensor.cpu() for name, tensor in tensors.items()})
        taken = time.monotonic() - begin
        status = publish.wait(timeout=DEADLINE_S)
        print(f"{self.id().rpartition('.')[2]}: version {status.version}, {status.bytes / MIB:.1f} MiB published from "
              f"{'the memory of the host' if where == 'host' else OPTIONS.device} in {taken * 1e3:.1f} ms; engines stood still for "
              f"{status.paused_s * 1e3:.1f} ms; in all {time.monotonic() - begin:.3f} s", flush=True)
        return status.version

    def equal(self, found, expected, version):
        import gpu_engine
        expected = gpu_engine.bits(expected)
        self.assertEqual(found.shape, expected.shape)
        self.assertEqual(int((found != expected).sum()), 0, f"of {expected.size} bytes of the result with version {version}")

    def verified(self, version):
        code, answer = self.fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        self.assertEqual([rank["version"] for rank in answer["result"]["ranks"]], [str(version)])

    def test_a_training_loop(self):
        import gpu_engine
        self.begin()
        engine = self.engine("net", self.sidecar())
        model, batch = gpu_engine.Net().to(OPTIONS.device), gpu_engine.batch_of(OPTIONS.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        target = torch.randn(64, 256, generator=torch.Generator().manual_seed(2)).to(OPTIONS.device)
        results = {}
        for _ in range(5):
            for _ in range(3):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(batch), target).backward()
                optimizer.step()
            version = self.committed(model.state_dict())
            with torch.no_grad():
                results[version] = model(batch)
            found, steps = self.reported(engine, version)
            self.equal(found, results[version], version)
            print(f"  the engine computed {steps} steps with the version before", flush=True)
        self.verified(version)
        newest, before = sorted(results)[-1:-3:-1]
        self.assertFalse(torch.equal(results[newest], results[before]))

        engine.kill()
        engine.wait()
        engine = self.engine("net", os.path.join(self.fleet.run_dir, "host.engines"))
        self.equal(self.reported(engine, newest)[0], results[newest], newest)
        from package_fleet import DEADLINE_S
        self.assertEqual(self.publisher.roll_back(timeout=DEADLINE_S).after, before)
        self.equal(self.reported(engine, before)[0], results[before], before)
        self.verified(before)

    def test_a_large_model(self):
        import gpu_engine
        self.begin(bucket_bytes="16MiB")
        size = OPTIONS.large_mib * MIB
        engine = self.engine("large", self.sidecar(), size)
        tensors = gpu_engine.large_tensors(size, OPTIONS.device)
        for seed in range(1, 7):  # an arena that is used for the first time is filled and pinned, so the first ones take longer
            generator = torch.Generator(device=OPTIONS.device).manual_seed(seed)
            for tensor in tensors.values():
                tensor.view(torch.int16).random_(-32768, 32767, generator=generator)
            version = self.committed(tensors)
            self.equal(self.reported(engine, version)[0], gpu_engine.sums(tensors), version)
        self.verified(version)

    def test_a_plan_of_a_loader(self):
        import gpu_engine
        self.begin()
        engine = self.engine("plan", self.sidecar())
        for seed in (1, 2):
            torch.manual_seed(seed)
            kinds = {"BF16": torch.bfloat16, "F32": torch.float32}
            tensors = {name: torch.randn(*spec.shape).to(device=OPTIONS.device, dtype=kinds[spec.dtype])
                       for name, spec in gpu_engine.FUSED_SPECS.items()}
            version = self.committed(tensors)
            expected = torch.cat([tensors["up"].reshape(-1), tensors["gate"].reshape(-1), tensors["scale"] * 2])
            self.equal(self.reported(engine, version)[0], expected, version)
        self.verified(version)

    def test_other_dtypes_on_both_sides(self):
        """F32 of the trainer is published as BF16, and held as F32, F16 and BF16. The GPU converts both times."""
        import gpu_engine
        self.begin()
        engine = self.engine("casts", self.sidecar())
        for seed in (1, 2):
            torch.manual_seed(seed)
            masters = {name: torch.randn(*shape).to(OPTIONS.device) for name, shape in gpu_engine.CAST_SHAPES.items()}
            masters["wide"].view(-1)[:4] = torch.tensor([1e-40, -0.0, float("inf"), 3.4e38])
            published = {name: tensor.bfloat16() for name, tensor in masters.items()}
            with self.publisher.version() as version:
                for name, tensor in masters.items():
                    version.put(name, tensor, dtype="BF16")
            version = version.publish.wait(timeout=60).version
            expected = torch.cat([tensor.to(gpu_engine.CAST_KINDS[name]).reshape(-1).double()
                                  for name, tensor in published.items()])
            self.equal(self.reported(engine, version)[0], expected, version)
        code, answer = self.fleet.ask("verify")
        rank = answer["result"]["ranks"][0]
        self.assertEqual((code, rank["mismatches"], rank["tensors"]), (4, [], 2), answer)  # "narrow" has lost bits
        self.assertIn("tensor narrow cannot be read back", rank["failure"])

    def test_a_model_of_transformers(self):
        if importlib.util.find_spec("transformers") is None:
            self.skipTest("transformers is not in this environment")
        import gpu_engine
        self.begin()
        engine = self.engine("transformers", self.fleet.sidecar("host")[1])  # which needs no GPU: the follower copies itself
        model, tokens = gpu_engine.tiny_transformer(OPTIONS.device), gpu_engine.tokens_of(OPTIONS.device)
        for seed in (1, 2, 3):
            torch.manual_seed(seed)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.normal_(0, 0.2)
                version = self.committed(model.state_dict())
                self.equal(self.reported(engine, version)[0], model(tokens).logits, version)


def main():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--publish", default="auto", choices=("auto", "gpu", "host"))
    parser.add_argument("--large-mib", type=int, default=2048)
    _, rest = parser.parse_known_args(namespace=OPTIONS)
    if OPTIONS.device == "cuda":
        OPTIONS.device = "cuda:0"
    why = missing()
    if why is not None:
        print(f"no GPU for the tests: {why}")
        return
    import gpu_engine
    gpu_engine.begin(OPTIONS.device)
    if OPTIONS.device != "cpu":
        print(f"torch {torch.__version__} on {torch.cuda.get_device_name(0)}", flush=True)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()

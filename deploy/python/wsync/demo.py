"""`python -m wsync.demo`: a sidecar, a trainer and an engine on this machine, in directories that are removed afterwards.

The trainer publishes three versions. The engine is a process of its own, which computes all the time, stops for each switch, and
then says how long it stood still and what it holds. Exits with 0 if it holds what was published, each time."""
from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

import wsync

from ._native import EXECUTABLE

VERSIONS = 3
LAYERS = 4
ROWS, COLUMNS = 2048, 1024
LIMIT_S = 60.0


def weights_of(step: int) -> dict:
    """BF16 weights of ordinary size, other ones for each step."""
    random = np.random.default_rng(step)
    weights = {}
    for layer in range(LAYERS):
        values = random.standard_normal((ROWS, COLUMNS), np.float32)
        weights[f"model.layers.{layer}.mlp.weight"] = wsync.as_dtype((values.view(np.uint32) >> 16).astype(np.uint16), "BF16")
    return weights


def digest(weights: dict) -> str:
    """SHA-256 of the bytes of all tensors, in the order of their names."""
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(weights[name].view(np.uint8))
    return found.hexdigest()


class DemoEngine(wsync.Replica):
    """An engine that says on its standard output what happened."""

    def __init__(self, sidecar: str):
        self.weights = {name: wsync.as_dtype(np.zeros((ROWS, COLUMNS), np.uint16), "BF16") for name in weights_of(0)}
        self.switches = 0
        super().__init__(sidecar, "python", self.weights, serving=True)

    def on_pause(self, pause: wsync.Pause) -> None:
        self.paused_at = time.perf_counter()
        super().on_pause(pause)

    def on_commit(self, version: wsync.Version) -> None:
        self.version = version

    def on_resume(self) -> None:
        super().on_resume()
        stood_still = time.perf_counter() - self.paused_at
        self.switches += 1
        print(json.dumps({"version": str(self.version), "after_step": self.step, "stood_still_ms": stood_still * 1e3,
                          "digest": digest(self.weights)}), flush=True)


def run_engine(sidecar: str) -> None:
    engine = DemoEngine(sidecar)
    print(json.dumps({"attached": True}), flush=True)
    while engine.switches < VERSIONS:
        engine.poll(0 if engine.serving else None)
        if engine.serving:  # a step: it reads the weights
            float(engine.weights["model.layers.0.mlp.weight"][engine.step % ROWS].astype(np.float32).sum())
            engine.step += 1
    engine.close()


def run() -> int:
    with tempfile.TemporaryDirectory(prefix="wsync-") as directory:
        run_dir, state_dir = os.path.join(directory, "run"), os.path.join(directory, "state")
        environment = dict(os.environ, WSYNC_RUN_DIR=run_dir, WSYNC_STATE_DIR=state_dir, WSYNC_LOG_LEVEL="warning")
        sidecar = subprocess.Popen([EXECUTABLE, "sidecar", "--set", "name=demo"], env=environment)
        engine = None
        try:
            socket = os.path.join(run_dir, "demo.engines")
            end = time.monotonic() + LIMIT_S
            while not os.path.exists(socket):
                if sidecar.poll() is not None or time.monotonic() > end:
                    print("The sidecar did not start; see its message above.", file=sys.stderr)
                    return 1
                time.sleep(0.01)
            print(f"A sidecar listens for engines at {socket}.")
            engine = subprocess.Popen([sys.executable, "-m", "wsync.demo", "--engine", "demo"], env=environment, text=True,
                                      stdout=subprocess.PIPE)
            assert engine.stdout is not None
            if not engine.stdout.readline():
                print("The engine did not attach; see its message above.", file=sys.stderr)
                return 1
            print(f"A Python engine has attached: {LAYERS} tensors of BF16, {LAYERS * ROWS * COLUMNS * 2 / 2**20:.0f} MiB. It "
                  "computes steps all the time.")
            return publish_all(run_dir, state_dir, engine)
        finally:
            for process in (engine, sidecar):
                if process is not None:
                    process.terminate()
                    process.wait()


def publish_all(run_dir: str, state_dir: str, engine: subprocess.Popen) -> int:
    settings = {"run_dir": run_dir, "state_dir": state_dir, "log.level": "warning", "bucket_bytes": "8MiB"}
    assert engine.stdout is not None
    with wsync.Publisher(settings=settings) as publisher:
        for step in range(1, VERSIONS + 1):
            weights = weights_of(step)
            began = time.perf_counter()
            publish = publisher.publish(weights, step=step)
            copied = time.perf_counter() - began
            status = publish.wait("committed", LIMIT_S)
            whole = time.perf_counter() - began
            line = engine.stdout.readline()
            if not line:
                print("The engine has ended; see its message above.", file=sys.stderr)
                return 1
            said = json.loads(line)
            print(f"Version {status.version}: the weights were free again after {copied * 1e3:.1f} ms, and the engine served it "
                  f"after {whole * 1e3:.1f} ms. It stopped after step {said['after_step']} and stood still for "
                  f"{said['stood_still_ms']:.1f} ms.")
            if said["version"] != str(status.version) or said["digest"] != digest(weights):
                print(f"The engine holds other bytes than version {status.version}.", file=sys.stderr)
                return 1
            print("    The engine's bytes are those of the trainer (SHA-256 of all tensors).")
    print(f"{VERSIONS} versions were published, and the engine has held each of them, byte for byte.")
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--engine":
        run_engine(sys.argv[2])
    elif len(sys.argv) == 1:
        sys.exit(run())
    else:
        print(__doc__)
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)

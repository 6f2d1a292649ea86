"""Real processes on the GPUs of this machine: a sidecar of kind cuda and engines with --device cuda take versions, are killed, and
come back. Skipped where the driver shows no GPU. The emulated driver has the same cases, and more, in cuda_test.py."""
import json
import os
import random
import subprocess
import sys
import unittest

import gpu_engines
from cuda_fleet import BY_NCCL, SHARED_GPUS, CudaCase, CudaFleet, cuda, gpus_of_this_machine

WSYNC, LIBRARY, LOADER = sys.argv[-3:]
del sys.argv[-3:]
GPUS, NONE = gpus_of_this_machine()
KILLS = 8


def why_not_shared():
    """Why NCCL on this machine cannot have several ranks on one GPU; empty if it can."""
    said = subprocess.run([WSYNC, "doctor", "--json", "--set", "devices.kind=cuda"], stdout=subprocess.PIPE, check=False,
                          env={**os.environ, **SHARED_GPUS, "WSYNC_CUDA_LIBRARY": LIBRARY}).stdout
    found = next(check for check in json.loads(said)["result"]["checks"] if check["name"] == "nccl")
    if found.get("facts", {}).get("ranks_share_gpus"):
        return ""
    return f"NCCL: not tested ({GPUS} GPU, and this machine has {found['found']}; NCCL 2.30 and newer can share a GPU)"


@unittest.skipIf(GPUS == 0, f"no GPU for the tests: {NONE}")
class Gpu(CudaCase):
    def fleet(self, **options):
        return CudaFleet(WSYNC, LIBRARY, **options)

    def several(self, number):
        if number > GPUS:
            self.skipTest(f"too few GPUs: {number} are needed, this machine shows {GPUS}")

    def test_one_device(self):
        self.run_through([0])

    def test_two_devices_on_one_gpu(self):
        self.run_through([0, 0])

    def test_four_devices_on_one_gpu(self):
        self.run_through([0, 0, 0, 0])

    def test_two_gpus_by_nccl(self):
        self.several(2)
        self.run_through([0, 1], *BY_NCCL)

    def shared(self):
        if why := why_not_shared():
            self.skipTest(why)

    def test_two_devices_on_one_gpu_by_nccl(self):
        self.shared()
        self.run_through([0, 0], *BY_NCCL, **SHARED_GPUS)

    def test_four_devices_on_one_gpu_by_nccl(self):
        self.shared()
        self.run_through([0, 0, 0, 0], *BY_NCCL, "--set", "devices.keep_buffers=false", **SHARED_GPUS)

    def test_two_gpus_by_copies(self):
        self.several(2)
        self.run_through([1, 0], "--set", "devices.collective=local")

    def test_ranks_of_a_replica_on_one_gpu_take_their_parts(self):
        self.ranks_by_own_links([0, 0, 0, 0], "--set", "devices.transfer=own_links")
        self.ranks_by_own_links([0, 0], "--set", "devices.buffer_bytes=64MiB", size="512MiB")

    def test_ranks_of_a_replica_take_their_parts_by_their_own_links(self):
        self.several(2)
        self.ranks_by_own_links([0, 1])

    def test_buffers_that_are_not_kept(self):
        self.run_through([0, 0], "--set", "devices.keep_buffers=false")

    def test_switches_by_patches(self):
        self.patched()

    def test_switches_by_patches_of_a_larger_model(self):
        self.patched("--set", "devices.buffer_bytes=64MiB", size="512MiB")

    def test_a_sidecar_that_ends_before_its_engines(self):
        self.sidecar_ends_first()

    def test_models_of_a_gigabyte_by_large_buffers(self):
        with self.fleet() as fleet:
            one, two = (fleet.checkpoint(name, seed, size="1GiB") for seed, name in enumerate(("one", "two"), start=1))
            sidecar, socket = fleet.sidecar("s0", *cuda("0"), "--set", "devices.buffer_bytes=256MiB")
            engine = fleet.gpu_engine(socket, "a", one, 0, 0)
            trainer = fleet.start("trainer", "--set", "arenas=4")
            for path in (one, two, one):
                self.verified(fleet, self.push(fleet, path), 1)
            self.stopped(fleet, engine, trainer, sidecar)

    def test_processes_that_are_killed_during_updates(self):
        self.killed()

    def test_processes_that_are_killed_during_updates_by_nccl(self):
        self.shared()
        self.killed(*BY_NCCL, **SHARED_GPUS)

    def killed(self, *settings, **environment):
        """An engine or the sidecar is killed while versions are loaded. What is left serves a whole version, and what comes back
        gets the newest."""
        kills = random.Random(5)
        with self.fleet(**environment) as fleet:
            paths = [fleet.checkpoint("one", 1, size="256MiB"), fleet.checkpoint("two", 2, size="256MiB")]
            settings = [*cuda("0,0"), "--set", "devices.buffer_bytes=16MiB", *settings]
            sidecar, socket = fleet.sidecar("s0", *settings)
            engines = {name: fleet.gpu_engine(socket, name, paths[0], 0, device) for device, name in enumerate("ab")}
            trainer = fleet.start("trainer", "--set", "arenas=4")
            self.push(fleet, paths[0])
            for turn in range(KILLS):
                push = fleet.start("push", paths[(turn + 1) % 2], "--coordinator", fleet.address)
                fleet.until_push_runs(push, kills.uniform(0, 0.4))
                victim = kills.choice(["a", "b", "sidecar"])
                process = sidecar if victim == "sidecar" else engines[victim]
                process.kill()
                process.wait()
                push.wait(timeout=240)
                if victim == "sidecar":
                    fleet.until(lambda: not fleet.ask("status")[1]["result"]["sidecars"][0]["connected"], "the sidecar's loss")
                    sidecar, socket = fleet.sidecar("s0", *settings)
                else:
                    fleet.until(lambda name=victim: fleet.replicas()[name]["state"] == "absent", "the engine's loss")
                    engines[victim] = fleet.gpu_engine(socket, victim, paths[0], 0, "ab".index(victim))
                version = self.push(fleet, paths[turn % 2])
                fleet.until_ready(version, "a", "b")
                self.verified(fleet, version, 2)
            self.stopped(fleet, *engines.values(), trainer, sidecar)


@unittest.skipIf(GPUS == 0, f"no GPU for the tests: {NONE}")
class GpuEngines(gpu_engines.EngineCase):
    loader = LOADER

    def fleet(self, **options):
        return CudaFleet(WSYNC, LIBRARY, **options)


if __name__ == "__main__":
    unittest.main()

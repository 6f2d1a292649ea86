"""Fleets of real processes whose engines and sidecar use GPUs: those of the emulated driver (tests/emulated_cuda), or, with
the label gpu, those of this machine."""
import ctypes
import os
import subprocess
import sys
import time
import unittest

from fleet import Fleet
from pages import copied_bytes
from patching import changed

BUFFER = ["--set", "devices.buffer_bytes=2MiB"]  # of a model of 16 MiB
BY_NCCL = ["--set", "devices.collective=nccl"]
SHARED_GPUS = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}  # NCCL 2.30 and newer let ranks of a group use the same GPU


def gpus_of_this_machine():
    """The number of GPUs that the driver shows, and why it is zero."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return 0, f"the NVIDIA driver is not installed: {error}"
    count = ctypes.c_int()
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if code not in (0, 100):  # 100: CUDA_ERROR_NO_DEVICE
        return 0, f"the NVIDIA driver cannot be used: error {code}"
    return count.value, "the driver shows none"


def cuda(gpus, *settings):
    return ["--set", "devices.kind=cuda", "--set", f"devices.gpus={gpus}", *settings]


class CudaFleet(Fleet):
    """Its processes use the driver and the NCCL that it is given. Emulated ones write what is done wrong with them to a report,
    which must stay empty."""

    def __init__(self, wsync, library, driver=None, nccl=None, abandons=False, **environment):
        """driver, nccl: the emulated libraries; without them, those of this machine. abandons: a process of it gives a GPU up,
        and what it has there is left when it ends."""
        super().__init__(wsync)
        self.abandons = abandons
        self.report = self.path("misuse")
        self.environment.update(environment, WSYNC_CUDA_LIBRARY=library)
        if driver:
            self.environment.update(LD_LIBRARY_PATH=os.path.dirname(driver), WSYNC_NCCL_LIBRARY=nccl,
                                    WSYNC_EMULATED_CUDA_REPORT=self.report)
        self.logs = 0

    def __exit__(self, *failure):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        misuse = ""
        if os.path.exists(self.report):
            with open(self.report, encoding="utf-8") as file:
                misuse = "".join(line for line in file if not (self.abandons and ": at the end of the process: " in line))
        said = [self.said(process) for process in self.processes] if failure[0] or misuse else []
        super().__exit__(*failure)
        if failure[0]:
            print("\n".join(said), file=sys.stderr)
        assert not misuse, f"misuse of the driver:\n{misuse}" + "\n".join(said)

    def start(self, *arguments, **environment):
        self.logs += 1
        log = self.path(f"log{self.logs}")
        with open(log, "w", encoding="utf-8") as file:
            process = subprocess.Popen([self.wsync, *arguments], env=dict(self.environment, **environment), text=True,
                                       stdout=subprocess.PIPE, stderr=file)
        process.log = log
        self.processes.append(process)
        if arguments[0] == "trainer":
            self.until_listening(process, arguments)
        return process

    def said(self, process):
        with open(process.log, encoding="utf-8") as file:
            return file.read()

    def until_said(self, process, sentence):
        self.until(lambda: sentence in self.said(process) or process.poll() is not None, sentence)
        assert sentence in self.said(process), self.said(process)

    def sidecar(self, name, *settings, **environment):
        process = self.start("sidecar", "--set", f"name={name}", *settings, **environment)
        socket = os.path.join(self.run_dir, f"{name}.engines")
        self.until(lambda: os.path.exists(socket) or process.poll() is not None, f"the socket of sidecar {name}")
        assert process.poll() is None, self.said(process)
        return process, socket

    def gpu_engine(self, socket, replica, checkpoint, gpu, device, *more):
        return self.engine(socket, replica, checkpoint, "--device", "cuda", "--gpu", str(gpu), "--device-index", str(device),
                           *more)

    def until_push_runs(self, push, seconds):
        """Waits until `push` has run for that long, so that a test can strike at any point of an update; or has ended."""
        end = time.monotonic() + seconds
        while push.poll() is None and time.monotonic() < end:
            time.sleep(0.001)

    def unattached(self, socket, replica, checkpoint, *more):
        return self.start("engine", "--json", "--sidecar", socket, "--replica", replica, "--checkpoint", checkpoint,
                          "--stats-ms", "0", *more)


class CudaCase(unittest.TestCase):
    """What tests of such fleets do. A subclass says by fleet() what they use."""

    def fleet(self, **options):
        raise NotImplementedError

    def verified(self, fleet, version, ranks):
        code, answer = fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        self.assertEqual([r["version"] for r in answer["result"]["ranks"]], [version] * ranks)
        self.assertTrue(all(r["bytes"] > 0 for r in answer["result"]["ranks"]))

    def push(self, fleet, path):
        code, answer = fleet.ask("push", path)
        self.assertEqual(code, 0, answer)
        return answer["result"]["version"]

    def stopped(self, fleet, *processes):
        """Each ends well, and says whether it tore a step."""
        for process in processes:
            code, said = fleet.stop(process)
            self.assertEqual(code, 0, said + fleet.said(process))
            if '"torn"' in said:
                self.assertIn('"torn":0', said)

    def run_through(self, gpus, *settings, **environment):
        """Versions served and verified; an engine, then the sidecar killed and back."""
        with self.fleet(**environment) as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            settings = [*cuda(",".join(map(str, gpus))), *BUFFER, *settings]
            sidecar, socket = fleet.sidecar("s0", *settings)
            names = [f"e{device}" for device in range(len(gpus))]

            def engine(device):
                return fleet.gpu_engine(socket, names[device], one, gpus[device], device)
            engines = [engine(device) for device in range(len(gpus))]
            trainer = fleet.start("trainer", "--set", "arenas=4")
            first = self.push(fleet, one)
            self.verified(fleet, first, len(gpus))
            second = self.push(fleet, two)
            self.verified(fleet, second, len(gpus))

            engines[-1].kill()
            engines[-1].wait()
            fleet.until(lambda: fleet.replicas()[names[-1]]["state"] == "absent", "the loss of an engine")
            engines[-1] = engine(len(gpus) - 1)
            fleet.until_ready(second, *names)
            self.verified(fleet, second, len(gpus))

            sidecar.kill()
            sidecar.wait()
            # Before it is seen to be lost, its engines still count as ready.
            fleet.until(lambda: not fleet.ask("status")[1]["result"]["sidecars"][0]["connected"], "the loss of the sidecar")
            sidecar, socket = fleet.sidecar("s0", *settings)
            fleet.until_ready(second, *names)
            third = self.push(fleet, one)
            self.verified(fleet, third, len(gpus))
            self.stopped(fleet, *engines, trainer, sidecar)

    def loads(self, fleet):
        """How each replica was loaded last, as the sidecar itself says."""
        code, answer = fleet.ask("status", address=f"ipc://{fleet.run_dir}/s0.control")
        self.assertEqual(code, 0, answer)
        return {r["replica"]: r["last_load"] for r in answer["result"]["sidecars"][0]["replicas"]}

    def expect_loads(self, fleet, kind, *replicas):
        loads = self.loads(fleet)
        for replica in replicas:
            self.assertEqual(loads[replica]["kind"], kind, loads)
            if kind == "patch":
                self.assertLess(loads[replica]["written_bytes"], loads[replica]["bytes"] / 20)

    def patched(self, *settings, size="16MiB"):
        """Versions of which only what changes is written; an engine that is killed and back; a rollback."""
        with self.fleet() as fleet:
            paths = [fleet.checkpoint("v0", 1, size=size)]
            for every in (300, 1000, 500, 700):
                paths.append(changed(paths[-1], fleet.path(f"v{len(paths)}"), every))
            settings = [*cuda("0,0,0"), *BUFFER, "--set", "patch.mode=auto", *settings]
            sidecar, socket = fleet.sidecar("s0", *settings)
            a = fleet.gpu_engine(socket, "a", paths[0], 0, 0)
            b = [fleet.gpu_engine(socket, "b", paths[0], 0, rank + 1, "--rank", str(rank), "--world-size", "2") for rank in (0, 1)]
            trainer = fleet.start("trainer", "--set", "arenas=4", "--set", "patch.in_place=off")
            self.push(fleet, paths[0])
            self.expect_loads(fleet, "full", "a", "b")
            for path in paths[1:3]:
                version = self.push(fleet, path)
                self.expect_loads(fleet, "patch", "a", "b")
                self.verified(fleet, version, 3)

            a.kill()
            a.wait()
            fleet.until(lambda: fleet.replicas()["a"]["state"] == "absent", "the loss of an engine")
            a = fleet.gpu_engine(socket, "a", paths[0], 0, 0)
            fleet.until_ready(version, "a", "b")
            self.expect_loads(fleet, "full", "a")
            version = self.push(fleet, paths[3])
            self.expect_loads(fleet, "patch", "a", "b")
            self.verified(fleet, version, 3)

            # What leads back was made of what led there.
            fleet.until(lambda: f"patch from {version} to " in fleet.said(sidecar), "what leads back")
            code, answer = fleet.ask("rollback")
            self.assertEqual(code, 0, answer)
            self.expect_loads(fleet, "patch", "a", "b")
            version = self.push(fleet, paths[4])
            self.verified(fleet, version, 3)
            self.stopped(fleet, a, *b, trainer, sidecar)

    def ranks_by_own_links(self, gpus, *settings, size="64MiB"):
        """Ranks of a replica on devices of their own: each device copies the part of its rank, and nothing is broadcast. A rank that
        is killed comes back. A rank says a line for each bucket, and nobody reads them, so there must be few."""
        with self.fleet() as fleet:
            paths = [fleet.checkpoint(name, seed, size=size) for seed, name in enumerate(("one", "two", "three"), start=1)]
            sidecar, socket = fleet.sidecar("s0", *cuda(",".join(map(str, gpus))), *BUFFER, *settings)

            def rank(number):
                return fleet.gpu_engine(socket, "tp", paths[0], gpus[number], number, "--rank", str(number), "--world-size", str(len(gpus)))
            ranks = [rank(number) for number in range(len(gpus))]
            trainer = fleet.start("trainer", "--set", "arenas=4")
            for path in paths[:2]:
                self.verified(fleet, self.push(fleet, path), len(gpus))
            copied = copied_bytes(fleet, "s0")
            self.assertEqual(copied["broadcast"], 0)
            # A fifth of the model is of every rank, because its vocabulary is odd.
            model = sum(os.path.getsize(os.path.join(paths[0], file)) for file in os.listdir(paths[0]) if file.endswith(".safetensors"))
            self.assertLess(copied["h2d"] / (2 * model), 0.9 + 0.2 * len(gpus))
            ranks[-1].kill()
            ranks[-1].wait()
            ranks[-1] = rank(len(gpus) - 1)
            version = self.push(fleet, paths[2])
            fleet.until_ready(version, "tp")
            self.verified(fleet, version, len(gpus))
            self.assertEqual(copied_bytes(fleet, "s0")["broadcast"], 0)
            self.stopped(fleet, *ranks, trainer, sidecar)

    def sidecar_ends_first(self):
        """The engines go on with what they have."""
        with self.fleet() as fleet:
            one = fleet.checkpoint("one", 1)
            sidecar, socket = fleet.sidecar("s0", *cuda("0,0"), *BUFFER)
            engines = [fleet.gpu_engine(socket, name, one, 0, device) for device, name in enumerate("ab")]
            trainer = fleet.start("trainer")
            self.push(fleet, one)
            self.stopped(fleet, sidecar, trainer, *engines)

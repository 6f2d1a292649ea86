"""Real processes on the emulated driver (tests/emulated_cuda): a sidecar of kind cuda and engines with --device cuda take
versions, lose each other, and refuse what cannot be. No GPU: nothing here says what one does."""
import os
import signal
import subprocess
import sys
import unittest

from fleet import DEADLINE_S, Fleet

WSYNC, LIBRARY, DRIVER, NCCL = sys.argv[-4:]
del sys.argv[-4:]
BUFFER = ["--set", "devices.buffer_bytes=2MiB"]  # of a model of 16 MiB


def cuda(gpus, *settings):
    return ["--set", "devices.kind=cuda", "--set", f"devices.gpus={gpus}", *settings]


class CudaFleet(Fleet):
    """Its processes find the emulated driver and NCCL; what they do wrong with it is in a report, which must stay empty."""

    def __init__(self, abandons=False, **environment):
        """abandons: a process of it gives a GPU up, and what it has there is left when it ends."""
        super().__init__(WSYNC)
        self.abandons = abandons
        self.report = self.path("misuse")
        self.environment.update(environment, LD_LIBRARY_PATH=os.path.dirname(DRIVER), WSYNC_CUDA_LIBRARY=LIBRARY,
                                WSYNC_NCCL_LIBRARY=NCCL, WSYNC_EMULATED_CUDA_REPORT=self.report)
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

    def unattached(self, socket, replica, checkpoint, *more):
        return self.start("engine", "--json", "--sidecar", socket, "--replica", replica, "--checkpoint", checkpoint,
                          "--stats-ms", "0", *more)


class Cuda(unittest.TestCase):
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

    def run_through(self, gpus, *settings):
        """Versions served and verified; an engine, then the sidecar killed and back."""
        with CudaFleet() as fleet:
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

    def test_one_device(self):
        self.run_through([0])

    def test_two_devices_on_one_gpu(self):
        self.run_through([0, 0])

    def test_two_gpus_by_nccl(self):
        self.run_through([0, 1], "--set", "devices.collective=nccl")

    def test_two_gpus_by_copies(self):
        self.run_through([1, 0], "--set", "devices.collective=local")

    def test_four_devices_on_two_gpus(self):
        self.run_through([0, 1, 0, 1])

    def test_buffers_that_are_not_kept(self):
        self.run_through([0, 1], "--set", "devices.keep_buffers=false")

    def test_a_sidecar_ends_before_its_engines(self):
        with CudaFleet() as fleet:
            one = fleet.checkpoint("one", 1)
            sidecar, socket = fleet.sidecar("s0", *cuda("0,0"), *BUFFER)
            engines = [fleet.gpu_engine(socket, name, one, 0, device) for device, name in enumerate("ab")]
            trainer = fleet.start("trainer")
            self.push(fleet, one)
            self.stopped(fleet, sidecar, trainer, *engines)

    def test_staged_bytes_that_cannot_be_pinned_are_copied_all_the_same(self):
        with CudaFleet() as fleet:
            one = fleet.checkpoint("one", 1)
            sidecar, socket = fleet.sidecar("s0", *cuda("0,1"), *BUFFER,
                                            WSYNC_EMULATED_CUDA_FAULTS="cuMemHostRegister_v2:*:CUDA_ERROR_NOT_SUPPORTED")
            engine = fleet.gpu_engine(socket, "a", one, 0, 0)
            trainer = fleet.start("trainer")
            version = self.push(fleet, one)
            self.verified(fleet, version, 1)
            said = [line for line in fleet.said(sidecar).splitlines() if "are not registered with" in line]
            self.assertEqual(len(said), 1, said)
            self.assertIn(f"version {version}", said[0])
            self.assertIn("slower", said[0])
            self.stopped(fleet, engine, trainer, sidecar)

    # ---- bad input ----

    def test_flipped_bits_are_refused_and_the_old_weights_kept(self):
        with CudaFleet() as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            # One bucket, so a load is four copies: to the device, into the IPC buffer, and the table and sums of its digest.
            # One more warms a group up, at the start and after the load that failed. Flipped are the first of the second load, and
            # the second of the third, which is the second version's second try.
            faults = "copy:6:flip,copy:12:flip"
            sidecar, socket = fleet.sidecar("s0", *cuda("0"), "--set", "devices.buffer_bytes=32MiB",
                                            WSYNC_EMULATED_CUDA_FAULTS=faults)
            engine = fleet.gpu_engine(socket, "a", one, 0, 0)
            trainer = fleet.start("trainer", "--set", "arenas=4")
            first = self.push(fleet, one)
            code, answer = fleet.ask("push", two)
            self.assertEqual(code, 1, answer)
            self.assertIn("as staged", str(answer))
            self.assertEqual(fleet.said(sidecar).count("bucket 0 has digest"), 2, fleet.said(sidecar))
            fleet.until(lambda: fleet.replicas()["a"]["version"] == first, "the version before")
            self.verified(fleet, first, 1)
            self.stopped(fleet, engine, trainer, sidecar)

    def test_verify_finds_a_bit_that_changed_in_an_engines_memory(self):
        with CudaFleet() as fleet:
            one = fleet.checkpoint("one", 1)
            sidecar, socket = fleet.sidecar("s0", *cuda("0"), *BUFFER)
            # After the kernel of a bucket has copied and added up: nothing but reading it back finds that.
            fleet.environment["WSYNC_EMULATED_CUDA_FAULTS"] = "kernel:3:flip"
            engine = fleet.gpu_engine(socket, "a", one, 0, 0)
            del fleet.environment["WSYNC_EMULATED_CUDA_FAULTS"]
            trainer = fleet.start("trainer")
            self.push(fleet, one)
            code, answer = fleet.ask("verify")
            self.assertEqual(code, 1, answer)
            mismatches = answer["result"]["ranks"][0]["mismatches"]
            self.assertEqual(len(mismatches), 1, mismatches)
            self.assertNotEqual(mismatches[0]["expected"], mismatches[0]["found"])
            self.stopped(fleet, engine, trainer, sidecar)

    def test_memory_that_is_not_there_when_a_load_begins_leaves_the_replica_serving(self):
        with CudaFleet() as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            sidecar, socket = fleet.sidecar("s0", *cuda("0"), *BUFFER, "--set", "devices.keep_buffers=false",
                                            WSYNC_EMULATED_CUDA_FAULTS="cuMemCreate:7+:CUDA_ERROR_OUT_OF_MEMORY")
            engine = fleet.gpu_engine(socket, "a", one, 0, 0)
            trainer = fleet.start("trainer", "--set", "arenas=4")
            first = self.push(fleet, one)
            code, answer = fleet.ask("push", two)
            self.assertEqual(code, 1, answer)
            self.assertIn("lower devices.buffer_bytes", str(answer))
            fleet.until(lambda: fleet.replicas()["a"]["version"] == first, "the version before")
            self.verified(fleet, first, 1)
            self.stopped(fleet, engine, trainer, sidecar)

    def refused_sidecar(self, fleet, settings, words, **environment):
        done = subprocess.run([WSYNC, "sidecar", "--set", "name=s0", "--json", *settings], text=True, capture_output=True,
                              env=dict(fleet.environment, **environment), timeout=DEADLINE_S)
        self.assertNotEqual(done.returncode, 0)
        for word in words:
            self.assertIn(word, done.stdout + done.stderr)

    def two_by_nccl(self, fleet, fault):
        """A fleet that has taken its first version; each load has 8 broadcasts, and connecting the devices 2."""
        one = fleet.checkpoint("one", 1)
        sidecar, socket = fleet.sidecar("s0", *cuda("0,1", *BUFFER, "--set", "devices.collective=nccl"),
                                        WSYNC_EMULATED_NCCL_FAULT=fault)
        engines = [fleet.gpu_engine(socket, f"e{device}", one, device, device) for device in (0, 1)]
        trainer = fleet.start("trainer", "--set", "arenas=4")
        self.verified(fleet, self.push(fleet, one), 2)
        return sidecar, engines, trainer

    def test_communicators_that_broke_are_made_anew_and_the_replicas_repaired(self):
        with CudaFleet() as fleet:
            # In the second load. Later ones are of new communicators.
            sidecar, engines, trainer = self.two_by_nccl(fleet, "async:12@1")
            version = self.push(fleet, fleet.checkpoint("two", 2))
            fleet.until_said(sidecar, "NCCL reports an error")
            fleet.until_said(sidecar, "the devices are connected again")
            fleet.until_ready(version, "e0", "e1")
            self.verified(fleet, version, 2)
            self.stopped(fleet, *engines, trainer, sidecar)

    def test_an_abort_that_hangs_leaves_the_gpu_and_nothing_waits_for_it(self):
        with CudaFleet(abandons=True) as fleet:
            sidecar, engines, trainer = self.two_by_nccl(fleet, "async:12@1,abort@1")
            code, answer = fleet.ask("push", fleet.checkpoint("two", 2))
            self.assertNotEqual(code, 0, answer)
            fleet.until_said(sidecar, "no load can begin: ")
            said = fleet.said(sidecar)
            self.assertEqual(said.count("no load can begin: "), 1, said)
            self.assertIn("is no longer used by this process, because NCCL did not free its communicator within 5 s", said)
            self.assertNotIn("connected again", said)
            self.assertEqual(fleet.ask("status")[0], 0)
            self.stopped(fleet, *engines, trainer, sidecar)

    def test_devices_that_cannot_be_opened(self):
        with CudaFleet() as fleet:
            self.refused_sidecar(fleet, cuda("0,7"), ["device 1", "GPU 7", "2"])
            self.refused_sidecar(fleet, cuda("0"), ["no GPU"], WSYNC_EMULATED_CUDA_MODE="none")
            self.refused_sidecar(fleet, cuda("0"), ["WSYNC_CUDA_LIBRARY", "/nowhere/libwsync_cuda.so"],
                                 WSYNC_CUDA_LIBRARY="/nowhere/libwsync_cuda.so")
            self.refused_sidecar(fleet, cuda("0,1", "--set", "devices.collective=nccl"), ["NCCL", "/nowhere/libnccl.so.2"],
                                 WSYNC_NCCL_LIBRARY="/nowhere/libnccl.so.2")
            self.refused_sidecar(fleet, cuda("0,0", "--set", "devices.buffer_bytes=64MiB"),
                                 ["6 buffers of 64.0 MiB do not fit", "devices.buffer_bytes to at most"],
                                 WSYNC_EMULATED_CUDA_MEMORY=str(256 << 20))
            # NCCL needs some, too.
            self.refused_sidecar(fleet, cuda("0,1", *BUFFER, "--set", "devices.collective=nccl"),
                                 ["3 buffers of 2.00 MiB do not fit beside the 388 MiB that streams"],
                                 WSYNC_EMULATED_CUDA_MEMORY=str(256 << 20))
            self.refused_sidecar(fleet, cuda("0", *BUFFER), ["lower devices.buffer_bytes", "free"],
                                 WSYNC_EMULATED_CUDA_FAULTS="cuMemCreate:2+:CUDA_ERROR_OUT_OF_MEMORY")
            self.refused_sidecar(fleet, cuda("0", *BUFFER), ["device 0", "GPU 0", "cannot share memory with other processes"],
                                 WSYNC_EMULATED_CUDA_DESCRIPTORS="0")

    def test_engines_that_do_not_fit_the_devices(self):
        with CudaFleet() as fleet:
            one = fleet.checkpoint("one", 1)
            sidecar, socket = fleet.sidecar("s0", *cuda("0,1"), *BUFFER)
            engine = fleet.gpu_engine(socket, "a", one, 0, 0)
            gpu = ["--device", "cuda", "--gpu"]
            for options, words in (
                    ([*gpu, "1", "--device-index", "0"], ["device 0 of this sidecar is GPU-", "--device-index 1"]),
                    ([*gpu, "0", "--device-index", "0"], ["already serves replica 'a' rank 0", "a device serves only one engine rank"]),
                    ([*gpu, "0", "--device-index", "2"], ["device 2 does not exist: this sidecar has 2 devices"]),
                    (["--device", "host", "--device-index", "1"], ["in host memory", "--device cuda"])):
                wrong = fleet.unattached(socket, "b", one, *options)
                for word in words:
                    fleet.until_said(sidecar, word)
                fleet.stop(wrong)
            host, host_socket = fleet.sidecar("s1")
            wrong = fleet.unattached(host_socket, "c", one, *gpu, "0")
            fleet.until_said(host, "set devices.kind: cuda")
            self.stopped(fleet, wrong, host)
            # Another machine's GPU: its UUID is none of the sidecar's.
            wrong = fleet.start("engine", "--json", "--sidecar", socket, "--replica", "d", "--checkpoint", one, *gpu, "1",
                                "--device-index", "1", WSYNC_EMULATED_CUDA_HOST="elsewhere")
            fleet.until_said(sidecar, "add that GPU to devices.gpus")
            fleet.stop(wrong)
            trainer = fleet.start("trainer")
            self.verified(fleet, self.push(fleet, one), 1)
            self.stopped(fleet, engine, trainer, sidecar)

    def test_plan_shows_what_is_left_to_engines(self):
        with CudaFleet(WSYNC_EMULATED_CUDA_MEMORY=str(512 << 20)) as fleet:
            one = fleet.checkpoint("one", 1)
            sidecar, socket = fleet.sidecar("s0", *cuda("0,0,1"), "--set", "devices.buffer_bytes=3MiB")
            engine = fleet.gpu_engine(socket, "a", one, 1, 2)
            trainer = fleet.start("trainer")
            self.push(fleet, one)
            code, answer = fleet.ask("plan", one)
            self.assertEqual(code, 0, answer)
            gpus = answer["result"]["sidecars"][0]["gpus"]
            self.assertEqual([g["devices"] for g in gpus], [2, 1])
            self.assertEqual([g["buffer_bytes"] for g in gpus], [6 * (4 << 20), 3 * (4 << 20)])
            for gpu in gpus:
                self.assertTrue(gpu["streams_measured"], gpu)
                self.assertGreater(gpu["streams_bytes"], 0)
                self.assertEqual(gpu["peak_bytes"], gpu["buffer_bytes"] + gpu["streams_bytes"] + gpu["context_bytes"])
                self.assertEqual(gpu["left_bytes"], gpu["total_bytes"] - gpu["peak_bytes"])
                # What was predicted is what was taken.
                self.assertLessEqual(gpu["total_bytes"] - gpu["free_bytes"], gpu["peak_bytes"])
                self.assertLessEqual(gpu["peak_bytes"], gpu["buffer_bytes"] + (8 << 20))
            self.assertEqual(answer["result"]["peak_memory"]["buffer_bytes"], 0)
            self.stopped(fleet, engine, trainer, sidecar)


if __name__ == "__main__":
    unittest.main()

"""Real processes on the emulated driver (tests/emulated_cuda): a sidecar of kind cuda and engines with --device cuda take
versions, lose each other, and refuse what cannot be. No GPU: nothing here says what one does."""
import subprocess
import sys
import unittest

from cuda_fleet import BUFFER, BY_NCCL, SHARED_GPUS, CudaCase, CudaFleet, cuda
from fleet import DEADLINE_S

WSYNC, LIBRARY, DRIVER, NCCL = sys.argv[-4:]
del sys.argv[-4:]


class Cuda(CudaCase):
    def fleet(self, **options):
        return CudaFleet(WSYNC, LIBRARY, DRIVER, NCCL, **options)

    def test_one_device(self):
        self.run_through([0])

    def test_two_devices_on_one_gpu(self):
        self.run_through([0, 0])

    def test_two_gpus_by_nccl(self):
        self.run_through([0, 1], *BY_NCCL)

    def test_devices_on_one_gpu_by_an_nccl_that_lets_them_share_it(self):
        self.run_through([0, 0], *BY_NCCL, WSYNC_EMULATED_NCCL_VERSION="23007", **SHARED_GPUS)

    def test_devices_on_one_gpu_are_refused_by_an_older_nccl(self):
        for version, environment in (("22907", SHARED_GPUS), ("23007", {})):
            with self.fleet(WSYNC_EMULATED_NCCL_VERSION=version, **environment) as fleet:
                sidecar = fleet.start("sidecar", "--set", "name=s0", *cuda("0,0"), *BY_NCCL)
                self.assertNotEqual(sidecar.wait(timeout=DEADLINE_S), 0)
                said = fleet.said(sidecar)
                self.assertIn("allows each GPU only once", said)
                self.assertIn("only with NCCL_MULTI_RANK_GPU_ENABLE=1", said)

    def test_two_gpus_by_copies(self):
        self.run_through([1, 0], "--set", "devices.collective=local")

    def test_ranks_of_a_replica_take_their_parts_by_their_own_links(self):
        self.ranks_by_own_links([0, 1])

    def test_ranks_of_a_replica_on_one_gpu_take_their_parts(self):
        self.ranks_by_own_links([0, 0, 0, 0], "--set", "devices.transfer=own_links")

    def test_four_devices_on_two_gpus(self):
        self.run_through([0, 1, 0, 1])

    def test_buffers_that_are_not_kept(self):
        self.run_through([0, 1], "--set", "devices.keep_buffers=false")

    def test_switches_by_patches(self):
        self.patched()

    def test_switches_by_patches_with_buffers_that_are_not_kept(self):
        self.patched("--set", "devices.keep_buffers=false")

    def test_a_sidecar_that_ends_before_its_engines(self):
        self.sidecar_ends_first()

    def test_staged_bytes_that_cannot_be_pinned_are_copied_all_the_same(self):
        with self.fleet() as fleet:
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
        with self.fleet() as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            # One bucket, and memory that can be pinned, so a load of a device that is alone is one copy. Flipped are those of the second load, and of the third,
            # which is the second version's second try.
            faults = "copy:2:flip,copy:3:flip"
            sidecar, socket = fleet.sidecar("s0", *cuda("0"), "--set", "devices.buffer_bytes=32MiB",
                                            WSYNC_EMULATED_CUDA_FAULTS=faults, WSYNC_EMULATED_CUDA_READ_ONLY_REGISTER="1")
            engine = fleet.gpu_engine(socket, "a", one, 0, 0)
            trainer = fleet.start("trainer", "--set", "arenas=4")
            first = self.push(fleet, one)
            code, answer = fleet.ask("push", two)
            self.assertEqual(code, 1, answer)
            self.assertIn("has loaded are not those that are staged", str(answer))
            self.assertEqual(fleet.said(sidecar).count("are not those that are staged"), 2, fleet.said(sidecar))
            fleet.until(lambda: fleet.replicas()["a"]["version"] == first, "the version before")
            self.verified(fleet, first, 1)
            self.stopped(fleet, engine, trainer, sidecar)

    def test_verify_finds_a_bit_that_changed_in_an_engines_memory(self):
        with self.fleet() as fleet:
            one = fleet.checkpoint("one", 1)
            sidecar, socket = fleet.sidecar("s0", *cuda("0"), *BUFFER)
            # After the kernel of a bucket has copied and added up: nothing but reading it back finds that.
            fleet.environment["WSYNC_EMULATED_CUDA_FAULTS"] = "kernel:5:flip"
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
        with self.fleet() as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            sidecar, socket = fleet.sidecar("s0", *cuda("0"), *BUFFER, "--set", "devices.keep_buffers=false",
                                            WSYNC_EMULATED_CUDA_FAULTS="cuMemCreate:5+:CUDA_ERROR_OUT_OF_MEMORY")
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
        with self.fleet() as fleet:
            # In the second load. Later ones are of new communicators.
            sidecar, engines, trainer = self.two_by_nccl(fleet, "async:12@1")
            version = self.push(fleet, fleet.checkpoint("two", 2))
            fleet.until_said(sidecar, "NCCL reports an error")
            fleet.until_said(sidecar, "the devices are connected again")
            fleet.until_ready(version, "e0", "e1")
            self.verified(fleet, version, 2)
            self.stopped(fleet, *engines, trainer, sidecar)

    def test_an_abort_that_hangs_leaves_the_gpu_and_nothing_waits_for_it(self):
        with self.fleet(abandons=True) as fleet:
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
        with self.fleet() as fleet:
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
        with self.fleet() as fleet:
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
        with self.fleet(WSYNC_EMULATED_CUDA_MEMORY=str(512 << 20)) as fleet:
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

"""One build serves hosts with and without a GPU: nothing but libwsync_cuda.so knows of CUDA and NCCL, and that is loaded from
beside the program, from the installation, or refused in words. No GPU."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from schema import validate

PROGRAMS = [argument for argument in sys.argv[1:] if argument.startswith("/")]
WSYNC, ENGINE, TRAINER = PROGRAMS[:3]
CUDA, DRIVER, NCCL = PROGRAMS[3:] or ("", "", "")  # the last two are emulated, for tests
del sys.argv[-len(PROGRAMS):]
FOREIGN = ("cuda", "nccl", "nvrtc", "nvidia")
ENTRIES = ["wsync_cuda_backend", "wsync_nccl_backend"]


def printed(*command):
    return subprocess.run(command, check=True, text=True, capture_output=True, timeout=60).stdout


def needed(path):
    return [line.split("[")[1].split("]")[0] for line in printed("readelf", "-d", path).splitlines() if "(NEEDED)" in line]


class WhatIsLinked(unittest.TestCase):
    def test_programs_and_libraries_need_neither_cuda_nor_nccl(self):
        for path in filter(None, (WSYNC, ENGINE, TRAINER, CUDA)):
            names = needed(path)
            self.assertIn("libc.so.6", names, path)  # that it was read
            self.assertEqual([n for n in names if any(word in n for word in FOREIGN)], [], path)

    @unittest.skipUnless(CUDA, "this build has no CUDA backend")
    def test_the_backend_shows_its_entries_alone(self):
        listed = printed("nm", "-D", "--defined-only", CUDA).splitlines()
        self.assertEqual(sorted(line.split()[-1] for line in listed), ENTRIES)

    @unittest.skipUnless(CUDA, "this build has no CUDA backend")
    def test_the_kernels_are_compiled_for_each_gpu_and_spill_no_register(self):
        build = os.path.dirname(os.path.dirname(os.path.dirname(CUDA)))
        with open(os.path.join(build, "shared/device/cuda/kernels.fatbin.log"), encoding="utf-8") as file:
            said = file.read()
        kernels = re.findall(r"Compiling entry function '(\w+)' for '(sm_\d+)'", said)
        names = {name for name, _ in kernels}
        self.assertIn("wsync_copy_pieces", names)
        for gpu in {gpu for _, gpu in kernels} | {"sm_80", "sm_90"}:
            self.assertEqual({name for name, of in kernels if of == gpu}, names, gpu)
        # The stack is what paths that are rarely executed get as arguments.
        used = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said)
        self.assertGreaterEqual(len(used), len(kernels), said)
        # A pair of registers in a path that is rarely executed.
        self.assertLessEqual(max(int(stored) for _, stored, _ in used), 8, said)
        self.assertLessEqual(max(int(stack) for stack, *_ in used), 64, said)
        # With 64 registers a multiprocessor holds 32 warps, which is enough to keep the memory busy.
        registers = [int(number) for number in re.findall(r"Used (\d+) registers", said)]
        self.assertEqual(len(registers), len(kernels), said)
        self.assertLessEqual(max(registers), 64, said)


class Doctor(unittest.TestCase):
    def checks(self, *arguments, wsync=WSYNC, name="", cwd=None, **environment):
        """How the doctor ended, and its checks by name."""
        settings = {key: value for key, value in os.environ.items() if not key.startswith("WSYNC_")}
        with tempfile.TemporaryDirectory(prefix="wsync-") as folder:
            command = [name or wsync, "doctor", "--json", "--set", f"run_dir={folder}/run", "--set", f"state_dir={folder}/state",
                       *arguments]
            done = subprocess.run(command, executable=wsync, env=settings | environment, cwd=cwd, text=True,
                                  capture_output=True, timeout=60)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return done.returncode, {check["name"]: check for check in validate(done.args, done.stdout)["result"]["checks"]}


class WhereItIsLookedFor(Doctor):
    """By the program, copied to a folder of its own."""

    def setUp(self):
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="wsync-"))
        self.addCleanup(shutil.rmtree, self.folder)
        os.mkdir(os.path.join(self.folder, "bin"))
        self.wsync = shutil.copy(WSYNC, os.path.join(self.folder, "bin"))

    def cuda(self, **options):
        code, checks = self.checks(wsync=self.wsync, **options)
        return code, checks["cuda"]

    def put(self, at, text="not a library\n"):
        path = os.path.join(self.folder, at)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_without_it_nothing_is_wrong(self):
        code, check = self.cuda()
        self.assertEqual((code, check["status"], check["advice"]), (0, "ok", ""), check)
        self.assertEqual(check["found"], "GPUs cannot be used (device kind cuda needs libwsync_cuda.so, which was not found)")

    def test_beside_the_program_whatever_it_is_called_and_wherever_it_runs(self):
        path = self.put("bin/libwsync_cuda.so")
        self.put("lib/libwsync_cuda.so")
        for name, cwd in (("", None), ("wsync", "/"), ("./wsync", "/"), ("/bin/true", None)):
            _, check = self.cuda(name=name, cwd=cwd)
            self.assertIn(f"{path} cannot be loaded: ", check["found"], name)

    def test_in_the_installation(self):
        path = self.put("lib/libwsync_cuda.so")
        _, check = self.cuda()
        self.assertIn(f"{path} cannot be loaded: ", check["found"])

    def test_the_environment_comes_first(self):
        self.put("bin/libwsync_cuda.so")
        _, check = self.cuda(WSYNC_CUDA_LIBRARY="/nonexistent/libwsync_cuda.so")
        self.assertIn("which was not found", check["found"])
        _, check = self.cuda(WSYNC_CUDA_LIBRARY="libwsync_cuda.so")
        self.assertIn("WSYNC_CUDA_LIBRARY is 'libwsync_cuda.so', expected the absolute path", check["found"])

    @unittest.skipUnless(CUDA, "this build has no CUDA backend")
    def test_the_backend_of_this_build_is_loaded(self):
        _, check = self.cuda(WSYNC_CUDA_LIBRARY=CUDA)
        for words in ("which was not found", "libwsync_cuda.so cannot be loaded", "another build", "has no wsync_cuda_backend"):
            self.assertNotIn(words, check["found"])


@unittest.skipUnless(CUDA, "this build has no CUDA backend")
class OnTheEmulatedDriver(Doctor):
    """What the doctor asks a driver, of the one that the tests emulate. No GPU."""

    def asked(self, *arguments, **environment):
        return self.checks(*arguments, WSYNC_CUDA_LIBRARY=CUDA, LD_LIBRARY_PATH=os.path.dirname(DRIVER),
                           **{"WSYNC_NCCL_LIBRARY": NCCL, **environment})

    def test_each_gpu_has_its_facts(self):
        code, checks = self.asked(WSYNC_EMULATED_GPUS="3", WSYNC_EMULATED_CUDA_MEMORY=str(1 << 31))
        self.assertEqual(code, 0, checks)
        self.assertEqual(checks["cuda"]["facts"]["library"], os.path.realpath(CUDA))
        self.assertEqual([name for name in checks if name.startswith("gpu ")], ["gpu 0", "gpu 1", "gpu 2"])
        gpus = [checks[f"gpu {number}"]["facts"] for number in range(3)]
        self.assertEqual(len({gpu["uuid"] for gpu in gpus}), 3)
        for number, gpu in enumerate(gpus):
            self.assertRegex(gpu["uuid"], "^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
            self.assertEqual((gpu["gpu"], gpu["total_bytes"]), (number, 1 << 31))
            self.assertEqual(gpu["peers"], [other for other in range(3) if other != number])
        self.assertEqual(checks["nccl"]["facts"]["library"], NCCL)
        self.assertIn("pinned memory", checks)

    def test_gpus_that_do_not_reach_each_other_have_no_peers(self):
        _, checks = self.asked(WSYNC_EMULATED_CUDA_PEERS="0")
        self.assertEqual(checks["gpu 0"]["facts"]["peers"], [])

    def test_a_machine_without_gpus_and_a_driver_that_is_too_old(self):
        for mode in ("none", "old", "mismatch"):
            code, checks = self.asked(WSYNC_EMULATED_CUDA_MODE=mode)
            self.assertEqual((code, checks["cuda"]["status"]), (0, "ok"), checks)
            expected = "0 GPUs, driver" if mode == "none" else "GPUs cannot be used (the NVIDIA driver "
            self.assertIn(expected, checks["cuda"]["found"], mode)
            self.assertNotIn("gpu 0", checks)
            code, checks = self.asked("--set", "devices.kind=cuda", WSYNC_EMULATED_CUDA_MODE=mode)
            self.assertEqual((code, checks["cuda"]["status"]), (1, "fail"), checks)
            self.assertNotEqual(checks["cuda"]["advice"], "")

    def test_gpus_of_the_config(self):
        code, checks = self.asked("--set", "devices.kind=cuda", "--set", "devices.gpus=[0, 1]")
        self.assertEqual(code, 0, checks)
        code, checks = self.asked("--set", "devices.kind=cuda", "--set", "devices.gpus=[0, 7]")
        self.assertEqual((code, checks["gpu 7"]["status"]), (1, "fail"), checks)

    def test_without_nccl(self):
        two = ["--set", "devices.kind=cuda", "--set", "devices.gpus=[0, 1]"]
        # It is of use for several GPUs, and needed where the config says so.
        for settings, expected in ((["--set", "devices.kind=cuda"], (0, "ok")), (two, (0, "warn")),
                                   ([*two, "--set", "devices.collective=local"], (0, "ok")),
                                   ([*two, "--set", "devices.collective=nccl"], (1, "fail"))):
            code, checks = self.asked(*settings, WSYNC_NCCL_LIBRARY="/nonexistent/libnccl.so.2")
            self.assertEqual((code, checks["nccl"]["status"]), expected, settings)
            self.assertIn("/nonexistent/libnccl.so.2", checks["nccl"]["found"])


if __name__ == "__main__":
    unittest.main()

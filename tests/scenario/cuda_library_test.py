"""One build serves hosts with and without a GPU: nothing but libwsync_cuda.so knows of CUDA and NCCL, and that is loaded from
beside the program, from the installation, or refused in words. No GPU."""
import glob
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from schema import validate

PROGRAMS = [argument for argument in sys.argv[1:] if argument.startswith("/")]
WSYNC, ENGINE, TRAINER = PROGRAMS[:3]
CUDA, DRIVER, NCCL = PROGRAMS[3:] or ("", "", "")  # the last two are emulated, for tests
del sys.argv[-len(PROGRAMS):]
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOREIGN = ("cuda", "nccl", "nvrtc", "nvidia")
INSTRUCTIONS = {"loads_of_16_bytes": r"\bLDG\.[A-Z.]*128", "stores_of_16_bytes": r"\bSTG\.[A-Z.]*128", "local_memory": r"\b(?:LDL|STL)\b"}
ENTRIES = ["wsync_cuda_backend", "wsync_nccl_backend"]


def printed(*command, **environment):
    return subprocess.run(command, check=True, text=True, capture_output=True, timeout=60, env=os.environ | environment).stdout


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


def cuobjdump():
    """The tool that disassembles machine code: of the toolkit's Python packages, else on PATH; "" if there is none."""
    packages = sorted(glob.glob(os.path.join(ROOT, "build/cuda/lib/python3*/site-packages/nvidia/cu*/bin/cuobjdump")))
    return packages[-1] if packages else shutil.which("cuobjdump") or ""


@unittest.skipUnless(CUDA, "this build has no CUDA backend")
class Kernels(unittest.TestCase):
    """What the compiler made of the kernels, beside what tests/golden/kernels.json has recorded for its release."""

    @classmethod
    def setUpClass(cls):
        cls.path = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(CUDA))), "shared/device/cuda/kernels.images")
        with open(cls.path + ".log", encoding="utf-8") as file:
            said = file.read()
        cls.release = re.match(r"NVRTC ([0-9.]+)\n", said)[1]
        cls.kernels = {}
        for part in said.split("Compiling entry function ")[1:]:
            name, gpu = re.match(r"'(\w+)' for '(sm_\d+)'", part).groups()
            numbers = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part).groups()
            cls.kernels[gpu, name] = dict(zip(("stack", "spill_stores", "spill_loads"), map(int, numbers)),
                                          registers=int(re.search(r"Used (\d+) registers", part)[1]))
        # Functions that are called have lines of their own.
        cls.frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said)

    def images(self):
        """GPU -> machine code, of the file that the library embeds (kernel_images.h)."""
        with open(self.path, "rb") as file:
            data = file.read()
        self.assertEqual(data[:8], b"WSYNCKI1")
        entries = struct.iter_unpack("<BBB5xQQ", data[16:16 + 24 * struct.unpack_from("<Q", data, 8)[0]])
        return {f"sm_{major}{minor}": data[at:at + size] for is_ptx, major, minor, at, size in entries if not is_ptx}

    def test_each_gpu_has_all_kernels_without_spills_in_64_registers(self):
        names = {name for _, name in self.kernels}
        self.assertEqual(names, {"wsync_change_words", "wsync_convert_pieces", "wsync_copy_pieces", "wsync_read_bytes"})
        for gpu in {gpu for gpu, _ in self.kernels} | {"sm_80", "sm_90"}:
            for name in names:
                used = self.kernels[gpu, name]
                # With 64 registers a multiprocessor holds 32 warps, which is enough to keep the memory busy.
                self.assertLessEqual(used["registers"], 64, (gpu, name))
        self.assertGreaterEqual(len(self.frames), len(self.kernels))
        self.assertEqual([frame for frame in self.frames if frame != ("0", "0", "0")], [], "stack frames and spills")

    def test_the_machine_code_is_as_recorded(self):
        """Wide loads and stores are what the memory's speed depends on, so a change of them is to be seen."""
        tool = cuobjdump()
        if not tool:
            self.skipTest("no cuobjdump: it is neither in build/cuda nor on PATH")
        found = {gpu: {name: dict(used) for (of, name), used in self.kernels.items() if of == gpu} for gpu in self.images()}
        for gpu, image in self.images().items():
            with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
                file.write(image)
                file.flush()
                # It runs nvdisasm, which is beside it.
                code = printed(tool, "-sass", file.name, PATH=f"{os.path.dirname(tool)}:{os.environ['PATH']}")
                described = printed(tool, "-elf", file.name)
            # "toolkit=128" up to CUDA 12, "toolkit=12.8" later: the driver reads from it whether it is new enough.
            self.assertRegex(described, rf"toolkit=(?:{self.release}|{self.release.replace('.', '')})\b", gpu)
            for part in code.split("Function : ")[1:]:
                name = part.split(maxsplit=1)[0]
                if name in found[gpu]:
                    for what, instruction in INSTRUCTIONS.items():
                        found[gpu][name][what] = len(re.findall(instruction, part))
        with open(os.path.join(ROOT, "tests/golden/kernels.json"), encoding="utf-8") as file:
            recorded = json.load(file)
        if recorded["release"] != self.release:
            self.skipTest(f"the machine code of CUDA {recorded['release']} is recorded, this build has that of {self.release}")
        self.assertEqual(found, recorded["kernels"], "record it in tests/golden/kernels.json, after a measurement on a GPU")


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
        self.assertEqual(checks["nccl"]["facts"]["interface"], "lo")
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

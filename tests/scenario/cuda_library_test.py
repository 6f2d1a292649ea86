"""One build serves hosts with and without a GPU: nothing but libwsync_cuda.so knows of CUDA and NCCL, and that is loaded from
beside the program, from the installation, or refused in words. No GPU."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAMS = [argument for argument in sys.argv[1:] if argument.startswith("/")]
WSYNC, ENGINE, TRAINER = PROGRAMS[:3]
CUDA = PROGRAMS[3] if len(PROGRAMS) > 3 else ""
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


class WhereItIsLookedFor(unittest.TestCase):
    """By the program, copied to a folder of its own."""

    def setUp(self):
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="wsync-"))
        self.addCleanup(shutil.rmtree, self.folder)
        os.mkdir(os.path.join(self.folder, "bin"))
        self.wsync = shutil.copy(WSYNC, os.path.join(self.folder, "bin"))

    def cuda(self, *arguments, name="", cwd=None, **environment):
        """The check `cuda` of the doctor, and how that ended."""
        settings = {key: value for key, value in os.environ.items() if not key.startswith("WSYNC_")}
        command = [name or self.wsync, "doctor", "--json", "--set", f"run_dir={self.folder}/run",
                   "--set", f"state_dir={self.folder}/state", *arguments]
        done = subprocess.run(command, executable=self.wsync, env=settings | environment, cwd=cwd, text=True,
                              capture_output=True, timeout=60)
        checks = json.loads(done.stdout)["result"]["checks"]
        return done.returncode, next(check for check in checks if check["name"] == "cuda")

    def put(self, at, text="not a library\n"):
        path = os.path.join(self.folder, at)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_without_it_nothing_is_wrong(self):
        code, check = self.cuda()
        self.assertEqual((code, check["status"], check["advice"]), (0, "ok", ""), check)
        self.assertEqual(check["found"], "no CUDA backend (device kind cuda needs libwsync_cuda.so, which is not there)")

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
        self.assertIn("which is not there", check["found"])
        _, check = self.cuda(WSYNC_CUDA_LIBRARY="libwsync_cuda.so")
        self.assertIn("WSYNC_CUDA_LIBRARY is 'libwsync_cuda.so', expected the absolute path", check["found"])

    @unittest.skipUnless(CUDA, "this build has no CUDA backend")
    def test_the_backend_of_this_build_is_loaded(self):
        _, check = self.cuda(WSYNC_CUDA_LIBRARY=CUDA)
        for words in ("which is not there", "cannot be loaded", "another build", "has no wsync_cuda_backend"):
            self.assertNotIn(words, check["found"])


if __name__ == "__main__":
    unittest.main()

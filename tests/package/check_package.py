"""Installs this build into a directory of its own and builds a consumer project against it.

Usage: check_package.py BUILD_DIR CMAKE cuda|host
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD, CMAKE, BACKEND = sys.argv[1:4]
HERE = os.path.dirname(os.path.abspath(__file__))


def run(*command):
    done = subprocess.run(command, text=True, capture_output=True)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.mkdtemp(prefix="wsync-package-")
        cls.prefix = os.path.join(cls.directory, "prefix")
        run(CMAKE, "--install", BUILD, "--prefix", cls.prefix, "--strip")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.directory)

    def find(self, name):
        found = [os.path.join(at, name) for at, _, files in os.walk(self.prefix) if name in files]
        self.assertEqual(len(found), 1, f"{name} in {self.prefix}: {found}")
        return found[0]

    def test_everything_is_there_and_the_command_runs(self):
        for name in ("wsync/engine.h", "wsync/reader.h", "wsync/trainer.h", "wsync/types.h"):
            self.assertTrue(os.path.isfile(os.path.join(self.prefix, "include", name)), name)
        for name in ("libwsync_engine.so", "libwsync_trainer.so", "libwsync_engine.a", "libwsync_trainer.a",
                     "sidecar.yaml", "train.yaml", "trainer.yaml", "alerts.yml", "prometheus.yml", "wsync.json", "LICENSE", "wsyncConfig.cmake"):
            self.find(name)
        schemas = os.path.join(HERE, "..", "..", "deploy", "cli", "schema")
        self.assertEqual(sorted(os.listdir(os.path.dirname(self.find("envelope.json")))), sorted(os.listdir(schemas)))
        self.assertIn("trainer", run(os.path.join(self.prefix, "bin", "wsync"), "--help"))
        for word in ("engine", "train", "bench"):
            if not os.path.exists(os.path.join(self.prefix, "bin", f"wsync-{word}")):
                continue  # left out of this build
            self.assertIn(f"Usage: wsync {word}", run(os.path.join(self.prefix, "bin", "wsync"), word, "--help"))

    def test_the_program_that_draws_is_installed_where_the_benchmarks_find_it(self):
        if not os.path.exists(os.path.join(self.prefix, "bin", "wsync-bench")):
            self.skipTest("this build has no benchmarks")
        self.find("publish.py")
        script = os.path.realpath(self.find("plot.py"))
        page = os.path.join(self.directory, "page.html")
        results = os.path.join(HERE, "..", "..", "bench", "results", "2026-11-23-overhead-30-rounds-2-core-epyc.json")
        command = (os.path.join(self.prefix, "bin", "wsync"), "bench", "report", results, "--output", page)
        run(*command)
        self.assertGreater(os.path.getsize(page), 1000)
        os.remove(script)
        done = subprocess.run(command, text=True, capture_output=True)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn(f"{script} does not exist", done.stderr)

    def test_the_shared_libraries_show_their_c_symbols_alone(self):
        for side, prefixes in (("engine", ("wsync_engine_", "wsync_reader_")), ("trainer", ("wsync_trainer_",))):
            listed = run("nm", "-D", "--defined-only", self.find(f"libwsync_{side}.so")).splitlines()
            names = [line.split()[-1] for line in listed]
            self.assertGreater(len(names), 8)
            self.assertEqual([n for n in names if not n.startswith(prefixes)], [])

    @unittest.skipUnless(BACKEND == "cuda", "this build has no CUDA backend")
    def test_the_cuda_backend_is_installed_where_the_command_finds_it(self):
        library = self.find("libwsync_cuda.so")
        with open(library, "r+b") as file:  # what the loader then says names the file that it found
            file.truncate(16)
        done = subprocess.run([os.path.join(self.prefix, "bin", "wsync"), "doctor", "--json"], text=True, capture_output=True)
        found = [check["found"] for check in json.loads(done.stdout)["result"]["checks"] if check["name"] == "cuda"]
        self.assertEqual(len(found), 1, done.stdout)
        self.assertIn(f"{os.path.realpath(library)} cannot be loaded", found[0])

    def consumer(self, kind, *settings):
        build = os.path.join(self.directory, kind)
        run(CMAKE, "-G", "Ninja", "-S", os.path.join(HERE, "consumer"), "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}", *settings)
        run(CMAKE, "--build", build)
        said = run(os.path.join(build, "consumer"))
        self.assertIn("did you mean bucket_bytes?", said)
        self.assertIn("engine: refused", said)

    def test_a_consumer_of_the_shared_libraries(self):
        self.consumer("shared")

    def test_a_consumer_of_the_static_libraries(self):
        self.consumer("static", "-DWSYNC_COMPONENTS=static", "-DWSYNC_SUFFIX=_static")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])

"""What the scripts say before a long build."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

LIBRARY = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "lib.sh"
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(files LANGUAGES C)
foreach(number RANGE 1 24)
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/${number}.c "int f${number}(void) { return ${number}; }\\n")
  list(APPEND sources ${CMAKE_CURRENT_BINARY_DIR}/${number}.c)
endforeach()
add_library(many STATIC ${sources})
list(GET sources 0 first)
add_library(few STATIC ${first})
"""


def run(command, *arguments):
    return subprocess.run(["bash", "-euo", "pipefail", "-c", f". {LIBRARY}; {command}", "test", *map(str, arguments)], text=True,
                          capture_output=True, check=True, timeout=60).stdout.strip()


class Estimate(unittest.TestCase):
    def test_it_is_said_of_long_builds_alone(self):
        self.assertEqual(run('estimate_text "$@"', 120, 2), "builds about 120 files: 10 to 20 minutes on 2 cores the first time")
        self.assertEqual(run('estimate_text "$@"', 20, 1), "builds about 20 files: 4 to 7 minutes on 1 core the first time")
        self.assertEqual(run('estimate_text "$@"', 120, 64), "builds about 120 files: about 1 minute on 64 cores the first time")
        for files in (0, 1, 19):
            self.assertEqual(run('estimate_text "$@"', files, 2), "")

    @unittest.skipUnless(shutil.which("ninja"), "there is no ninja")
    def test_files_are_counted_for_each_target(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "CMakeLists.txt").write_text(PROJECT, encoding="utf-8")
            build = os.path.join(folder, "build")
            subprocess.run(["cmake", "-G", "Ninja", "-S", folder, "-B", build], check=True, capture_output=True, timeout=60)
            self.assertEqual(run('files_to_build "$@"', build, "many"), "24")
            self.assertEqual(run('files_to_build "$@"', build, "few"), "1")
            self.assertEqual(run('files_to_build "$@"', build), "25")
            said = run('build "$@"', build, "many")
            self.assertRegex(said, "^== builds about 24 files: ")
            self.assertEqual(run('files_to_build "$@"', build, "many"), "0")
            self.assertNotIn("builds about", run('build "$@"', build))


if __name__ == "__main__":
    unittest.main()

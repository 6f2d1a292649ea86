"""How deploy/test.sh reports tests that were skipped: one line for each reason."""
import os
import pathlib
import subprocess
import tempfile
import unittest

LIBRARY = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "lib.sh"
# What ctest keeps of a GoogleTest case that skips itself.
CASE = """[ RUN      ] {name}
/tests/gpu.cc:12: Skipped
{reason}

[  SKIPPED ] {name} (0 ms)
"""
NO_GPU = "no GPU here: libcuda.so.1 is missing"


class Skipped(unittest.TestCase):
    def printed(self, log, summary=""):
        with tempfile.TemporaryDirectory() as folder:
            kept = os.path.join(folder, "Testing", "Temporary")
            os.makedirs(kept)
            pathlib.Path(kept, "LastTest.log").write_text(log, encoding="utf-8")
            pathlib.Path(folder, "ctest.out").write_text(summary, encoding="utf-8")
            done = subprocess.run(["bash", "-c", f". '{LIBRARY}' && print_skipped '{folder}' '{folder}/ctest.out'"],
                                  text=True, capture_output=True, check=True)
            return done.stdout.splitlines()

    def test_a_reason_of_many_tests_takes_one_line(self):
        log = "".join(CASE.format(name=f"Gpu.Case{i}", reason=NO_GPU) for i in range(60))
        log += CASE.format(name="Port.Six", reason="this host has no IPv6 loopback")
        self.assertEqual(self.printed(log), [f"  60: {NO_GPU} (Gpu.Case0, Gpu.Case1, Gpu.Case2 and 57 more)",
                                             "  1: this host has no IPv6 loopback (Port.Six)"])

    def test_a_program_that_says_why_and_a_test_that_did_not_run(self):
        self.assertEqual(self.printed("skip: spin is not installed\n", "\t 12 - gpu_all (Not Run)\n"),
                         ["  1: Not Run (gpu_all)", "  1: spin is not installed"])

    def test_cases_of_python_programs(self):
        log = ("test_a (x.Y.test_a) ... skipped 'no older build'\ntest_b (x.Y.test_b) ... ok\n"
               "test_c (x.Y.test_c)\nWhat it shows. ... skipped 'no older build'\ntest_d (x.Y.test_d) ... skipped \"it's late\"\n")
        self.assertEqual(self.printed(log), ["  2: no older build (test_a, test_c)", "  1: it's late (test_d)"])

    def test_nothing(self):
        self.assertEqual(self.printed("[ RUN      ] A.B\n[       OK ] A.B (0 ms)\n"), ["  none"])


if __name__ == "__main__":
    unittest.main()

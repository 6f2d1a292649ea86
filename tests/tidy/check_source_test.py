"""The checker itself, on small trees made for each case."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import check_source  # noqa: E402  (found beside this file)


class CheckSource(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.add("shared/base/error.h", "#pragma once\n")
        self.add("shared/loop/loop.h", "#pragma once\n")
        self.add("trainer_side/publish/round.h", "#pragma once\n")
        self.add("inference_side/staging/store.h", "#pragma once\n")

    def add(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def broken(self):
        return [str(finding) for finding in check_source.check_tree(self.root)[0]]

    def listed(self):
        return [str(finding) for finding in check_source.check_tree(self.root)[1]]

    def test_includes_that_follow_the_rules(self):
        self.add("shared/loop/loop.cc", '#include <uv.h>\n#include <vector>\n#include "shared/base/error.h"\n')
        self.add("inference_side/engine_link/e.c", '#include "wsync/engine.h"\n#include "shared/loop/loop.h"\n')
        self.add("tests/unit/t.cc", '#include <gtest/gtest.h>\n#include "trainer_side/publish/round.h"\n')
        self.add("deploy/cli/main.cc", '#include <CLI/CLI.hpp>\n#include "inference_side/staging/store.h"\n')
        self.assertEqual(self.broken(), [])

    def test_the_two_sides_never_include_each_other(self):
        self.add("trainer_side/publish/a.cc", '\n#include "inference_side/staging/store.h"\n')
        self.add("inference_side/reload/b.cc", '#include "trainer_side/publish/round.h"\n')
        self.assertEqual(
            self.broken(),
            [
                'trainer_side/publish/a.cc:2: "inference_side/staging/store.h" must not be included here; '
                "rule: trainer_side includes shared",
                'inference_side/reload/b.cc:1: "trainer_side/publish/round.h" must not be included here; '
                "rule: inference_side includes shared",
            ],
        )

    def test_shared_points_down_only(self):
        self.add("shared/base/a.cc", '#include "shared/loop/loop.h"\n')
        self.add("shared/control/b.cc", '#include "shared/transport/stream.h"\n')
        self.add("shared/transport/stream.h", '#include "trainer_side/publish/round.h"\n')
        self.add("trainer_side/c.cc", '#include "tests/helper.h"\n')
        self.add("tests/helper.h", "")
        self.assertEqual(len(self.broken()), 4)
        self.assertIn("shared/base includes nothing else of the tree", self.broken()[0])

    def test_third_party_headers_have_one_folder(self):
        for header, allowed, refused in (
            ("yaml-cpp/yaml.h", "shared/config/a.cc", "deploy/cli/b.cc"),
            ("zmq.hpp", "shared/control/zmq/a.cc", "shared/control/b.cc"),
            ("uv.h", "shared/transport/tcp/a.cc", "shared/transport/b.cc"),
            ("cuda_runtime.h", "shared/device/cuda/a.cc", "shared/device/b.cc"),
            ("fmt/format.h", "shared/base/a.cc", "shared/weights/b.cc"),
        ):
            with self.subTest(header=header):
                self.add(allowed, f"#include <{header}>\n")
                self.assertEqual(self.broken(), [])
                self.add(refused, f'#include "{header}"\n')
                self.assertEqual(len(self.broken()), 1)
                self.assertIn(f"{refused}:1: <{header}> must not be included here; rule:", self.broken()[0])
                (self.root / refused).unlink()

    def test_includes_start_at_the_root(self):
        self.add("shared/base/error.cc", '#include "error.h"\n')
        self.add("shared/base/gone.cc", '#include "shared/base/gone.h"\n')
        self.add("shared/base/angle.cc", "#include <shared/base/error.h>\n")
        self.assertEqual(len(self.broken()), 3)

    def test_comments_and_strings_are_not_includes(self):
        self.add("shared/base/a.cc", '/*\n#include <zmq.hpp>\n*/\n// #include <uv.h>\nauto x = R"(\n)";\n')
        self.assertEqual(self.broken(), [])
        self.add("shared/base/b.cc", "const int n = 1'000'000;\n#include <zmq.hpp>\n")
        self.assertEqual(len(self.broken()), 1)

    def test_long_files_and_functions_are_listed_only(self):
        body = "  work();\n"
        self.add("shared/base/a.cc", "void f(int x) {\n" + "  if (x) { }\n" * 70 + "}\nvoid g() {\n" + body * 69 + "}\n")
        self.add("shared/base/b.cc", "namespace n {\nclass C {\n" + "  int x;\n" * 500 + "};\n}\n")
        self.assertEqual(self.broken(), [])
        self.assertEqual(
            self.listed(),
            [
                "shared/base/a.cc:1: a function of 71 lines (more than 70)",
                "shared/base/b.cc:1: a file of 504 lines (more than 500)",
            ],
        )

    def test_large_classes_say_why(self):
        many = "".join(f"  void f{i}();\n" for i in range(26))
        self.add("shared/loop/many.h", f"class Many {{\n{many}}};\n")
        self.add("shared/loop/said.h", f"// It has more than 25 methods: one for each event.\nclass Said {{\n{many}}};\n")
        self.add("shared/loop/few.h", "class Few {\n  void f() { if (a(1)) b(2); }\n  using F = void();\n};\n")
        self.add("shared/loop/long.h", "class Long {\n  void f();\n};\n")
        self.add("shared/loop/long.cc", "void Long::f() {\n" + "  a();\n" * 350 + "}\n")
        self.add("tests/many.h", f"class Fixture {{\n{many}}};\n")
        rule = "rule: at most 25 and 350, or a comment with 'more than 25 methods' and why"
        self.assertEqual(
            self.broken(),
            [
                f"shared/loop/long.h:1: class Long has 1 methods and 352 lines of them; {rule}",
                f"shared/loop/many.h:1: class Many has 26 methods and 0 lines of them; {rule}",
            ],
        )

    def test_old_words_are_refused_in_code_alone(self):
        self.add("shared/loop/words.cc", "// tell_peers\nvoid f() { g(\"patience\", at_least, most_likely); }\n")
        self.add("trainer_side/old.cc", "int kRowsMost;\nvoid carry_out(int least_rank);\n")
        self.assertEqual(
            self.broken(),
            [
                f"trainer_side/old.cc:{line}: '{word}' is an old word; rule: the table of words in shared/README.md"
                for line, word in ((1, "kRowsMost"), (2, "carry_out"), (2, "least_rank"))
            ],
        )

    def test_the_exit_status_says_it(self):
        def run():
            command = [sys.executable, str(HERE / "check_source.py"), str(self.root)]
            return subprocess.run(command, capture_output=True, text=True, check=False).returncode

        self.assertEqual(run(), 0)
        self.add("shared/base/a.cc", "#include <zmq.hpp>\n")
        self.assertEqual(run(), 1)

    def test_a_tree_without_sources_is_not_a_pass(self):
        with tempfile.TemporaryDirectory() as empty:
            self.assertEqual(check_source.main([empty]), 2)


if __name__ == "__main__":
    unittest.main()

"""The four programs: how one finds the other, what is said when it is not there, and who links what."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from fleet import DEADLINE_S, Fleet

WSYNC = sys.argv.pop()
FOLDER = os.path.dirname(WSYNC)
OTHERS = {"engine": "wsync-engine", "train": "wsync-train", "schedule": "wsync-train", "bench": "wsync-bench"}


def run(*command, path="/usr/bin:/bin"):
    return subprocess.run(command, text=True, capture_output=True, timeout=300, env={**os.environ, "PATH": path})


class Programs(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="wsync-programs-")
        self.addCleanup(temporary.cleanup)
        # A copy that has nothing beside it.
        self.alone = shutil.copy(WSYNC, temporary.name)
        self.elsewhere = os.path.join(temporary.name, "elsewhere")
        os.mkdir(self.elsewhere)

    def test_a_word_runs_the_program_that_has_it(self):
        for word, program in OTHERS.items():
            if not os.path.exists(os.path.join(FOLDER, program)):
                continue
            by_word = run(WSYNC, word, "--help")
            self.assertEqual((by_word.returncode, by_word.stderr), (0, ""), word)
            self.assertIn(f"Usage: wsync {word}", by_word.stdout)
            own = run(os.path.join(FOLDER, program), *(["schedule"] if word == "schedule" else []), "--help")
            self.assertEqual((own.returncode, own.stdout), (0, by_word.stdout), program)
            # Found in PATH as well, and what it answers is its exit code.
            if not os.path.exists(os.path.join(self.elsewhere, program)):
                os.symlink(os.path.join(FOLDER, program), os.path.join(self.elsewhere, program))
            found = run(self.alone, word, "--no-such-option", path=self.elsewhere)
            self.assertEqual(found.returncode, 2, found.stdout + found.stderr)
            self.assertIn(f"wsync {word}: ", found.stderr)

    def test_one_that_is_not_there_is_named_with_what_to_do(self):
        for word, program in OTHERS.items():
            missing = run(self.alone, word, "--help", path=self.elsewhere)
            self.assertEqual((missing.returncode, missing.stdout), (2, ""), word)
            self.assertEqual(missing.stderr,
                             f"wsync {word}: the program {program} is not installed: it is neither in "
                             f"{os.path.dirname(os.path.realpath(self.alone))} nor in PATH; the Python package does not have it: "
                             f"build the tree of wsync, and add the folder of its {program} to PATH\n")
            told = json.loads(run(self.alone, word, "--json", path=self.elsewhere).stdout)
            self.assertEqual((told["command"], told["ok"], told["error"]["code"]), (word, False, "not_found"))
        # The demonstration needs other programs too, and begins nothing without them.
        demo = run(self.alone, "demo", path=self.elsewhere)
        self.assertEqual((demo.returncode, demo.stdout), (2, ""))
        self.assertIn("the program wsync-engine is not installed", demo.stderr)
        # A folder of that name is no program.
        os.mkdir(os.path.join(self.elsewhere, "wsync-bench"))
        self.assertEqual(run(self.alone, "bench", "list", path=self.elsewhere).returncode, 2)

    @unittest.skipUnless(os.path.exists(os.path.join(FOLDER, "wsync-train")), "this build has no wsync-train")
    def test_a_trainer_with_a_training_configuration_becomes_the_training_program(self):
        with Fleet(WSYNC) as fleet:
            config = fleet.path("train.yaml")
            with open(config, "w", encoding="utf-8") as file:
                file.write("steps: 100000\nparallel:\n  pp: 1\n")
            trainer = fleet.start("trainer", "-c", config, "--events", "--json")
            program = lambda: os.path.basename(os.readlink(f"/proc/{trainer.pid}/exe"))
            fleet.until(lambda: program() == "wsync-train", "the other program in the same process")
            events = (json.loads(line) for line in trainer.stdout)
            self.assertEqual(next(event for event in events if event.get("event") == "step")["step"], 1)
            trainer.send_signal(signal.SIGTERM)
            *_, last = events
            self.assertEqual(last["command"], "train")
            self.assertEqual(trainer.wait(timeout=DEADLINE_S), 130)  # interrupted
        # Without one its options are nobody's, and the sentence says whose they are.
        refused = run(WSYNC, "trainer", "--sequential")
        self.assertEqual((refused.returncode, refused.stdout), (2, ""))
        self.assertIn("unexpected arguments: --sequential (options of a training run belong to `wsync train`)", refused.stderr)
        missing = run(self.alone, "trainer", "--set", "steps=3", path=self.elsewhere)
        self.assertEqual(missing.returncode, 2)
        self.assertIn("the program wsync-train is not installed", missing.stderr)

    def test_completion_knows_the_words_of_the_programs_that_are_there(self):
        here = run(WSYNC, "completion", "bash").stdout
        self.assertIn('" engine"', here)
        if os.path.exists(os.path.join(FOLDER, "wsync-bench")):
            self.assertRegex(here, r'" bench sync"\) choices="[^"]*--engines')
        alone = run(self.alone, "completion", "bash", path=self.elsewhere).stdout
        self.assertRegex(alone, r'"sidecar|" sidecar"')
        self.assertNotIn('" bench sync"', alone)
        self.assertNotRegex(alone, r'""\) choices="[^"]*\bbench\b')

    def test_the_help_lists_what_is_there(self):
        here = run(WSYNC, "--help").stdout
        alone = run(self.alone, "--help", path=self.elsewhere).stdout
        for word, program in OTHERS.items():
            listed = rf"^  {word} +.*\({program}\)$"
            if os.path.exists(os.path.join(FOLDER, program)):
                self.assertRegex(re.sub(r"\n {20,}", " ", here), "(?m)" + listed)
            self.assertNotRegex(alone, rf"(?m)^  {word} ")
        missing = re.search(r"Not part of this installation: ([^.]*)\.\s+A build\s+of the source tree has them", alone)
        self.assertTrue(missing, alone)
        self.assertEqual(set(re.split(r",\s+", missing[1])), {"demo", *OTHERS})
        if all(os.path.exists(os.path.join(FOLDER, program)) for program in OTHERS.values()):
            self.assertNotIn("Not part of this installation", here)

    def test_the_service_links_nothing_of_training(self):
        libraries = run("ldd", WSYNC).stdout
        self.assertIn("libzmq", libraries)
        self.assertLessEqual(len(libraries.splitlines()), 40, libraries)
        self.assertEqual(re.findall(r"\S*(?:gloo|blas|gfortran|hiredis|ibverbs)\S*", libraries), [])


if __name__ == "__main__":
    unittest.main()

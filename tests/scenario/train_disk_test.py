"""A disk that is full when a training run saves its state: a warning while there is another save to come, and an error at the last."""
import os
import re
import signal
import subprocess
import sys
import unittest

from training import TINY, TINY_DATA, TrainingFleet, digests

WSYNC = sys.argv.pop()

PAGE_BYTES = 4096
VALUES = TINY | {"parallel.dp": 2}
ENDLESS = VALUES | {"steps": 1_000_000, "save.every": 20}


class SmallDisk:
    """A file system of some bytes in a mount namespace of its own, where a fleet's processes see it as `directory`."""

    def __init__(self, fleet, size):
        self.fleet = fleet
        self.directory = fleet.path("disk")
        os.mkdir(self.directory)
        script = 'mount -t tmpfs -o size="$1" none "$2" && echo mounted && exec cat'
        self.holder = subprocess.Popen(["unshare", "-rm", "sh", "-c", script, "sh", str(size), self.directory], text=True,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if self.holder.stdout.readline() != "mounted\n":
            why = self.holder.communicate()[1].strip()
            raise unittest.SkipTest(f"no file system can be mounted here: {why}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.holder.communicate()

    def seen(self, name=""):
        """A path of it as this process sees it."""
        return os.path.join(f"/proc/{self.holder.pid}/root{self.directory}", name)

    def fill(self):
        with open(self.seen("ballast"), "wb") as file:
            try:
                while True:
                    os.write(file.fileno(), bytes(PAGE_BYTES))
            except OSError:
                pass

    def training(self, values):
        program = self.fleet.wsync
        inside = self.fleet.path("inside")
        with open(inside, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec nsenter -t {self.holder.pid} -U -m --preserve-credentials {program} "$@"\n')
        os.chmod(inside, 0o700)
        self.fleet.wsync = inside
        try:
            return self.fleet.training(values | {"save.directory": self.directory})
        finally:
            self.fleet.wsync = program


def pages(directory):
    """Bytes that its files take on a disk."""
    return sum(-(-os.path.getsize(os.path.join(directory, path)) // PAGE_BYTES) * PAGE_BYTES for path in digests(directory))


class FullDisk(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.fleet = TrainingFleet(WSYNC)
        cls.addClassCleanup(cls.fleet.__exit__, None, None, None)
        cls.saved = cls.fleet.path("saved")
        cls.fleet.trained(VALUES | {"steps": 6, "save.every": 2, "save.directory": cls.saved})
        cls.one = pages(f"{cls.saved}/step_2")

    def test_a_save_that_fails_is_a_warning_and_the_last_one_an_error(self):
        with TrainingFleet(WSYNC) as fleet, SmallDisk(fleet, self.one * 3 // 2) as disk:
            code, answer, log = disk.training(VALUES | {"steps": 6, "save.every": 2}).result()
            self.assertEqual(code, 1, log)
            for word in ("step_6", "No space left on device"):
                self.assertIn(word, answer["error"]["message"])
            warned = [line for line in log.splitlines() if "step_4" in line]
            self.assertEqual(len(warned), 1, log)
            self.assertIn("No space left on device", warned[0])
            # What was saved before is whole, and nothing else is there.
            self.assertEqual(os.listdir(disk.seen()), ["step_2"])
            self.assertEqual(digests(disk.seen("step_2")), digests(f"{self.saved}/step_2"))
            again = fleet.path("again")
            fleet.trained(TINY_DATA | {"parallel.dp": 2, "steps": 6, "save.directory": again}, "--resume",
                          disk.seen("step_2"))
            self.assertEqual(digests(f"{again}/step_6"), digests(f"{self.saved}/step_6"))

    def test_the_next_save_succeeds_when_there_is_room_again(self):
        with TrainingFleet(WSYNC) as fleet, SmallDisk(fleet, self.one * 100) as disk:
            disk.fill()
            run = disk.training(ENDLESS)
            run.until_step(45)
            os.unlink(disk.seen("ballast"))
            run.until(lambda: "saved /" in run.log(), "a state that is saved")
            run.send(signal.SIGINT)
            code, answer, log = run.result()
            self.assertEqual(code, 130, log)
            result = answer["result"]
            failed = [int(step) for step in re.findall(r"step (\d+) is not saved: .*No space left on device", log)]
            self.assertEqual(failed[:2], [20, 40], log)
            saved = {one["step"] for one in result["saved"]}
            self.assertFalse(saved & set(failed))
            self.assertEqual(set(os.listdir(disk.seen())), {f"step_{step}" for step in saved})


if __name__ == "__main__":
    unittest.main()

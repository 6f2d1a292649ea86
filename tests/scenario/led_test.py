"""A replica of two ranks whose steps are led, under many versions: the C example, which also holds its tensor in F32 although the
versions have it in BF16."""
import os
import struct
import subprocess
import sys
import unittest

import tensors
from fleet import DEADLINE_S, Fleet

WSYNC, LED = sys.argv[-2:]
NAME, ROWS, COLUMNS = "model.norms.weight", 64, 513  # a rank's part is no whole number of words of a sum
VERSIONS = 60
FOUND = 3  # the follower has found that its leader steps under another version


class LedFleet(Fleet):
    def __init__(self, *settings):
        super().__init__(WSYNC)
        self.settings = settings

    def __enter__(self):
        super().__enter__()
        _, self.engines = self.sidecar("s0", *self.settings)
        self.start("trainer")
        return self

    def led(self, versions, *more):
        with self.log() as log:
            process = subprocess.Popen([LED, self.engines, "a", NAME, str(ROWS), str(COLUMNS), str(versions), *more],
                                       env=self.environment, text=True, stdout=subprocess.PIPE, stderr=log)
        process.log_path = log.name
        self.processes.append(process)
        self.until(lambda: self.replicas().get("a", {}).get("ranks_attached") == 2, "both ranks")
        return process

    def version(self, value):
        """A checkpoint whose elements all have this value."""
        path = self.path(f"value_{value}")
        if not os.path.exists(path):
            os.makedirs(path)
            header, size = tensors.layout({NAME: [ROWS, COLUMNS]})
            element = struct.pack("<f", value)[2:]
            tensors.write_file(os.path.join(path, "model.safetensors"), header, element * (size // 2))
        return path

    def said(self, process):
        with open(process.log_path, encoding="utf-8") as file:
            return file.read()


class Led(unittest.TestCase):
    def test_no_step_mixes_two_versions(self):
        self.no_step_mixes()

    def test_no_step_mixes_two_versions_on_a_separate_device(self):
        self.no_step_mixes("--set", "devices.kind=separate")

    def no_step_mixes(self, *settings):
        with LedFleet(*settings) as fleet:
            process = fleet.led(VERSIONS)
            for number in range(1, VERSIONS + 1):
                code, answer = fleet.ask("push", fleet.version(number % 7 + 1))
                self.assertEqual(code, 0, f"{answer}\n{fleet.said(process)}")
                if number == 2:
                    code, answer = fleet.ask("verify")  # what was widened is compared
                    self.assertEqual(code, 0, answer)
                    self.assertEqual([rank["bytes"] for rank in answer["result"]["ranks"]], [ROWS * COLUMNS] * 2, answer)
            out, _ = process.communicate(timeout=DEADLINE_S)
            self.assertEqual(process.returncode, 0, fleet.said(process))
            steps, versions = (int(word) for word in out.split() if word.isdigit())
            self.assertEqual(versions, VERSIONS, out)
            self.assertGreaterEqual(steps, VERSIONS, out)

    def test_a_leader_that_steps_under_its_old_version_is_found(self):
        with LedFleet() as fleet:
            process = fleet.led(VERSIONS, "stale")
            self.assertEqual(fleet.ask("push", fleet.version(1))[0], 0, fleet.said(process))
            fleet.ask("push", fleet.version(2))  # its outcome depends on when the process ends
            self.assertEqual(process.wait(DEADLINE_S), FOUND, fleet.said(process))
            self.assertRegex(fleet.said(process),
                             r"replica a rank 1 holds version 1\.2, but its leader begins step \d+ under version 1\.1")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:-2])
